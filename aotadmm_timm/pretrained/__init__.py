"""Pretrained weights, whatever they lie in: a timm name, a run, a model folder, a file, a checkpoint, the Hub."""

from aotadmm_timm.pretrained.adapting import adapt
from aotadmm_timm.pretrained.building import build_model, check_name, first_line
from aotadmm_timm.pretrained.opening import Origin, open_model
from aotadmm_timm.pretrained.starting import initialize, open_or_start, start_from
from aotadmm_timm.pretrained.weights_file import read_weights, state_digest

__all__ = [
    "Origin",
    "adapt",
    "build_model",
    "check_name",
    "first_line",
    "initialize",
    "open_model",
    "open_or_start",
    "read_weights",
    "start_from",
    "state_digest",
]
