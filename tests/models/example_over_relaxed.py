"""Over-relaxed ADMM (Boyd et al. 2011, section 3.4.3) as a timm model: Z is replaced by alpha Z + (1 - alpha) V."""

from functools import partial

import timm
from timm.models import register_model
from torch import Tensor

from aotadmm_timm.layers.proximal import rms_rescale, soft_threshold
from aotadmm_timm.models import create_unrolled
from aotadmm_timm.models.aot_admm import AoTADMM, AoTADMMBlock
from aotadmm_timm.models.configs import cifar_cfg


class OverRelaxedBlock(AoTADMMBlock):
    """One layer: (Z, V, W) -> (Z, V, W), each (B, N, d). alpha = 1 is AoT-ADMM."""

    def __init__(self, *args, alpha: float = 1.6, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.alpha = alpha

    def step(self, z: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, b, c = self.coefficients().unbind(0)
        z = a * z + b * self.attn(self.norm(z)) + c * (v - w)
        z = rms_rescale(z, self.gain, self.eps)
        u = self.alpha * z + (1 - self.alpha) * v + w
        v = soft_threshold(u, self.threshold())
        return z, v, rms_rescale(u - v, None, self.eps)


default_cfgs = timm.models.generate_default_cfgs({"over_relaxed_tiny": cifar_cfg()})


@register_model
def over_relaxed_tiny(pretrained: bool = False, alpha: float = 1.6, **kwargs) -> AoTADMM:
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 384, "depth": 12, "num_heads": 6}
    block_fn = partial(OverRelaxedBlock, alpha=alpha)
    return create_unrolled(AoTADMM, "over_relaxed_tiny", pretrained, block_fn=block_fn, **{**size, **kwargs})
