"""CRATE's stem: flatten each patch, LayerNorm, Linear, LayerNorm."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from timm.layers import LayerNorm, PatchEmbed
from timm.layers.trace_utils import _assert
from torch import Tensor, nn


class LinearPatchEmbed(PatchEmbed):
    """Patch embedding LN(Linear(LN(patch))), the patch flattened in (row, column, channel) order (CRATE's stem).

    Takes the arguments of timm's `PatchEmbed` and behaves like it: (B, C, H, W) -> (B, N, d), or (B, h, w, d) with
    `output_fmt="NHWC"` (timm's dynamic image size).

    Raises: ValueError if the image holds no whole number of patches.
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
        norm_layer = norm_layer or LayerNorm
        self.in_chans = in_chans
        patch_dim = self.patch_size[0] * self.patch_size[1] * in_chans
        self.norm_patch = norm_layer(patch_dim, device=device, dtype=dtype)
        self.proj = nn.Linear(patch_dim, embed_dim, bias=bias, device=device, dtype=dtype)  # type: ignore[assignment]
        self.norm = norm_layer(embed_dim, device=device, dtype=dtype)

    def _init_img_size(self, img_size: int | tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int], int]:
        size, grid, count = super()._init_img_size(img_size)
        remainder = any(s % p for s, p in zip(size, self.patch_size, strict=True))
        if count == 0 or (remainder and not getattr(self, "dynamic_img_pad", False)):
            raise ValueError(f"img_size {size} is no multiple of patch_size {self.patch_size}")
        return size, grid, count

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
