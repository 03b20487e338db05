"""Pretraining methods: a batch of views -> {"loss": ..., detached terms}."""

from .base import Method
from .lambda_jepa import LambdaJEPA
from .lejepa import LeJEPA
from .projector import Projector
from .views import Views

__all__ = ["LambdaJEPA", "LeJEPA", "Method", "Projector", "Views"]
