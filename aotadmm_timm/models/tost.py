"""ToST, the vision model: XCiT with token statistics in the place of its attention.

"Token Statistics Transformer: Linear-Time Attention via Variational Rate Reduction", arXiv:2412.17810.
"""

from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import torch
from timm.layers import DropPath, LayerNorm, Mlp, PatchDropout, PatchEmbed, get_act_layer, to_2tuple
from timm.models import adapt_input_conv, checkpoint, generate_default_cfgs, register_model
from timm.models.xcit import ClassAttentionBlock, PositionalEncodingFourier, conv3x3
from timm.models.xcit import checkpoint_filter_fn as xcit_filter_fn
from torch import Tensor, nn

from aotadmm_timm.errors import UserError
from aotadmm_timm.layers.statistics_attention import TSSA
from aotadmm_timm.models.checkpoint import fit_to_model, renamed, unwrap_state_dict
from aotadmm_timm.models.configs import MINIATURE, cifar_cfg, imagenet_cfg
from aotadmm_timm.models.unrolled import UnrolledBlock, UnrolledTransformer, create_unrolled


class ConvStem(PatchEmbed):
    """XCiT's patch embedding: one 3x3 convolution of stride 2 with BatchNorm for each factor of 2, GELU in between.

    Takes the arguments of timm's `PatchEmbed` and behaves like it, dynamic sizes and padding included. The widths
    double up to `embed_dim`. XCiT has patches of 8 and 16 pixels; 2 and 4 are the same rule.

    Raises: UserError if the patch is no square of 2, 4, 8, ... pixels, if the first width would not be whole, and
        where another patch size is asked for after construction: the number of convolutions depends on it.
    """

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        patch_size: int | tuple[int, int] = 16,
        in_chans: int = 3,
        embed_dim: int = 768,
        *,
        act_layer: Any = nn.GELU,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **kwargs: Any,
    ) -> None:
        height, width = to_2tuple(patch_size)
        halvings = height.bit_length() - 1
        if height != width or height != 2**halvings or halvings < 1:
            raise UserError(f"a convolutional stem has square patches of 2, 4, 8, ... pixels, got {patch_size}")
        if embed_dim % 2 ** (halvings - 1):
            raise UserError(f"embed_dim must be divisible by half of the patch size, got {embed_dim} and {patch_size}")
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        super().__init__(img_size, patch_size, in_chans, embed_dim, **kwargs, **dd)  # type: ignore[arg-type]
        widths = [in_chans, *(embed_dim >> i for i in reversed(range(halvings)))]
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise(widths):
            layers += [act_layer()] if layers else []
            layers.append(conv3x3(fan_in, fan_out, 2, **dd))
        self.proj = nn.Sequential(*layers)  # type: ignore[assignment]

    def set_input_size(self, img_size: Any = None, patch_size: Any = None) -> None:
        """As timm's, for another image size."""
        if patch_size is not None and to_2tuple(patch_size) != self.patch_size:
            raise UserError(f"the patch size of a convolutional stem is fixed, {self.patch_size}; got {patch_size}")
        super().set_input_size(img_size)


class ToSTBlock(UnrolledBlock):
    """One ToST layer, (B, N, d) -> (B, N, d): Z + gamma1 TSSA(LN Z), then Y + gamma2 MLP(LN Y).

    2 d^2 + 2 r d^2 + (r + 9) d + K parameters for an MLP r times as wide.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        proj_bias: bool = True,
        init_values: float = 1.0,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        drop_path: float = 0.0,
        act_layer: Any = nn.GELU,
        norm_layer: Any = LayerNorm,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **unused: Any,
    ) -> None:
        super().__init__()
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        self.init_values = init_values
        self.norm1 = norm_layer(dim, **dd)
        self.attn = TSSA(
            dim, num_heads, qkv_bias=qkv_bias, proj_bias=proj_bias, attn_drop=attn_drop, proj_drop=proj_drop, **dd
        )
        self.gamma1 = nn.Parameter(torch.empty(dim, **dd))
        self.drop_path1 = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        self.norm2 = norm_layer(dim, **dd)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), act_layer=act_layer, drop=proj_drop, **dd)
        self.gamma2 = nn.Parameter(torch.empty(dim, **dd))
        self.drop_path2 = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Both branches scaled by the given initial value."""
        nn.init.constant_(self.gamma1, self.init_values)
        nn.init.constant_(self.gamma2, self.init_values)

    def step(self, z: Tensor) -> tuple[Tensor]:
        z = z + self.drop_path1(self.gamma1 * self.attn(self.norm1(z)))
        return (z + self.drop_path2(self.gamma2 * self.mlp(self.norm2(z))),)


