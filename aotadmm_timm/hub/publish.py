"""From a run or checkpoint to a folder that the Hub can serve, and from there to the Hub in one commit."""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from safetensors.torch import load_file, save_file
from timm.models._hub import save_config_for_hf
from torch import nn

from aotadmm_timm.errors import UserError
from aotadmm_timm.pretrained import Origin, open_model, state_digest

from .card import Run, model_card, read_run, scrub
from .upload import CARD, FIGURE, WEIGHTS, Push

CONFIG = "config.json"


def publish(
    source: str | Path,
    repo_id: str,
    *,
    model: str | None = None,
    license: str | None = None,
    dry_run: str | Path | None = None,
    private: bool = False,
    revision: str | None = None,
    overwrite_card: bool = False,
    timeout: float = 45.0,
) -> str:
    """Push a model with its card to `repo_id`, or write what would be pushed into a folder.

    Args:
        source: as in `open_model`.
        repo_id: ORG/NAME.
        model: registered model name; needed for a file that does not lie in a run or model folder.
        license: the Hub's id of a licence; by default the one in the run's or the model's configuration.
        dry_run: folder to write to instead of pushing; it must not exist or be empty. Needs neither network nor token.
        private: make a new repository private; by default the owner's setting decides.
        revision: branch to commit to; made if missing.
        overwrite_card: replace a README.md that is already there.
        timeout: seconds without any sign of life from the Hub after which the push is given up.
    Returns: the commit's URL, or the folder of a dry run.
    Raises: UserError in one line. Nothing has changed on the Hub then, and pushing again is safe.
    """
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise UserError(f"{repo_id!r} is not a Hub id ORG/NAME: {error}") from error
    if "/" not in repo_id:
        raise UserError(f"{repo_id!r} is not a Hub id: expected ORG/NAME")
    if dry_run is not None and Path(dry_run).exists() and (not Path(dry_run).is_dir() or any(Path(dry_run).iterdir())):
        raise UserError(f"--dry-run {dry_run}: already exists and is not an empty folder")
    with tempfile.TemporaryDirectory(prefix="push-") as scratch:
        folder = Path(scratch) / "model"
        prepare(source, folder, repo_id=repo_id, model=model, license=license)
        if dry_run is not None:
            target = Path(dry_run)
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f"{target.name}.", dir=target.parent) as aside:
                os.replace(shutil.copytree(folder, Path(aside) / "model"), target)
            return str(dry_run)
        architecture = json.loads((folder / CONFIG).read_text(encoding="utf-8"))["architecture"]
        push = Push(
            folder,
            repo_id,
            f"Push {architecture} with aotadmm_timm",
            private=private,
            revision=revision,
            overwrite_card=overwrite_card,
            timeout=timeout,
        )
        try:
            return push.run()
        except UserError as err:
            raise type(err)(scrub(str(err))) from None
        finally:
            for note in push.notes:
                print(f"note: {note}", file=sys.stderr)


def prepare(
    source: str | Path, folder: Path, *, repo_id: str, model: str | None = None, license: str | None = None
) -> None:
    """Write model.safetensors, config.json, README.md and, for a run that has one, the loss figure into `folder`.

    The folder is read back before this returns: the same weights, bit for bit, in a model that gives the same outputs.
    Raises: UserError naming what is missing or wrong with `source`.
    """
    network, origin = open_model(source, model=model)
    run = records(origin)
    state = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in network.state_dict().items()}
    for name, tensor in state.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise UserError(f"{source}: {name} holds values that are not finite; a diverged model is not published")
    folder.mkdir(parents=True)
    save_file(state, folder / WEIGHTS, metadata={"format": "pt"})  # the entry that transformers insists on
    (folder / WEIGHTS).chmod(0o644)  # safetensors writes for its owner only
    if state_digest(load_file(folder / WEIGHTS)) != state_digest(state):
        raise UserError(f"{folder / WEIGHTS}: read back, the weights are not the ones that were written")
    save_config_for_hf(network, str(folder / CONFIG))
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    config.get("model_args", {}).pop("num_classes", None)  # transformers passes it a second time, which fails
    (folder / CONFIG).write_text(scrub(json.dumps(config, indent=2)) + "\n", encoding="utf-8")
    if run.figure:
        assert origin.run is not None
        _copy_figure(origin.run / run.figure, folder / FIGURE)
    license = license or run.config.get("license") or config["pretrained_cfg"].get("license")
    parameters = sum(parameter.numel() for parameter in network.parameters())
    card = model_card(run, name=f"hf-hub:{repo_id}", model_config=config, num_parameters=parameters, license=license)
    (folder / CARD).write_text(card, encoding="utf-8")
    _check_reload(network, folder)


def records(origin: Origin) -> Run:
    """What a card can tell of a model: the records of its run, without scores for weights that are not those scored."""
    if origin.run is None:
        return Run()
    return read_run(origin.run) if origin.finished else Run(config=origin.config)


def _copy_figure(source: Path, target: Path) -> None:
    # A link could name any file of the author's; and what is not a picture has no business in a model repository.
    if source.is_symlink() or source.read_bytes()[:8] != b"\x89PNG\r\n\x1a\n":
        raise UserError(f"{source}: not a PNG file of its own; remove it or replace it by one")
    shutil.copyfile(source, target)


@torch.no_grad()
def _check_reload(network: nn.Module, folder: Path) -> None:
    reloaded, _ = open_model(folder)
    size = json.loads((folder / CONFIG).read_text(encoding="utf-8"))["pretrained_cfg"]["input_size"]
    images = torch.rand(1, *size, generator=torch.Generator().manual_seed(0))
    parameter = next(network.parameters())
    expected = network(images.to(parameter.device, parameter.dtype))
    same = state_digest(reloaded.state_dict()) == state_digest(network.state_dict())
    if not same or not torch.equal(reloaded(images), expected):
        raise UserError("the published folder, loaded again, does not give the outputs of the model it came from")
