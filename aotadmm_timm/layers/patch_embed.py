"""CRATE's stem: flatten each patch, LayerNorm, Linear, LayerNorm."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import PatchEmbed, resample_patch_embed, to_2tuple
from timm.layers.trace_utils import _assert
from timm.models import adapt_input_conv
from torch import Tensor, nn

from aotadmm_timm.errors import UserError

STEM_KEYS = ("norm_patch.weight", "norm_patch.bias", "proj.weight", "proj.bias")


def adapt_linear_stem(
    stem: dict[str, Tensor], old: tuple[int, int, int], new: tuple[int, int, int]
) -> dict[str, Tensor]:
    """Weights of a `LinearPatchEmbed` for another patch size or number of channels.

    The gain and bias of the first LayerNorm are folded into the linear layer (they differ per pixel and channel, so
    channels cannot be summed while they stand apart); then timm's rules for convolutional stems apply: channels are
    summed (to 1) or repeated and rescaled, kernels resampled by the pseudo-inverse of the image resizing.

    Args:
        stem: the tensors named `STEM_KEYS`.
        old, new: (patch height, patch width, channels).
    Returns: the same names with new shapes; the LayerNorm has unit gain and zero bias.
    Raises: UserError if the linear layer has no bias to fold into.
    """
    if "proj.bias" not in stem:
        raise UserError(f"a linear stem without bias cannot be adapted from {old} to {new} (patch size, channels)")
    gain, shift, weight, bias = (stem[key].float() for key in STEM_KEYS)
    bias = bias + weight @ shift
    kernel = (weight * gain).unflatten(1, old).permute(0, 3, 1, 2)
    if old[2] != new[2]:
        kernel = adapt_input_conv(new[2], kernel, base_chans=old[2])
    if old[:2] != new[:2]:
        kernel = resample_patch_embed(kernel, list(new[:2]))
    weight = kernel.permute(0, 2, 3, 1).flatten(1)
    folded = (torch.ones_like(weight[0]), torch.zeros_like(weight[0]), weight, bias)
    return {key: tensor.to(stem[key].dtype) for key, tensor in zip(STEM_KEYS, folded, strict=True)}


class LinearPatchEmbed(PatchEmbed):
    """Patch embedding LN(Linear(LN(patch))), the patch flattened in (row, column, channel) order (CRATE's stem).

    Takes the arguments of timm's `PatchEmbed` and behaves like it: (B, C, H, W) -> (B, N, d), or (B, h, w, d) with
    `output_fmt="NHWC"` (timm's dynamic image size).

    Raises: UserError if the image holds no whole number of patches.
    Differs from timm's: two LayerNorms, and a linear layer instead of a convolution.
    """

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        patch_size: int | tuple[int, int] = 16,
        in_chans: int = 3,
        embed_dim: int = 768,
        norm_layer: Callable[..., nn.Module] | None = None,
        output_fmt: str | None = None,
        bias: bool = True,
        strict_img_size: bool = True,
        dynamic_img_pad: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if output_fmt not in (None, "NHWC"):
            raise ValueError(f"output_fmt must be None (tokens) or 'NHWC', got {output_fmt!r}")
        super().__init__(
            img_size=img_size,
            patch_size=patch_size,  # type: ignore[arg-type]  # annotated int, takes a pair
            in_chans=in_chans,
            embed_dim=embed_dim,
            output_fmt=output_fmt,
            bias=bias,
            strict_img_size=strict_img_size,
            dynamic_img_pad=dynamic_img_pad,
            device=device,
            dtype=dtype,
        )
        norm_layer = norm_layer or nn.LayerNorm
        self.in_chans = in_chans
        patch_dim = self.patch_size[0] * self.patch_size[1] * in_chans
        self.norm_patch = norm_layer(patch_dim, device=device, dtype=dtype)
        self.proj = nn.Linear(patch_dim, embed_dim, bias=bias, device=device, dtype=dtype)  # type: ignore[assignment]
        self.norm = norm_layer(embed_dim, device=device, dtype=dtype)

    def _init_img_size(self, img_size: int | tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int], int]:
        size, grid, count = super()._init_img_size(img_size)
        remainder = any(s % p for s, p in zip(size, self.patch_size, strict=True))
        if count == 0 or (remainder and not getattr(self, "dynamic_img_pad", False)):
            raise UserError(f"img_size {size} is no multiple of patch_size {self.patch_size}")
        return size, grid, count

    def set_input_size(
        self,
        img_size: int | tuple[int, int] | None = None,
        patch_size: int | tuple[int, int] | None = None,
    ) -> None:
        """Change the image size, the patch size or both; a new patch size resamples the linear layer."""
        new_patch = self.patch_size if patch_size is None else to_2tuple(patch_size)
        if new_patch != self.patch_size:
            state = {key: tensor for key, tensor in self.state_dict().items() if key in STEM_KEYS}
            state = adapt_linear_stem(state, (*self.patch_size, self.in_chans), (*new_patch, self.in_chans))
            for key, tensor in state.items():
                module, name = key.split(".")
                old = getattr(getattr(self, module), name)
                setattr(getattr(self, module), name, nn.Parameter(tensor, requires_grad=old.requires_grad))
            proj: Any = self.proj
            norm_patch: Any = self.norm_patch
            proj.in_features = proj.weight.shape[1]
            norm_patch.normalized_shape = (proj.in_features,)
            self.patch_size = new_patch
        self.img_size, self.grid_size, self.num_patches = self._init_img_size(img_size or self.img_size)

    def forward(self, x: Tensor) -> Tensor:
        B, C, H, W = x.shape
        ph, pw = self.patch_size[0], self.patch_size[1]
        _assert(self.in_chans == C, f"Input has {C} channels, the model takes {self.in_chans}.")
        if self.strict_img_size:
            _assert(self.img_size[0] == H, f"Input height ({H}) doesn't match model ({self.img_size[0]}).")
            _assert(self.img_size[1] == W, f"Input width ({W}) doesn't match model ({self.img_size[1]}).")
        elif not self.dynamic_img_pad:
            _assert(H % ph == 0, f"Input height ({H}) should be divisible by patch size ({ph}).")
            _assert(W % pw == 0, f"Input width ({W}) should be divisible by patch size ({pw}).")
        if self.dynamic_img_pad:
            x = F.pad(x, (0, (pw - W % pw) % pw, 0, (ph - H % ph) % ph))
        h, w = self.dynamic_feat_size((H, W))
        x = x.reshape(B, C, h, ph, w, pw).permute(0, 2, 4, 3, 5, 1).reshape(B, h, w, ph * pw * C)
        x = self.norm(self.proj(self.norm_patch(x)))
        return x.flatten(1, 2) if self.flatten else x
