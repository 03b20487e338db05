"""Linear probe: preconditioned L-BFGS against AdamW and scikit-learn, by accuracy and CPU time, on the same features.

    python tests/benchmarks/linear_probe.py RUN_OR_MODEL --dataset NAME [--num-samples N] [--random-init]

All standardise by train, choose their hyper-parameters on the same held-out tenth of train, refit on all of it and read
test once. AdamW's epochs are such that one fit of its grid costs about what the whole L-BFGS probe does; also with a
tenth of that. Time is that of the process (single thread), so that a busy machine does not matter.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from aotadmm_timm.cli import option, parse, run
from aotadmm_timm.data import eval_loader, load_images
from aotadmm_timm.evaluation import extract_features, linear_probe
from aotadmm_timm.evaluation.linear_probe import PENALTIES, _splits, _standardise
from aotadmm_timm.pretrained import open_model


@dataclass(frozen=True)
class Config:
    model: str | None = option(None, "run folder or timm model name")
    dataset: str = option("digits", "data set")
    num_samples: int | None = option(None, "N training images only, drawn by seed 0", unit="images")
    random_init: bool = option(False, "take a registered model untrained")
    epochs: int = option(30, "epochs of each AdamW fit")


def accuracy(logits: Tensor, y: Tensor) -> float:
    return (logits.argmax(1) == y).double().mean().item()


def adamw(x: Tensor, y: Tensor, test_x: Tensor, test_y: Tensor, epochs: int) -> tuple[float, str]:
    """Mini-batches of 512, cosine; learning rate and weight decay chosen on the held-out tenth."""
    classes = int(y.max()) + 1

    def fit(rows: Tensor, lr: float, decay: float) -> torch.nn.Linear:
        torch.manual_seed(0)
        layer = torch.nn.Linear(x.shape[1], classes)
        solver = torch.optim.AdamW(layer.parameters(), lr=lr, weight_decay=decay)
        steps = epochs * -(-len(rows) // 512)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(solver, steps)
        for _ in range(epochs):
            for batch in rows[torch.randperm(len(rows))].split(512):
                solver.zero_grad()
                F.cross_entropy(layer(x[batch]), y[batch]).backward()
                solver.step()
                schedule.step()
        return layer

    keep, held = next(iter(_splits(y, 0)))
    grid = [(lr, decay) for lr in (3e-4, 1e-3, 3e-3, 1e-2) for decay in (0.0, 0.1)]
    with torch.no_grad():
        scores = {}
        for setting in grid:
            with torch.enable_grad():
                layer = fit(keep, *setting)
            scores[setting] = accuracy(layer(x[held]), y[held])
    best = max(scores, key=scores.__getitem__)
    with torch.no_grad():
        with torch.enable_grad():
            layer = fit(torch.arange(len(y)), *best)
        return accuracy(layer(test_x), test_y), f"{epochs} epochs, lr {best[0]}, decay {best[1]}"


def scikit_learn(x: Tensor, y: Tensor, test_x: Tensor, test_y: Tensor) -> tuple[float, str]:
    from sklearn.linear_model import LogisticRegression

    keep, held = next(iter(_splits(y, 0)))
    scores = {}
    for penalty in PENALTIES:
        model = LogisticRegression(C=1 / (penalty * len(keep)), max_iter=300).fit(x[keep].numpy(), y[keep].numpy())
        scores[penalty] = F.cross_entropy(torch.from_numpy(model.decision_function(x[held].numpy())), y[held]).item()
    best = min(scores, key=scores.__getitem__)
    model = LogisticRegression(C=1 / (best * len(y)), max_iter=300).fit(x.numpy(), y.numpy())
    return model.score(test_x.numpy(), test_y.numpy()), f"penalty {best}"


def main() -> None:
    cfg = parse(Config, description=__doc__, positional=("model",))
    assert cfg.model is not None
    torch.set_num_threads(1)
    model, _ = open_model(cfg.model, random_init=cfg.random_init, num_classes=0)
    train = load_images(cfg.dataset, "train", num_samples=cfg.num_samples)
    test = load_images(cfg.dataset, "test", classes=train.classes)
    z, y = extract_features(model, eval_loader(train, model))
    test_z, test_y = extract_features(model, eval_loader(test, model))
    x, test_x = _standardise(z, test_z)
    print(f"{cfg.model} on {cfg.dataset}: {len(x)} train, {len(test_x)} test features of width {x.shape[1]}")
    methods: dict[str, Callable[[], tuple[float, str]]] = {
        "L-BFGS (linear_probe)": lambda: (linear_probe(z, y, test_z, test_y), ""),
        "AdamW": lambda: adamw(x, y, test_x, test_y, cfg.epochs),
        "AdamW, a tenth": lambda: adamw(x, y, test_x, test_y, max(1, cfg.epochs // 10)),
        "scikit-learn": lambda: scikit_learn(x, y, test_x, test_y),
    }
    for name, method in methods.items():
        began = time.process_time()
        score, chosen = method()
        print(f"{name:24s} {100 * score:6.2f} %  {time.process_time() - began:7.1f} s  {chosen}", flush=True)


if __name__ == "__main__":
    run(main)
