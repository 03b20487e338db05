"""The configuration of a run, config.yaml: a YAML file like any recipe."""

from aotadmm_timm.cli import read_yaml

__all__ = ["read_yaml"]
