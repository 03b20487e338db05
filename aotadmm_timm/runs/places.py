"""What may be published of a configuration or command: not where the author's files lie."""

import shlex
from pathlib import Path
from typing import Any

from aotadmm_timm.cli import flag_of
from aotadmm_timm.options import known


def placeless(value: Any) -> Any:
    """The last part of an absolute or relative path, behind a data set's prefix if there is one; all else unchanged."""
    if not isinstance(value, str):
        return value
    prefix, slash, rest = value.partition("/")
    if slash and prefix in ("hfds", "wds") and rest.startswith(("/", ".", "~")):
        return f"{prefix}/{Path(rest).name}"
    return Path(value).name if value.startswith(("/", "~/", "../")) else value


def placeless_command(command: str) -> str:
    """A command without the flags that say where its files went, and of any other path its last part only."""
    kept, skip = [], False
    places = {flag_of(key) for key in known("place")}
    for word in shlex.split(command):
        flag, equals, value = word.partition("=")
        if skip or flag in places:
            skip = not skip and not equals  # its value is the next word
            continue
        kept.append(f"{flag}={placeless(value)}" if equals and flag.startswith("--") else placeless(word))
    return shlex.join(kept)
