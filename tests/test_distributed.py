"""N real processes give the values and gradients of one process on the joined batch."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from methods.backbones import random_views, tiny_vit
from processes import run_processes
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from aotadmm_timm import distributed
from aotadmm_timm.engine.backbone import average_batch_norm
from aotadmm_timm.losses import REGULARIZERS, SACReg, SIGReg, build_regularizer, invariance, pairwise_invariance
from aotadmm_timm.methods import (
    BYOL,
    DINO,
    BackboneTerms,
    LambdaJEPA,
    LeJEPA,
    Method,
    Plan,
    SimCLR,
    SimDINO,
    VICReg,
    Views,
    VISReg,
)
from aotadmm_timm.methods.calibration import gradient_norms
from aotadmm_timm.methods.projector import BatchNorm

SPLITS = {2: (8, 8), 3: (7, 4, 13)}  # rows of each rank: equal, and unequal
STEPS = 20


def rows(world: int, rank: int | None = None) -> slice:
    """The rows of a rank in the joined batch; all of them without a rank."""
    sizes = SPLITS[world]
    return slice(0, sum(sizes)) if rank is None else slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))


def joined(world: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def batch_norm(x: Tensor) -> Tensor:
    """A loss through BatchNorm that depends on its running statistics as well."""
    norm = BatchNorm(5).double()
    weighted = norm(x) * torch.linspace(-1, 1, 5) + norm(x * 2 + 1) ** 3
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return distributed.mean_over_batch(weighted) + norm.running_mean.sum() + norm.running_var.sum()


def sacreg_with_past(x: Tensor) -> Tensor:
    term = SACReg(3, buffer_batches=1)
    term(x + 1, 0)
    return term(x, 1)


LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "sigreg": lambda x: SIGReg(16)(x, 4),
    "sigreg per view": lambda x: SIGReg(16)(torch.stack([x, x * 0.5 + 1]), 4),
    "sacreg": lambda x: SACReg(3)(x, 4),
    "sacreg with past batches": sacreg_with_past,
    "invariance": lambda x: invariance(torch.stack([x, x**2]), x.sin()),
    "pairwise": lambda x: pairwise_invariance(torch.stack([x, x**2, x.sin()])),
    "batch norm": batch_norm,
}


def by_name(name: str) -> Callable[[Tensor], Tensor]:
    """A regularizer of two views; of more slices than ranks, and of fewer."""

    def loss(x: Tensor) -> Tensor:
        z = torch.stack([x, x * 0.5 + 1])
        few, many = (build_regularizer(name, num_slices=k, normalize=True, seed=1) for k in (1, 16))
        return few(z, 4) + many(z, 4)

    return loss


LOSSES |= {f"{name}, by name": by_name(name) for name in REGULARIZERS}


def beside() -> BackboneTerms:
    return BackboneTerms(24, backbone_sacreg=0.1, backbone_sigreg=0.1, num_slices=32)


METHODS: dict[str, Callable[[nn.Module], Method]] = {
    "lejepa": lambda vit: LeJEPA(vit, projector=(16, 8), num_slices=32, backbone_terms=beside()),
    "lambda-jepa": lambda vit: LambdaJEPA(vit, projector=(16, 8)),
    "lambda-jepa ema": lambda vit: LambdaJEPA(vit, projector=(16, 8), target="ema"),
    "simclr": lambda vit: SimCLR(vit, projector=(16, 8), backbone_terms=beside()),
    "byol": lambda vit: BYOL(vit, projector=(16, 8), predictor=(16,)),
    "dino": lambda vit: DINO(vit, projector=(16, 8), prototypes=12, freeze_last_layer=0),
    "simdino": lambda vit: SimDINO(vit, projector=(16, 8)),
    "vicreg": lambda vit: VICReg(vit, projector=(16, 8)),
    "visreg": lambda vit: VISReg(vit, projector=(16, 8), num_slices=32),
}


def method(name: str) -> Method:
    return METHODS[name](tiny_vit())


def train(name: str, world: int, rank: int | None) -> dict[str, Any]:
    """Float32 steps on this rank's part of each batch: losses, and the first step's gradient."""
    module = method(name)
    model: nn.Module = module if rank is None else DistributedDataParallel(module, **distributed.OWN_BUFFERS)
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=1e-4)
    module.begin(Plan(STEPS, STEPS, 8, 2, 1))
    losses, gradient = [], torch.zeros(0)
    for step in range(STEPS):
        part = [view[:, rows(world, rank)] for view in random_views(sum(SPLITS[world]), seed=step)]  # type: ignore[index]
        out = model(Views(*part), step)
        optimizer.zero_grad()
        out.loss.backward()
        if step == 0:
            gradient = torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])
        optimizer.step()
        module.after_step(step)
        terms = {name: out.terms[name] for name in module.weights() if name in out.terms}
        losses.append({key: float(value.detach()) for key, value in {"loss": out.loss, **terms}.items()})
    return {"losses": losses, "gradient": gradient, "state": copy.deepcopy(module.state_dict())}


def worker(world: int) -> dict[str, Any]:
    """Everything that runs in each process; one group serves all checks."""
    rank = distributed.rank()
    found: dict[str, Any] = {"collectives": collectives()}
    for name, loss in LOSSES.items():
        x = joined(world, sum(SPLITS[world]), 5)[rows(world, rank)].requires_grad_()
        value = loss(x)
        value.backward()
        found[name] = (value.detach(), x.grad)
    try:
        BatchNorm(5)(torch.zeros(1 if rank == 0 else 0, 5))
    except ValueError as error:
        found["single row"] = str(error)
    some = joined(world, 6, 5)[slice(0, 6 if rank == 1 else 0)].requires_grad_()
    value = by_name("sigreg")(some) + by_name("anderson-darling")(some) + by_name("visreg")(some) + by_name("mmd")(some)
    value.backward()
    found["one rank's rows"] = (value.detach(), some.grad)
    found["second derivatives"] = second_derivatives()
    found["statistics"] = statistics()
    found |= {name: train(name, world, rank) for name in METHODS}
    part = Views(*(view[:, rows(world, rank)] for view in random_views(sum(SPLITS[world]))))  # type: ignore[index]
    found["norms"] = gradient_norms(method("lejepa"), part)
    return found


def collectives() -> dict[str, Any]:
    rank, world = distributed.rank(), distributed.world_size()
    t = torch.full((2,), float(rank + 1), requires_grad=True)
    mean = distributed.all_reduce_mean(t)
    (mean.sum() * (rank + 1)).backward()
    gathered = distributed.all_gather(torch.arange(rank + 1.0)[:, None])
    return {
        "world": world,
        "main": distributed.is_main(),
        "mean": mean.detach(),
        "mean gradient": t.grad,
        "sum": distributed.all_reduce_sum(t.detach()),
        "untouched": t.detach(),
        "gathered": gathered.flatten(),
        "objects": distributed.all_gather_objects({"rank": rank}),
        "count": distributed.total_count(rank, torch.device("cpu")),
        "any": [distributed.any_rank(flag) for flag in (False, rank == 1)],
    }


def second_derivatives() -> list[float]:
    """Of the cube of the sum of x over the ranks, every rank's value counted: by `all_reduce_sum`, by `all_gather`."""
    found = []
    for total in (distributed.all_reduce_sum, lambda t: distributed.all_gather(t).sum(0, keepdim=True)):
        x = torch.tensor([distributed.rank() + 1.0], requires_grad=True)
        (first,) = torch.autograd.grad((total(x) ** 3).sum(), x, create_graph=True)
        found += torch.autograd.grad(first.sum(), x)[0].tolist()
    return found


