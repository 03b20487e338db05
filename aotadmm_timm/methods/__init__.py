"""Pretraining methods behind one interface: a batch of views -> `Output`."""

from .base import Method, Output, Plan, WeightedSum
from .lambda_jepa import LambdaJEPA
from .lejepa import LeJEPA
from .multi_view import Views, backbone_features, feature_width
from .projector import Projector
from .teacher import MomentumTeacher, cosine_momentum

__all__ = [
    "LambdaJEPA",
    "LeJEPA",
    "Method",
    "MomentumTeacher",
    "Output",
    "Plan",
    "Projector",
    "Views",
    "WeightedSum",
    "backbone_features",
    "cosine_momentum",
    "feature_width",
]
