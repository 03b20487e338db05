"""LeJEPA: views of an image agree, embeddings of a batch look like a standard Gaussian."""

from contextlib import suppress
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from aotadmm_timm.errors import UserError
from aotadmm_timm.losses import Regularizer, SIGReg, build_regularizer, invariance, name_of, needs_normalize
from aotadmm_timm.losses.directions import unit_directions
from aotadmm_timm.losses.expansion_diagnostics import expansion_diagnostics
from aotadmm_timm.theory.objective import normalize_energy

from .backbone_terms import BackboneTerms
from .base import Output, Terms
from .joint_embedding import JointEmbedding, in_words
from .multi_view import Views, feature_width
from .projector import Projector

Form = Literal["convex", "sum"]
Target = Literal["global", "all"]


class LeJEPA(JointEmbedding):
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
        backbone_terms: regularizers of the backbone's features beside these terms.
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
        backbone_terms: BackboneTerms | None = None,
        seed: int = 0,
    ) -> None:
        if form not in get_args(Form) or target not in get_args(Target):
            raise UserError(f"form is one of {get_args(Form)}, target of {get_args(Target)}, got {form!r}, {target!r}")
        if lamb < 0 or (form == "convex" and lamb > 1):
            raise UserError(f"lamb must be in [0, 1] in the convex form, at least 0 in the sum form, got {lamb}")
        head = Projector(feature_width(backbone), *projector) if projector else nn.Identity()
        super().__init__(backbone, head, backbone_terms)
        self.lamb, self.form, self.target, self.pool_views = lamb, form, target, pool_views
        self.projector_dims, self.normalize, self.seed = projector, normalize, seed
        if regularizer is None or isinstance(regularizer, str):
            spec = regularizer or "sigreg"
            self.normalize = normalize or needs_normalize(spec)
            regularizer = build_regularizer(
                spec, num_slices=num_slices, seed=seed, directions=directions, normalize=self.normalize
            )
        self.regularizer = regularizer

    def choices(self) -> dict[str, str | float]:
        return {
            "method": "LeJEPA",
            "form": self.form,
            "target": self.target,
            "pooling": "all views" if self.pool_views else "per view",
            "regularizer": "SIGReg" if self._regularizer_name == "sigreg" else name_of(self.regularizer),
            "lamb": self.lamb,
            "embeddings": "centered, tr Sigma = D" if self.normalize else "as they are",
            "projector": in_words(self.projector_dims),
        }

    def embedding_weights(self) -> dict[str, float]:
        return {"inv": 1 - self.lamb if self.form == "convex" else 1.0, self._regularizer_name: self.lamb}

    @property
    def _regularizer_name(self) -> str:
        return "sigreg" if isinstance(self.regularizer, SIGReg) else "regularizer"

    def prepared(self, z: Tensor) -> Tensor:
        return normalize_energy(z) if self.normalize else z

    def embedding_terms(self, z: Tensor, views: Views, step: int) -> Terms:
        target = (z[: len(views.global_views)] if self.target == "global" else z).mean(0)
        rows = z.flatten(0, 1) if self.pool_views else z
        return {"inv": invariance(z, target), self._regularizer_name: self.regularizer(rows, step)}

    def diagnostics(self, output: Output, epoch: int) -> dict[str, float]:
        """How far the embeddings are expanded, in the two languages of Theorem 1 (AoT-ADMM)."""
        assert output.embeddings is not None
        directions = unit_directions(output.embeddings.shape[-1], 256, self.seed, epoch)
        with suppress(torch.linalg.LinAlgError):  # embeddings beyond float32: the loss ends the run, not a figure
            found = expansion_diagnostics(output.embeddings, directions)
            return {f"expansion_{key}": value for key, value in found.items()}
        return {}