class ToST(UnrolledTransformer):
    """ToST encoder. With the official weights it is the official vision model.

    The state is the patch tokens; the class token joins them in the readout, through CaiT's blocks of class attention.
    So the readout of every layer, not of the last one alone, has a class token. Takes timm's VisionTransformer
    arguments but for registers, whose place is not defined here, and learned positions.

    Args:
        mlp_ratio, qkv_bias, act_layer: of the layers and of the class attention.
        init_values: what the scales of all branches start from: 1 for 12 layers, 1e-5 for 24.
        cls_attn_layers: number of class-attention blocks. There are none without class token
            (`class_token=False, global_pool="avg"`).
        tokens_norm: class attention normalizes all tokens, not the class token alone.
        pos_embed: "fourier", a projection of sines and cosines of the relative row and column, for any image size; or
            "none".
        block_fn: the layer, a `ToSTBlock` or a subclass.
    Raises: UserError for arguments that have no place here.
    Differs from the official code: the class attention computes one query, not those of all tokens (timm's; the same
        result); `drop_path_rate` grows from layer to layer, as in timm, instead of being the same in all.
    """

    meaningless: ClassVar[frozenset[str]] = frozenset(
        {"qk_norm", "scale_attn_norm", "scale_mlp_norm", "fix_init", "mlp_layer", "attn_layer", "no_embed_class"}
    )

    def __init__(
        self,
        *,
        embed_dim: int = 768,
        num_heads: int = 12,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        init_values: float = 1.0,
        class_token: bool = True,
        reg_tokens: int = 0,
        cls_attn_layers: int = 2,
        tokens_norm: bool = True,
        pos_embed: str = "fourier",
        act_layer: Any = nn.GELU,
        norm_eps: float = 1e-6,
        norm_layer: Any = None,
        embed_layer: Any = ConvStem,
        block_fn: Any = ToSTBlock,
        weight_init: Any = "",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **kwargs: Any,
    ) -> None:
        if reg_tokens:
            raise UserError(f"ToST has no place for register tokens, got reg_tokens={reg_tokens}")
        if pos_embed not in ("fourier", "none", ""):
            raise UserError(f"ToST's positions are 'fourier' or 'none', got {pos_embed!r}")
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        norm_layer = norm_layer or partial(LayerNorm, eps=norm_eps)
        mlp: dict[str, Any] = {"mlp_ratio": mlp_ratio, "qkv_bias": qkv_bias, "act_layer": get_act_layer(act_layer)}
        super().__init__(
            embed_dim=embed_dim,
            num_heads=num_heads,
            class_token=class_token,
            init_values=init_values,
            pos_embed="none",
            norm_layer=norm_layer,
            embed_layer=embed_layer,
            block_fn=block_fn,
            weight_init="skip",
            **{**mlp, **dd, **kwargs},
        )
        self.init_values = init_values
        self.pos_encoder = PositionalEncodingFourier(dim=embed_dim, **dd) if pos_embed == "fourier" else None
        if isinstance(self.patch_drop, PatchDropout):
            self.patch_drop.num_prefix_tokens = 0  # the class token is not there yet
        drop = {"attn_drop": kwargs.get("attn_drop_rate", 0.0), "proj_drop": kwargs.get("proj_drop_rate", 0.0)}
        block = partial(ClassAttentionBlock, norm_layer=norm_layer, eta=init_values, tokens_norm=tokens_norm)
        self.cls_attn_blocks = nn.ModuleList(
            block(embed_dim, num_heads, **mlp, **drop, **dd) for _ in range(cls_attn_layers if class_token else 0)
        )
        self.weight_init_mode = "reset" if weight_init == "skip" else weight_init
        if weight_init != "skip":
            self.init_weights(needs_reset=False)

    def init_weights(self, mode: str = "", needs_reset: bool = True) -> None:
        """As timm's, with XCiT's class token and the scales of the class attention."""
        super().init_weights(mode, needs_reset)
        blocks: Any = self.cls_attn_blocks
        with torch.no_grad():
            if self.cls_token is not None:  # drawn in float32: see `Float32InitTransformer`
                self.cls_token.copy_(
                    nn.init.trunc_normal_(torch.empty_like(self.cls_token, dtype=torch.float), std=0.02)
                )
            for block in blocks:
                block.gamma1.fill_(self.init_values)
                block.gamma2.fill_(self.init_values)

    def embed(self, x: Tensor) -> Tensor:
        """Images (B, C, H, W) -> patch tokens with positions (B, h w, d)."""
        x = self.patch_embed(x)
        if self.dynamic_img_size:
            height, width = x.shape[1], x.shape[2]
            x = x.flatten(1, 2)
        else:
            height, width = self.patch_embed.grid_size
        if self.pos_encoder is not None:
            x = x + self.pos_encoder(1, height, width).flatten(2).transpose(1, 2)
        return self.norm_pre(self.patch_drop(self.pos_drop(x)))

    def readout(self, states: tuple[Tensor]) -> Tensor:
        """The class token, from all patch tokens by class attention, and these tokens (B, 1 + N, d)."""
        x = states[0]
        if self.cls_token is None:
            return x
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1)
        for block in self.cls_attn_blocks:
            x = checkpoint(block, x) if self.grad_checkpointing and not torch.jit.is_scripting() else block(x)
        return x

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        """timm's tokens, what each block names, and the projection of the positions."""
        return super().no_weight_decay() | {
            name for name, _ in self.named_parameters() if name.startswith("pos_encoder.")
        }

    @torch.jit.ignore
    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """timm's groups for layer decay; the class attention comes after the layers."""
        return {
            "stem": r"^cls_token|pos_encoder|patch_embed|norm_pre",
            "blocks": [(r"^blocks\.(\d+)", None)],
            "cls_attn_blocks": [(r"^cls_attn_blocks\.(\d+)", None), (r"^norm|^fc_norm", (99999,))],
        }


