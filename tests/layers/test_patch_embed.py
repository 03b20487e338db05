"""The linear stem: order of pixels, sizes, and its adaptation to other channels and patches."""

import pytest
import torch

from aotadmm_timm.layers.patch_embed import STEM_KEYS, LinearPatchEmbed, adapt_linear_stem


def randomised(**kwargs: object) -> LinearPatchEmbed:
    torch.manual_seed(0)
    stem = LinearPatchEmbed(**{"img_size": (8, 12), "patch_size": 4, "embed_dim": 10, **kwargs})  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in stem.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return stem


def test_patches_are_flattened_row_column_channel() -> None:
    stem = randomised(dtype=torch.float64)
    x = torch.randn(2, 3, 8, 12, dtype=torch.float64)
    tokens = stem(x)
    assert tokens.shape == (2, 6, 10)
    for b in range(2):
        for row in range(2):
            for column in range(3):
                flat = [x[b, c, 4 * row + i, 4 * column + j] for i in range(4) for j in range(4) for c in range(3)]
                want = stem.norm(stem.proj(stem.norm_patch(torch.stack(flat))))
                torch.testing.assert_close(tokens[b, 3 * row + column], want, rtol=0, atol=1e-12)


def test_output_as_a_grid() -> None:
    x = torch.randn(2, 3, 8, 12)
    grid = randomised(output_fmt="NHWC", strict_img_size=False)(x)
    assert torch.equal(grid.flatten(1, 2), randomised()(x))


def test_padding() -> None:
    stem = randomised(strict_img_size=False, dynamic_img_pad=True)
    x = torch.randn(1, 3, 6, 9)
    padded = torch.nn.functional.pad(x, (0, 3, 0, 2))
    assert torch.equal(stem(x), stem(padded))


@pytest.mark.parametrize("size", [(7, 12), (2, 2)])
def test_no_whole_number_of_patches(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=rf"img_size \({size[0]}, {size[1]}\).*patch_size \(4, 4\)"):
        LinearPatchEmbed(img_size=size, patch_size=4)


@pytest.mark.parametrize(
    ("shape", "message"),
    [((1, 3, 8, 8), "width"), ((1, 3, 12, 12), "height"), ((1, 1, 8, 12), "1 channels, the model takes 3")],
)
def test_wrong_input(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        randomised()(torch.randn(shape))


def test_indivisible_dynamic_input() -> None:
    with pytest.raises(AssertionError, match="divisible by patch size"):
        randomised(strict_img_size=False)(torch.randn(1, 3, 9, 12))


def moved(stem: LinearPatchEmbed, **kwargs: object) -> LinearPatchEmbed:
    """The stem's weights in another geometry."""
    target = randomised(**kwargs)
    state = stem.state_dict()
    old, new = (*stem.patch_size, stem.in_chans), (*target.patch_size, target.in_chans)
    target.load_state_dict({**state, **adapt_linear_stem({key: state[key] for key in STEM_KEYS}, old, new)})
    return target


@pytest.mark.parametrize(("channels", "repeat"), [(1, 3), (3, 2)])
def test_channels_with_random_gain_and_bias(channels: int, repeat: int) -> None:
    """Grey equals grey RGB; six channels holding RGB twice equal RGB."""
    stem = randomised()
    x = torch.randn(2, channels, 8, 12)
    few, many = (x, x.repeat(1, repeat, 1, 1))
    if channels == 1:
        torch.testing.assert_close(moved(stem, in_chans=1)(few), stem(many), rtol=0, atol=1e-5)
    else:
        torch.testing.assert_close(moved(stem, in_chans=6)(many), stem(few), rtol=0, atol=1e-5)


def test_doubled_patch_on_a_doubled_image() -> None:
    """With smooth kernels a doubled image seen through doubled patches gives nearly the same tokens."""
    stem = randomised()
    x = torch.randn(2, 3, 8, 12)
    big = torch.nn.functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
    tokens = moved(stem, patch_size=8, img_size=(16, 24))(big)
    assert torch.nn.functional.cosine_similarity(tokens, stem(x), dim=-1).mean() > 0.8


def test_set_input_size_changes_patches_in_place() -> None:
    stem = randomised()
    expected = moved(stem, patch_size=8, img_size=(16, 24))
    stem.set_input_size(img_size=(16, 24), patch_size=8)
    x = torch.randn(1, 3, 16, 24)
    assert torch.equal(stem(x), expected(x))
    assert stem.grid_size == (2, 3)
    assert (stem.proj.in_features, stem.norm_patch.normalized_shape) == (192, (192,))


def test_stem_without_bias_cannot_be_folded() -> None:
    stem = randomised(bias=False)
    stem_state = {key: tensor for key, tensor in stem.state_dict().items() if key in STEM_KEYS}
    with pytest.raises(ValueError, match=r"without bias.*\(4, 4, 3\) to \(4, 4, 1\)"):
        adapt_linear_stem(stem_state, (4, 4, 3), (4, 4, 1))
