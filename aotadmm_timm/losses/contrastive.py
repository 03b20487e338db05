"""Contrastive loss: an embedding finds that of another view of its image among those of all images."""

import torch
import torch.nn.functional as F
from torch import Tensor

from aotadmm_timm.distributed import all_gather, mean_over_batch, rank, world_size
from aotadmm_timm.errors import UserError


def nt_xent(a: Tensor, b: Tensor, *, temperature: float) -> Tensor:
    """Normalized temperature-scaled cross entropy of two views   (SimCLR, arXiv:2002.05709, Eq. 1)

    For each of the 2 N embeddings: -log exp(s_ij / T) / sum_{k != i} exp(s_ik / T), s the cosine, j the other view of
    i's image, k over both views of all images of all ranks; the mean over i.

    Args:
        a, b: embeddings (N, D) of the two views, row i of one image.
        temperature: T.
    Returns: scalar, on every rank one process's value on the joined batch; so is the gradient (once averaged).
    Raises: ValueError if the shapes differ, or with fewer than two images: there is no negative.
    """
    if a.shape != b.shape or a.ndim != 2:
        raise ValueError(f"views must be two (N, D) of one shape, got {tuple(a.shape)} and {tuple(b.shape)}")
    own = torch.stack([F.normalize(a, dim=-1), F.normalize(b, dim=-1)], 1)  # (N, 2, D)
    counts = [len(a)] if world_size() == 1 else all_gather(torch.tensor([len(a)], device=a.device)).tolist()
    if sum(counts) < 2:
        raise UserError("a contrastive loss needs at least 2 images, got 1")
    everyone = all_gather(own, sizes=counts)  # (all, 2, D)
    logits = own.flatten(0, 1) @ everyone.flatten(0, 1).mT / temperature  # (2 N, 2 all), rows and columns in turn a, b
    itself = torch.arange(2 * len(a), device=a.device) + 2 * sum(counts[: rank()])
    logits = logits.scatter(1, itself[:, None], float("-inf"))
    return mean_over_batch(F.cross_entropy(logits, itself ^ 1, reduction="none"))
