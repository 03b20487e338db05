"""Hard distillation: the loss by hand, and a teacher that sees its own normalisation and size."""

import pytest
import timm
import torch
import torch.nn.functional as F
from timm.data.mixup import Mixup
from timm.models.deit import VisionTransformerDistilled
from torch import nn

from aotadmm_timm.methods.distillation import HardDistillation, Teacher

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def model(name: str, size: int, mean: tuple[float, ...], std: tuple[float, ...], classes: int = 5) -> nn.Module:
    torch.manual_seed(size)
    net = timm.create_model(name, img_size=size, num_classes=classes)
    net.pretrained_cfg = {**net.pretrained_cfg, "mean": mean, "std": std}
    for p in net.parameters():
        p.data.mul_(3)
    return net


def normalise(pixels: torch.Tensor, net: nn.Module) -> torch.Tensor:
    mean, std = (torch.tensor(net.pretrained_cfg[k]).view(3, 1, 1) for k in ("mean", "std"))
    return (pixels - mean) / std


@pytest.fixture
def pair() -> tuple[nn.Module, Teacher]:
    return model("test_vit", 32, (0.5,) * 3, (0.5,) * 3), Teacher(model("test_vit2", 48, *IMAGENET))


def seen_by_teacher(task: HardDistillation, images: torch.Tensor) -> torch.Tensor:
    seen: list[torch.Tensor] = []
    handle = task.teacher.model.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    task(images, torch.zeros(len(images), dtype=torch.long))
    handle.remove()
    return seen[0]


def test_the_teacher_sees_its_own_mean_std_and_size(pair: tuple[nn.Module, Teacher]) -> None:
    student, teacher = pair
    task = HardDistillation(student, teacher, nn.CrossEntropyLoss())
    pixels = torch.rand(6, 3, 32, 32)
    direct = F.interpolate(normalise(pixels, teacher.model), 48, mode="bicubic", antialias=True)
    seen = seen_by_teacher(task, normalise(pixels, student))
    torch.testing.assert_close(seen, direct, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(teacher.model(seen), teacher.model(direct), rtol=1e-3, atol=1e-3)
    # not what it would get without: the fault this guards against
    assert (seen - F.interpolate(normalise(pixels, student), 48, mode="bicubic")).abs().mean() > 0.1


def test_mixed_images_are_mixed_for_the_teacher_too(pair: tuple[nn.Module, Teacher]) -> None:
    student, teacher = pair
    task = HardDistillation(student, teacher, nn.CrossEntropyLoss())
    pixels = torch.rand(6, 3, 32, 32)
    images, targets = Mixup(1.0, 0.0, num_classes=5)(normalise(pixels, student), torch.arange(6) % 5)
    mixed = images * 0.5 + 0.5  # back to pixels
    direct = F.interpolate(normalise(mixed, teacher.model), 48, mode="bicubic", antialias=True)
    torch.testing.assert_close(seen_by_teacher(task, images), direct, rtol=1e-4, atol=1e-4)
    assert task(images, targets)["loss"].isfinite()


def test_the_loss_by_hand(pair: tuple[nn.Module, Teacher]) -> None:
    student, teacher = pair
    task = HardDistillation(student, teacher, nn.CrossEntropyLoss()).eval()
    images, labels = torch.rand(6, 3, 32, 32) * 2 - 1, torch.tensor([0, 1, 2, 3, 4, 0])
    terms = task(images, labels)
    log_p = student(images).log_softmax(1)
    pixels = images / 2 + 0.5
    own = F.interpolate(normalise(pixels, teacher.model), 48, mode="bicubic", antialias=True)
    guess = teacher.model(own).argmax(1)
    want = -0.5 * sum(log_p[i, labels[i]] + log_p[i, guess[i]] for i in range(6)) / 6
    torch.testing.assert_close(terms["loss"], want)
    assert torch.equal(terms["output"], student(images))
    terms["loss"].backward()
    assert all(p.grad is not None for p in student.parameters())


def test_the_teacher_is_frozen(pair: tuple[nn.Module, Teacher]) -> None:
    student, teacher = pair
    task = HardDistillation(student, teacher, nn.CrossEntropyLoss()).train()
    assert student.training
    assert not any(m.training for m in teacher.modules())
    before = {k: v.clone() for k, v in teacher.state_dict().items()}
    task(torch.rand(4, 3, 32, 32), torch.arange(4))["loss"].backward()
    assert all(p.grad is None and not p.requires_grad for p in teacher.parameters())
    assert all(torch.equal(v, before[k]) for k, v in teacher.state_dict().items())
    nn.ModuleList([task]).train()
    assert not teacher.model.training


def test_other_class_counts_are_refused(pair: tuple[nn.Module, Teacher]) -> None:
    student = model("test_vit", 32, (0.5,) * 3, (0.5,) * 3, classes=4)
    with pytest.raises(ValueError, match="the student has 4 classes, the teacher 5"):
        HardDistillation(student, pair[1], nn.CrossEntropyLoss())


@pytest.mark.parametrize("switched", [False, True])
def test_a_student_with_two_heads_is_refused_by_name(switched: bool) -> None:
    """With the switch its output is a pair, without it both heads would get the teacher's gradient."""
    student = VisionTransformerDistilled(img_size=8, patch_size=4, embed_dim=24, depth=1, num_heads=2, num_classes=3)
    student.set_distilled_training(switched)
    with pytest.raises(ValueError, match=r"VisionTransformerDistilled has a second head .* --head token"):
        HardDistillation(student, Teacher(model("test_vit2", 48, *IMAGENET, classes=3)), nn.CrossEntropyLoss())
