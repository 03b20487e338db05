"""SimCLR, BYOL, DINO, SimDINO, VICReg, VISReg against their formulas written out by hand, value and gradient."""

import math
from collections.abc import Callable

import pytest
import torch
from methods.backbones import Linear, random_views
from torch import Tensor, nn

from aotadmm_timm.losses.contrastive import nt_xent
from aotadmm_timm.losses.directions import unit_directions
from aotadmm_timm.methods import BYOL, DINO, BackboneTerms, Method, Plan, SimCLR, SimDINO, VICReg, Views, VISReg

STEP, PLAN = 3, Plan(10, 5, 8, 2, 1)


def colored_views(batch: int, seed: int) -> Views:
    """Images of one color each, and noise: views of an image have something in common."""
    views = random_views(batch, seed=seed)
    color = torch.randn(batch, 3, 1, 1, generator=torch.Generator().manual_seed(seed))
    return Views(views.global_views + color, views.local_views + color)  # type: ignore[operator]


def train(method: Method, steps: int, lr: float = 0.05, batch: int = 16) -> Method:
    """Stochastic gradient descent."""
    method.begin(Plan(steps, steps, batch, 2, 1))
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=lr, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        method(colored_views(batch, step), step).loss.backward()
        method.after_backward(step)
        optimizer.step()
        method.after_step(step + 1)
    return method


def embeddings(method: Method, views: Views) -> list[Tensor]:
    groups = [*views.global_views, *(() if views.local_views is None else views.local_views)]
    h = torch.cat([method.backbone(view) for view in groups])
    return list(method.projector(h).chunk(len(groups)))  # type: ignore[operator]


def unit(z: Tensor) -> Tensor:
    return z / z.square().sum(-1, keepdim=True).sqrt()


def by_hand_simclr(method: SimCLR, z: list[Tensor]) -> Tensor:
    losses = []
    for first, second in ((0, 1), (0, 2), (1, 2)):
        both = unit(torch.cat([z[first], z[second]]))
        count = len(z[0])
        for i in range(2 * count):
            others = [k for k in range(2 * count) if k != i]
            scores = torch.stack([both[i] @ both[k] for k in others]) / 0.3
            losses.append(torch.logsumexp(scores, 0) - both[i] @ both[(i + count) % (2 * count)] / 0.3)
    return torch.stack(losses).mean()


def teachers(method: BYOL | DINO | SimDINO, views: Views) -> list[Tensor]:
    with torch.no_grad():
        out = method.teacher(views.global_views.flatten(0, 1))
    return list(out.chunk(len(views.global_views)))


def by_hand_byol(method: BYOL, z: list[Tensor]) -> Tensor:
    guess = method.predictor(torch.cat(z)).chunk(3)
    target = teachers(method, random_views(8))
    pairs = [(v, g) for g in (0, 1) for v in (0, 1, 2) if v != g]
    return torch.stack([(2 - 2 * (unit(guess[v]) * unit(target[g])).sum(-1)).mean() for v, g in pairs]).mean()


def by_hand_dino(method: DINO, z: list[Tensor]) -> Tensor:
    temperature = 0.04 + 0.03 * STEP / 5  # half of ten steps
    target = [((t - method.center) / temperature).softmax(-1) for t in teachers(method, random_views(8))]
    pairs = [(v, g) for g in (0, 1) for v in (0, 1, 2) if v != g]
    return torch.stack([-(target[g] * (z[v] / 0.1).log_softmax(-1)).sum(-1).mean() for v, g in pairs]).mean()


def by_hand_simdino(method: SimDINO, z: list[Tensor]) -> Tensor:
    target = teachers(method, random_views(8))
    pairs = [(v, g) for g in (0, 1) for v in (0, 1, 2) if v != g]
    distance = torch.stack([1 - (z[v] * target[g]).sum(-1).mean() for v, g in pairs]).mean()
    rate = sum(0.5 * torch.logdet(torch.eye(4) + 4 / (8 * 0.5) * view.T @ view) for view in z[:2]) / 2
    return 2 * distance - (1 / 4 + 1 / 8) * rate


