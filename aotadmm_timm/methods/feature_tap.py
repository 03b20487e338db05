"""Where a regularizer touches the backbone."""

import warnings
from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from aotadmm_timm.errors import UserError
from aotadmm_timm.precision import at_least_float32

TapName = Literal["norm", "features"]


class FeatureTap(nn.Module):
    """Mean over the global views of tapped backbone features: (V, B, d), Vg -> centres (B, d).

    A moment condition such as SACReg can be met by non-negative features (what a pooled ReLU, as in AoT-ADMM and CRATE
    without final norm, or a ResNet gives) through a shortcut: almost all zeros, each coordinate large for one image.
    Zero mean and unit variance leave a non-negative coordinate no other way. So features are tapped where they have
    both signs:

    * "norm", the default: LayerNorm without parameters on the pooled features. It needs no statistics of the batch and
      leaves the projector's input and the exported backbone alone; it fixes each image's |h|^2 to d, so the regularizer
      acts on directions only.
    * "features": the pooled features themselves, as the paper does for a ViT whose last layer is a LayerNorm. Warns,
      once, if it meets features without a negative entry.
    """

    def __init__(self, name: TapName = "norm") -> None:
        super().__init__()
        if name not in get_args(TapName):
            raise UserError(f"tap must be one of {get_args(TapName)}, got {name!r}")
        self.name = name
        self._checked = name != "features"

    def forward(self, h: Tensor, num_global: int) -> tuple[Tensor, dict[str, Tensor]]:
        tapped = at_least_float32(h[:num_global])
        if self.name == "norm":
            tapped = F.layer_norm(tapped, tapped.shape[-1:])
        seen = tapped.detach()
        if not self._checked:
            self._checked = True
            if bool((seen >= 0).all()):
                warnings.warn(
                    "the tapped backbone features have no negative entry: sparse spikes can meet a moment condition "
                    'where spread features should (watch tap_zeros and tap_max). Tap "norm" avoids it',
                    stacklevel=2,
                )
        return tapped.mean(0), {"tap_zeros": (seen == 0).float().mean(), "tap_max": seen.amax()}
