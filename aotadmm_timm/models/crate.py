"""CRATE and CRATE-alpha: white-box transformers unrolled from sparse rate reduction.

"White-Box Transformers via Sparse Rate Reduction", arXiv:2306.01129; "Scaling White-Box Transformers for Vision",
arXiv:2405.20299.
"""

import re
from functools import partial
from typing import Any

import torch
from timm.layers import DropPath, LayerNorm, PatchEmbed
from timm.models import generate_default_cfgs, register_model
from torch import Tensor, nn
from torch.jit import Final

from aotadmm_timm.errors import WeightsMismatch
from aotadmm_timm.layers import dispatch
from aotadmm_timm.layers.subspace_attention import MSSA
from aotadmm_timm.models.checkpoint import fit_to_model, renamed, unwrap_state_dict
from aotadmm_timm.models.configs import MINIATURE, bundled, cifar_cfg, imagenet_cfg
from aotadmm_timm.models.unrolled import UnrolledBlock, UnrolledTransformer, create_unrolled


class ISTA(nn.Module):
    """Sparse coding of tokens (B, N, d): a step of ISTA in a square dictionary, two from zero in a wide one.

    The formulas are `proximal.ista_step` and `proximal.overcomplete_ista`.

    Args:
        dim: d.
        ratio: dictionary width over d; above 1 a second dictionary decodes (CRATE-alpha).
        step_size, sparsity: eta and lambda.
    """

    step_size: Final[float]
    sparsity: Final[float]

    def __init__(
        self,
        dim: int,
        *,
        ratio: int = 1,
        step_size: float = 0.1,
        sparsity: float = 0.1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.step_size, self.sparsity = step_size, sparsity
        self.dictionary = nn.Parameter(torch.empty(dim, ratio * dim, device=device, dtype=dtype))
        self.decoder = nn.Parameter(torch.empty_like(self.dictionary)) if ratio > 1 else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """He-uniform dictionaries, as in the official code."""
        nn.init.kaiming_uniform_(self.dictionary)
        if self.decoder is not None:
            nn.init.kaiming_uniform_(self.decoder)

    def forward(self, y: Tensor) -> Tensor:
        if self.decoder is not None:
            return dispatch.overcomplete_ista(y, self.dictionary, self.decoder, self.step_size, self.sparsity)
        return dispatch.ista_step(y, self.dictionary, self.step_size, self.sparsity)


class CRATEBlock(UnrolledBlock):
    """One CRATE layer, (B, N, d) -> (B, N, d): Z + MSSA(LN Z), then ISTA of its LN.  3 d^2 + 5 d parameters.

    See `CRATE` for the arguments.
    """

    ista_skip: Final[bool]

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        step_size: float = 0.1,
        sparsity: float = 0.1,
        dictionary_ratio: int = 1,
        ista_skip: bool = False,
        proj_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        drop_path: float = 0.0,
        norm_layer: Any = LayerNorm,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **unused: Any,
    ) -> None:
        super().__init__()
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        self.ista_skip = ista_skip
        self.norm1 = norm_layer(dim, **dd)
        self.attn = MSSA(dim, num_heads, proj_bias=proj_bias, attn_drop=attn_drop, proj_drop=proj_drop, **dd)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        self.norm2 = norm_layer(dim, **dd)
        self.ista = ISTA(dim, ratio=dictionary_ratio, step_size=step_size, sparsity=sparsity, **dd)

    def step(self, z: Tensor) -> tuple[Tensor]:
        z = z + self.drop_path(self.attn(self.norm1(z)))
        code = self.ista(self.norm2(z))
        return (z + code,) if self.ista_skip else (code,)


class CRATE(UnrolledTransformer):
    """CRATE encoder. With the official weights it is the official model, for every pooling of it.

    `global_pool="token"` is the official class-token pooling, the default at the official sizes; its mean pooling is
    `global_pool="avg", fc_norm=True, pool_include_prefix=True`. The sizes for 32-pixel images, of which there are no
    official weights, pool the mean of the patch tokens (`global_pool="avg"`).
    Besides timm's VisionTransformer arguments:

    Args:
        step_size, sparsity: eta and lambda of ISTA.
        dictionary_ratio: width of the dictionary over d; 4 in CRATE-alpha.
        ista_skip: add ISTA's result to its input instead of replacing it; True in CRATE-alpha.
        block_fn: the layer, a `CRATEBlock` or a subclass.
    Differs from the official code: positions are resampled to other image sizes instead of cut to the first ones;
        ISTA takes two products of d x d instead of three, or one where tokens outnumber the width.
    """

    def __init__(
        self,
        *,
        step_size: float = 0.1,
        sparsity: float = 0.1,
        dictionary_ratio: int = 1,
        ista_skip: bool = False,
        block_fn: Any = CRATEBlock,
        **kwargs: Any,
    ) -> None:
        block_fn = partial(
            block_fn,
            step_size=step_size,
            sparsity=sparsity,
            dictionary_ratio=dictionary_ratio,
            ista_skip=ista_skip,
        )
        super().__init__(block_fn=block_fn, **kwargs)


