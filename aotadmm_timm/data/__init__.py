"""Images by name, views of them, and batches whose every random draw is a function of (seed, epoch, sample, view)."""

from .datasets import LabelledImages, NoSuchSplit, held_out_split, hold_out, if_there, load_images
from .loading import eval_loader, only_readable

__all__ = [
    "LabelledImages",
    "NoSuchSplit",
    "eval_loader",
    "held_out_split",
    "hold_out",
    "if_there",
    "load_images",
    "only_readable",
]
