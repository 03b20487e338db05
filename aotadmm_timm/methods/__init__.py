"""Pretraining methods: a batch of views -> {"loss": ..., detached terms}."""

from .lejepa import LeJEPA
from .projector import Projector
from .views import Views

__all__ = ["LeJEPA", "Projector", "Views"]
