"""Which form is taken when, that every choice computes the formula, and that a traced graph makes the same choice."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from aotadmm_timm.layers import dispatch, proximal
from aotadmm_timm.layers.tied_attention import tied_attention


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Calls(TorchFunctionMode):
    """The names of the operations that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("dtype", "tokens", "fused", "kernel"),
    [
        (torch.float32, 17, True, "tied"),
        (torch.bfloat16, 17, True, "tied"),
        (torch.float32, 65, True, "scaled_dot_product_attention"),
        (torch.bfloat16, 65, True, "softmax"),
        (torch.bfloat16, 1024, True, "scaled_dot_product_attention"),
        (torch.float32, 17, False, "softmax"),
    ],
)
def test_attention_by_precision_and_length(
    dtype: torch.dtype, tokens: int, fused: bool, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = draw(1, 2, tokens, 16).to(dtype)
    with Calls() as calls:

        def noted(*args: Any) -> Tensor:
            calls.names.append("tied")
            return tied_attention(*args)

        monkeypatch.setattr(dispatch, "tied_attention", noted)
        out = dispatch.subspace_attention(w, 0.25, 0.0, fused)
    assert next(name for name in calls.names if name in ("tied", "softmax", "scaled_dot_product_attention")) == kernel
    want = (0.25 * w.double() @ w.double().transpose(-2, -1)).softmax(-1) @ w.double()
    torch.testing.assert_close(out.double(), want, rtol=0, atol=1e-5 if dtype == torch.float32 else 0.05)


def test_attention_in_a_function_transform_is_plain() -> None:
    w = draw(3, 1, 2, 5, 4).double()
    one = torch.func.grad(lambda x: dispatch.subspace_attention(x, 0.5).square().sum())
    torch.testing.assert_close(torch.vmap(one)(w), torch.stack([one(x) for x in w]))


def test_attention_drops_weights() -> None:
    torch.manual_seed(0)
    w = draw(1, 1, 9, 4)
    assert not torch.equal(
        dispatch.subspace_attention(w, 1.0, 0.5, False), dispatch.subspace_attention(w, 1.0, 0.0, False)
    )


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("tokens", [3, 4], ids=["as many tokens as width", "more"])
def test_ista_by_number_of_tokens_and_autocast(tokens: int, autocast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    y, dictionary, formula, flags = draw(2, tokens, 6), draw(6, 6, seed=1), proximal.ista_step, []

    def noted(*args: Any) -> Tensor:
        flags.append(args[-2:])
        return formula(*args)

    monkeypatch.setattr(proximal, "ista_step", noted)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        got = dispatch.ista_step(y, dictionary, 0.2, 0.7)
    assert flags == [(tokens == 4, not autocast)]
    torch.testing.assert_close(got, formula(y, dictionary, 0.2, 0.7), rtol=0, atol=0.1 if autocast else 1e-5)


@pytest.mark.parametrize("tokens", [3, 4])
def test_ista_under_autocast_rounds_its_products_only(tokens: int) -> None:
    y = 100 + draw(2, tokens, 6)
    with torch.autocast("cpu", torch.bfloat16):
        got = dispatch.ista_step(y, torch.zeros(6, 6), 0.2, 0.7)
    torch.testing.assert_close(got, y - 0.2 * 0.7, rtol=0, atol=0)


def admm_inputs() -> list[Tensor]:
    """z, v, w, MSSA(Z), coefficients, threshold, gain."""
    states = [draw(3, 7, 6, seed=seed).requires_grad_() for seed in range(4)]
    return [*states, draw(3, seed=4).softmax(0), torch.tensor([0.3]), 1 + 0.3 * draw(6, seed=5)]


def test_admm_step_is_one_operation_where_it_can_be() -> None:
    z, v, w, m, coefficients, tau, gain = admm_inputs()
    name = "_FusedADMMStepBackward"
    fused = dispatch.admm_step(z, v, w, m, coefficients, tau, gain)
    assert type(fused[0].grad_fn).__name__ == name
    torch.testing.assert_close(fused, proximal.admm_step(z, v, w, m, coefficients, tau, gain))
    for arguments in (
        {"coefficients": torch.tensor([0.6, 0.4, 0.0])},
        {"fused": False},
        {"rescale_w": False},
        {"threshold": tau.expand(6)},
        {"gain": None},
    ):
        given = {"coefficients": coefficients, "threshold": tau, "gain": gain, **arguments}
        assert type(dispatch.admm_step(z, v, w, m, **given)[0].grad_fn).__name__ != name  # type: ignore[arg-type]
    per_sample = torch.vmap(lambda x: dispatch.admm_step(x, v[0], w[0], m[0], coefficients, tau, gain)[0])(z)
    one = dispatch.admm_step(z[:1], v[:1], w[:1], m[:1], coefficients, tau, gain)
    torch.testing.assert_close(per_sample[0], one[0][0])


def test_token_statistics_are_one_operation_where_they_can_be() -> None:
    w, temperature = draw(3, 7, 2, 6).requires_grad_(), torch.ones(2)
    name = "_FusedTokenStatisticsBackward"
    assert type(dispatch.token_statistics(w, temperature).grad_fn).__name__ == name
    assert type(dispatch.token_statistics(w, temperature, 0.0, False).grad_fn).__name__ != name
    assert type(dispatch.token_statistics(w, temperature, 0.5).grad_fn).__name__ != name
    one = torch.func.grad(lambda x: dispatch.token_statistics(x, temperature).square().sum())
    torch.testing.assert_close(torch.vmap(one)(w.unsqueeze(1)).squeeze(1), one(w))


class Admm(nn.Module):
    def forward(self, z: Tensor, v: Tensor, w: Tensor, m: Tensor, c: Tensor, tau: Tensor, gain: Tensor) -> Tensor:
        z, v, w = dispatch.admm_step(z, v, w, m, c, tau, gain)
        return torch.stack([z, v, w])


class Ista(nn.Module):
    def forward(self, y: Tensor, dictionary: Tensor) -> Tensor:
        return dispatch.ista_step(y, dictionary, 0.1, 0.1)


class Wide(nn.Module):
    def forward(self, y: Tensor, dictionary: Tensor) -> Tensor:
        return dispatch.overcomplete_ista(y, dictionary, dictionary, 0.1, 0.1)


class Attention(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return dispatch.subspace_attention(w, 0.25)


class Statistics(nn.Module):
    def forward(self, w: Tensor, temperature: Tensor) -> Tensor:
        return dispatch.token_statistics(w, temperature)


class Stored(nn.Module):
    def forward(self, t: Tensor) -> Tensor:
        return dispatch.as_autocast_stores(t)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(
    ("build", "inputs"),
    [
        (Admm, admm_inputs()),
        (Ista, [draw(2, 40, 16), draw(16, 16, seed=1)]),
        (Ista, [draw(2, 4, 16), draw(16, 16, seed=1)]),
        (Wide, [draw(2, 40, 16), draw(16, 64, seed=1)]),
        (Attention, [draw(2, 3, 17, 16)]),
        (Attention, [draw(2, 3, 65, 16)]),
        (Statistics, [draw(2, 17, 3, 16), draw(3, seed=1)]),
        (Stored, [draw(2, 3)]),
    ],
)
def test_a_traced_graph_gives_the_same_bits(
    build: Callable[[], nn.Module], inputs: list[Tensor], autocast: bool
) -> None:
    module = build()
    graph = torch.fx.symbolic_trace(module)
    assert sum(node.op == "call_function" and "dispatch" in node.target.__module__ for node in graph.graph.nodes) == 1
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        got, want = graph(*inputs), module(*inputs)
    assert got.dtype == want.dtype
    assert torch.equal(got, want)
