"""The ADMM step of a layer in few passes over memory, for CPUs."""

from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from aotadmm_timm.autograd import PLAIN_OPERATIONS, once_only

# Elements in a block of tokens: its handful of float32 buffers stay in a core's cache. Between 2^17 and 2^19 the time
# is level; as one block it is twice as long.
_BLOCK = 2**18


@torch.jit.unused
def fused_admm_step(
    z: Tensor,
    v: Tensor,
    w: Tensor,
    compressed: Tensor,
    coefficients: Tensor,
    threshold: Tensor,
    gain: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """`proximal.admm_step` with both rescalings, on CPU: block by block, in float32, with a backward of its own.

    Of each layer two inputs, two outputs, the rescaled Z before its gain and two factors per token are kept, in the
    precision of the states. Against the same formula under autograd, forward and backward take less than half of the
    time and memory.

    Args:
        z, v, w, compressed: (B, N, d), in any floating-point dtype; the states returned have the dtype of z.
        coefficients: (3,), the third positive: the backward divides by it.
        threshold: one element.
        gain: (d,).
        eps: added to the mean square.
    """
    return _FusedADMMStep.apply(z, v, w, compressed, coefficients, threshold, gain, eps)


class _FusedADMMStep(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        v: Tensor,
        w: Tensor,
        compressed: Tensor,
        coefficients: Tensor,
        threshold: Tensor,
        gain: Tensor,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        shape, d = z.shape, z.shape[-1]
        inputs = [t.reshape(-1, d) for t in (z, v, w, compressed)]
        work = torch.float64 if z.dtype == torch.float64 else torch.float32
        a, b, c = coefficients.tolist()
        tau = threshold.item()
        ctx.threshold, ctx.gain_dtype, ctx.eps, ctx.shape = threshold, gain.dtype, eps, shape
        gain = gain.to(work)
        # Z+, V+, W+ and Z+ before its gain; what scales the two rescaled ones, per token
        outputs = [torch.empty_like(inputs[0]) for _ in range(4)]
        factors = [inputs[0].new_empty((len(inputs[0]), 1), dtype=work) for _ in range(2)]
        for zi, vi, wi, mi, zo, vo, wo, no, ri, si in _blocks(*inputs, *outputs, *factors):
            wi = wi.to(work)
            y = torch.sub(vi.to(work), wi).mul_(c).add_(zi.to(work), alpha=a).add_(mi.to(work), alpha=b)
            ri.copy_(_inverse_rms(y, eps))
            no.copy_(y.mul_(ri))
            zo.copy_(y.mul_(gain))
            u = y.add_(wi)
            sparse = torch.sub(u, tau).relu_()
            vo.copy_(sparse)
            u.sub_(sparse)
            si.copy_(_inverse_rms(u, eps))
            wo.copy_(u.mul_(si))
        z, v, w, n = outputs
        ctx.set_materialize_grads(False)  # the last layer's Z+ and W+ are read by nobody
        ctx.save_for_backward(inputs[0], inputs[3], v, w, n, *factors, coefficients, gain)
        return z.view(shape), v.view(shape), w.view(shape)

    @staticmethod
    def backward(
        ctx: Any, grad_z: Tensor | None, grad_v: Tensor | None, grad_w: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        once_only("the ADMM step on CPU", PLAIN_OPERATIONS)
        *saved, coefficients, gain = ctx.saved_tensors
        work, d = gain.dtype, gain.numel()
        a, b, c = coefficients.tolist()
        grads = [None if t is None else t.reshape(-1, d) for t in (grad_z, grad_v, grad_w)]
        results = [torch.empty_like(saved[0]) for _ in range(4)]
        along_z = along_m = along_y = 0.0  # sums of dy times z, MSSA(Z) and y
        grad_gain, grad_tau = torch.zeros_like(gain), 0.0
        for zi, mi, vo, wo, no, ri, si, gz, gv, gw, rz, rv, rw, rm in _blocks(*saved, *grads, *results):
            # W+ = s x with x = min(u, tau):  dx = s (g - W+ mean(W+ g))
            n = wo.to(work)
            if gw is None:
                gu, buffer = torch.zeros_like(n), torch.empty_like(n)
            else:
                g = gw.to(work)
                buffer = torch.mul(n, g)
                gu = torch.addcmul(g, n, buffer.sum(-1, keepdim=True).div_(-d)).mul_(si)
            # Above the threshold x is constant and V+ = u - tau. sign is 0 or 1 here, and lerp exact at both ends.
            above = torch.sign(vo.to(work), out=buffer)
            gv = torch.zeros_like(n) if gv is None else gv.to(work)
            if ctx.needs_input_grad[5]:
                grad_tau += torch.sum(above * (gu - gv)).item()
            gu.lerp_(gv, above)
            # Z+ = n gain with n = r y:  dy = r (g gain - n mean(n g gain))
            g = buffer.copy_(gu) if gz is None else torch.add(gu, gz.to(work), out=buffer)
            n = no.to(work)
            product = n * g
            grad_gain += product.sum(0)
            inner = torch.mv(product, gain).unsqueeze(1)  # mv, not @: autocast leaves it alone
            gy = g.mul_(gain).addcmul_(n, inner / -d).mul_(ri)
            flat = gy.flatten()
            along_z += torch.dot(flat, zi.to(work).flatten()).item()
            along_m += torch.dot(flat, mi.to(work).flatten()).item()
            along_y += torch.sum(inner * ri.square()).item() * ctx.eps  # nothing but for eps: n has unit length
            half = gy.to(rz.dtype)
            torch.mul(half, a, out=rz)
            torch.mul(half, c, out=rv)
            torch.mul(half, b, out=rm)
            rw.copy_(gu.add_(gy, alpha=-c))
        shape = ctx.shape
        rz, rv, rw, rm = (t.view(shape) for t in results)
        # y = a z + b MSSA(Z) + c (V - W): the last sum follows from the others.
        sums = (along_z, along_m, (along_y - a * along_z - b * along_m) / c)
        return (
            rz,
            rv,
            rw,
            rm,
            coefficients.new_tensor(sums),
            torch.full_like(ctx.threshold, grad_tau) if ctx.needs_input_grad[5] else None,
            grad_gain.to(ctx.gain_dtype),
            None,
        )


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()


def _blocks(first: Tensor, *others: Tensor | None) -> Any:
    """Tuples of the same rows of every tensor (T, ...); None stays None."""
    rows = max(1, _BLOCK // first.shape[-1])
    parts = first.split(rows)
    return zip(parts, *(repeat(None, len(parts)) if t is None else t.split(rows) for t in others), strict=True)
