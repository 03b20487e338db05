"""What every training has, in one order: device, run folder, optimizer, average, resume, compile, processes, loop.

session = Session(cfg, name)                     joins the other processes; refuses a folder that holds a run
module = session.prepare(method, batches, ...)   everything that is made once; nothing was written before
session.fit(compute, ...)                        to the end, or to a stop
session.finish(metrics)                          encoder, metrics and figure into the folder
"""

from collections.abc import Callable
from typing import Any

from timm.utils.model_ema import ModelEmaV3
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from aotadmm_timm import distributed
from aotadmm_timm.cli import as_dict
from aotadmm_timm.data import Images
from aotadmm_timm.data.batches import LoaderBatches, MemoryBatches, make_batches
from aotadmm_timm.data.multicrop import MultiCrop
from aotadmm_timm.methods.base import Output
from aotadmm_timm.options import TrainConfig
from aotadmm_timm.precision import amp_dtype
from aotadmm_timm.runs.curves import CurvesInTraining, draw_curves
from aotadmm_timm.runs.environment import command_line, describe
from aotadmm_timm.runs.folder import images_per_second

from .backbone import average_batch_norm, compile_model, image_config, synchronise_batch_norm
from .loop import Loop, fit
from .optimizer import make_optimizer, make_schedule
from .resume import begin, claim, open_run

Batches = MemoryBatches | LoaderBatches


