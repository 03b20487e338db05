"""The probe's solver against literal optimality in float64, and its protocol."""

import pytest
import torch
from torch import Tensor

from aotadmm_timm.evaluation import few_label_probe, linear_probe
from aotadmm_timm.evaluation.linear_probe import PENALTIES, _choose_penalty, _Regression, _splits, _standardise


def blobs(count: int, classes: int, width: int, seed: int, noise: float = 1.0) -> tuple[Tensor, Tensor]:
    centres = torch.randn(classes, width, generator=torch.Generator().manual_seed(5))
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % classes
    return centres[y] + noise * torch.randn(count, width, generator=generator), y


def literal_gradient(x: Tensor, t: Tensor, weight: Tensor, penalty: float) -> Tensor:
    w = weight.double().clone().requires_grad_(True)
    loss = w.new_zeros(())
    for row, label in zip(x.double(), t.tolist(), strict=True):
        scores = w[:, :-1] @ row + w[:, -1]
        loss = loss - (scores[label] - scores.exp().sum().log())
    (loss / len(x) + penalty / 2 * (w[:, :-1] ** 2).sum()).backward()
    assert w.grad is not None
    return w.grad


@pytest.mark.parametrize("shape", [(90, 7), (40, 60)])  # more rows than features, and fewer
@pytest.mark.parametrize("penalty", [1.0, 1e-3])
def test_the_solver_reaches_the_optimum(shape: tuple[int, int], penalty: float) -> None:
    x, t = blobs(shape[0], 3, shape[1], 0)
    x = x * torch.logspace(0, -2, shape[1]) + 0.3  # ill-conditioned, not centred
    cold = _Regression(x, t, 3).fit(penalty)
    warm = _Regression(x, t, 3).fit(penalty, _Regression(x[::2], t[::2], 3).fit(10 * penalty))
    assert literal_gradient(x, t, cold, penalty).abs().max() < 3e-4
    torch.testing.assert_close(cold, warm, rtol=0.02, atol=0.02)


def test_agrees_with_scikit_learn() -> None:
    from sklearn.linear_model import LogisticRegression

    x, t = blobs(300, 4, 10, 0, noise=2.0)
    weight = _Regression(x, t, 4).fit(0.01)
    reference = LogisticRegression(C=1 / (0.01 * 300), tol=1e-8, max_iter=1000).fit(x.numpy(), t.numpy())
    torch.testing.assert_close(weight[:, :-1], torch.from_numpy(reference.coef_).float(), rtol=0, atol=2e-3)


def test_the_choice_of_penalty_never_sees_test_and_uses_all_of_train() -> None:
    # wide, few rows, noisy: a weak penalty overfits, so the choice has to be a strong one
    x, t = blobs(60, 3, 200, 0, noise=6.0)
    x, test_x = _standardise(x, blobs(3000, 3, 200, 1, noise=6.0)[0])
    test_t = torch.arange(3000) % 3
    chosen, _ = _choose_penalty(x, t, 3, seed=0)
    scores = {}
    for penalty in PENALTIES:
        weight = _Regression(x, t, 3).fit(penalty)
        scores[penalty] = ((test_x @ weight[:, :-1].T + weight[:, -1]).argmax(1) == test_t).double().mean().item()
    assert scores[chosen] > max(scores.values()) - 0.02 > min(scores.values()) + 0.02
    train_z, train_y = blobs(60, 3, 200, 0, noise=6.0)
    test_z, test_y = blobs(3000, 3, 200, 1, noise=6.0)
    assert linear_probe(train_z, train_y, test_z, test_y) == pytest.approx(scores[chosen], abs=2e-3)


@pytest.mark.parametrize(("count", "folds"), [(50, 5), (6000, 1)])
def test_splits_are_stratified_and_keep_every_class(count: int, folds: int) -> None:
    t = torch.cat([torch.arange(count) % 3, torch.tensor([3, 4, 4])])  # a class of one row, a class of two
    splits = list(_splits(t, seed=0))
    assert len(splits) == folds
    for fit, held in splits:
        assert set(fit.tolist()).isdisjoint(held.tolist())
        assert len(fit) + len(held) == len(t)
        assert t[fit].unique().tolist() == [0, 1, 2, 3, 4]
        assert 3 not in t[held]
        share = len(held) / len(t)
        assert share == pytest.approx(0.2 if folds == 5 else 0.1, abs=0.07)


def test_scale_shift_and_constant_features_do_not_matter() -> None:
    train_z, train_y = blobs(200, 3, 8, 0, noise=1.5)
    test_z, test_y = blobs(300, 3, 8, 1, noise=1.5)
    plain = linear_probe(train_z, train_y, test_z, test_y)
    assert 0.6 < plain < 1

    def disguise(z: Tensor, last: float) -> Tensor:
        return torch.cat([z * 1e3 + 50, torch.full((len(z), 1), last)], 1)

    assert linear_probe(disguise(train_z, 0.1), train_y, disguise(test_z, 0.2), test_y) == pytest.approx(
        plain, abs=0.01
    )


def test_labels_classes_and_counts_at_the_edges() -> None:
    z, y = blobs(30, 2, 4, 0, noise=0.1)
    names = torch.tensor([-5, 10**9])
    assert linear_probe(z, names[y], z, names[y]) == 1.0
    assert linear_probe(z, torch.full((30,), 4), z, torch.tensor([4] * 15 + [1] * 15)) == 0.5  # one class
    assert linear_probe(z, y, z, torch.full((30,), 9)) == 0.0  # a class train lacks
    assert linear_probe(z[:2], y[:2], z, y) == 1.0  # one row a class: nothing to hold out
    constant, mostly_one = torch.ones(6, 3), torch.tensor([0, 1, 1, 0, 1, 1])  # nothing to tell them by: the majority
    assert linear_probe(constant, mostly_one, torch.ones(4, 3), torch.tensor([1, 1, 1, 0])) == 0.75
    assert linear_probe(constant, 1 - mostly_one, torch.ones(4, 3), torch.tensor([1, 1, 1, 0])) == 0.25


def test_few_labels_draw_what_they_say() -> None:
    train_z, train_y = blobs(300, 3, 8, 0, noise=2.0)
    test_z, test_y = blobs(300, 3, 8, 1, noise=2.0)
    mean, std = few_label_probe(train_z, train_y, test_z, test_y, per_class=5, draws=3)
    again = few_label_probe(train_z, train_y, test_z, test_y, per_class=5, draws=3)
    assert (mean, std) == again
    assert 0.4 < mean < linear_probe(train_z, train_y, test_z, test_y) + 0.02
    assert 0 < std < 0.2
    singles = [few_label_probe(train_z, train_y, test_z, test_y, per_class=5, draws=1, seed=s)[0] for s in range(3)]
    assert mean == pytest.approx(sum(singles) / 3)
    assert std == pytest.approx(torch.tensor(singles, dtype=torch.float64).std().item())
    assert few_label_probe(train_z, train_y, test_z, test_y, per_class=10**6, draws=1)[1] == 0.0
    with pytest.raises(ValueError, match="at least 1, got 0 and 5"):
        few_label_probe(train_z, train_y, test_z, test_y, per_class=0)
