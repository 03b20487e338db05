"""lambda-JEPA: views of an image agree, view centres spread, in the projector and in the backbone."""

import logging
import math
from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from aotadmm_timm.distributed import is_main
from aotadmm_timm.errors import UserError
from aotadmm_timm.losses import SACReg, invariance, pairwise_invariance
from aotadmm_timm.precision import at_least_float32

from .base import Output, Parts, Plan, WeightedSum
from .calibration import LAMBDA_JEPA_SHARES, gradient_norms, weights_by_share
from .feature_tap import FeatureTap
from .multi_view import Views, backbone_features, feature_width
from .projector import Projector
from .teacher import MomentumTeacher, cosine_momentum

logger = logging.getLogger(__name__)

Target = Literal["pairwise", "ema"]
TERMS = ("inv", "projector_sacreg", "backbone_sacreg")


class LambdaJEPA(WeightedSum):
    """w_inv inv + beta_z SACReg(Zbar) + beta_h SACReg(Hbar)   (lambda-JEPA, section 3.3 and Appendix B)

    Zbar and Hbar are means over the global views, of the embeddings and of the tapped backbone features. inv is over
    all views.

    Args:
        backbone: timm model with num_classes=0.
        inv_weight: w_inv, of the invariance. The defaults of the three weights are the paper's for a ViT-S on
            ImageNet-100 and 4 views. They are kept in the state_dict, so calibrated ones survive a resume.
        projector_sacreg: beta_z, of SACReg on the embeddings' view centers.
        backbone_sacreg: beta_h, of SACReg on the backbone's view centers.
        target: "pairwise": mean squared distance over pairs of views; "ema": distance of each view to the mean
            embedding, over all views, of an averaged copy of backbone and projector, on the scale of the former.
        projector: widths of its hidden layers, then the embedding's.
        projector_slice_dim: width of SACReg's slices of the embedding; half of it if not given.
        backbone_slice_dim: of the backbone's features; a third of them if not given.
        projector_buffer: past batches among the embedding's centers. Batch (1 + buffer) should be 4 slice widths.
        backbone_buffer: past batches among the backbone's centers.
        tap: which features of the backbone are regularized, see `FeatureTap`: normalized, or as they are (if signed).
        calibrate: replace the weights by gradient share .44 / .54 / .02 (`calibration`) after a pilot of this many
            steps; 0 for never. The pilot runs with the weights given, an epoch will do: at the very start SACReg's
            gradient is that of collapsed features, far too large to weigh terms by. Buffered centers carry no gradient:
            the buffers must be full.
        seed: of the random slices.
    Differs from the paper: the default tap (its ViTs end in a LayerNorm, there "features" is the paper's), and three
    linear layers in the projector, as in the authors' code; the text speaks of two.
    """

    weight: Tensor
    calibrated: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        *,
        inv_weight: float = 32.8,
        projector_sacreg: float = 157.8,
        backbone_sacreg: float = 1.894,
        target: Target = "pairwise",
        projector: tuple[int, ...] = (2048, 2048, 256),
        projector_slice_dim: int | None = None,
        backbone_slice_dim: int | None = None,
        projector_buffer: int = 3,
        backbone_buffer: int = 3,
        tap: Literal["norm", "features"] = "norm",
        calibrate: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if target not in get_args(Target):
            raise UserError(f"target must be one of {get_args(Target)}, got {target!r}")
        if calibrate and calibrate < max(projector_buffer, backbone_buffer):
            filled = max(projector_buffer, backbone_buffer)
            raise UserError(f"calibrate at step {filled} or later, when the buffers are full, got {calibrate}")
        width = feature_width(backbone)
        self.target = target
        self.backbone = backbone
        self.projector = Projector(width, *projector)
        self.projector_dims = tuple(projector)
        self.tap = FeatureTap(tap)
        self.projector_sacreg = SACReg(
            projector_slice_dim or max(1, self.projector.out_dim // 2), buffer_batches=projector_buffer, seed=seed
        )
        self.backbone_sacreg = SACReg(
            backbone_slice_dim or max(1, width // 3), buffer_batches=backbone_buffer, seed=seed, stream=1
        )
        if target == "ema":
            self.target_network = MomentumTeacher(nn.Sequential(self.backbone, self.projector))
        self.register_buffer("weight", torch.zeros(len(TERMS), dtype=torch.float32))
        self.set_weights(dict(zip(TERMS, (inv_weight, projector_sacreg, backbone_sacreg), strict=True)))
        self.calibrate = calibrate
        self.register_buffer("calibrated", torch.tensor(False))

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Replace the weights, for instance by calibrated ones.

        Raises: UserError if a term is missing or unknown, or a weight negative or not finite.
        """
        if set(weights) != set(TERMS) or not all(0 <= value < math.inf for value in weights.values()):
            raise UserError(f"weights of {TERMS} must be finite and at least 0, got {dict(weights)}")
        self.weight.copy_(torch.tensor([weights[name] for name in TERMS]))

    def weights(self) -> dict[str, Tensor]:
        return dict(zip(TERMS, self.weight, strict=True))

    def convention(self) -> dict[str, str | float]:
        known = not self.calibrate or bool(self.calibrated)
        return {
            "method": "lambda-JEPA",
            "target": self.target,
            **{
                name: float(f"{value:.6g}") if known else f"{value:.6g}, to be calibrated"
                for name, value in zip(TERMS, self.weight.tolist(), strict=True)
            },
            "calibrated at step": self.calibrate or "never",
            "projector": "-".join(map(str, self.projector_dims)),
            "slice widths": f"{self.projector_sacreg.slice_dim}, {self.backbone_sacreg.slice_dim}",
            "buffered batches": f"{self.projector_sacreg.buffer_batches}, {self.backbone_sacreg.buffer_batches}",
            "tap": self.tap.name,
        }

    @property
    def fewest_steps(self) -> int:  # type: ignore[override]
        return self.calibrate + 1

    def begin(self, plan: Plan) -> None:
        if self.calibrate >= plan.steps:
            raise UserError(f"--calibrate {self.calibrate}: the run has {plan.steps} steps only")
        super().begin(plan)

    def forward(self, views: Views, step: int) -> Output:
        if self.training and step == self.calibrate > 0 and not self.calibrated:
            self.set_weights(weights_by_share(gradient_norms(self, views, step), LAMBDA_JEPA_SHARES))
            self.calibrated.fill_(True)
            if is_main():
                logger.info("calibrated weights: %s", {name: round(float(w), 4) for name, w in self.weights().items()})
        return super().forward(views, step)

    def parts(self, views: Views, step: int) -> Parts:
        h = backbone_features(self.backbone, views)
        z = at_least_float32(self.projector(h.flatten(0, 1)).unflatten(0, h.shape[:2]))
        num_global = len(views.global_views)
        centers, logged = self.tap(h, num_global)
        terms = {
            "inv": pairwise_invariance(z) if self.target == "pairwise" else self._distance_to_average(z, views),
            "projector_sacreg": self.projector_sacreg(z[:num_global].mean(0), step),
            "backbone_sacreg": self.backbone_sacreg(centers, step),
        }
        return Parts(terms, logged, h[0].detach(), z.detach())

    def _distance_to_average(self, z: Tensor, views: Views) -> Tensor:
        num_views = len(z)
        average = at_least_float32(backbone_features(self.target_network, views)).mean(0)
        return 2 * num_views / max(1, num_views - 1) * invariance(z, average)

    def after_step(self, done: int) -> None:
        """Move the averaged copy, by tau = 1 - .002 (1 + cos(pi done / steps))."""
        if self.target == "ema":
            online = nn.Sequential(self.backbone, self.projector)
            self.target_network.update(online, cosine_momentum(done, self.plan.steps, 0.996))
