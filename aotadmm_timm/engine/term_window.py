"""The terms of the steps since the last row of the log, left on the device until that row is written."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from aotadmm_timm import distributed
from aotadmm_timm.errors import UserError


class Diverged(UserError):
    """A loss term or a weight is no longer finite."""


class _Pending(NamedTuple):
    step: int
    names: tuple[str, ...]
    values: Tensor  # (terms,) float32, on the device


class TermWindow:
    """Means of logged terms over steps and ranks, with one collective and one wait for a row of the log.

    Args:
        rows: means of steps that were gathered, but not logged yet (from a checkpoint).
        kept: where the last good checkpoint lies, for the message.
    """

    def __init__(self, rows: Sequence[Mapping[str, float]] = (), *, kept: object = "") -> None:
        self.rows: list[dict[str, float]] = [dict(row) for row in rows]
        self.kept = kept
        self._pending: list[_Pending] = []

    def add(self, step: int, passes: Sequence[Mapping[str, Tensor]]) -> None:
        """The scalars of the passes (accumulated batches) of a step; each has "loss" among them. Waits for nothing."""
        scalars = [{k: v.detach().float() for k, v in terms.items() if v.ndim == 0} for terms in passes]
        total = torch.stack(list(scalars[0].values()))
        for terms in scalars[1:]:
            total = total + torch.stack(list(terms.values()))
        self._pending.append(_Pending(step, tuple(scalars[0]), total / len(scalars)))

    def gather(self) -> None:
        """Bring pending steps over: means over the ranks, which all call this at the same step.

        Raises: Diverged naming the first step and term that is not finite, on every rank.
        """
        if not self._pending:
            return
        flat = distributed.all_reduce_mean(torch.cat([p.values for p in self._pending])).tolist()
        pending, self._pending = self._pending, []
        for part in pending:
            row, flat = dict(zip(part.names, flat, strict=False)), flat[len(part.names) :]
            self._refuse(part.step, row)
            self.rows.append(row)

    def blame(self) -> None:
        """After another error: raise `Diverged` instead, if a pending term of this process explains it."""
        for part in self._pending:
            self._refuse(part.step, dict(zip(part.names, part.values.tolist(), strict=True)))

    def take(self) -> dict[str, float]:
        """The mean of the gathered rows, which are forgotten."""
        rows, self.rows = self.rows, []
        return {key: sum(row[key] for row in rows) / len(rows) for key in rows[0]} if rows else {}

    def _refuse(self, step: int, row: Mapping[str, float]) -> None:
        bad = sorted((k for k, v in row.items() if not math.isfinite(v)), key=lambda k: k == "loss")
        if bad:
            raise Diverged(
                f"step {step}: term {bad[0]!r} is {row[bad[0]]}; nothing of this step was kept, the last good "
                f"checkpoint, if any, is in {self.kept}"
            )
