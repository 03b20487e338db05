"""What trials of a search cost: CPU time and arithmetic of a training step, and of the run over the first trial's run.

    OMP_NUM_THREADS=1 python tests/benchmarks/recipe_step.py --trials train/search.yaml [--only NAME ...]

One thread, forward, backward and optimizer, images already cropped. Trials take turns; the best of their rounds counts,
of CPU time rather than wall clock, so that a busy machine disturbs little. GFLOP are those of matrix products, the
optimizer's among them. `cost` is step time x steps, over that of the first trial.
"""

import argparse
import time
from typing import Any

import torch
from aotadmm_timm.engine.plugin import import_plugin
from torch.utils.flop_counter import FlopCounterMode

from aotadmm_timm.cli import arguments_from, build, read_yaml
from aotadmm_timm.engine.backbone import create_backbone
from aotadmm_timm.engine.optimizer import make_optimizer
from aotadmm_timm.engine.pretrain_script import MethodScript
from aotadmm_timm.engine.training_images import multi_crop
from aotadmm_timm.methods.base import Plan
from aotadmm_timm.methods.lejepa import LeJEPA
from aotadmm_timm.methods.multi_view import Views

SCRIPT = MethodScript("lejepa", projector=(512, 512, 64))


class Step:
    """A trial's step on random images; calling it trains."""

    def __init__(self, options: dict[str, Any]) -> None:
        options = {**read_yaml(options["config"]), **options}
        for key in ("config", "cost"):
            options.pop(key, None)
        cfg = build(SCRIPT.Config, options)
        if cfg.import_:
            import_plugin(cfg.import_)
        crop = multi_crop(cfg)
        sizes = [cfg.img_size or crop.global_size, crop.global_size] + ([crop.local_size] if crop.num_local else [])
        torch.manual_seed(0)
        backbone, _, _ = create_backbone(cfg.model, sizes, model_kwargs=cfg.model_kwargs)
        self.method = LeJEPA(backbone, **arguments_from(cfg, SCRIPT.outline, supplied=("backbone",)))
        per_epoch = cfg.num_samples // cfg.batch_size
        self.steps = cfg.epochs * per_epoch
        self.method.begin(Plan(self.steps, per_epoch, cfg.batch_size, crop.num_global, crop.num_local))
        self.optimizer = make_optimizer(cfg, self.method, prefix="backbone.")
        shapes = ((crop.num_global, crop.global_size), (crop.num_local, crop.local_size))
        views = [torch.randn(n, cfg.batch_size, 3, size, size) if n else None for n, size in shapes]
        assert views[0] is not None
        self.views = Views(views[0], views[1])

    def __call__(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16):
            loss = self.method(self.views, 0).loss
        loss.backward()
        self.optimizer.step()

    def seconds(self) -> float:
        began = time.process_time()
        self()
        return time.process_time() - began

    def gflop(self) -> float:
        with FlopCounterMode(display=False) as counter:
            self()
        return counter.get_total_flops() / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", default="train/search.yaml")
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    search = read_yaml(args.trials)
    steps = {name: Step({**search["base"], **(search["trials"][name] or {})}) for name in args.only or search["trials"]}
    best = {name: step.seconds() for name, step in steps.items()}
    for _ in range(args.rounds):
        best = {name: min(best[name], step.seconds()) for name, step in steps.items()}
    reference = next(best[name] * step.steps for name, step in steps.items())
    print(f"{'':24}{'ms/step':>9}{'GFLOP/step':>12}{'steps':>7}{'cost':>7}")
    for name, step in steps.items():
        cost = best[name] * step.steps / reference
        print(f"{name:24}{1e3 * best[name]:9.0f}{step.gflop():12.1f}{step.steps:7d}{cost:7.2f}", flush=True)


if __name__ == "__main__":
    main()
