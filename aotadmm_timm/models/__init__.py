"""Model families; importing this subpackage registers them with timm."""

from aotadmm_timm.models import aot_admm
from aotadmm_timm.models.unrolled import UnrolledBlock, UnrolledTransformer, create_unrolled, layer_states

__all__ = ["UnrolledBlock", "UnrolledTransformer", "aot_admm", "create_unrolled", "layer_states"]
