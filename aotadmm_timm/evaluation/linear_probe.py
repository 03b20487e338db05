"""Linear probes: multinomial logistic regression on frozen features, the penalty chosen without the test set.

Solver: L-BFGS on the full training set. Features are rotated to their principal axes and each axis is scaled by
1 / sqrt(variance / C + penalty), a change of variables that leaves the optimum where it is and makes the problem round:
ten times fewer iterations. The path of penalties runs from strong to weak, each fit starting at the last solution.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from aotadmm_timm.evaluation.checks import check_train_test

PENALTIES = tuple(10.0**-exponent for exponent in range(-1, 7))  # on |W|^2 / 2, beside the *mean* cross-entropy
_ONE_SPLIT_FROM = 5000  # fewer training rows than this: five folds instead of one held-out tenth


def linear_probe(train_z: Tensor, train_y: Tensor, test_z: Tensor, test_y: Tensor, *, seed: int = 0) -> float:
    """Test accuracy of a linear classifier on frozen features.

    Features are standardised by the mean and standard deviation of train. The L2 penalty of the logistic regression is
    chosen on a stratified held-out tenth of train (five folds below 5,000 rows), then all of train is fitted with it;
    test is read once, after that.

    Args:
        train_z, test_z: features (N, d), (M, d).
        train_y, test_y: labels (N,), (M,); any integers. A test class that train lacks counts as wrong.
        seed: of the split of train.
    Returns: accuracy in [0, 1]. With a single train class that class is the prediction.
    Raises: ValueError on shapes that do not fit or values that are not finite.
    """
    check_train_test(train_z, train_y, test_z, test_y)
    classes, train_t = train_y.unique(return_inverse=True)
    if len(classes) == 1:
        return (test_y == classes[0]).double().mean().item()
    train_x, test_x = _standardise(train_z.float(), test_z.float())
    penalty, start = _choose_penalty(train_x, train_t, len(classes), seed)
    weight = _Regression(train_x, train_t, len(classes)).fit(penalty, start)
    return (classes[_logits(test_x, weight).argmax(1)] == test_y).double().mean().item()


def few_label_probe(
    train_z: Tensor,
    train_y: Tensor,
    test_z: Tensor,
    test_y: Tensor,
    *,
    per_class: int = 10,
    draws: int = 5,
    seed: int = 0,
) -> tuple[float, float]:
    """`linear_probe` on `per_class` random labelled rows of each class, over `draws` draws.

    A class with fewer rows gives all it has. Draw i uses the seed (seed + i), whatever the other arguments are.
    Returns: mean and sample standard deviation of the test accuracy over the draws (0 spread for a single draw).
    """
    check_train_test(train_z, train_y, test_z, test_y)
    if per_class < 1 or draws < 1:
        raise ValueError(f"per_class and draws must be at least 1, got {per_class} and {draws}")
    accuracies = []
    for draw in range(draws):
        generator = torch.Generator().manual_seed(seed + draw)
        rows = []
        for label in train_y.unique():
            members = (train_y == label).nonzero().flatten()
            rows.append(members[torch.randperm(len(members), generator=generator)[:per_class]])
        index = torch.cat(rows)
        accuracies.append(linear_probe(train_z[index], train_y[index], test_z, test_y, seed=seed + draw))
    values = torch.tensor(accuracies, dtype=torch.float64)
    return values.mean().item(), values.std().item() if draws > 1 else 0.0


def _standardise(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    mean, std = train.mean(0), train.std(0, correction=0)
    # a feature that is constant on train carries nothing, but dividing by its rounding noise would blow it up on test
    scale = torch.where(std > 1e-6 * (1 + mean.abs()), 1 / std, 0.0)
    return (train - mean) * scale, (test - mean) * scale


def _choose_penalty(x: Tensor, t: Tensor, num_classes: int, seed: int) -> tuple[float, Tensor | None]:
    """The penalty of lowest cross-entropy on rows it was not fitted on, and a solution at it to start from.

    Cross-entropy rather than accuracy: with ten labels a class the held-out rows are too few to tell accuracies apart.
    """
    folds = [(_Regression(x[fit], t[fit], num_classes), held) for fit, held in _splits(t, seed)]
    solutions: dict[int, Tensor] = {}
    best, best_loss, best_solution = PENALTIES[0], float("inf"), None
    for penalty in PENALTIES:
        loss = 0.0
        for fold, (regression, held) in enumerate(folds):
            solutions[fold] = regression.fit(penalty, solutions.get(fold))
            loss += F.cross_entropy(_logits(x[held], solutions[fold]), t[held], reduction="sum").item()
        if loss < best_loss:
            best, best_loss, best_solution = penalty, loss, solutions.get(0)
        elif penalty < best / 50:  # two weaker ones were worse: past the minimum, and weak penalties take longest
            break
    return best, best_solution


def _splits(t: Tensor, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(fitted rows, held-out rows), stratified: every class keeps at least one fitted row."""
    generator = torch.Generator().manual_seed(seed)
    parts, used = (10, 1) if len(t) >= _ONE_SPLIT_FROM else (5, 5)
    part = torch.full_like(t, -1)  # -1: always fitted
    for label in t.unique():
        members = (t == label).nonzero().flatten()
        members = members[torch.randperm(len(members), generator=generator)]
        if len(members) > 1:
            part[members] = (torch.arange(len(members)) % parts).to(part)
    for fold in range(used):
        held = (part == fold).nonzero().flatten()
        if len(held):
            yield (part != fold).nonzero().flatten(), held


