"""Images by name, views of them, and batches whose every random draw is a function of (seed, epoch, sample, view)."""

from .datasets import LabelledImages, held_out_split, load_images
from .loading import eval_loader, only_readable

__all__ = ["LabelledImages", "eval_loader", "held_out_split", "load_images", "only_readable"]
