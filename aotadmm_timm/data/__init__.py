"""Images by name, views of them, and batches whose every random draw is a function of (seed, epoch, sample, view)."""

from .datasets import load_images
from .eval_loader import eval_loader
from .readable import only_readable
from .samples import Images
from .splits import NoSuchSplit, held_out_split, hold_out, if_there

__all__ = [
    "Images",
    "NoSuchSplit",
    "eval_loader",
    "held_out_split",
    "hold_out",
    "if_there",
    "load_images",
    "only_readable",
]