def statistics() -> list[dict[str, Tensor]]:
    """Running statistics of a convolutional network after a step on each rank's own images, and averaged."""
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=0)
    torch.manual_seed(distributed.rank())
    model(torch.randn(4, 3, 32, 32) * (1 + distributed.rank()))
    before = copy.deepcopy(dict(model.named_buffers()))
    average_batch_norm(model)
    return [before, dict(model.named_buffers())]


@pytest.fixture(scope="module", params=sorted(SPLITS))
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_processes(worker, request.param, request.param, folder=tmp_path_factory.mktemp("ranks"))


def test_collectives(ranks: list[dict[str, Any]]) -> None:
    world = len(ranks)
    total = world * (world + 1) / 2
    for rank, found in enumerate(r["collectives"] for r in ranks):
        assert found["world"] == world
        assert found["main"] == (rank == 0)
        assert found["mean"].tolist() == [total / world] * 2
        assert found["mean gradient"].tolist() == pytest.approx([total / world] * 2)  # of all ranks' losses
        assert found["sum"].tolist() == [total] * 2
        assert found["untouched"].tolist() == [rank + 1.0] * 2
        assert found["gathered"].tolist() == [float(i) for r in range(world) for i in range(r + 1)]
        assert found["objects"] == [{"rank": r} for r in range(world)]
        assert found["count"] == world * (world - 1) / 2
        assert found["any"] == [False, True]


