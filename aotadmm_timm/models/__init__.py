"""Model families; importing this subpackage registers them with timm."""

from aotadmm_timm.models import aot, aot_admm, aot_tost, crate, small_image_stem, tost, vit_mlpfree
from aotadmm_timm.models.unrolled import UnrolledBlock, UnrolledTransformer, create_unrolled, layer_states

__all__ = [
    "UnrolledBlock",
    "UnrolledTransformer",
    "aot",
    "aot_admm",
    "aot_tost",
    "crate",
    "create_unrolled",
    "layer_states",
    "small_image_stem",
    "tost",
    "vit_mlpfree",
]