# CRATE (Ma-Lab-Berkeley) and CRATE-alpha (UCSC-VLAA): one naming, two stems and two sparse coding blocks.
_CRATE_NAMES = [
    (r"^to_patch_embedding\.1\.", "patch_embed.norm_patch."),
    (r"^to_patch_embedding\.2\.", "patch_embed.proj."),
    (r"^to_patch_embedding\.3\.", "patch_embed.norm."),
    (r"^conv1\.", "patch_embed.proj."),
    (r"^pos_embedding$", "pos_embed"),
    (r"^transformer\.layers\.(\d+)\.0\.norm\.", r"blocks.\1.norm1."),
    (r"^transformer\.layers\.(\d+)\.0\.fn\.qkv\.", r"blocks.\1.attn.qkv."),
    (r"^transformer\.layers\.(\d+)\.0\.fn\.to_out\.0\.", r"blocks.\1.attn.proj."),
    (r"^transformer\.layers\.(\d+)\.1\.norm\.", r"blocks.\1.norm2."),
    (r"^transformer\.layers\.(\d+)\.1\.fn\.(weight|D)$", r"blocks.\1.ista.dictionary"),
    (r"^transformer\.layers\.(\d+)\.1\.fn\.D1$", r"blocks.\1.ista.decoder"),
    (r"^mlp_head\.0\.", "norm."),
    (r"^mlp_head\.1\.", "head."),
]

# The image tower of CRATE-alpha CLIPA, in CLIP's naming.
_CLIPA_NAMES = [
    (r"^conv1\.", "patch_embed.proj."),
    (r"^class_embedding$", "cls_token"),
    (r"^positional_embedding$", "pos_embed"),
    (r"^transformer\.resblocks\.(\d+)\.ln_1\.", r"blocks.\1.norm1."),
    (r"^transformer\.resblocks\.(\d+)\.attn\.in_proj_weight$", r"blocks.\1.attn.qkv.weight"),
    (r"^transformer\.resblocks\.(\d+)\.attn\.out_proj\.", r"blocks.\1.attn.proj."),
    (r"^transformer\.resblocks\.(\d+)\.ln_2\.", r"blocks.\1.norm2."),
    (r"^transformer\.resblocks\.(\d+)\.mlp\.c_fc$", r"blocks.\1.ista.dictionary"),
    (r"^transformer\.resblocks\.(\d+)\.mlp\.c_proj$", r"blocks.\1.ista.decoder"),
    (r"^ln_post\.", "norm."),
    (r"^proj$", "head.weight"),
]