def by_hand_vicreg(method: VICReg, z: list[Tensor]) -> Tensor:
    inv = sum((z[i] - z[j]).square().mean() for i, j in ((0, 1), (0, 2), (1, 2))) / 3
    hinge, penalty = torch.zeros(()), torch.zeros(())
    for view in z:
        centered = view - view.mean(0)
        cov = centered.T @ centered / 7
        hinge = hinge + torch.stack([(1 - (cov[i, i] + 1e-4).sqrt()).clamp(min=0) for i in range(4)]).mean()
        penalty = penalty + sum(cov[i, j] ** 2 for i in range(4) for j in range(4) if i != j) / 4
    return 25 * inv + 25 * hinge / 3 + 2 * penalty / 3


def by_hand_visreg(method: VISReg, z: list[Tensor]) -> Tensor:
    mean = (z[0] + z[1]) / 2
    inv = sum((view - mean).square().mean() for view in z) / 3
    normal = torch.distributions.Normal(0.0, 1.0)
    quantiles = normal.icdf(torch.arange(1, 9) / 9)
    directions = unit_directions(4, 32, 0, STEP)
    total = torch.zeros(())
    for view in z:
        mu, sigma = view.mean(0), view.std(0, correction=0)
        shape = (((view - mu) / sigma.detach()) @ directions).sort(0).values
        total = total + (sigma - 1).square().mean() + 2 * mu.square().mean()
        total = total + (shape - quantiles[:, None]).square().mean()
    return 0.1 * inv + 0.9 * total / 3


CASES: dict[str, tuple[Callable[[], Method], Callable[..., Tensor]]] = {
    "simclr": (lambda: SimCLR(Linear(), temperature=0.3, projector=(8, 4)), by_hand_simclr),
    "byol": (lambda: BYOL(Linear(), projector=(8, 4), predictor=(6,)), by_hand_byol),
    "dino": (lambda: DINO(Linear(), projector=(8, 4), prototypes=5, teacher_warmup=0.5), by_hand_dino),
    "simdino": (lambda: SimDINO(Linear(), projector=(8, 4), agreement=2.0), by_hand_simdino),
    "vicreg": (lambda: VICReg(Linear(), projector=(8, 4)), by_hand_vicreg),
    "visreg": (lambda: VISReg(Linear(), projector=(8, 4), center=2.0, num_slices=32), by_hand_visreg),
}


@pytest.mark.parametrize("name", CASES)
def test_hand_formula(name: str) -> None:
    make, by_hand = CASES[name]
    method = make()
    with torch.no_grad():  # a teacher that is not the student, a center that is not zero
        for p in method.parameters():
            if not p.requires_grad:
                p.mul_(1.1).add_(0.01)
        if isinstance(method, DINO):
            method.center.copy_(torch.linspace(-0.1, 0.1, 5))
    method.begin(PLAN)
    parameters = [p for p in method.parameters() if p.requires_grad]
    expected = by_hand(method, embeddings(method, random_views(8)))
    wanted = torch.autograd.grad(expected, parameters, allow_unused=True)
    loss = method(random_views(8), STEP).loss
    got = torch.autograd.grad(loss, parameters, allow_unused=True)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    for mine, one in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, one, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_the_backbones_terms_are_added(name: str) -> None:
    kwargs = {"projector": (8, 4)} | ({"prototypes": 5} if name == "dino" else {})
    cls = {"simclr": SimCLR, "byol": BYOL, "dino": DINO, "simdino": SimDINO, "vicreg": VICReg, "visreg": VISReg}[name]
    torch.manual_seed(0)
    plain = cls(Linear(), **kwargs)
    plus = cls(Linear(), **kwargs, backbone_terms=BackboneTerms(6, backbone_sacreg=0.7))
    plus.load_state_dict(plain.state_dict(), strict=False)
    losses = []
    for method in (plain, plus):
        method.begin(PLAN)
        losses.append(method(random_views(8), STEP))
    added = float((losses[1].loss - losses[0].loss).detach())
    assert added == pytest.approx(0.7 * float(losses[1].terms["backbone_sacreg"]), rel=1e-4)
    assert (plain.convention()["backbone_sacreg"], plus.convention()["backbone_sacreg"]) == (0.0, 0.7)


