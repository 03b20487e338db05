"""Multi-head subspace self-attention (MSSA)."""

import torch
import torch.nn.functional as F
from timm.layers import use_fused_attn
from torch import Tensor, nn
from torch.jit import Final

from aotadmm_timm.errors import UserError
from aotadmm_timm.layers import dispatch


class MSSA(nn.Module):
    """Multi-head subspace self-attention.

    MSSA(Z | U) = sum_k U_k U_k^T Z softmax(Z^T U_k U_k^T Z)   (AoT-ADMM, Eq. 12; CRATE, arXiv:2306.01129)

    With w_k = U_k^T z the heads are softmax(s w_k w_k^T) w_k, concatenated and mapped back to the token space.

    Args:
        dim: token width d.
        num_heads: number of subspaces K; p = d / K.
        tied: map back with U itself, without bias, as Eq. 12 is printed. Default: a linear layer of its own.
        proj_bias: bias of that linear layer.
        scale: s; None for p ** -0.5.
        attn_drop, proj_drop: dropout of attention weights and of the output.
    Raises: UserError if `num_heads` does not divide `dim`.
    Differs from the paper: an untied output projection with bias (its parameter counts require one) and the factor
        p ** -0.5, both as in CRATE's code. `tied=True, scale=1.0` is Eq. 12 to the letter.
    """

    fused_attn: Final[bool]
    scale: Final[float]

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        tied: bool = False,
        proj_bias: bool = True,
        scale: float | None = None,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if dim % num_heads:
            raise UserError(f"embed_dim must be divisible by num_heads, got embed_dim={dim}, num_heads={num_heads}")
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5 if scale is None else scale
        self.fused_attn = use_fused_attn()
        self.attn_drop = attn_drop
        # The rows of this weight are U^T, head by head. Named as in timm and CRATE: it serves as query, key and value.
        self.qkv = nn.Linear(dim, dim, bias=False, device=device, dtype=dtype)
        self.proj = None if tied else nn.Linear(dim, dim, bias=proj_bias, device=device, dtype=dtype)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, d) -> (B, N, d)."""
        w = self.qkv(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        w = dispatch.subspace_attention(w, self.scale, self.attn_drop if self.training else 0.0, self.fused_attn)
        w = w.transpose(1, 2).flatten(2)
        w = F.linear(w, self.qkv.weight.t()) if self.proj is None else self.proj(w)
        return self.proj_drop(w)
