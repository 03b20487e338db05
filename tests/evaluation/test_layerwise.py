"""Layer-wise measurements against literal float64 loops, on our models and on a user's own."""

import math

import pytest
import timm
import torch
from torch import Tensor

from aotadmm_timm.evaluation.layerwise import layer_curves, theory_gap
from aotadmm_timm.evaluation.maps import attention_maps, patch_pca
from aotadmm_timm.evaluation.plots import layer_figure, map_figure, spectrum_figure
from aotadmm_timm.models.unrolled import UnrolledBlock, UnrolledTransformer, layer_states

EPS = 0.1


def build(name: str, **kwargs: object) -> torch.nn.Module:
    torch.manual_seed(0)
    return timm.create_model(name, num_classes=0, **kwargs).eval().double()


def images(count: int = 3) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def literal_rate(columns: Tensor, eps: float) -> float:
    p, n = columns.shape
    return 0.5 * torch.logdet(torch.eye(p, dtype=torch.float64) + p / (n * eps**2) * columns @ columns.T).item()


def heads(block: torch.nn.Module) -> list[Tensor]:
    """U_k (d, p), by slicing the weight by hand."""
    p = block.attn.qkv.weight.shape[0] // block.attn.num_heads
    return [block.attn.qkv.weight[k * p : (k + 1) * p].T.detach() for k in range(block.attn.num_heads)]


def test_admm_rows_are_the_literal_formulas() -> None:
    model, x = build("test_aot_admm"), images()
    rows = layer_curves(model, x, eps=EPS)
    with torch.no_grad():
        states = layer_states(model, x)
    assert [row["layer"] for row in rows] == list(range(len(states)))
    for layer in range(1, len(states)):
        block = model.blocks[layer - 1]
        coefficients = block.logits.exp() / block.logits.exp().sum()
        expected = {
            "sparsity": 0.0,
            "compression": 0.0,
            "primal_residual": 0.0,
            "objective": 0.0,
            "objective_falls": 0.0,
        }
        for i in range(len(x)):
            objectives = []
            for z, v, w in ([s[i] for s in states[layer - 1]], [s[i] for s in states[layer]]):
                tokens = block.norm(z).detach()
                n, d = tokens.shape
                unit = total = 0.0
                for u in heads(block):
                    projected = u.T @ tokens.T
                    total += literal_rate(u.T @ z.T, EPS)
                    unit += literal_rate(projected / projected.norm(dim=0), EPS)
                weight = coefficients[1] / coefficients[2] * n * EPS**2 / u.shape[1]
                value = weight * total + block.tau * v.abs().sum() + 0.5 * ((z - v + w) ** 2).sum()
                objectives.append(value.item() / (n * d))
            z, v, _ = (s[i] for s in states[layer])
            expected["sparsity"] += (v == 0).double().mean().item() / len(x)
            expected["compression"] += unit / len(x)
            expected["primal_residual"] += math.sqrt(((z - v) ** 2).mean()) / len(x)
            expected["objective"] += objectives[1] / len(x)
            expected["objective_falls"] += (objectives[1] < objectives[0]) / len(x)
        for key, value in expected.items():
            assert rows[layer][key] == pytest.approx(value, rel=1e-6), (layer, key)
        assert rows[layer]["coefficients"] == pytest.approx(coefficients.tolist())
    dual = [math.sqrt(((states[1][1][i] - states[0][1][i]) ** 2).mean()) for i in range(3)]
    assert rows[1]["dual_residual"] == pytest.approx(sum(dual) / 3)
    assert "primal_residual" not in rows[0]
    assert rows[0]["sparsity"] == 0.0


def test_results_do_not_depend_on_chunks_and_the_mode_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("test_aot_admm", drop_path_rate=0.5).train()
    whole = layer_curves(model, images(5)), theory_gap(model, images(5))
    monkeypatch.setattr("aotadmm_timm.evaluation.layerwise._CHUNK", 2)
    for a, b in zip(whole, (layer_curves(model, images(5)), theory_gap(model, images(5))), strict=True):
        for first, second in zip(a, b, strict=True):
            assert first.keys() == second.keys()
            for key in first:
                assert first[key] == pytest.approx(second[key])
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("name", ["test_crate", "test_aot"])
def test_one_state_families_show_compression_and_sparsity_only(name: str) -> None:
    rows = layer_curves(build(name), images())
    assert set(rows[1]) == {"layer", "sparsity", "compression", "compression_falls"}
    if name == "test_crate":
        assert rows[1]["sparsity"] > 0.2
    else:
        assert rows[1]["sparsity"] == 0.0


def test_one_gradient_step_makes_the_compression_fall_for_every_image() -> None:
    # a layer that is an exact step on R^c: the measurement must see it fall
    from aotadmm_timm.layers.subspace_attention import MSSA
    from aotadmm_timm.theory import compression_rate_gradient

    class GradientBlock(UnrolledBlock):
        def __init__(self, dim: int, num_heads: int, **unused: object) -> None:
            super().__init__()
            self.attn = MSSA(dim, num_heads)

        def step(self, z: Tensor) -> tuple[Tensor]:
            self.attn(z)
            bases = self.attn.qkv.weight.unflatten(0, (self.attn.num_heads, -1)).mT
            return (z - 0.01 * compression_rate_gradient(z, bases, eps=EPS),)

    torch.manual_seed(0)
    model = UnrolledTransformer(
        block_fn=GradientBlock, img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=0
    ).double()
    assert [row["compression_falls"] for row in layer_curves(model, images())[1:]] == [1.0, 1.0]


