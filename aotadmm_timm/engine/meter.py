"""The progress bar, and the rows of the log with their images per second."""

import sys
import time

from tqdm import tqdm

from aotadmm_timm import distributed
from aotadmm_timm.runs.folder import RunFolder


class Meter:
    """Counts images over all ranks; rank 0 shows and logs them. `first` and `last`: steps the run goes from and to."""

    def __init__(self, run: RunFolder, first: int, last: int, epochs: int) -> None:
        self.run, self.epochs = run, epochs
        self.bar = tqdm(
            total=last, initial=first, disable=not distributed.is_main(), unit="step", dynamic_ncols=True,
            mininterval=0.5 if sys.stderr.isatty() else 15,
        )  # fmt: skip
        self.restart()

    def __enter__(self) -> "Meter":
        return self

    def __exit__(self, *exc: object) -> None:
        self.bar.close()

    def restart(self) -> None:
        """Start counting anew: what was done since the last row is not training."""
        self.images, self.since = 0, time.perf_counter()

    def count(self, images: int) -> None:
        self.images += images * distributed.world_size()
        self.bar.update()

    def row(self, done: int, epoch: int, terms: dict[str, float]) -> None:
        """Log the means of some steps, of which the last one was number `done`."""
        rate = self.images / max(time.perf_counter() - self.since, 1e-9)
        self.restart()
        if not distributed.is_main():
            return
        self.run.log({"step": done, "epoch": epoch, **terms, "images_per_s": round(rate, 1)})
        shown = {k: f"{v:.4g}" for k, v in terms.items()}
        self.bar.set_description(f"epoch {epoch}/{self.epochs}", refresh=False)
        self.bar.set_postfix({**shown, "images/s": f"{rate:.0f}"}, refresh=False)
