"""SIGTERM and SIGINT while training: noted, so that a step is never cut in two."""

import signal
from types import FrameType
from typing import Any


class StopSignals:
    """Context in which the first SIGTERM or SIGINT is only noted in `number`. A second SIGINT interrupts."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._note)
        except ValueError:  # not the main thread: signals are somebody else's
            self._before = {}
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = number

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
