"""Regularizers on the backbone itself, beside any method's own loss: lambda-JEPA's term and its control."""

from typing import Literal

from torch import Tensor, nn

from aotadmm_timm.errors import UserError
from aotadmm_timm.losses import SACReg, SIGReg

from .base import Terms
from .feature_tap import FeatureTap


class BackboneTerms(nn.Module):
    """SACReg and SIGReg on the centers of tapped backbone features   (lambda-JEPA, section 3.3)

    Args:
        width: of the features.
        backbone_sacreg: weight of SACReg on the backbone's view centers; a term of weight 0 is not computed.
        backbone_sigreg: weight of SIGReg on the same centers, the control that differs in the statistic only.
        backbone_slice_dim: width of SACReg's slices; a third of the features if not given.
        backbone_buffer: past batches among SACReg's centers [batches]; keep 4 slice widths of rows.
        tap: backbone features that these two see: normalized, or as they are (if signed), see `FeatureTap`.
        num_slices: random directions per step, of SIGReg.
        seed: of directions and slices.
    Raises: UserError for a negative weight.
    """

    def __init__(
        self,
        width: int,
        *,
        backbone_sacreg: float = 0.0,
        backbone_sigreg: float = 0.0,
        backbone_slice_dim: int | None = None,
        backbone_buffer: int = 3,
        tap: Literal["norm", "features"] = "norm",
        num_slices: int = 256,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if min(backbone_sacreg, backbone_sigreg) < 0:
            raise UserError(f"backbone weights must be at least 0, got {backbone_sacreg} and {backbone_sigreg}")
        self.beta = {"backbone_sacreg": backbone_sacreg, "backbone_sigreg": backbone_sigreg}
        self.tap = FeatureTap(tap)
        self.statistics = nn.ModuleDict()
        if backbone_sacreg:
            slice_dim = backbone_slice_dim or max(1, width // 3)
            self.statistics["backbone_sacreg"] = SACReg(slice_dim, buffer_batches=backbone_buffer, seed=seed, stream=1)
        if backbone_sigreg:
            self.statistics["backbone_sigreg"] = SIGReg(num_slices, seed=seed)

    def convention(self) -> dict[str, str | float]:
        return {**self.beta, "tap": self.tap.name if self.statistics else "none"}

    def forward(self, h: Tensor, num_global: int, step: int) -> tuple[Terms, Terms]:
        """Features (V, B, d), global views first -> terms with gradient by name, and what is only logged."""
        if not self.statistics:
            return {}, {}
        centers, logged = self.tap(h, num_global)
        return {name: statistic(centers, step) for name, statistic in self.statistics.items()}, logged