class _Regression:
    """min over W (C, d), b (C,) of  mean cross-entropy(W x + b, t) + penalty / 2 |W|^2, in the principal axes of x.

    Everything is class-major, (C, N) and (C, r): the two products of a step then run five times faster on a CPU.
    """

    def __init__(self, x: Tensor, t: Tensor, num_classes: int) -> None:
        self.mean = x.mean(0)
        centred = x - self.mean
        self.axes, self.variance = _principal_axes(centred)
        self.u = centred @ self.axes
        self.t, self.num_classes = t, num_classes

    def fit(self, penalty: float, start: Tensor | None = None) -> Tensor:
        """(C, d + 1): weights, and the bias as last column. `start` is such a solution of a problem nearby."""
        n, curvature = len(self.t), 1 / self.num_classes  # about that of the cross-entropy at equal probabilities
        scale = (curvature * self.variance + penalty).rsqrt()
        bias_scale = curvature**-0.5
        if start is None:
            start = self.u.new_zeros(self.num_classes, len(self.mean) + 1)
        bias = start[:, -1] + start[:, :-1] @ self.mean  # for centred rows
        free = torch.cat([start[:, :-1] @ self.axes / scale, bias[:, None] / bias_scale], 1).requires_grad_(True)
        rows = torch.arange(n, device=self.t.device)
        solver = torch.optim.LBFGS(
            [free],
            max_iter=300,
            tolerance_grad=2e-5,
            tolerance_change=1e-7,
            history_size=10,
            line_search_fn="strong_wolfe",
        )

        @torch.no_grad()
        def closure() -> Tensor:  # the gradient by hand: autograd would keep three (C, N) tensors
            w = free[:, :-1] * scale
            log_p = torch.log_softmax(torch.addmm(free[:, -1:] * bias_scale, w, self.u.T), 0)
            loss = -log_p[self.t, rows].mean() + penalty / 2 * w.square().sum()
            residual = log_p.exp_()
            residual[self.t, rows] -= 1
            residual /= n
            grad_w = (residual @ self.u + penalty * w) * scale
            free.grad = torch.cat([grad_w, residual.sum(1, keepdim=True) * bias_scale], 1)
            return loss

        solver.step(closure)
        solution = free.detach()
        weight = (solution[:, :-1] * scale) @ self.axes.T
        return torch.cat([weight, (solution[:, -1] * bias_scale - weight @ self.mean)[:, None]], 1)


def _principal_axes(x: Tensor) -> tuple[Tensor, Tensor]:
    """Orthonormal axes (d, r) of centred rows x (N, d) along which they vary, and the variance (r,) there."""
    n, d = x.shape
    if n >= d:
        variance, axes = _eigh(x.T @ x / n)
    else:
        variance, sides = _eigh(x @ x.T / n)
    kept = variance > 1e-6 * variance[-1].clamp_min(torch.finfo(variance.dtype).tiny)
    variance = variance[kept]
    if n < d:
        axes = x.T @ (sides[:, kept] / (n * variance).sqrt())
        return axes, variance
    return axes[:, kept], variance


def _eigh(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Ascending eigenvalues and eigenvectors of a symmetric matrix, in its dtype.

    Float32 divide and conquer sometimes fails on spectra with many equal eigenvalues (dead features); float64 nearly
    never, and a diagonal of the size of float32's rounding then separates them: any axes nearby serve as well.
    """
    exact = gram.double()
    try:
        values, vectors = torch.linalg.eigh(exact)
    except torch.linalg.LinAlgError:
        spread = torch.linspace(0, 1e-7, len(exact), dtype=exact.dtype, device=exact.device)
        values, vectors = torch.linalg.eigh(exact + torch.diag(spread * exact.diagonal().mean()))
    return values.to(gram.dtype), vectors.to(gram.dtype)


def _logits(x: Tensor, weight: Tensor) -> Tensor:
    return torch.addmm(weight[:, -1], x, weight[:, :-1].T)