_OFFICIAL_NAMES = [
    (r"^pos_embeder\.", "pos_encoder."),
    (r"^blocks\.(\d+)\.attn\.temp$", r"blocks.\1.attn.temperature"),
    (r"^blocks\.(\d+)\.attn\.to_out\.0\.", r"blocks.\1.attn.proj."),
]


def native_names(state_dict: dict[str, Tensor], model: ToST) -> dict[str, Tensor]:
    """The official vision model's state dict in this family's names; others unchanged.

    Temperatures are (K, 1) there; queries, keys and values of the class attention one layer.
    """
    if "blocks.0.attn.to_out.0.weight" not in state_dict:
        return state_dict
    native = xcit_filter_fn(renamed(state_dict, _OFFICIAL_NAMES), model)
    return {key: t.flatten() if key.endswith(".temperature") else t for key, t in native.items()}


def checkpoint_filter_fn(state_dict: dict[str, Any], model: ToST) -> dict[str, Tensor]:
    """A native or official checkpoint, possibly wrapped, in the names and shapes of `model`.

    Raises: UserError as `fit_to_model` and `unwrap_state_dict`.
    """
    state = dict(native_names(unwrap_state_dict(state_dict), model))
    first = "patch_embed.proj.0.0.weight"
    if first in state:
        state[first] = adapt_input_conv(model.in_chans, state[first], base_chans=state[first].shape[1])
    for key, tensor in model.state_dict().items():  # counters that old checkpoints lack
        if key.endswith("num_batches_tracked"):
            state.setdefault(key, tensor)
    return fit_to_model(state, model)


def _create(variant: str, size: dict[str, Any], pretrained: bool = False, **kwargs: Any) -> ToST:
    return create_unrolled(ToST, variant, pretrained, pretrained_filter_fn=checkpoint_filter_fn, **{**size, **kwargs})


_ORIGIN = {
    "origin_url": "https://github.com/RobinWu218/ToST",
    "paper_name": "Token Statistics Transformer: Linear-Time Attention via Variational Rate Reduction",
    "paper_ids": "arXiv:2412.17810",
    "first_conv": "patch_embed.proj.0.0",
}
_cfg = partial(cifar_cfg, **_ORIGIN)
_imagenet = partial(imagenet_cfg, crop_pct=1.0, **_ORIGIN)

default_cfgs = generate_default_cfgs(
    {
        "tost_tiny": _cfg(),
        "tost_small": _cfg(),
        "tost_base": _cfg(),
        "tost_tiny_12_patch16_224": _imagenet(),
        "tost_small_12_patch16_224": _imagenet(),
        "tost_small_24_patch16_224": _imagenet(),
        "tost_medium_24_patch16_224": _imagenet(),
        "tost_large_24_patch16_224": _imagenet(),
        "tost_tiny_12_patch8_224": _imagenet(),
        "tost_small_12_patch8_224": _imagenet(),
        "tost_small_24_patch8_224": _imagenet(),
        "tost_medium_24_patch8_224": _imagenet(),
        "tost_large_24_patch8_224": _imagenet(),
        "test_tost": _cfg(),
    }
)

