"""Pretraining methods behind one interface: a batch of views -> `Output`."""

from .backbone_terms import BackboneTerms
from .base import Method, Output, Plan, WeightedSum
from .byol import BYOL
from .dino import DINO
from .lambda_jepa import LambdaJEPA
from .lejepa import LeJEPA
from .multi_view import Views, backbone_features, feature_width
from .projector import Projector
from .simclr import SimCLR
from .simdino import SimDINO
from .teacher import MomentumTeacher, cosine_momentum
from .vicreg import VICReg
from .visreg import VISReg

__all__ = [
    "BYOL",
    "DINO",
    "BackboneTerms",
    "LambdaJEPA",
    "LeJEPA",
    "Method",
    "MomentumTeacher",
    "Output",
    "Plan",
    "Projector",
    "SimCLR",
    "SimDINO",
    "VICReg",
    "VISReg",
    "Views",
    "WeightedSum",
    "backbone_features",
    "cosine_momentum",
    "feature_width",
]
