"""LeJEPA: views of an image agree, embeddings of a batch look like a standard Gaussian."""

from contextlib import suppress
from typing import Literal, get_args

import torch
from torch import nn

from aotadmm_timm.evaluation.expansion_diagnostics import expansion_diagnostics
from aotadmm_timm.losses import Regularizer, SIGReg, build_regularizer, invariance, name_of, needs_normalize
from aotadmm_timm.losses.directions import unit_directions
from aotadmm_timm.precision import at_least_float32
from aotadmm_timm.theory.objective import normalize_energy

from .backbone_terms import BackboneTerms
from .base import Output, Parts, WeightedSum
from .multi_view import Views, backbone_features, feature_width
from .projector import Projector

Form = Literal["convex", "sum"]
Target = Literal["global", "all"]


class LeJEPA(WeightedSum):
    """(1 - lamb) inv + lamb SIGReg   (LeJEPA, arXiv:2511.08544; AoT-ADMM Eq. 19 and Algorithm 1)

    inv is the mean over all views of the squared distance to the mean embedding of the global views. All views enter
    SIGReg, each its own test. Public codes differ in form, target and pooling, so their lambdas do not carry over;
    `convention()` states the ones used here.

    Args:
        backbone: timm model with num_classes=0.
        lamb: weight of the regularizer, 0.02 to 0.05 in the paper.
        form: "convex" as above, or "sum": inv + lamb SIGReg (Eq. 19).
        target: the mean embedding of the "global" views, or of "all" of them.
        pool_views: one test on the rows of all views together. V times the value when the views coincide.
        projector: widths of its hidden layers, then the embedding's; none to train on the features.
        num_slices: random directions per step, of SIGReg and of all that is tested along directions.
        directions: how they are drawn, see `losses.slicing`.
        regularizer: in place of SIGReg, a name with its arguments in parentheses: coding-rate (implies --normalize),
            'moments(order=6)', ... (an unknown name lists them), or MODULE:FUNCTION, f(z, step) -> scalar, z (V, B, D),
            or (V B, D) with pool_views; in Python also the function itself.
        normalize: center each view's embeddings and scale them to tr Sigma = D before both terms: the two conditions
            of Theorem 1, which the coding rate needs as a regularizer (without them R has no maximum).
        backbone_sacreg: weight of SACReg on the backbone (lambda-JEPA, section 3.3), on centres of global views.
        backbone_sigreg: weight of SIGReg on the same centres, the control that differs in the statistic only.
        tap: which features of the backbone those two see, see `FeatureTap`.
        backbone_slice_dim: width of SACReg's slices, by default a third of the features'.
        backbone_buffer: past batches SACReg keeps.
        seed: of the random directions and slices.
    """

    def __init__(
        self,
        backbone: nn.Module,
        *,
        lamb: float = 0.05,
        form: Form = "convex",
        target: Target = "global",
        pool_views: bool = False,
        projector: tuple[int, ...] | None = (2048, 2048, 64),
        num_slices: int = 256,
        directions: Literal["iid", "orthogonal", "sobol"] = "iid",
        regularizer: str | Regularizer | None = None,
        normalize: bool = False,
        backbone_sacreg: float = 0.0,
        backbone_sigreg: float = 0.0,
        tap: Literal["norm", "features"] = "norm",
        backbone_slice_dim: int | None = None,
        backbone_buffer: int = 3,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if form not in get_args(Form) or target not in get_args(Target):
            raise ValueError(f"form is one of {get_args(Form)}, target of {get_args(Target)}, got {form!r}, {target!r}")
        if lamb < 0 or (form == "convex" and lamb > 1):
            raise ValueError(f"lamb must be in [0, 1] in the convex form, at least 0 in the sum form, got {lamb}")
        width = feature_width(backbone)
        self.lamb, self.form, self.target, self.pool_views = lamb, form, target, pool_views
        self.backbone = backbone
        self.projector = Projector(width, *projector) if projector else nn.Identity()
        self.projector_dims = tuple(projector or ())
        self.normalize = normalize
        if regularizer is None or isinstance(regularizer, str):
            spec = regularizer or "sigreg"
            self.normalize = normalize or needs_normalize(spec)
            regularizer = build_regularizer(
                spec, num_slices=num_slices, seed=seed, directions=directions, normalize=self.normalize
            )
        self.regularizer = regularizer
        self.seed = seed
        self.backbone_terms = BackboneTerms(
            width, sacreg=backbone_sacreg, sigreg=backbone_sigreg, slice_dim=backbone_slice_dim,
            buffer=backbone_buffer, tap=tap, num_slices=num_slices, seed=seed,
        )  # fmt: skip

    def weights(self) -> dict[str, float]:
        inv = 1 - self.lamb if self.form == "convex" else 1.0
        return {"inv": inv, self._regularizer_name: self.lamb, **self.backbone_terms.beta}

    def convention(self) -> dict[str, str | float]:
        return {
            "method": "LeJEPA",
            "form": self.form,
            "target": self.target,
            "pooling": "all views" if self.pool_views else "per view",
            "regularizer": "SIGReg" if self._regularizer_name == "sigreg" else name_of(self.regularizer),
            "lamb": self.lamb,
            "embeddings": "centred, tr Sigma = D" if self.normalize else "as they are",
            "projector": "-".join(map(str, self.projector_dims)) or "none",
            **self.backbone_terms.convention(),
        }

    @property
    def _regularizer_name(self) -> str:
        return "sigreg" if isinstance(self.regularizer, SIGReg) else "regularizer"

    def parts(self, views: Views, step: int) -> Parts:
        h = backbone_features(self.backbone, views)
        z = at_least_float32(self.projector(h.flatten(0, 1)).unflatten(0, h.shape[:2]))
        if self.normalize:
            z = normalize_energy(z)
        num_global = len(views.global_views)
        target = (z[:num_global] if self.target == "global" else z).mean(0)
        rows = z.flatten(0, 1) if self.pool_views else z
        terms = {"inv": invariance(z, target), self._regularizer_name: self.regularizer(rows, step)}
        backbone, logged = self.backbone_terms(h, num_global, step)
        return Parts(terms | backbone, logged, h[0].detach(), z.detach())

    def diagnostics(self, output: Output, epoch: int) -> dict[str, float]:
        """How far the embeddings are expanded, in the two languages of Theorem 1 (AoT-ADMM)."""
        assert output.embeddings is not None
        directions = unit_directions(output.embeddings.shape[-1], 256, self.seed, epoch)
        with suppress(torch.linalg.LinAlgError):  # embeddings beyond float32: the loss ends the run, not a figure
            found = expansion_diagnostics(output.embeddings, directions)
            return {f"expansion_{key}": value for key, value in found.items()}
        return {}
