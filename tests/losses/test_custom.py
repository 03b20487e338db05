"""A user's regularizer by name."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

from aotadmm_timm.losses.custom import load_regularizer
from aotadmm_timm.theory.expansion import covariance_part

SOURCE = """
from torch import nn

def spread(z, step):
    return step - z.var()

class Stateful(nn.Module):
    def forward(self, z, step):
        return z.mean()
"""


def test_function_and_class_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_terms.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    z = torch.arange(6.0).view(1, 3, 2)
    assert float(load_regularizer("my_terms:spread")(z, 4)) == pytest.approx(0.5)
    assert float(load_regularizer("my_terms:Stateful")(z, 0)) == pytest.approx(2.5)
    with pytest.raises(ValueError, match=r"no function 'spred', did you mean 'spread'\?"):
        load_regularizer("my_terms:spred")


def test_sacreg_is_worth_as_much_as_the_covariance_part_of_sigreg() -> None:
    """To leading order around the identity, at equal trace; per set, then the mean."""
    torch.manual_seed(0)
    n, d = 64, 6
    basis = torch.linalg.qr(torch.randn(n, d + 1, dtype=torch.float64) + 1)[0]
    white = basis - basis.mean(0)
    white = white[:, :d] @ torch.linalg.inv(torch.linalg.cholesky(white[:, :d].T @ white[:, :d] / n)).T
    a = torch.randn(d, d, dtype=torch.float64)
    a = a + a.T - 2 * a.trace() / d * torch.eye(d, dtype=torch.float64)
    sigma = torch.eye(d, dtype=torch.float64) + 1e-2 * a
    z = white @ torch.linalg.cholesky(sigma).T
    want = n * covariance_part(sigma)
    regularizer = load_regularizer("sacreg")
    floor = regularizer(white, 0)  # SACReg's eps moves the minimum a little
    assert float(regularizer(z, 0) - floor) == pytest.approx(float(want), rel=0.05)
    assert float(regularizer(torch.stack([z, white]), 0) - floor) == pytest.approx(float(want) / 2, rel=0.05)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(z): ...", r"'bad_terms:f': must be called as f\(z, step\), takes \(z\)"),
        ("def f(z, step, more): ...", "missing a required argument: 'more'"),
        ("class f:\n    def __init__(self, n): ...", "f cannot be made without arguments"),
        ("import torch\nclass f(torch.nn.Module):\n    def forward(self, z): ...", "must be called as"),
        ("1 / 0", r"cannot import module 'bad_terms' \(ZeroDivisionError: division by zero\)"),
    ],
)
def test_what_could_not_be_called_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, message: str
) -> None:
    (tmp_path / "bad_terms.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "bad_terms", raising=False)
    importlib.invalidate_caches()
    with pytest.raises(ValueError, match=message):
        load_regularizer("bad_terms:f")
    sys.modules.pop("bad_terms", None)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("torch", "is named MODULE:FUNCTION, got 'torch'"),
        (":f", "is named MODULE:FUNCTION"),
        ("no_such_module_here:f", "cannot import module 'no_such_module_here'"),
        ("math:pi", "module 'math' has no function 'pi'"),
    ],
)
def test_what_is_missing_is_named(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_regularizer(spec)
