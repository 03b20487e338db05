"""LeJEPA: views of an image agree, embeddings of a batch look like a standard Gaussian."""

from collections.abc import Sequence
from typing import Literal, get_args

from torch import nn

from aotadmm_timm.losses import Regularizer, SACReg, SIGReg, invariance, name_of
from aotadmm_timm.precision import at_least_float32
from aotadmm_timm.theory.objective import normalize_energy

from .base import Method, Terms
from .projector import Projector
from .tap import Tap, TapName
from .views import Views, backbone_features, feature_width

Form = Literal["convex", "sum"]
Target = Literal["global", "all"]


class LeJEPA(Method):
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
        projector_dims: hidden widths and the embedding's; empty for none.
        num_slices: random directions in a step.
        regularizer: f(z, step) -> scalar in place of SIGReg, z (V, B, D), or (V B, D) with pool_views.
        normalize: centre each view's embeddings and scale them to tr Sigma = D before both terms: the two conditions
            of Theorem 1, which the coding rate needs as a regularizer (without them R has no maximum).
        backbone_sacreg: weight of SACReg on the backbone (lambda-JEPA, section 3.3), on centres of global views.
        backbone_sigreg: weight of SIGReg on the same centres, the control that differs in the statistic only.
        tap: which features of the backbone those two see, see `Tap`.
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
        projector_dims: Sequence[int] = (2048, 2048, 64),
        num_slices: int = 256,
        regularizer: Regularizer | None = None,
        normalize: bool = False,
        backbone_sacreg: float = 0.0,
        backbone_sigreg: float = 0.0,
        tap: TapName = "norm",
        backbone_slice_dim: int | None = None,
        backbone_buffer: int = 3,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if form not in get_args(Form) or target not in get_args(Target):
            raise ValueError(f"form is one of {get_args(Form)}, target of {get_args(Target)}, got {form!r}, {target!r}")
        if lamb < 0 or (form == "convex" and lamb > 1):
            raise ValueError(f"lamb must be in [0, 1] in the convex form, at least 0 in the sum form, got {lamb}")
        if min(backbone_sacreg, backbone_sigreg) < 0:
            raise ValueError(f"backbone weights must be at least 0, got {backbone_sacreg} and {backbone_sigreg}")
        width = feature_width(backbone)
        self.lamb, self.form, self.target, self.pool_views = lamb, form, target, pool_views
        self.beta = {"backbone_sacreg": backbone_sacreg, "backbone_sigreg": backbone_sigreg}
        self.backbone = backbone
        self.projector = Projector(width, *projector_dims) if projector_dims else nn.Identity()
        self.projector_dims = tuple(projector_dims)
        self.regularizer = regularizer or SIGReg(num_slices, seed=seed)
        self.normalize = normalize
        self.tap = Tap(tap)
        if backbone_sacreg:
            slice_dim = backbone_slice_dim or max(1, width // 3)
            self.backbone_sacreg = SACReg(slice_dim, buffer_batches=backbone_buffer, seed=seed, stream=1)
        if backbone_sigreg:
            self.backbone_sigreg = SIGReg(num_slices, seed=seed)

    def weights(self) -> dict[str, float]:
        inv = 1 - self.lamb if self.form == "convex" else 1.0
        return {"inv": inv, self._regularizer_name: self.lamb, **self.beta}

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
            **self.beta,
            "tap": self.tap.name if any(self.beta.values()) else "none",
        }

    @property
    def _regularizer_name(self) -> str:
        return "sigreg" if isinstance(self.regularizer, SIGReg) else "regularizer"

    def terms(self, views: Views, step: int) -> tuple[Terms, Terms]:
        h = backbone_features(self.backbone, views)
        z = at_least_float32(self.projector(h.flatten(0, 1)).unflatten(0, h.shape[:2]))
        if self.normalize:
            z = normalize_energy(z)
        num_global = len(views.global_views)
        target = (z[:num_global] if self.target == "global" else z).mean(0)
        rows = z.flatten(0, 1) if self.pool_views else z
        terms = {"inv": invariance(z, target), self._regularizer_name: self.regularizer(rows, step)}
        logged: Terms = {"features": h[0].detach(), "embeddings": z.detach()}
        if any(self.beta.values()):
            centers, tapped = self.tap(h, num_global)
            logged |= tapped
            terms |= {name: getattr(self, name)(centers, step) for name, beta in self.beta.items() if beta}
        return terms, logged
