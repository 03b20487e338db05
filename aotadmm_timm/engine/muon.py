"""Muon for weight matrices, AdamW for every other parameter."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from timm.optim.muon import (
    _COEFFICIENTS,
    _is_suitable_for_muon,
    get_lr_scale,
    resolve_ns_coefficients,
    zeropower_via_newtonschulz,
)
from torch import Tensor, nn
from torch.optim.adamw import adamw

from aotadmm_timm import distributed
from aotadmm_timm.errors import UserError
from aotadmm_timm.precision import native_bf16

# How a weight is cut into blocks that are orthogonalized one by one: along its rows (True) or columns, and how many.
Cut = tuple[bool, int]
WHOLE: Cut = (True, 1)


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalized: in groups that name a `cut`, W <- (1 - lr wd) W - lr s orth(M), M an average of G.

    orth(M) = U V^T for M = U S V^T, by timm's Newton-Schulz iterations in bf16 (float32 where the hardware has none);
    s = 0.2 sqrt(max(rows, columns)) gives the update the root mean square of AdamW's (arXiv:2502.16982, Eq. 4).
    Groups without a cut get AdamW with the rate `fallback_lr_scale` * lr.

    Args:
        params: groups; `cut` of a group is (along rows, number of blocks), see `muon_groups`.
        lr: of the matrices.
        weight_decay: decoupled, of both kinds of groups.
        momentum: factor on M in a step.
        nesterov: orthogonalize G and M mixed by `momentum` instead of M.
        ns_steps, ns_coefficients, adjust_lr_fn: as in timm's Muon.
        fallback_lr_scale: AdamW's learning rate over lr.
        betas, eps: AdamW's.
    Differs from timm's Muon: equal shapes are one batched product, shared out over the ranks of a process group; AdamW
        is torch's fused one; a matrix can be cut into blocks; which parameters are served is said by groups and not by
        shape alone.
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        lr: float = 0.02,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        nesterov: bool = False,
        ns_steps: int = 5,
        ns_coefficients: str = "quintic",
        adjust_lr_fn: str = "match_rms_adamw",
        fallback_lr_scale: float = 1.0,
        betas: Sequence[float] = (0.9, 0.95),
        eps: float = 1e-8,
    ) -> None:
        if not 0 <= momentum < 1:
            raise UserError(f"momentum must be at least 0 and below 1, got {momentum}")
        if fallback_lr_scale < 0:
            raise UserError(f"fallback_lr_scale must not be negative, got {fallback_lr_scale}")
        resolve_ns_coefficients(ns_coefficients, _COEFFICIENTS)
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_steps": ns_steps,
            "ns_coefficients": ns_coefficients,
            "adjust_lr_fn": adjust_lr_fn,
            "fallback_lr_scale": fallback_lr_scale,
            "betas": tuple(betas),
            "eps": eps,
            "cut": None,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        alike: dict[tuple[Any, ...], list[tuple[dict[str, Any], Tensor, Tensor]]] = defaultdict(list)
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if group["cut"] is None:
                self._adamw(group, parameters)
                continue
            for p in parameters:
                update = self._momentum(group, p)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                source = _blocks(update, group["cut"])
                alike[source.shape[1:], p.device, group["ns_steps"], group["ns_coefficients"]].append(
                    (group, p, source)
                )
        for turn, ((shape, _, steps, coefficients), entries) in enumerate(alike.items()):
            stack = torch.cat([source for _, _, source in entries])
            orthogonal = _orthogonalized(stack, steps, resolve_ns_coefficients(coefficients, _COEFFICIENTS), turn)
            sizes = [len(source) for _, _, source in entries]
            for (group, p, _), part in zip(entries, orthogonal.split(sizes), strict=True):
                rows, _ = group["cut"]
                update = (part if rows else part.transpose(0, 1)).reshape(p.shape)
                p.add_(update, alpha=-group["lr"] * get_lr_scale(shape, group["adjust_lr_fn"]))
        return loss

    def _momentum(self, group: dict[str, Any], p: Tensor) -> Tensor:
        assert p.grad is not None
        state = self.state[p]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(p)
        average = state["momentum_buffer"].lerp_(p.grad, 1 - group["momentum"])
        return p.grad.lerp(average, group["momentum"]) if group["nesterov"] else average

    def _adamw(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        for p in parameters:
            if not self.state[p]:
                self.state[p] = {
                    "step": torch.zeros((), dtype=torch.float32, device=p.device),
                    "exp_avg": torch.zeros_like(p),
                    "exp_avg_sq": torch.zeros_like(p),
                }
        states = [self.state[p] for p in parameters]
        adamw(
            parameters,
            [p.grad for p in parameters if p.grad is not None],
            [s["exp_avg"] for s in states],
            [s["exp_avg_sq"] for s in states],
            [],
            [s["step"] for s in states],
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"] * group["fallback_lr_scale"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def _orthogonalized(stack: Tensor, steps: int, coefficients: Any, turn: int) -> Tensor:
    """orth of matrices (n, rows, columns), the work shared by the ranks: all have the same gradients.

    `turn` moves the shares on by one rank, so that a shape with a single matrix is not always the first rank's.
    """
    dtype = torch.bfloat16 if native_bf16(stack.device) else torch.float32
    world, rank = distributed.world_size(), distributed.rank()
    shares = stack.tensor_split(world)
    order = [(r + turn) % world for r in range(world)]  # which share a rank takes
    mine = shares[order[rank]]
    done = zeropower_via_newtonschulz(mine, steps, coefficients, dtype=dtype) if len(mine) else mine.to(dtype)
    if world == 1:
        return done
    sizes = [len(shares[share]) for share in order]
    parts = dict(zip(order, distributed.all_gather(done, sizes=sizes).split(sizes), strict=True))
    return torch.cat([parts[share] for share in range(world)])


def _blocks(x: Tensor, cut: Cut) -> Tensor:
    """A weight (out, in, ...) as matrices (blocks, rows, columns)."""
    rows, number = cut
    matrix = x.flatten(1)
    if rows:
        return matrix.unflatten(0, (number, -1))
    return matrix.unflatten(1, (number, -1)).transpose(0, 1)


def muon_groups(
    groups: Sequence[dict[str, Any]],
    module: nn.Module,
    backbone: nn.Module,
    *,
    head_wise: bool = False,
    backbone_only: bool = False,
) -> list[dict[str, Any]]:
    """Parameter groups split by what Muon does to them: matrices get a `cut`, the rest (AdamW's) none.

    Matrices are weights of two and more dimensions, but for a classifier's and what the backbone names in
    `no_weight_decay()`.

    Args:
        groups: of timm's `param_groups_weight_decay` or `param_groups_layer_decay`.
        module: what the groups are of; holds the backbone.
        backbone: a timm model, or `module` itself.
        head_wise: cut an attention's `qkv` into heads along its rows, its `proj` along its columns.
        backbone_only: leave the projector and whatever else is outside the backbone to AdamW.
    """
    cuts = _cuts(backbone, head_wise)
    if not backbone_only:
        own = set(backbone.parameters())
        cuts |= {p: WHOLE for p in module.parameters() if p not in own and _is_suitable_for_muon(p)}
    result = []
    for group in groups:
        parts: dict[Cut | None, list[Tensor]] = defaultdict(list)
        for p in group["params"]:
            parts[cuts.get(p)].append(p)
        result += [{**group, "params": parameters, "cut": cut} for cut, parameters in parts.items()]
    return result


def _cuts(backbone: nn.Module, head_wise: bool) -> dict[Tensor, Cut]:
    model: Any = backbone
    exempt: set[str] = getattr(model, "no_weight_decay", set)()
    classifier = set(model.get_classifier().parameters()) if hasattr(model, "get_classifier") else set()
    cuts: dict[Tensor, Cut] = {
        p: WHOLE
        for name, p in backbone.named_parameters()
        if name not in exempt and p not in classifier and _is_suitable_for_muon(p)
    }
    for module in backbone.modules() if head_wise else ():
        heads = getattr(module, "num_heads", None)
        qkv, proj = getattr(module, "qkv", None), getattr(module, "proj", None)
        if not isinstance(heads, int) or not isinstance(qkv, nn.Linear):
            continue
        cuts[qkv.weight] = (True, qkv.out_features * heads // qkv.in_features)
        if isinstance(proj, nn.Linear):
            cuts[proj.weight] = (False, heads)
    return cuts