@pytest.mark.parametrize("name", LOSSES)
def test_losses_equal_one_process(name: str, ranks: list[dict[str, Any]]) -> None:
    world = len(ranks)
    x = joined(world, sum(SPLITS[world]), 5).requires_grad_()
    value = LOSSES[name](x)
    value.backward()
    assert x.grad is not None
    for found in ranks:
        assert torch.allclose(found[name][0], value, rtol=1e-9)
    # every rank's loss reaches every row; averaging over ranks, as DDP does, makes it one loss
    gradient = torch.cat([found[name][1] for found in ranks]) / world
    assert torch.allclose(gradient, x.grad, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("name", METHODS)
def test_training_equals_one_process(name: str, ranks: list[dict[str, Any]]) -> None:
    world = len(ranks)
    single = train(name, world, None)
    for found in (r[name] for r in ranks):
        for mine, one in zip(found["losses"], single["losses"], strict=True):
            assert mine == pytest.approx(one, rel=1e-4)
        error = (found["gradient"] - single["gradient"]).norm() / single["gradient"].norm()
        assert float(error) < 1e-4
        assert single["state"].keys() == found["state"].keys()
        buffers = [key for key, _ in method(name).named_buffers() if key in found["state"]]
        assert any(".past_" in key for key in buffers) == any("sacreg" in key for key in single["losses"][0])
        for key in buffers:
            assert torch.allclose(found["state"][key], single["state"][key], rtol=1e-3, atol=1e-3), key
    assert single["losses"][0]["loss"] != pytest.approx(single["losses"][-1]["loss"], rel=1e-3)  # it did train


def test_running_statistics_equal_one_process(ranks: list[dict[str, Any]]) -> None:
    single = train("lejepa", len(ranks), None)["state"]
    for found in ranks:
        for key in ("projector.1.running_mean", "projector.1.running_var", "projector.1.num_batches_tracked"):
            assert torch.allclose(found["lejepa"]["state"][key], single[key], rtol=1e-3, atol=1e-5)


def test_a_single_row_over_all_ranks_is_refused(ranks: list[dict[str, Any]]) -> None:
    assert {found["single row"] for found in ranks} == {
        "BatchNorm needs at least 2 rows to train, got 1 over all ranks"
    }


def test_calibration_equals_one_process(ranks: list[dict[str, Any]]) -> None:
    single = gradient_norms(method("lejepa"), random_views(sum(SPLITS[len(ranks)])))
    for found in ranks:
        assert found["norms"] == pytest.approx(single, rel=1e-4)


def test_a_rank_without_rows_adds_nothing(ranks: list[dict[str, Any]]) -> None:
    x = joined(len(ranks), 6, 5).requires_grad_()
    value = by_name("sigreg")(x) + by_name("anderson-darling")(x) + by_name("visreg")(x) + by_name("mmd")(x)
    value.backward()
    values, gradients = zip(*(found["one rank's rows"] for found in ranks), strict=True)
    assert all(torch.allclose(each, value, rtol=1e-9) for each in values)
    assert torch.allclose(torch.cat(gradients) / len(ranks), x.grad, rtol=1e-7)  # type: ignore[arg-type]


def test_second_derivatives_reach_all_ranks(ranks: list[dict[str, Any]]) -> None:
    world = len(ranks)
    total = world * (world + 1) / 2
    for found in ranks:
        assert found["second derivatives"] == pytest.approx([world * world * 6 * total] * 2)


def test_running_statistics_of_a_backbone_are_averaged(ranks: list[dict[str, Any]]) -> None:
    alone, averaged = zip(*(found["statistics"] for found in ranks), strict=True)
    names = [key for key in alone[0] if "running" in key]
    assert len(names) > 10
    for name in names:
        mean = torch.stack([each[name] for each in alone]).mean(0)
        assert not torch.allclose(alone[0][name], mean)
        for each in averaged:
            torch.testing.assert_close(each[name], mean)


def test_one_process_needs_no_group() -> None:
    t = torch.ones(2)
    assert distributed.all_reduce_sum(t) is t
    assert distributed.all_gather(t) is t
    assert distributed.all_gather_objects(3) == [3]
    assert (distributed.rank(), distributed.world_size(), distributed.is_main()) == (0, 1, True)
    distributed.barrier()
    if not torch.cuda.is_available():
        assert distributed.init_distributed() == torch.device("cpu")
        with pytest.raises(ValueError, match="'cuda' was asked for"):
            distributed.init_distributed("cuda")
