"""Where numbers go besides log.jsonl: TensorBoard if it is installed, Weights & Biases if it is asked for."""

import hashlib
from pathlib import Path
from typing import Any

from aotadmm_timm.errors import UserError


class TensorBoard:
    """Event files in `folder`; without tensorboard installed nothing is written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer: Any = None

    def log(self, step: int, values: dict[str, float]) -> None:
        if self._writer is None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                self._writer = False
            else:
                self._writer = SummaryWriter(str(self.folder), purge_step=step)
        if self._writer:
            for key, value in values.items():
                self._writer.add_scalar(key, value, step)

    def close(self) -> None:
        if self._writer:
            self._writer.close()
        self._writer = None


class WeightsAndBiases:
    """One W&B run per run folder; a resumed run continues it.

    Raises: UserError if wandb is not installed.
    """

    def __init__(self, project: str, folder: Path, config: dict[str, Any]) -> None:
        try:
            import wandb
        except ImportError as err:
            raise UserError(f"--wandb: Weights & Biases cannot be imported ({err}): pip install wandb") from None
        folder.mkdir(parents=True, exist_ok=True)
        # the folder is the run's id, so that --resume goes on with the same curves, and a/s0 is not b/s0
        mark = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:8]
        self._run = wandb.init(
            project=project,
            dir=str(folder),
            name=folder.name,
            id=f"{folder.name}-{mark}",
            resume="allow",
            config=config,
        )

    def log(self, step: int, values: dict[str, float]) -> None:
        self._run.log(values, step=step)

    def close(self) -> None:
        self._run.finish()
