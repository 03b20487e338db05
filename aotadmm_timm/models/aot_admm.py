"""AoT-ADMM: attention-only transformer unrolled from ADMM on compression plus sparsity.

"Attention-Only White-Box Transformer via LeJEPA-Based Self-Supervised Pretraining", Eq. 18 and Algorithm 1.
"""

import math
from functools import partial
from typing import Any

import torch
from timm.layers import DropPath, LayerNorm, use_fused_attn
from timm.models import generate_default_cfgs, register_model
from torch import Tensor, nn
from torch.jit import Final

from aotadmm_timm.errors import UserError
from aotadmm_timm.layers import dispatch
from aotadmm_timm.layers.subspace_attention import MSSA
from aotadmm_timm.models.configs import MINIATURE, bundled, cifar_cfg, imagenet_cfg
from aotadmm_timm.models.unrolled import UnrolledBlock, UnrolledTransformer, create_unrolled


class AoTADMMBlock(UnrolledBlock):
    """One AoT-ADMM layer: (Z, V, W) -> (Z, V, W), each (B, N, d).  2 d^2 + 4 d + 3 parameters.

    See `AoTADMM` for the arguments, `proximal.admm_step` for the equations.
    """

    rescale_z: Final[bool]
    rescale_w: Final[bool]
    eps: Final[float]
    fused: Final[bool]

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        eta_gamma: float = 0.4,
        eta_rho: float = 0.2,
        tau: float = 0.1,
        learn_threshold: bool = False,
        rescale: str = "zw",
        attn_norm: bool = True,
        tied_proj: bool = False,
        attn_scale: float | None = None,
        proj_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        drop_path: float = 0.0,
        norm_layer: Any = LayerNorm,
        eps: float = 1e-6,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **unused: Any,
    ) -> None:
        super().__init__()
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        if not (eta_gamma > 0 and eta_rho > 0 and eta_gamma + eta_rho < 1):
            raise UserError(f"eta_gamma and eta_rho must be positive with a sum below 1, got {eta_gamma} and {eta_rho}")
        if tau < 0 or (learn_threshold and tau == 0):
            raise UserError(f"tau must be non-negative, and positive if it is learned, got {tau}")
        if rescale not in ("zw", "z", ""):
            raise UserError(f"rescale must be 'zw', 'z' or '', got {rescale!r}")
        self.initial_coefficients = (1 - eta_gamma - eta_rho, eta_gamma, eta_rho)
        self.tau = tau
        self.rescale_z = "z" in rescale
        self.rescale_w = "w" in rescale
        self.eps = eps
        self.fused = use_fused_attn()

        self.norm = norm_layer(dim, **dd) if attn_norm else nn.Identity()
        self.attn = MSSA(
            dim,
            num_heads,
            tied=tied_proj,
            proj_bias=proj_bias,
            scale=attn_scale,
            attn_drop=attn_drop,
            proj_drop=proj_drop,
            **dd,
        )
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        self.logits = nn.Parameter(torch.empty(3, **dd))
        self.gain = nn.Parameter(torch.empty(dim, **dd)) if self.rescale_z else None
        self.log_tau = nn.Parameter(torch.empty(1, **dd)) if learn_threshold else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start as the unrolled ADMM step: coefficients after Eq. 14, unit gain, the given threshold."""
        with torch.no_grad():
            for logit, coefficient in zip(self.logits, self.initial_coefficients, strict=True):
                logit.fill_(math.log(coefficient))
            if self.gain is not None:
                self.gain.fill_(1.0)
            if self.log_tau is not None:
                self.log_tau.fill_(math.log(self.tau))

    def coefficients(self) -> Tensor:
        """(a, b, c), the weights of Z, MSSA(Z) and V - W: positive, with unit sum. Shape (3,)."""
        return self.logits.softmax(0)

    def threshold(self) -> Tensor:
        """tau = lambda / rho, shape (1,)."""
        if self.log_tau is not None:
            return self.log_tau.exp()
        return torch.full_like(self.logits[:1], self.tau)

    def step(self, z: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        compressed = self.drop_path(self.attn(self.norm(z)))
        z, v, w = dispatch.admm_step(
            z,
            v,
            w,
            compressed,
            self.coefficients(),
            self.threshold(),
            self.gain,
            self.rescale_z,
            self.rescale_w,
            self.eps,
            self.fused,
        )
        return z, v, w  # by name: torch.fx cannot pass on a tuple that it has not seen


class AoTADMM(UnrolledTransformer):
    """AoT-ADMM encoder (Algorithm 1): Z^0 = V^0 = tokens, W^0 = 0; features are V^L.

    Besides timm's VisionTransformer arguments:

    Args:
        eta_gamma, eta_rho: initial weights of MSSA(Z) and of V - W; Z gets the rest (Eq. 14). Learned from there.
        tau: threshold lambda / rho of the one-sided soft thresholding.
        learn_threshold: learn tau, one positive scalar per layer (adds 1 parameter per layer).
        rescale: states rescaled to unit RMS over the features of each token: "zw" (Appendix B), "z" or "".
            Z is then multiplied by a learned gain per feature; W has none (the last one would get no gradient).
        attn_norm: LayerNorm before MSSA.
        tied_proj: map the heads back with U instead of a linear layer of its own.
        attn_scale: factor of the attention logits; None for (d / num_heads) ** -0.5.
        global_pool: Pool of Algorithm 1, line 11: "avg", the mean of the patch tokens, or "token", the class token.
        final_norm: LayerNorm on V^L; off by default.
        block_fn: the layer, an `AoTADMMBlock` or a subclass.
    Raises: UserError for eta_gamma, eta_rho, tau or rescale outside their ranges.
    Differs from the paper: it leaves eta gamma, eta rho, tau, Pool and the reading of the rescaling open; of the
        alternatives that were tried (train/RESULTS.md) only the mean pooling was better by more than the seeds differ,
        and is the default. The LayerNorm before MSSA and the untied output projection
        are not in Eq. 18; with them, one gain per feature and three logits the parameters are those of Table 1.
        Equation 12 and Algorithm 1 to the letter: `tied_proj=True, attn_scale=1.0, attn_norm=False`.
    """

    def __init__(
        self,
        *,
        eta_gamma: float = 0.4,
        eta_rho: float = 0.2,
        tau: float = 0.1,
        learn_threshold: bool = False,
        rescale: str = "zw",
        attn_norm: bool = True,
        tied_proj: bool = False,
        attn_scale: float | None = None,
        global_pool: str = "avg",
        final_norm: bool = False,
        block_fn: Any = AoTADMMBlock,
        **kwargs: Any,
    ) -> None:
        block_fn = partial(
            block_fn,
            eta_gamma=eta_gamma,
            eta_rho=eta_rho,
            tau=tau,
            learn_threshold=learn_threshold,
            rescale=rescale,
            attn_norm=attn_norm,
            tied_proj=tied_proj,
            attn_scale=attn_scale,
        )
        super().__init__(global_pool=global_pool, final_norm=final_norm, block_fn=block_fn, **kwargs)

    def init(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        tokens = dispatch.as_autocast_stores(tokens)  # three states are kept of every layer: half of the memory
        return tokens, tokens, torch.zeros_like(tokens)

    def readout(self, states: tuple[Tensor, Tensor, Tensor]) -> Tensor:  # type: ignore[override]
        return states[1]


def _create(variant: str, size: dict[str, Any], pretrained: bool = False, **kwargs: Any) -> AoTADMM:
    return create_unrolled(AoTADMM, variant, pretrained, **{**size, **kwargs})


_ORIGIN = {
    "paper_name": "Attention-Only White-Box Transformer via LeJEPA-Based Self-Supervised Pretraining",
    # The paper has no page or id of its own yet. The ids are of what it builds on: LeJEPA, which trains it, and CRATE.
    "paper_ids": ("arXiv:2511.08544", "arXiv:2306.01129"),
}
_LEJEPA_CIFAR10 = {**_ORIGIN, "description": "LeJEPA pretraining on CIFAR-10 train without labels"}
_cfg = partial(cifar_cfg, **_ORIGIN)
_imagenet = partial(imagenet_cfg, **_ORIGIN)

default_cfgs = generate_default_cfgs(
    {
        "aot_admm_tiny": _cfg(),
        "aot_admm_small": _cfg(),
        "aot_admm_base": _cfg(),
        "aot_admm_tiny_patch16_224": _imagenet(),
        "aot_admm_small_patch16_224": _imagenet(),
        "aot_admm_base_patch16_224": _imagenet(),
        "aot_admm_base_patch16_128": _imagenet(input_size=(3, 128, 128)),
        "aot_admm_nano": _cfg(),
        "test_aot_admm": _cfg(),
        **bundled("aot_admm_tiny.lejepa_cifar10", **_LEJEPA_CIFAR10),
        **bundled("aot_admm_small.lejepa_cifar10", **_LEJEPA_CIFAR10),
        **bundled("aot_admm_base.lejepa_cifar10", **_LEJEPA_CIFAR10),
    }
)


@register_model
def aot_admm_tiny(pretrained: bool = False, **kwargs: Any) -> AoTADMM:
    """AoT-ADMM Tiny of Table 1: 3.64 M parameters, 0.13 GFLOPs at 32x32."""
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 384, "depth": 12, "num_heads": 6}
    return _create("aot_admm_tiny", size, pretrained, **kwargs)


@register_model
def aot_admm_small(pretrained: bool = False, **kwargs: Any) -> AoTADMM:
    """AoT-ADMM Small of Table 1: 8.11 M parameters, 0.28 GFLOPs at 32x32."""
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 576, "depth": 12, "num_heads": 12}
    return _create("aot_admm_small", size, pretrained, **kwargs)


@register_model
def aot_admm_base(pretrained: bool = False, **kwargs: Any) -> AoTADMM:
    """AoT-ADMM Base of Table 1: 14.36 M parameters, 0.50 GFLOPs at 32x32."""
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 768, "depth": 12, "num_heads": 12}
    return _create("aot_admm_base", size, pretrained, **kwargs)


@register_model
def aot_admm_tiny_patch16_224(pretrained: bool = False, **kwargs: Any) -> AoTADMM:
    """AoT-ADMM Tiny at ImageNet size."""
    size = {"img_size": 224, "patch_size": 16, "embed_dim": 384, "depth": 12, "num_heads": 6}
    return _create("aot_admm_tiny_patch16_224", size, pretrained, **kwargs)


@register_model
def aot_admm_small_patch16_224(pretrained: bool = False, **kwargs: Any) -> AoTADMM:
    """AoT-ADMM Small at ImageNet size."""
    size = {"img_size": 224, "patch_size": 16, "embed_dim": 576, "depth": 12, "num_heads": 12}
    return _create("aot_admm_small_patch16_224", size, pretrained, **kwargs)


@register_model
def aot_admm_base_patch16_224(pretrained: bool = False, **kwargs: Any) -> AoTADMM:
    """AoT-ADMM Base at ImageNet size."""
    size = {"img_size": 224, "patch_size": 16, "embed_dim": 768, "depth": 12, "num_heads": 12}
    return _create("aot_admm_base_patch16_224", size, pretrained, **kwargs)


@register_model
def aot_admm_base_patch16_128(pretrained: bool = False, **kwargs: Any) -> AoTADMM:
    """AoT-ADMM Base of Table 2: 14.84 M parameters at 128x128."""
    size = {"img_size": 128, "patch_size": 16, "embed_dim": 768, "depth": 12, "num_heads": 12}
    return _create("aot_admm_base_patch16_128", size, pretrained, **kwargs)


@register_model
def aot_admm_nano(pretrained: bool = False, **kwargs: Any) -> AoTADMM:
    """Half of Tiny's width and depth (not in the paper): 0.5 M parameters, for experiments of seconds."""
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 192, "depth": 6, "num_heads": 3}
    return _create("aot_admm_nano", size, pretrained, **kwargs)


@register_model
def test_aot_admm(**kwargs: Any) -> AoTADMM:
    """A miniature for tests."""
    return _create("test_aot_admm", MINIATURE, **kwargs)
