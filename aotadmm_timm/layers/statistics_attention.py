"""Token statistics self-attention (TSSA)."""

import torch
from timm.layers import use_fused_attn
from torch import Tensor, nn
from torch.jit import Final

from aotadmm_timm.errors import UserError
from aotadmm_timm.layers import dispatch
from aotadmm_timm.layers.token_statistics import membership


class TSSA(nn.Module):
    """Token statistics self-attention, (B, N, d) -> (B, N, d).

    TSSA(Z | U) = -W_O (Pi w D) with w_k = U_k^T z for every head   (arXiv:2412.17810; see `token_statistics`)

    Args:
        dim: token width d.
        num_heads: number of subspaces K; p = d / K.
        qkv_bias: bias of U^T, as in the published vision models.
        proj_bias: bias of W_O.
        attn_drop, proj_drop: dropout of D and of the output.
    Raises: UserError if `num_heads` does not divide `dim`.
    Differs from the paper as the published code does: a linear layer W_O of its own instead of U, a learned
        temperature per head in Pi, and factors 1 / n_k and d / eps^2 absorbed by the scale of the projections.
    """

    fused_attn: Final[bool]

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        qkv_bias: bool = False,
        proj_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if dim % num_heads:
            raise UserError(f"embed_dim must be divisible by num_heads, got embed_dim={dim}, num_heads={num_heads}")
        self.num_heads = num_heads
        self.fused_attn = use_fused_attn()
        self.attn_drop = attn_drop
        # The rows of this weight are U^T, head by head. Named as in timm and in the published code.
        self.qkv = nn.Linear(dim, dim, bias=qkv_bias, device=device, dtype=dtype)
        self.temperature = nn.Parameter(torch.empty(num_heads, device=device, dtype=dtype))
        self.proj = nn.Linear(dim, dim, bias=proj_bias, device=device, dtype=dtype)
        self.proj_drop = nn.Dropout(proj_drop)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Temperatures of 1."""
        nn.init.ones_(self.temperature)

    def project(self, x: Tensor) -> Tensor:
        """The tokens in each head's subspace, (B, N, d) -> (B, N, K, p)."""
        return self.qkv(x).unflatten(-1, (self.num_heads, -1))

    def membership(self, x: Tensor) -> Tensor:
        """Pi of tokens (B, N, d): the share of each that belongs to each head, (B, N, K)."""
        return membership(self.project(x), self.temperature)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, d) -> (B, N, d)."""
        dropout = self.attn_drop if self.training else 0.0
        w = dispatch.token_statistics(self.project(x), self.temperature, dropout, self.fused_attn)
        return self.proj_drop(self.proj(w.flatten(2)))
