"""How far apart the views of one image lie."""

from torch import Tensor

from aotadmm_timm.distributed import mean_over_batch
from aotadmm_timm.errors import UserError
from aotadmm_timm.precision import at_least_float32


def invariance(z: Tensor, target: Tensor) -> Tensor:
    """Mean over views, images and dimensions of (z - target)^2   (LeJEPA, arXiv:2511.08544).

    Args:
        z: embeddings (V, N, D). target: (N, D), one for all views of an image; carries gradient unless detached.
    Returns: scalar, at least float32; the mean is over the images of all ranks.
    """
    z, target = at_least_float32(z), at_least_float32(target)
    return mean_over_batch((z - target).square())


def pairwise_invariance(z: Tensor) -> Tensor:
    """Mean squared distance over all pairs of views, mean over images and dimensions   (lambda-JEPA, App. B).

    mean over v < w of (z_v - z_w)^2 = 2 V / (V - 1) mean over v of (z_v - zbar)^2, which takes V terms, not V^2.

    Args:
        z: embeddings (V, N, D).
    Raises: UserError with fewer than two views.
    """
    num_views = z.shape[0]
    if num_views < 2:
        raise UserError(f"pairwise invariance needs at least 2 views, got embeddings of shape {tuple(z.shape)}")
    return 2 * num_views / (num_views - 1) * invariance(z, at_least_float32(z).mean(0))
