"""A finished run folder."""

from finished_run import make_run

__all__ = ["make_run"]
