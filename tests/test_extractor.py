"""The feature extractor against plain timm, tap by tap, and on awkward pictures."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from finished_run import make_run
from PIL import Image
from timm.data import create_transform, resolve_data_config

from aotadmm_timm import FeatureExtractor
from aotadmm_timm.data.decode import UnreadableImage
from aotadmm_timm.extractor import centered_cosine

MakeRun = Callable[..., Path]
__all__ = ["make_run"]


def noise(seed: int, size: tuple[int, int] = (40, 48)) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8))


@pytest.fixture(scope="module")
def tiny() -> FeatureExtractor:
    return FeatureExtractor("aot_admm_tiny", random_init=True, batch_size=3)


def test_features_are_those_of_timm_with_the_models_own_preprocessing(tmp_path: Path) -> None:
    extract = FeatureExtractor("test_vit", random_init=True, batch_size=2)
    images = [noise(0, (300, 200)), noise(1, (90, 90)), noise(2)]
    images[1].save(tmp_path / "1.png")
    features = extract([images[0], tmp_path / "1.png", images[2]])
    transform = create_transform(**resolve_data_config(model=extract.model), is_training=False)
    with torch.no_grad():
        expected = extract.model(torch.stack([transform(image) for image in images])).numpy()
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, expected, atol=1e-6)
    assert extract([]).shape == (0, *extract.shape)
    np.testing.assert_array_equal(extract(images[0]), extract(images[:1]))


@pytest.mark.parametrize("name", ["aot_admm_tiny", "crate_tiny", "vit_tiny_mlpfree", "test_vit", "test_vit2"])
def test_the_last_layer_pooled_the_models_way_is_the_models_output(name: str) -> None:
    own = FeatureExtractor(name, random_init=True)
    last = FeatureExtractor(name, random_init=True, layers=[-1])
    np.testing.assert_allclose(last([noise(0)]), own([noise(0)]), atol=1e-5)


def test_pools_and_layers_are_what_they_say() -> None:
    images = [noise(0), noise(1)]
    taps = {
        (pool, layers): FeatureExtractor("test_vit", random_init=True, layers=layers, pool=pool)
        for pool in ("token", "avg", "none")
        for layers in ((), (-1, 2))
    }
    one = taps["none", ()]
    with torch.no_grad():
        tokens = one.model.forward_features(torch.stack([one.prepare(image) for image in images])).numpy()
    depth = len(one.model.blocks)
    np.testing.assert_allclose(one(images), tokens, atol=1e-5)
    np.testing.assert_allclose(taps["token", ()](images), tokens[:, 0], atol=1e-5)
    np.testing.assert_allclose(taps["avg", ()](images), tokens[:, 1:].mean(1), atol=1e-5)
    two = taps["avg", (-1, 2)]
    assert two.layers == (depth - 1, 2)
    assert two(images).shape == (2, 2, 64)
    np.testing.assert_allclose(two(images)[:, 0], tokens[:, 1:].mean(1), atol=1e-5)
    repeated = FeatureExtractor("test_vit", random_init=True, layers=(2, -1, 2), pool="avg")(images)
    np.testing.assert_array_equal(repeated, two(images)[:, [1, 0, 1]])
    assert taps["none", (-1, 2)](images).shape == (2, 2, *tokens.shape[1:])


def test_a_model_without_class_token_has_layers_but_no_class_token(make_run: MakeRun) -> None:
    run = make_run(class_token=False, global_pool="avg", fc_norm=False)
    own, taps = FeatureExtractor(str(run)), FeatureExtractor(str(run), layers=(-1, 0))
    np.testing.assert_allclose(taps([noise(0)])[:, 0], own([noise(0)]), atol=1e-5)
    assert FeatureExtractor(str(run), pool="none")([noise(0)]).shape == (1, 16, 384)
    with pytest.raises(ValueError, match="has no class token"):
        FeatureExtractor(str(run), pool="token")
    with pytest.raises(ValueError, match="has no class token"):  # its prefix tokens are registers
        FeatureExtractor("vit_medium_patch16_reg4_gap_256", random_init=True, pool="token")


def test_a_ramp_of_16_bit_grey_has_the_features_of_its_8_bit_copy(tiny: FeatureExtractor, tmp_path: Path) -> None:
    ramp = np.linspace(0, 65535, 64 * 64).astype(np.uint16).reshape(64, 64)
    Image.fromarray(ramp).save(tmp_path / "16.png")
    Image.fromarray((ramp // 257).astype(np.uint8)).save(tmp_path / "8.png")
    deep, shallow = tiny([tmp_path / "16.png", tmp_path / "8.png"])
    assert deep @ shallow / np.linalg.norm(deep) / np.linalg.norm(shallow) > 0.99


def test_a_turned_photograph_has_the_features_of_the_upright_one(tiny: FeatureExtractor, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    noise(3).save(tmp_path / "upright.png")
    noise(3).transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
    upright, turned = tiny([tmp_path / "upright.png", tmp_path / "turned.png"])
    np.testing.assert_array_equal(turned, upright)


def test_a_grey_model_sees_grey(make_run: MakeRun) -> None:
    extract = FeatureExtractor(str(make_run(in_chans=1)))
    assert extract.prepare(noise(0)).shape == (1, 32, 32)
    np.testing.assert_allclose(extract([noise(0).convert("L")]), extract([noise(0)]), atol=1e-6)


def test_centred_cosine_finds_the_nearest_image_where_raw_cosines_are_all_alike(tiny: FeatureExtractor) -> None:
    gallery = [noise(seed) for seed in range(12)]
    rng = np.random.default_rng(0)
    query = np.clip(np.asarray(gallery[7]) + rng.normal(0, 8, (40, 48, 3)), 0, 255).astype(np.uint8)
    features, wanted = tiny(gallery), tiny([Image.fromarray(query)])
    scores = centered_cosine(wanted, features)
    assert scores.shape == (1, 12)
    assert scores[0].argmax() == 7
    units = features / np.linalg.norm(features, axis=1, keepdims=True)
    raw = (wanted / np.linalg.norm(wanted)) @ units.T
    assert np.ptp(scores) > 2 * np.ptp(raw)
    large = 300 / np.abs(features).max()  # squares that half precision cannot hold
    half = centered_cosine(np.float16(large * wanted), np.float16(large * features))
    np.testing.assert_allclose(half, scores, atol=0.02)


def test_large_images_are_warned_of_once(tiny: FeatureExtractor) -> None:
    tiny([noise(0, (128, 500))])  # four times 32: still fine
    with pytest.warns(UserWarning, match=r"200x130 pixels are more than four times larger than the 32x32") as caught:
        tiny([noise(0, (130, 200)), noise(1, (300, 300))])
    assert len(caught) == 1
    tiny([noise(0, (400, 400))])  # a second warning would be an error here


def test_bad_arguments_are_one_line(tmp_path: Path, tiny: FeatureExtractor, make_run: MakeRun) -> None:
    with pytest.raises(ValueError, match="random-init"):
        FeatureExtractor("vit_base_mlpfree")
    with pytest.raises(ValueError, match="layers 0 to 11; there is no layer 12"):
        FeatureExtractor("aot_admm_tiny", random_init=True, layers=[12])
    with pytest.raises(ValueError, match=r"pool must be one of token, avg, none, got 'max'"):
        FeatureExtractor("aot_admm_tiny", random_init=True, pool="max")
    with pytest.raises(ValueError, match="no class token"):
        FeatureExtractor(str(make_run(class_token=False, global_pool="avg")), pool="token")
    with pytest.raises(ValueError, match="its own pooling is 'map'"):
        FeatureExtractor("test_vit3", random_init=True, layers=[0])
    with pytest.raises(ValueError, match="vision transformer"):
        FeatureExtractor("test_resnet", random_init=True, pool="avg")
    with pytest.raises(ValueError, match="batch_size must be positive"):
        FeatureExtractor("aot_admm_tiny", random_init=True, batch_size=0)
    (tmp_path / "cut.jpg").write_bytes(b"\xff\xd8\xff")
    with pytest.raises(UnreadableImage, match=r"cut\.jpg"):
        tiny([noise(0), tmp_path / "cut.jpg"])
    with pytest.raises(ValueError, match="PIL image or a path, got ndarray"):
        tiny([np.zeros((3, 3))])
