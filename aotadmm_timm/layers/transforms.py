"""When a layer must keep to plain tensor operations."""

import torch
from torch import Tensor

from aotadmm_timm.precision import is_symbol


@torch.jit.unused
def is_transformed(t: Tensor) -> bool:
    """Whether torch.fx, a tracer, torch.compile, torch.export or a torch.func transform reads the operations on `t`.

    A hand-written backward is closed to them: the compiler fuses plain operations itself, vmap needs a rule for each.
    """
    if is_symbol(t) or torch.jit.is_tracing() or torch.compiler.is_compiling():
        return True
    return torch._C._are_functorch_transforms_active()


PLAIN_OPERATIONS = "call timm.layers.set_fused_attn(False) before the model is built"
