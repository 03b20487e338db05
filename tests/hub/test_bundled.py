"""The weights that travel with the package: half precision, small, described by a card, and better than none."""

from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_sample_images
from torch import nn

import aotadmm_timm
from aotadmm_timm import FeatureExtractor

WEIGHTS = Path(aotadmm_timm.__file__).parent / "weights"
CARDS = Path(__file__).parents[2] / "hub" / "cards"
NAMES = sorted(path.stem for path in WEIGHTS.glob("*.safetensors"))


def test_the_default_model_of_extraction_has_weights() -> None:
    assert "aot_admm_tiny.lejepa_cifar10" in NAMES
    assert FeatureExtractor().origin.name == "aot_admm_tiny.lejepa_cifar10"


@pytest.mark.parametrize("name", NAMES)
def test_each_file_is_small_and_has_a_card(name: str) -> None:
    path = WEIGHTS / f"{name}.safetensors"
    assert path.stat().st_size < 30e6
    assert {value.dtype for value in load_file(path).values()} == {torch.float16}
    card = (CARDS / name / "README.md").read_text(encoding="utf-8")
    assert f'timm.create_model("{name}", pretrained=True)' in card
    assert "linear probe" in card
    assert (CARDS / name / "curves.png").is_file()


@pytest.mark.parametrize("name", NAMES)
def test_the_bare_name_loads_them_and_they_know_a_picture_again(name: str) -> None:
    """Tiles of two photographs, cropped, mirrored and recoloured, find their originals."""
    photographs = [torch.tensor(image).permute(2, 0, 1) for image in load_sample_images().images]
    tiles = torch.cat([p.unfold(1, 64, 64).unfold(2, 64, 64).flatten(1, 2).transpose(0, 1) for p in photographs]) / 255
    recoloured = (tiles.flip(-1)[..., 6:58, 6:58] * torch.tensor([0.8, 1.0, 0.7]).view(3, 1, 1) + 0.1).clamp(0, 1)

    @torch.inference_mode()
    def found(model: nn.Module) -> float:
        views = (nn.functional.interpolate(x, size=32, mode="area") * 2 - 1 for x in (tiles, recoloured))
        first, second = (model.eval()(view) for view in views)
        first, second = (nn.functional.normalize(z - z.mean(0), dim=1) for z in (first, second))
        return ((second @ first.T).argmax(1) == torch.arange(len(tiles))).float().mean().item()

    pretrained = timm.create_model(name.partition(".")[0], pretrained=True, num_classes=0)
    torch.manual_seed(0)
    untrained = timm.create_model(name.partition(".")[0], num_classes=0)
    scores = found(pretrained), found(untrained)
    assert scores[0] > scores[1] + 0.1, scores


@pytest.mark.parametrize("name", NAMES)
def test_the_readme_shows_the_numbers_of_the_card(name: str) -> None:
    card = (CARDS / name / "README.md").read_text(encoding="utf-8")
    rows = (CARDS.parents[1] / "README.md").read_text(encoding="utf-8").splitlines()
    row = next(row for row in rows if row.startswith(f"| [`{name}`]"))
    for score in ("linear probe", "kNN, k = 20"):
        (line,) = [line for line in card.splitlines() if line.startswith(f"| {score} |")]
        pretrained, untrained = (cell.strip() for cell in line.split("|")[2:4])
        assert f"| {pretrained}" in row
        assert untrained in row
