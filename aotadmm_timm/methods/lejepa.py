"""LeJEPA: views of an image agree, embeddings of a batch look like a standard Gaussian."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from aotadmm_timm.losses import SIGReg, invariance

from .projector import Projector
from .views import Views


def backbone_features(backbone: nn.Module, views: Views) -> Tensor:
    """Pooled features (V, B, d), global views first; one pass per resolution."""
    groups = [group for group in views if group is not None]
    return torch.cat([backbone(group.flatten(0, 1)).unflatten(0, group.shape[:2]) for group in groups])


class LeJEPA(nn.Module):
    """(1 - lamb) inv + lamb SIGReg   (LeJEPA, arXiv:2511.08544; AoT-ADMM Eq. 19 is the sum form).

    Args:
        backbone: timm model with num_classes=0.
        form: "convex" as above, or "sum": inv + lamb SIGReg.
        target: the mean of the "global" views (AoT-ADMM Alg. 1), or of "all" of them.
        pool_views: one Gaussianity test on all views together instead of one per view.
    """

    def __init__(
        self,
        backbone: nn.Module,
        *,
        lamb: float = 0.05,
        form: Literal["convex", "sum"] = "convex",
        target: Literal["global", "all"] = "global",
        pool_views: bool = False,
        projector_dims: Sequence[int] = (2048, 2048, 64),
        num_slices: int = 256,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.lamb, self.form, self.target, self.pool_views = lamb, form, target, pool_views
        self.backbone = backbone
        self.projector = Projector(int(backbone.num_features), *projector_dims)  # type: ignore[arg-type]
        self.sigreg = SIGReg(num_slices, seed=seed)

    def convention(self) -> dict[str, str | float]:
        return {
            "form": self.form,
            "target": self.target,
            "pooling": "pooled" if self.pool_views else "per-view",
            "lamb": self.lamb,
        }

    def forward(self, views: Views, step: int) -> dict[str, Tensor]:
        h = backbone_features(self.backbone, views)
        z = self.projector(h.flatten(0, 1)).unflatten(0, h.shape[:2])
        num_global = len(views.global_views) if self.target == "global" else len(z)
        inv = invariance(z, z[:num_global].float().mean(0))
        sigreg = self.sigreg(z.flatten(0, 1) if self.pool_views else z, step)
        inv_weight = 1 - self.lamb if self.form == "convex" else 1.0
        loss = inv_weight * inv + self.lamb * sigreg
        return {"loss": loss, "inv": inv.detach(), "sigreg": sigreg.detach(), "features": h[0].detach()}