def test_a_users_model_with_other_states_and_no_attention_shows_what_applies() -> None:
    class Momentum(UnrolledBlock):
        def __init__(self, dim: int, **unused: object) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(dim, dim)

        def step(self, z: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
            m = 0.5 * m + self.linear(z)
            return (z - m).relu(), m

    class Mine(UnrolledTransformer):
        def init(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
            return tokens, torch.zeros_like(tokens)

    torch.manual_seed(0)
    model = Mine(
        block_fn=Momentum, img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=0
    ).double()
    rows = layer_curves(model, images())
    assert [set(row) for row in rows] == [{"layer", "sparsity"}] * 3
    assert 0.2 < rows[2]["sparsity"] < 0.8
    assert theory_gap(model, images()) == [{"layer": 1}, {"layer": 2}]
    layer_figure({"mine": rows})
    with pytest.raises(ValueError, match="no subspace attention"):
        attention_maps(model, images())


def test_theory_gap_is_zero_for_the_operator_of_the_paper() -> None:
    model = build("test_aot_admm", tied_proj=True)
    with torch.no_grad():
        for block in model.blocks:
            q = torch.linalg.qr(torch.randn_like(block.attn.qkv.weight)).Q
            block.attn.qkv.weight.copy_(3 * q)
    for row in theory_gap(model, images()):
        assert row["gram_error"] == pytest.approx(8.0)  # 3^2 - 1
        assert row["gram_error_scaled"] == pytest.approx(0.0, abs=1e-12)
        assert row["output_cosine"] == pytest.approx(1.0)
        assert row["output_distance"] == 0.0


def test_theory_gap_is_the_literal_one() -> None:
    model, x = build("test_crate"), images()
    rows = theory_gap(model, x, eps=EPS)
    with torch.no_grad():
        states = layer_states(model, x)
    for layer, block in enumerate(model.blocks):
        errors = [((u.T @ u - torch.eye(u.shape[1])).norm() / math.sqrt(u.shape[1])).item() for u in heads(block)]
        assert rows[layer]["gram_error"] == pytest.approx(sum(errors) / len(errors))
        u, o = block.attn.qkv.weight.T, block.attn.proj.weight
        assert rows[layer]["output_cosine"] == pytest.approx(((u * o).sum() / u.norm() / o.norm()).item())
        cosines = []
        for z in states[layer][0]:
            tokens = block.norm1(z).detach().requires_grad_(True)
            rate = sum(
                0.5
                * torch.logdet(torch.eye(u.shape[1]) + u.shape[1] / (len(z) * EPS**2) * (tokens @ u).T @ (tokens @ u))
                for u in heads(block)
            )
            exact = torch.autograd.grad(rate, tokens)[0]
            step = (tokens - block.attn(tokens[None])[0]).detach()
            cosines.append(((exact * step).sum() / exact.norm() / step.norm()).item())
        assert rows[layer]["gradient_cosine"] == pytest.approx(sum(cosines) / len(cosines))


def test_attention_maps_are_the_softmax_rows_of_the_class_token() -> None:
    model, x = build("test_aot_admm", img_size=(32, 48)), torch.randn(2, 3, 32, 48).double()
    maps = attention_maps(model, x, layer=1)
    with torch.no_grad():
        block = model.blocks[1]
        tokens = block.norm(layer_states(model, x)[1][0])
    n = tokens.shape[1]
    for i in range(2):
        for k, u in enumerate(heads(block)):
            w = tokens[i] @ u
            scores = [math.exp(block.attn.scale * float(w[0] @ w[j])) for j in range(n)]
            expected = torch.tensor([s / sum(scores) for s in scores[1:]], dtype=torch.float64).view(4, 6)
            torch.testing.assert_close(maps[i, k], expected)
    with pytest.raises(ValueError, match="within 3 layers, got 7"):
        attention_maps(model, x, layer=7)
    with pytest.raises(ValueError, match="VisionTransformer"):
        attention_maps(timm.create_model("vit_tiny_patch16_224", img_size=32), x)


def test_patch_pca_is_the_svd_of_all_patches_on_their_grid() -> None:
    model, x = build("test_aot_admm", img_size=(32, 48)), torch.randn(2, 3, 32, 48).double()
    colours = patch_pca(model, x)
    assert colours.shape == (2, 4, 6, 3)
    with torch.no_grad():
        patches = model.forward_features(x)[:, 1:].reshape(48, -1)
    u, s, _ = torch.linalg.svd(patches - patches.mean(0), full_matrices=False)
    for component in range(3):
        scores = u[:, component] * s[component]
        scaled = ((scores - scores.min()) / (scores.max() - scores.min())).view(2, 4, 6).float()
        ours = colours[..., component]
        assert min((ours - scaled).abs().max(), (ours - (1 - scaled)).abs().max()) < 1e-5
    with pytest.raises(ValueError, match=r"60 components"):
        patch_pca(model, x, components=60)


def test_figures_show_the_panels_that_apply() -> None:
    model = build("test_aot_admm")
    rows = [*layer_curves(model, images()), *theory_gap(model, images())]
    figure = layer_figure({"trained": rows, "untrained": rows})
    assert sum(axis.axison for axis in figure.axes) == 11
    single = layer_figure({"crate": layer_curves(build("test_crate"), images())})
    assert sum(axis.axison for axis in single.axes) == 3
    x = images(2)
    assert len(map_figure(x.sigmoid(), attention_maps(model, x), patch_pca(model, x)).axes) == 2 * (2 + 3)
    spectrum_figure({"a": torch.tensor([2.0, 1.0]), "zero": torch.zeros(3)})


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="need an UnrolledTransformer, got VisionTransformer"):
        layer_curves(timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1), images())
    with pytest.raises(ValueError, match=r"B >= 1, got \(3, 32, 32\)"):
        layer_curves(build("test_aot"), images()[0])
