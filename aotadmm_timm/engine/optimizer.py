"""timm's optimizers, and its cosine schedule with a linear warm-up."""

from typing import Any

import torch
from timm.optim import create_optimizer_v2, param_groups_layer_decay, param_groups_weight_decay
from timm.scheduler.cosine_lr import CosineLRScheduler
from torch import nn

from aotadmm_timm.errors import UserError
from aotadmm_timm.options import TrainConfig

from .muon import Muon, muon_groups


def make_optimizer(
    cfg: TrainConfig, module: nn.Module, *, prefix: str = "", layer_decay: float | None = None
) -> torch.optim.Optimizer:
    """An optimizer of the parameters of `module` that require gradients.

    Vectors and what the model names in `no_weight_decay()` are not decayed.

    Args:
        module: a timm model, or a module that holds one as an attribute.
        prefix: name of that attribute with a dot at its end.
        layer_decay: factor on the learning rate from each layer to the one before it; for a timm model itself.
    Raises: UserError for an unknown optimizer name.
    """
    model: Any = module.get_submodule(prefix.rstrip("."))
    exempt = [prefix + name for name in getattr(model, "no_weight_decay", list)()]
    if layer_decay is None:
        groups = param_groups_weight_decay(module, cfg.weight_decay, no_weight_decay_list=exempt)
    else:
        groups = param_groups_layer_decay(
            module, cfg.weight_decay, no_weight_decay_list=exempt, layer_decay=layer_decay
        )
    arguments: dict[str, Any] = {"lr": cfg.lr, "weight_decay": cfg.weight_decay}
    # One kernel for all weights instead of a dozen operations for each: a hundredth of a step of Tiny on CPU.
    arguments |= {"fused": True} if cfg.opt in ("adam", "adamw") else {}
    arguments |= cfg.opt_kwargs
    try:
        if cfg.opt == "muon":
            layout = {key: arguments.pop(key) for key in ("head_wise", "backbone_only") if key in arguments}
            return Muon(muon_groups(groups, module, model, **layout), **arguments)
        return create_optimizer_v2(groups, opt=cfg.opt, **arguments)
    except (ValueError, KeyError, TypeError) as err:
        given = "".join(f" {key}={value}" for key, value in cfg.opt_kwargs.items())
        raise UserError(f"--opt {cfg.opt}{' --opt-kwargs' + given if given else ''}: {err}") from None


def make_schedule(cfg: TrainConfig, optimizer: torch.optim.Optimizer, steps_per_epoch: int) -> CosineLRScheduler:
    """Linear from lr/1000 to the peak over the warm-up, then a cosine to the floor; per step.

    The rate of step k is a function of k alone: `step_update(num_updates=k)`. timm's scheduler, because only those
    apply the `lr_scale` of layer decay.

    Raises: UserError for a warm-up that leaves no step to the cosine.
    """
    steps = cfg.epochs * steps_per_epoch
    warmup = cfg.warmup_epochs if cfg.warmup_epochs is not None else min(10.0, cfg.epochs / 10)
    warmup_steps = round(warmup * steps_per_epoch)
    if warmup_steps >= steps:
        raise UserError(f"--warmup-epochs {warmup:g} is all {steps} steps: none is left to the cosine")
    return CosineLRScheduler(
        optimizer,
        t_initial=steps - warmup_steps,
        lr_min=cfg.lr / 1000 if cfg.min_lr is None else cfg.min_lr,
        warmup_t=warmup_steps,
        warmup_lr_init=cfg.lr / 1000,
        warmup_prefix=True,  # the cosine starts where the warm-up ends, so that the peak is reached
        t_in_epochs=False,
    )
