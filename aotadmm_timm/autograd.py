"""What the package's hand-written backwards have in common."""

import torch

# What to do about it, for layers that have a plain form as well.
PLAIN_OPERATIONS = "call timm.layers.set_fused_attn(False) before the model is built"


def once_only(what: str, instead: str = "") -> None:
    """Refuse, in a hand-written backward, to be differentiated again: its result would count as a constant.

    torch's `once_differentiable` does so only where the incoming gradient depends on something trainable.

    Args:
        what: is differentiated; instead: what to do about it, for the message.
    Raises: RuntimeError under create_graph=True.
    """
    if torch.is_grad_enabled():
        raise RuntimeError(
            f"{what} has a hand-written backward, which cannot be differentiated again (create_graph=True)"
            + (f"; {instead}" if instead else "")
        )
