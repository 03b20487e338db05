"""Loss weights from the share each term has in the backbone's gradient   (lambda-JEPA, Appendix C.3)."""

import copy
import math
from collections.abc import Mapping

import torch

from aotadmm_timm.distributed import all_reduce_mean
from aotadmm_timm.errors import UserError

from .base import WeightedSum
from .multi_view import Views

LAMBDA_JEPA_SHARES = {"inv": 0.44, "projector_sacreg": 0.54, "backbone_sacreg": 0.02}


def gradient_norms(method: WeightedSum, views: Views, step: int = 0) -> dict[str, float]:
    """Norm of each term's gradient, unweighted, with respect to the backbone, on one batch over all ranks.

    The method is left as it was: statistics and buffered batches change in a copy.
    """
    method = copy.deepcopy(method)
    parameters = [p for p in method.backbone.parameters() if p.requires_grad]
    norms = {}
    for name, term in method.parts(views, step).terms.items():
        grads = torch.autograd.grad(term, parameters, retain_graph=True, allow_unused=True)
        flat = torch.cat([grad.float().flatten() for grad in grads if grad is not None] or [torch.zeros(1)])
        norms[name] = float(all_reduce_mean(flat).norm())
    return norms


def weights_by_share(
    norms: Mapping[str, float], shares: Mapping[str, float], *, total: float = 57.0
) -> dict[str, float]:
    """w_i = share_i total / g_i, so that term i's weighted gradient has the norm share_i total.

    Args:
        norms: g_i, from `gradient_norms`. shares: by term, they sum to 1. total: sum of the weighted norms.
    Raises: UserError if terms and shares do not match, shares do not sum to 1, or a norm is 0 or not finite.
    """
    if set(norms) != set(shares) or not math.isclose(sum(shares.values()), 1, abs_tol=1e-6):
        raise UserError(f"shares must name {sorted(norms)} and sum to 1, got {dict(shares)}")
    if not all(0 < norm < math.inf for norm in norms.values()):
        raise UserError(f"cannot calibrate: a gradient norm is zero or not finite in {dict(norms)}")
    return {name: shares[name] * total / norm for name, norm in norms.items()}