def native_names(state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
    """Published CRATE, CRATE-alpha, CRATE-alpha CLIPA and patch-8 demo files in this family's names; others unchanged.

    The demo file ends in two linear layers without a non-linearity between (`mlp_head.1`, `head`): they are multiplied
    into one. Of a CLIPA file the text tower is left out and the image projection becomes a classifier without bias.

    Raises: WeightsMismatch if a CLIPA file's queries, keys and values are not one and the same projection.
    """
    if "visual.class_embedding" in state_dict:
        return _clipa_names(state_dict)
    if "pos_embedding" not in state_dict:
        return state_dict
    state_dict = dict(state_dict)
    if "head.weight" in state_dict and "mlp_head.1.weight" in state_dict:
        outer, inner = state_dict.pop("head.weight"), state_dict["mlp_head.1.weight"]
        state_dict["mlp_head.1.bias"] = outer @ state_dict["mlp_head.1.bias"] + state_dict.pop("head.bias")
        state_dict["mlp_head.1.weight"] = outer @ inner
    return renamed(state_dict, _CRATE_NAMES)


def _clipa_names(state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
    visual = {key.removeprefix("visual."): t for key, t in state_dict.items() if key.startswith("visual.")}
    native = renamed(visual, _CLIPA_NAMES)
    for key, tensor in native.items():
        if key.endswith("attn.qkv.weight"):
            query, key_, value = tensor.chunk(3)
            if not (torch.equal(query, key_) and torch.equal(query, value)):
                raise WeightsMismatch(f"{key}: queries, keys and values differ, this is no subspace attention")
            native[key] = query
    native["cls_token"] = native["cls_token"].reshape(1, 1, -1)
    native["pos_embed"] = native["pos_embed"].unsqueeze(0)
    native["patch_embed.proj.bias"] = torch.zeros(native["patch_embed.proj.weight"].shape[0])
    if "head.weight" in native:
        native["head.weight"] = native["head.weight"].t()
        native["head.bias"] = torch.zeros(native["head.weight"].shape[0])
    return native


def checkpoint_filter_fn(state_dict: dict[str, Any], model: CRATE) -> dict[str, Tensor]:
    """A native or published checkpoint, possibly wrapped, in the names and shapes of `model`.

    Raises: WeightsMismatch as `fit_to_model` and `unwrap_state_dict`.
    """
    state = unwrap_state_dict(state_dict)
    published = native_names(state)
    if published is not state and not isinstance(model.fc_norm, nn.Identity):
        # The official head normalizes the pooled vector.
        published = {re.sub(r"^norm\.", "fc_norm.", key): tensor for key, tensor in published.items()}
    return fit_to_model(published, model)


def _create(variant: str, size: dict[str, Any], pretrained: bool = False, **kwargs: Any) -> CRATE:
    return create_unrolled(CRATE, variant, pretrained, pretrained_filter_fn=checkpoint_filter_fn, **{**size, **kwargs})


_ALPHA = {"dictionary_ratio": 4, "ista_skip": True, "proj_bias": False, "norm_eps": 1e-6, "embed_layer": PatchEmbed}

_ORIGIN = {
    "license": "mit",
    "origin_url": "https://github.com/Ma-Lab-Berkeley/CRATE",
    "paper_name": "White-Box Transformers via Sparse Rate Reduction",
    "paper_ids": "arXiv:2306.01129",
}
_ALPHA_ORIGIN = {
    "origin_url": "https://github.com/UCSC-VLAA/CRATE-alpha",
    "paper_name": "Scaling White-Box Transformers for Vision",
    "paper_ids": "arXiv:2405.20299",
}
_cfg = partial(cifar_cfg, **_ORIGIN)
# as the official code evaluates: the shorter side to 256 pixels, the middle 224 of them, bilinear
_imagenet = partial(imagenet_cfg, crop_pct=0.875, interpolation="bilinear", **_ORIGIN)
_alpha = partial(imagenet_cfg, crop_pct=1.0, **_ALPHA_ORIGIN)

default_cfgs = generate_default_cfgs(
    {
        "crate_tiny": _cfg(),
        "crate_small": _cfg(),
        "crate_base": _cfg(),
        "crate_tiny_patch16_224": _imagenet(),
        "crate_small_patch16_224": _imagenet(),
        "crate_base_patch16_224": _imagenet(),
        "crate_large_patch16_224": _imagenet(),
        "crate_base_patch16_128": _imagenet(input_size=(3, 128, 128)),
        "crate_base_patch8_224": _imagenet(num_classes=21842),
        "crate_alpha_base_patch16_224": _alpha(),
        "crate_alpha_large_patch14_224": _alpha(),
        "crate_alpha_huge_patch14_224": _alpha(),
        "test_crate": _cfg(),
        **bundled(
            "crate_tiny.lejepa_cifar10",
            **{
                **_ORIGIN,
                "license": "apache-2.0",
                "description": "LeJEPA pretraining on CIFAR-10 train without labels",
            },
        ),
        "test_crate_alpha": _cfg(),
    }
)


# At 32x32 the mean of the patch tokens was measured to be better than the class token: train/RESULTS.md.
@register_model
def crate_tiny(pretrained: bool = False, **kwargs: Any) -> CRATE:
    """CRATE Tiny of Table 1 of the AoT-ADMM paper: 5.41 M parameters at 32x32."""
    size = {"img_size": 32, "patch_size": 8, "global_pool": "avg", "embed_dim": 384, "depth": 12, "num_heads": 6}
    return _create("crate_tiny", size, pretrained, **kwargs)


@register_model
def crate_small(pretrained: bool = False, **kwargs: Any) -> CRATE:
    """CRATE Small of Table 1 of the AoT-ADMM paper: 12.10 M parameters at 32x32."""
    size = {"img_size": 32, "patch_size": 8, "global_pool": "avg", "embed_dim": 576, "depth": 12, "num_heads": 12}
    return _create("crate_small", size, pretrained, **kwargs)


@register_model
def crate_base(pretrained: bool = False, **kwargs: Any) -> CRATE:
    """CRATE Base of Table 1 of the AoT-ADMM paper: 21.44 M parameters at 32x32."""
    size = {"img_size": 32, "patch_size": 8, "global_pool": "avg", "embed_dim": 768, "depth": 12, "num_heads": 12}
    return _create("crate_base", size, pretrained, **kwargs)


@register_model
def crate_tiny_patch16_224(pretrained: bool = False, **kwargs: Any) -> CRATE:
    """Official CRATE-Tiny."""
    size = {"img_size": 224, "patch_size": 16, "embed_dim": 384, "depth": 12, "num_heads": 6}
    return _create("crate_tiny_patch16_224", size, pretrained, **kwargs)


@register_model
def crate_small_patch16_224(pretrained: bool = False, **kwargs: Any) -> CRATE:
    """Official CRATE-Small."""
    size = {"img_size": 224, "patch_size": 16, "embed_dim": 576, "depth": 12, "num_heads": 12}
    return _create("crate_small_patch16_224", size, pretrained, **kwargs)


@register_model
def crate_base_patch16_224(pretrained: bool = False, **kwargs: Any) -> CRATE:
    """Official CRATE-Base."""
    size = {"img_size": 224, "patch_size": 16, "embed_dim": 768, "depth": 12, "num_heads": 12}
    return _create("crate_base_patch16_224", size, pretrained, **kwargs)


@register_model
def crate_large_patch16_224(pretrained: bool = False, **kwargs: Any) -> CRATE:
    """Official CRATE-Large."""
    size = {"img_size": 224, "patch_size": 16, "embed_dim": 1024, "depth": 24, "num_heads": 16}
    return _create("crate_large_patch16_224", size, pretrained, **kwargs)


@register_model
def crate_base_patch16_128(pretrained: bool = False, **kwargs: Any) -> CRATE:
    """CRATE Base of Table 2 of the AoT-ADMM paper: 21.92 M parameters at 128x128."""
    size = {"img_size": 128, "patch_size": 16, "embed_dim": 768, "depth": 12, "num_heads": 12}
    return _create("crate_base_patch16_128", size, pretrained, **kwargs)


@register_model
def crate_base_patch8_224(pretrained: bool = False, **kwargs: Any) -> CRATE:
    """The published segmentation demo: CRATE-Base at patch 8 with 6 heads of 128, trained on ImageNet-21K."""
    size = {"img_size": 224, "patch_size": 8, "embed_dim": 768, "depth": 12, "num_heads": 6}
    return _create("crate_base_patch8_224", size, pretrained, **kwargs)


@register_model
def crate_alpha_base_patch16_224(pretrained: bool = False, **kwargs: Any) -> CRATE:
    """CRATE-alpha-B/16."""
    size = {"img_size": 224, "patch_size": 16, "embed_dim": 768, "depth": 12, "num_heads": 12}
    return _create("crate_alpha_base_patch16_224", {**size, **_ALPHA}, pretrained, **kwargs)


@register_model
def crate_alpha_large_patch14_224(pretrained: bool = False, **kwargs: Any) -> CRATE:
    """CRATE-alpha-L/14."""
    size = {"img_size": 224, "patch_size": 14, "embed_dim": 1024, "depth": 24, "num_heads": 16}
    return _create("crate_alpha_large_patch14_224", {**size, **_ALPHA}, pretrained, **kwargs)


@register_model
def crate_alpha_huge_patch14_224(pretrained: bool = False, **kwargs: Any) -> CRATE:
    """CRATE-alpha-H/14."""
    size = {"img_size": 224, "patch_size": 14, "embed_dim": 1280, "depth": 32, "num_heads": 16}
    return _create("crate_alpha_huge_patch14_224", {**size, **_ALPHA}, pretrained, **kwargs)


@register_model
def test_crate(**kwargs: Any) -> CRATE:
    """A miniature for tests."""
    return _create("test_crate", MINIATURE, **kwargs)


@register_model
def test_crate_alpha(**kwargs: Any) -> CRATE:
    """A miniature for tests."""
    return _create("test_crate_alpha", {**MINIATURE, **_ALPHA}, **kwargs)