class Session:
    """One training of one model, alone or as one of several processes.

    Args:
        cfg: its options.
        name: of the run folder below runs/, where --output names none.
    Raises: UserError before any work if the folder holds another run.
    """

    def __init__(self, cfg: TrainConfig, name: str) -> None:
        self.cfg = cfg
        self.device = begin(cfg)
        self.environment = describe(self.device)  # now: the commit of the code that runs, not of a later one
        self.run = claim(cfg, f"{name}_{cfg.dataset.strip('./').replace('/', '-')}_s{cfg.seed}")
        self.main, self.world = distributed.is_main(), distributed.world_size()
        self.curves = CurvesInTraining(self.run.path)
        self.seconds = 0.0

    def batches(self, images: Images, crop: MultiCrop) -> Batches:
        """Views of `images` in the order of the run's seed; also says how many workers evaluation should use."""
        cfg = self.cfg
        batches = make_batches(
            images, crop, batch_size=cfg.batch_size, seed=cfg.seed, rank=distributed.rank(), world=self.world,
            accumulate=cfg.accumulate, device=self.device, num_workers=cfg.num_workers,
        )  # fmt: skip
        self.workers = 0 if isinstance(batches, MemoryBatches) else cfg.num_workers
        self.steps_per_epoch = batches.sampler.batches_per_epoch // cfg.accumulate
        self.steps = cfg.epochs * self.steps_per_epoch
        return batches

    def prepare(
        self,
        module: nn.Module,
        model: Any,
        batches: Batches,
        *,
        trained: nn.Module,
        prefix: str = "",
        exported: nn.Module,
        holder: nn.Module | None = None,
        state: dict[str, Any] | None = None,
        config: dict[str, Any],
        layer_decay: float | None = None,
    ) -> nn.Module:
        """Make optimizer, schedule and average; open the run; compile; distribute. Returns the module to call.

        Args:
            module: computes the loss, and holds `model`.
            model: timm model that is trained; it is compiled and averaged.
            trained, prefix, layer_decay: see `make_optimizer`.
            exported: what is evaluated and saved in the end; `model`'s average in its place with --ema.
            holder: what a checkpoint keeps as "method"; `module` if not given.
            state: further parts of a checkpoint, by name.
            config: what config.yaml says beyond the options.
        """
        cfg = self.cfg
        self.model, self._batches = model, batches
        self.optimizer = make_optimizer(cfg, trained, prefix=prefix, layer_decay=layer_decay)
        self.schedule = make_schedule(cfg, self.optimizer, self.steps_per_epoch)
        self.parameters = [p for p in trained.parameters() if p.requires_grad]
        self.ema = ModelEmaV3(model, decay=cfg.ema, use_warmup=True) if cfg.ema else None
        self.encoder: nn.Module = self.ema.module if self.ema else exported
        self.state = {"method": holder or module, "optimizer": self.optimizer, **(state or {})}
        if self.ema:
            self.state["ema"] = self.ema
        train = batches.images
        self.config = {
            **as_dict(cfg),
            **config,
            "pretrained_cfg": image_config(model),
            "classes": list(train.classes),
            "train_images": len(train),
            "world": self.world,
        }
        self.snapshot = open_run(cfg, self.run, self.config, self.steps_per_epoch)
        if cfg.compile:
            compile_model(model, self.device)
        self._no_sync = Loop.no_sync
        if self.world > 1:
            synchronise_batch_norm(model, self.device)
            module = DistributedDataParallel(module, **distributed.OWN_BUFFERS)
            self._no_sync = module.no_sync
        return module

    def images_in_words(self) -> str:
        """How many images there are, and how many no epoch uses: whole batches only."""
        count = self.config["train_images"]
        used = self.steps_per_epoch * self.cfg.batch_size * self.world * self.cfg.accumulate
        return f"{count} images" + (f" ({used} in each epoch, {count - used} left out)" if used < count else "")

    def steps_in_words(self) -> str:
        """Batch and length."""
        batch = self.cfg.batch_size * self.world * self.cfg.accumulate
        return f"global batch {batch}, {self.cfg.epochs} epochs of {self.steps_per_epoch} steps"

    def fit(
        self,
        compute: Callable[[Any, int], Output],
        *,
        weight_decay: Callable[[int, float], float] | None = None,
        after_backward: Callable[[int], None] | None = None,
        after_step: Callable[[int], None] | None = None,
        after_epoch: Callable[[int, Output], dict[str, float]],
    ) -> None:
        """Train to the end; the arguments as in `Loop` and `Method`."""
        cfg = self.cfg
        decays = [group["weight_decay"] for group in self.optimizer.param_groups]  # a resume makes new groups

        def before(step: int) -> None:
            self.schedule.step_update(num_updates=step)
            if weight_decay is not None:
                for group, base in zip(self.optimizer.param_groups, decays, strict=True):
                    group["weight_decay"] = weight_decay(step, base) if base else 0.0

        def after(done: int) -> None:
            average_batch_norm(self.model)
            if after_step:
                after_step(done)
            if self.ema:
                self.ema.update(self.model, step=done)

        loop = Loop(
            compute=compute, batches=self._batches, parameters=self.parameters, optimizer=self.optimizer,
            before_step=before, run=self.run, steps=self.steps, steps_per_epoch=self.steps_per_epoch,
            state=self.state, config=self.config, device=self.device, amp_dtype=amp_dtype(cfg.amp, self.device),
            **cfg.loop_options(), no_sync=self._no_sync, after_backward=after_backward, after_step=after,
            after_epoch=after_epoch,
        )  # fmt: skip
        fit(loop, self.snapshot)
        self.seconds = loop.seconds

    def measures(self) -> dict[str, Any]:
        """What metrics.json says of any run, beside its scores."""
        return {
            "seconds": round(self.seconds, 1),
            "images_per_second": images_per_second(self.run.log_path),
            "train_images": self.config["train_images"],
            "command": command_line(),
            "environment": self.environment,
        }

    def save(self, metrics: dict[str, Any], *, model_args: dict[str, Any] | None = None) -> None:
        """Rank 0 writes the encoder and the metrics so far: what there is, should the scores fail."""
        if self.main:
            self.run.save_encoder(self.encoder, model_args=model_args)
            self.run.write_metrics(metrics)

    def finish(self, metrics: dict[str, Any], *lines: str) -> None:
        """Rank 0 writes metrics and figure, prints `lines` and where everything lies."""
        if self.main:
            self.run.write_metrics(metrics)
            draw_curves(self.run.path)
            self.run.close()
            print("\n".join(["", *lines, f"run folder: {self.run.path}  (open {self.run.path / 'curves.png'} first)"]))
