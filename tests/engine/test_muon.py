"""Muon: which parameters it serves, what a step does to them, and that nothing is lost when a run is resumed."""

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from processes import run_processes
from timm.optim import Muon as TimmMuon
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import aotadmm_timm  # noqa: F401
from aotadmm_timm.engine.muon import Muon
from aotadmm_timm.engine.optimizer import make_optimizer, make_schedule
from aotadmm_timm.errors import UserError
from aotadmm_timm.methods.projector import Projector
from aotadmm_timm.options import TrainConfig

MUON: dict[str, Any] = {"opt": "muon", "lr": 0.02, "weight_decay": 0.1}
HEAD_WISE = {"head_wise": True}
HEADS = 3  # of the white-box miniatures; timm's test_vit has 2


class Method(nn.Module):
    """A backbone and a projector, as pretraining has them."""

    def __init__(self, name: str = "test_aot_admm", **kwargs: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone = timm.create_model(name, num_classes=0, **kwargs)
        self.projector = Projector(self.backbone.num_features, 24, 16)

    def optimizer(self, **options: Any) -> torch.optim.Optimizer:
        return make_optimizer(TrainConfig(**{**MUON, **options}), self, prefix="backbone.")


def cuts(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    names = {p: name for name, p in module.named_parameters()}
    return {names[p]: group["cut"] for group in optimizer.param_groups for p in group["params"]}


def gradients(parameters: Iterable[Tensor], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in parameters:
        p.grad = torch.randn(p.shape, generator=generator)


@pytest.mark.parametrize(
    ("name", "served"),
    [
        ("test_aot_admm", {"attn.qkv.weight": (True, HEADS), "attn.proj.weight": (False, HEADS)}),
        (
            "test_crate",
            {
                "attn.qkv.weight": (True, HEADS),
                "attn.proj.weight": (False, HEADS),
                "ista.dictionary": (True, 1),
            },
        ),
        (
            "test_vit",
            {
                "attn.qkv.weight": (True, 3 * 2),
                "attn.proj.weight": (False, 2),
                "mlp.fc1.weight": (True, 1),
                "mlp.fc2.weight": (True, 1),
            },
        ),
    ],
)
def test_matrices_of_the_backbone_are_served(name: str, served: dict[str, Any]) -> None:
    method = Method(name)
    found = {k: v for k, v in cuts(method, method.optimizer(opt_kwargs=HEAD_WISE)).items() if v is not None}
    in_blocks = {k for k in found if k.startswith("backbone.blocks.")}
    assert {k.split(".", 3)[3] for k in in_blocks} == set(served)
    assert all(found[k] == served[k.split(".", 3)[3]] for k in in_blocks)
    (stem,) = set(found) - in_blocks - {"projector.0.weight", "projector.3.weight"}
    assert stem.startswith("backbone.patch_embed.")


def test_what_is_served_can_be_chosen() -> None:
    method = Method()
    heads = {k: v for k, v in cuts(method, method.optimizer(opt_kwargs=HEAD_WISE)).items() if v}
    whole = {k: v for k, v in cuts(method, method.optimizer()).items() if v}
    own = {k: v for k, v in cuts(method, method.optimizer(opt_kwargs={"backbone_only": True})).items() if v}
    assert set(heads) == set(whole)
    assert set(whole.values()) == {(True, 1)}
    assert set(whole) - set(own) == {"projector.0.weight", "projector.3.weight"}


def test_convolutions_are_served_whole_and_a_classifier_is_not() -> None:
    model = timm.create_model("test_resnet", num_classes=12)
    found = cuts(model, make_optimizer(TrainConfig(**MUON), model))
    assert {k for k, v in found.items() if v} == {k for k, p in model.named_parameters() if p.ndim == 4}
    assert found["fc.weight"] is None


def test_three_steps_are_those_of_timm_on_each_head_and_of_adamw_on_the_rest() -> None:
    method = Method()
    weights = {k: p.detach().clone() for k, p in method.named_parameters()}
    optimizer = method.optimizer(opt_kwargs={"nesterov": True, "momentum": 0.8, "fallback_lr_scale": 0.3, **HEAD_WISE})
    parts: dict[str, tuple[int, list[nn.Parameter]]] = {}
    rest: dict[float, dict[str, nn.Parameter]] = {}
    for group in optimizer.param_groups:
        for p in group["params"]:
            name = next(k for k, q in method.named_parameters() if q is p)
            if group["cut"] is None:
                rest.setdefault(group["weight_decay"], {})[name] = nn.Parameter(weights[name])
            else:
                axis = 0 if group["cut"][0] else 1
                blocks = weights[name].chunk(group["cut"][1], axis)
                parts[name] = (axis, [nn.Parameter(block.clone()) for block in blocks])
    blocks = [block for _, some in parts.values() for block in some]
    muon = TimmMuon(blocks, lr=0.02, weight_decay=0.1, momentum=0.8, nesterov=True)
    adamw = torch.optim.AdamW(
        [{"params": list(alone.values()), "weight_decay": decay} for decay, alone in rest.items()],
        lr=0.006,
        betas=(0.9, 0.95),
    )
    for step in range(3):
        gradients(method.parameters(), step)
        grads = {k: p.grad for k, p in method.named_parameters()}
        for name, (axis, some) in parts.items():
            for block, grad in zip(some, grads[name].chunk(len(some), axis), strict=True):  # type: ignore[union-attr]
                block.grad = grad.contiguous()
        for alone in rest.values():
            for name, p in alone.items():
                p.grad = grads[name]
        optimizer.step()
        muon.step()
        adamw.step()
    served = {name: p for alone in rest.values() for name, p in alone.items()}
    for name, p in method.named_parameters():
        if name in parts:
            axis, some = parts[name]
            # one product in bf16 for many matrices rounds differently from one for each
            torch.testing.assert_close(p, torch.cat(some, axis), rtol=0, atol=2e-4)
        else:
            torch.testing.assert_close(p, served[name])


def test_an_update_turns_each_head_by_the_same_amount() -> None:
    method = Method()
    weight = method.backbone.blocks[0].attn.qkv.weight
    before = weight.detach().clone()
    gradients(method.parameters(), 0)
    weight.grad[: len(weight) // HEADS] *= 1e3  # type: ignore[index]
    method.optimizer(lr=1.0, weight_decay=0.0, opt_kwargs=HEAD_WISE).step()
    for update in (weight.detach() - before).chunk(HEADS):
        values = torch.linalg.svdvals(update) / (0.2 * max(update.shape) ** 0.5)
        assert values.min() > 0.6
        assert values.max() < 1.3


def test_a_stop_changes_nothing() -> None:
    def train(method: Method, optimizer: torch.optim.Optimizer, steps: range) -> None:
        for step in steps:
            gradients(method.parameters(), step)
            optimizer.step()

    method = Method()
    train(method, method.optimizer(), range(4))
    stopped = Method()
    optimizer = stopped.optimizer()
    train(stopped, optimizer, range(2))
    file = io.BytesIO()
    torch.save([stopped.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    resumed = Method()
    resumed.load_state_dict(weights)
    optimizer = resumed.optimizer()
    optimizer.load_state_dict(state)
    train(resumed, optimizer, range(2, 4))
    for p, q in zip(method.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(p, q)


def test_schedule_and_layer_decay_reach_every_group() -> None:
    model = timm.create_model("test_aot_admm", num_classes=3)
    cfg = TrainConfig(**MUON, epochs=10, warmup_epochs=0)
    optimizer = make_optimizer(cfg, model, layer_decay=0.5)
    make_schedule(cfg, optimizer, 5).step_update(num_updates=0)
    names = {p: name for name, p in model.named_parameters()}
    rates = {names[p]: group["lr"] for group in optimizer.param_groups for p in group["params"]}
    depth = len(model.blocks)
    for i in range(depth):
        assert rates[f"blocks.{i}.attn.qkv.weight"] == pytest.approx(0.02 * 0.5 ** (depth - i))
        assert rates[f"blocks.{i}.logits"] == pytest.approx(0.02 * 0.5 ** (depth - i))
    assert rates["head.weight"] == 0.02


def test_weights_are_decayed_only_where_they_are_meant_to_be() -> None:
    method = Method()
    before = {k: p.detach().clone() for k, p in method.named_parameters()}
    for p in method.parameters():
        p.grad = torch.zeros_like(p)
    method.optimizer().step()
    for name, p in method.named_parameters():
        decayed = p.ndim > 1 and not name.endswith(("pos_embed", "cls_token"))
        torch.testing.assert_close(p.detach(), before[name] * (1 - 0.02 * 0.1) if decayed else before[name])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"momentum": 1.0}, "--opt muon --opt-kwargs momentum=1.0: momentum must be at least 0 and below 1"),
        ({"speed": 3}, "--opt muon --opt-kwargs speed=3: .*unexpected keyword argument 'speed'"),
        ({"fallback_lr_scale": -1}, "fallback_lr_scale must not be negative"),
        ({"ns_coefficients": "none"}, "Unknown coefficients preset 'none'"),
    ],
)
def test_refused_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Method().optimizer(opt_kwargs=options)


def trained_weights(seed: int) -> tuple[list[Tensor], int]:
    """Weights after two steps, and how many matrices this process orthogonalized itself."""
    method = Method()
    optimizer = method.optimizer()
    with CountedProducts() as counted:
        for step in range(2):
            gradients(method.parameters(), seed + step)
            optimizer.step()
    return [p.detach() for p in method.parameters()], counted.matrices


class CountedProducts(TorchDispatchMode):
    """Counts the matrices that batched products, of which an orthogonalization has fifteen, are made of."""

    matrices = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.baddbmm.out:
            self.matrices += len(args[0])
        return func(*args, **(kwargs or {}))


def test_processes_share_the_work_and_agree(tmp_path: Path) -> None:
    alone, work = trained_weights(5)
    shared = run_processes(trained_weights, 2, 5, folder=tmp_path)
    assert work > 0
    assert sum(matrices for _, matrices in shared) == work
    assert all(0.3 * work < matrices < 0.7 * work for _, matrices in shared)
    for p, q, r in zip(alone, *(weights for weights, _ in shared), strict=True):
        assert torch.equal(q, r)
        torch.testing.assert_close(p, q, rtol=0, atol=2e-4)


def test_a_parameter_without_gradient_is_left_alone() -> None:
    method = Method()
    before = [p.detach().clone() for p in method.parameters()]
    optimizer = method.optimizer()
    assert isinstance(optimizer, Muon)
    optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(method.parameters(), before, strict=True))
