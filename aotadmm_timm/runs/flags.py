"""Options, as a file or a configuration holds them, written as the arguments of a script."""

from typing import Any

from aotadmm_timm.cli import flag_of


def as_flags(options: dict[str, Any]) -> list[str]:
    """Options as the arguments of a script."""
    words = []
    for key, value in options.items():
        flag = flag_of(key)
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        elif isinstance(value, dict):
            words += [flag, *(f"{k}={v}" for k, v in value.items())]
        elif isinstance(value, list | tuple):
            words += [flag, *map(str, value)]
        else:
            words += [flag, "none" if value is None else str(value)]
    return words
