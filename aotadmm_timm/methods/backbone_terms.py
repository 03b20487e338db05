"""Regularizers on the backbone itself, beside any method's own loss: lambda-JEPA's term and its control."""

from torch import Tensor, nn

from aotadmm_timm.losses import SACReg, SIGReg

from .base import Terms
from .feature_tap import FeatureTap, TapName


class BackboneTerms(nn.Module):
    """SACReg and SIGReg on the centers of tapped backbone features   (lambda-JEPA, section 3.3)

    Args:
        width: of the features.
        sacreg, sigreg: weights; a term of weight 0 is not computed.
        slice_dim: width of SACReg's slices, by default a third of the features'. buffer: past batches it keeps.
        tap: which features they see, see `FeatureTap`.
        num_slices: SIGReg's directions. seed: of directions and slices.
    Raises: ValueError for a negative weight.
    """

    def __init__(
        self,
        width: int,
        *,
        sacreg: float = 0.0,
        sigreg: float = 0.0,
        slice_dim: int | None = None,
        buffer: int = 3,
        tap: TapName = "norm",
        num_slices: int = 256,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if min(sacreg, sigreg) < 0:
            raise ValueError(f"backbone weights must be at least 0, got {sacreg} and {sigreg}")
        self.beta = {"backbone_sacreg": sacreg, "backbone_sigreg": sigreg}
        self.tap = FeatureTap(tap)
        self.statistics = nn.ModuleDict()
        if sacreg:
            width = slice_dim or max(1, width // 3)
            self.statistics["backbone_sacreg"] = SACReg(width, buffer_batches=buffer, seed=seed, stream=1)
        if sigreg:
            self.statistics["backbone_sigreg"] = SIGReg(num_slices, seed=seed)

    def convention(self) -> dict[str, str | float]:
        return {**self.beta, "tap": self.tap.name if self.statistics else "none"}

    def forward(self, h: Tensor, num_global: int, step: int) -> tuple[Terms, Terms]:
        """Features (V, B, d), global views first -> terms with gradient by name, and what is only logged."""
        if not self.statistics:
            return {}, {}
        centers, logged = self.tap(h, num_global)
        return {name: statistic(centers, step) for name, statistic in self.statistics.items()}, logged
