"""VISReg: LeJEPA with scale, center and shape of the embeddings, each by its own term, in SIGReg's place."""

from torch import nn

from .backbone_terms import BackboneTerms
from .lejepa import LeJEPA


class VISReg(LeJEPA):
    """(1 - lamb) inv + lamb (scale + center + shape)   (VISReg, arXiv:2606.02572)

    inv and the convex form are LeJEPA's. Its regularizer has no factor N, hence another lamb than SIGReg's.

    Args:
        backbone: timm model with num_classes=0.
        lamb: weight of the regularizer.
        scale: weight, within it, of the distance of standard deviations to 1.
        center: weight of the squared means.
        shape: weight of the sliced distance of the standardized embeddings to a Gaussian.
        projector: widths of its hidden layers, then the embedding's; the released code has D = d / 3.
        num_slices: random directions per step; the released code has 4096.
        backbone_terms: regularizers of the backbone's features beside these terms.
        seed: of the random directions.
    Differs from the released code: ReLU in the projector, which has GELU there, and 256 directions by default.
    """

    def __init__(
        self,
        backbone: nn.Module,
        *,
        lamb: float = 0.9,
        scale: float = 1.0,
        center: float = 1.0,
        shape: float = 1.0,
        projector: tuple[int, ...] = (2048, 2048, 128),
        num_slices: int = 256,
        backbone_terms: BackboneTerms | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            backbone,
            lamb=lamb,
            regularizer=f"visreg(scale={scale}, center={center}, shape={shape})",
            projector=projector,
            num_slices=num_slices,
            backbone_terms=backbone_terms,
            seed=seed,
        )

    def choices(self) -> dict[str, str | float]:
        return {**super().choices(), "method": "VISReg"}
