"""Accuracy of a classifier on a data set, exact over processes."""

from torch import Tensor, nn

from aotadmm_timm.data import Images, eval_loader
from aotadmm_timm.evaluation.features import extract_features


class _Logits(nn.Module):
    """A classifier whose features are its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


def accuracy(model: nn.Module, images: Images, *, num_workers: int = 0) -> tuple[float, int]:
    """Share of images classified rightly, and their number; exact over ranks, nothing is padded."""
    logits, labels = extract_features(_Logits(model), eval_loader(images, model, num_workers=num_workers))
    return (logits.argmax(1) == labels).double().mean().item(), len(labels)