def test_only_the_loss_has_a_gradient_and_all_is_float32_under_autocast() -> None:
    for make, _ in CASES.values():
        method = make()
        method.begin(PLAN)
        with torch.autocast("cpu", torch.bfloat16):
            out = method(random_views(8), STEP)
        assert out.loss.dtype == torch.float32
        assert out.loss.requires_grad
        assert not any(value.requires_grad for value in (*out.terms.values(), out.features, out.embeddings))


def spread(method: Method) -> float:
    """Standard deviation of normalized embeddings over images, times sqrt(D): 1 if spread out, 0 if collapsed."""
    method.eval()
    with torch.no_grad():
        z = unit(embeddings(method, colored_views(64, 99))[0])
    return float(z.std(0).mean() * math.sqrt(z.shape[1]))


def test_byol_collapses_without_its_predictor() -> None:
    """Table 5 of the paper: without it the teacher's and the student's outputs become one constant."""
    torch.manual_seed(0)
    without = train(BYOL(Linear(), momentum=0.5, projector=(8, 4), predictor=None), 400)
    torch.manual_seed(0)
    having = train(BYOL(Linear(), momentum=0.9, projector=(8, 4), predictor=(16,)), 400, lr=0.01)
    assert spread(without) < 0.1
    assert spread(having) > 0.3


def test_vicreg_collapses_without_its_variance_term() -> None:
    torch.manual_seed(0)
    without = train(VICReg(Linear(), variance=0.0, projector=(8, 4)), 300, lr=1e-3)
    torch.manual_seed(0)
    having = train(VICReg(Linear(), projector=(8, 4)), 300, lr=1e-3)

    def scale(method: Method) -> float:
        with torch.no_grad():
            return float(embeddings(method.eval(), colored_views(64, 99))[0].std(0).min())

    assert scale(without) < 0.1
    assert scale(having) > 0.5


def test_dino_schedules() -> None:
    method = DINO(Linear(), projector=(8, 4), prototypes=5, teacher_warmup=0.5, freeze_last_layer=1)
    method.begin(PLAN)
    assert [method.teacher_temperature(k) for k in (0, 5, 9)] == pytest.approx([0.04, 0.07, 0.07])
    assert [method.weight_decay(k, 0.04) for k in (0, 5, 10)] == pytest.approx([0.04, 0.22, 0.4])
    for step, frozen in ((4, True), (5, False)):
        method(random_views(8), step).loss.backward()
        method.after_backward(step)
        assert (method.projector.prototypes.grad is None) == frozen  # type: ignore[union-attr]
        method.zero_grad()
    assert float(method.center.abs().sum()) > 0
    assert method.encoder is method.teacher.module[0]  # type: ignore[index]


def test_a_loss_without_negatives_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 images"):
        nt_xent(torch.zeros(1, 4), torch.zeros(1, 4), temperature=0.5)
    with pytest.raises(ValueError, match=r"\(2, 4\) and \(3, 4\)"):
        nt_xent(torch.zeros(2, 4), torch.zeros(3, 4), temperature=0.5)


def test_teacher_normalizes_by_its_own_batch_only_in_training() -> None:
    method = BYOL(Linear(), projector=(8, 4)).train()
    norm = next(m for m in method.teacher.module.modules() if isinstance(m, nn.BatchNorm1d))
    assert norm.training
    assert not method.teacher.module.training
    assert not method.eval().teacher.module[1][1].training  # type: ignore[index]