# The official sizes; 24 layers start with branches scaled by 1e-5, as in XCiT.
_TINY_12 = {"img_size": 224, "embed_dim": 192, "depth": 12, "num_heads": 4}
_SMALL_12 = {"img_size": 224, "embed_dim": 384, "depth": 12, "num_heads": 8}
_SMALL_24 = {"img_size": 224, "embed_dim": 384, "depth": 24, "num_heads": 8, "init_values": 1e-5}
_MEDIUM_24 = {"img_size": 224, "embed_dim": 512, "depth": 24, "num_heads": 8, "init_values": 1e-5}
_LARGE_24 = {"img_size": 224, "embed_dim": 768, "depth": 24, "num_heads": 16, "init_values": 1e-5}


@register_model
def tost_tiny(pretrained: bool = False, **kwargs: Any) -> ToST:
    """ToST in the width, depth and heads of the AoT-ADMM paper's Tiny, at 32x32."""
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 384, "depth": 12, "num_heads": 6}
    return _create("tost_tiny", size, pretrained, **kwargs)


@register_model
def tost_small(pretrained: bool = False, **kwargs: Any) -> ToST:
    """ToST in the width, depth and heads of the AoT-ADMM paper's Small, at 32x32."""
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 576, "depth": 12, "num_heads": 12}
    return _create("tost_small", size, pretrained, **kwargs)


@register_model
def tost_base(pretrained: bool = False, **kwargs: Any) -> ToST:
    """ToST in the width, depth and heads of the AoT-ADMM paper's Base, at 32x32."""
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 768, "depth": 12, "num_heads": 12}
    return _create("tost_base", size, pretrained, **kwargs)


@register_model
def tost_tiny_12_patch16_224(pretrained: bool = False, **kwargs: Any) -> ToST:
    """Official ToST-T12/16."""
    return _create("tost_tiny_12_patch16_224", {**_TINY_12, "patch_size": 16}, pretrained, **kwargs)


@register_model
def tost_small_12_patch16_224(pretrained: bool = False, **kwargs: Any) -> ToST:
    """Official ToST-S12/16."""
    return _create("tost_small_12_patch16_224", {**_SMALL_12, "patch_size": 16}, pretrained, **kwargs)


@register_model
def tost_small_24_patch16_224(pretrained: bool = False, **kwargs: Any) -> ToST:
    """Official ToST-S24/16."""
    return _create("tost_small_24_patch16_224", {**_SMALL_24, "patch_size": 16}, pretrained, **kwargs)


@register_model
def tost_medium_24_patch16_224(pretrained: bool = False, **kwargs: Any) -> ToST:
    """Official ToST-M24/16."""
    return _create("tost_medium_24_patch16_224", {**_MEDIUM_24, "patch_size": 16}, pretrained, **kwargs)


@register_model
def tost_large_24_patch16_224(pretrained: bool = False, **kwargs: Any) -> ToST:
    """Official ToST-L24/16."""
    return _create("tost_large_24_patch16_224", {**_LARGE_24, "patch_size": 16}, pretrained, **kwargs)


@register_model
def tost_tiny_12_patch8_224(pretrained: bool = False, **kwargs: Any) -> ToST:
    """Official ToST-T12/8."""
    return _create("tost_tiny_12_patch8_224", {**_TINY_12, "patch_size": 8}, pretrained, **kwargs)


@register_model
def tost_small_12_patch8_224(pretrained: bool = False, **kwargs: Any) -> ToST:
    """Official ToST-S12/8."""
    return _create("tost_small_12_patch8_224", {**_SMALL_12, "patch_size": 8}, pretrained, **kwargs)


@register_model
def tost_small_24_patch8_224(pretrained: bool = False, **kwargs: Any) -> ToST:
    """Official ToST-S24/8."""
    return _create("tost_small_24_patch8_224", {**_SMALL_24, "patch_size": 8}, pretrained, **kwargs)


@register_model
def tost_medium_24_patch8_224(pretrained: bool = False, **kwargs: Any) -> ToST:
    """Official ToST-M24/8."""
    return _create("tost_medium_24_patch8_224", {**_MEDIUM_24, "patch_size": 8}, pretrained, **kwargs)


@register_model
def tost_large_24_patch8_224(pretrained: bool = False, **kwargs: Any) -> ToST:
    """Official ToST-L24/8."""
    return _create("tost_large_24_patch8_224", {**_LARGE_24, "patch_size": 8}, pretrained, **kwargs)


@register_model
def test_tost(**kwargs: Any) -> ToST:
    """A miniature for tests."""
    return _create("test_tost", MINIATURE, **kwargs)
