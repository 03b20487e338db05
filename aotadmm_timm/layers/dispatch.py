"""How an operator is computed: the one place that asks for device, precision, length, autocast, tracing and scripting.

Each function stands for one formula and picks a form of it; which is faster where is measured by tests/benchmarks
(attention.py, crate_forward.py, token_statistics.py, training_step.py). Call them as `dispatch.NAME`: to torch.fx each
is then one node that chooses when the graph runs, as the model does, so that a traced graph gives the model's bits.
"""

import torch
import torch.nn.functional as F
from timm.layers import register_notrace_function
from torch import Tensor

from aotadmm_timm.layers import proximal
from aotadmm_timm.layers.fused_admm import fused_admm_step
from aotadmm_timm.layers.fused_token_statistics import fused_token_statistics
from aotadmm_timm.layers.tied_attention import explicit_attention, tied_attention
from aotadmm_timm.layers.token_statistics import token_statistics as explicit_token_statistics
from aotadmm_timm.precision import autocast_is_on


@torch.fx.wrap
@register_notrace_function
def subspace_attention(w: Tensor, scale: float, dropout: float = 0.0, fused: bool = True) -> Tensor:
    """softmax(scale * w w^T) w for every head: queries, keys and values are the same projection.

    - Short sequences on CPU, the 5 to 17 tokens of CIFAR views: `tied_attention`.
    - Longer ones on CPU in half precision: written out, as `scaled_dot_product_attention` is slow there.
    - Else, and from 1024 tokens on, where N x N weights cost too much memory: `scaled_dot_product_attention`.

    Args:
        w: projected tokens (B, K, N, p).
        scale: factor on the logits.
        dropout: probability with which attention weights are dropped (0 outside training).
        fused: False forces the explicit form (timm's `set_fused_attn(False)`), which can be differentiated twice.
    Returns: (B, K, N, p).
    """
    on_cpu, tokens = w.device.type == "cpu", w.shape[-2]
    short = on_cpu and tokens <= 32 and dropout == 0.0
    half = w.dtype == torch.bfloat16 or w.dtype == torch.float16
    if not torch.jit.is_scripting() and fused and short and not is_transformed():
        return tied_attention(w, scale)
    if fused and not short and not (on_cpu and half and tokens < 1024):
        return F.scaled_dot_product_attention(w, w, w, dropout_p=dropout, scale=scale)
    return explicit_attention(w, scale, dropout)


@torch.fx.wrap
@register_notrace_function
def token_statistics(w: Tensor, temperature: Tensor, dropout: float = 0.0, fused: bool = True) -> Tensor:
    """`token_statistics.token_statistics`; on CPU, without dropout, as one operation (`fused_token_statistics`).

    Args:
        fused: False keeps to separate operations (timm's `set_fused_attn(False)`), which can be differentiated twice.
    The other arguments and the result as there.
    """
    on_cpu = w.device.type == "cpu"
    if not torch.jit.is_scripting() and fused and dropout == 0.0 and on_cpu and not is_transformed():
        return fused_token_statistics(w, temperature)
    return explicit_token_statistics(w, temperature, dropout)


@torch.fx.wrap
@register_notrace_function
def ista_step(y: Tensor, dictionary: Tensor, step_size: float, sparsity: float) -> Tensor:
    """`proximal.ista_step`, in one product where tokens outnumber the width; sums in place of passes outside autocast.

    Arguments and result as there.
    """
    if torch.jit.is_scripting():
        return proximal.ista_step(y, dictionary, step_size, sparsity)
    one_product = more_tokens_than_width(y)
    return proximal.ista_step(y, dictionary, step_size, sparsity, one_product, can_add_product(y))


@torch.fx.wrap
@register_notrace_function
def overcomplete_ista(y: Tensor, dictionary: Tensor, decoder: Tensor, step_size: float, sparsity: float) -> Tensor:
    """`proximal.overcomplete_ista`; sums in place of passes outside autocast. Arguments and result as there."""
    at_once = not torch.jit.is_scripting() and can_add_product(y)
    return proximal.overcomplete_ista(y, dictionary, decoder, step_size, sparsity, at_once)


@torch.fx.wrap
@register_notrace_function
def admm_step(
    z: Tensor,
    v: Tensor,
    w: Tensor,
    compressed: Tensor,
    coefficients: Tensor,
    threshold: Tensor,
    gain: Tensor | None = None,
    rescale_z: bool = True,
    rescale_w: bool = True,
    eps: float = 1e-6,
    fused: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """`proximal.admm_step`; on CPU the paper's form, with both rescalings, is one operation (`fused_admm_step`).

    Args:
        fused: False keeps to separate operations (timm's `set_fused_attn(False)`), which can be differentiated twice.
    The other arguments and the result as there.
    """
    if (
        not torch.jit.is_scripting()
        and (fused and gain is not None and rescale_z and rescale_w)
        and (not is_transformed() and z.device.type == "cpu" and threshold.numel() == 1)
        and coefficients[2].item() > 1e-4  # its backward divides by it
    ):
        return fused_admm_step(z, v, w, compressed, coefficients, threshold, gain, eps)
    return proximal.admm_step(z, v, w, compressed, coefficients, threshold, gain, rescale_z, rescale_w, eps)


@torch.fx.wrap
@register_notrace_function
def as_autocast_stores(t: Tensor) -> Tensor:
    """`t` in the precision of the autocast that is on for its device; `t` itself if none is, and in TorchScript."""
    if not torch.jit.is_scripting() and autocast_is_on(t):
        return t.to(torch.get_autocast_dtype(t.device.type))
    return t


@torch.jit.unused
def is_transformed() -> bool:
    """Whether a tracer, torch.compile, torch.export or a torch.func transform reads the operations.

    A hand-written backward is closed to them: the compiler fuses plain operations itself, vmap needs a rule for each.
    """
    if torch.jit.is_tracing() or torch.compiler.is_compiling():
        return True
    return torch._C._are_functorch_transforms_active()


@torch.jit.unused
def more_tokens_than_width(y: Tensor) -> bool:
    """Whether y (..., d) has more than d tokens; no in programs that are exported for other numbers of tokens too."""
    return not torch.compiler.is_exporting() and y.numel() > y.shape[-1] ** 2


@torch.jit.unused
def can_add_product(y: Tensor) -> bool:
    """Whether x + s A B may be one operation: under autocast it would round x."""
    return not autocast_is_on(y)
