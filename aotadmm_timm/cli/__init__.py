"""Configurations: a frozen dataclass is the one list of a script's options; YAML fills it, flags override it.

    @dataclass(frozen=True)
    class Config:
        lr: float = option(5e-4, "peak learning rate")

    cfg = parse(Config, description=__doc__)      # python script.py --config recipe.yaml --lr 1e-3

A field `batch_size` is the flag `--batch-size` and the YAML key `batch_size` (or `batch-size`).
A field that would be a Python keyword carries a trailing underscore: `import_` is `--import`.

Why argparse: both libraries that read dataclasses were tried on twelve things that the options here do. tyro 1.0 does
five (flags with hyphens, --flag/--no-flag, positional fields, choices and defaults in --help, the nearest flag in an
error), jsonargparse 4.53 three (YAML overridden by flags, unknown keys refused, choices and defaults). Neither does
these: YAML keys with hyphens, `none`, tuples by commas or blanks, 1e3 as an integer, key=value pairs, an error in one
line. The conversion of values (`values.py`) would stay; what they replace is `_parser` in `parsing.py`, 30 lines.
"""

from .constructor import arguments_from, parse_with, with_arguments
from .option import as_dict, flag_of, key_of, keys, option
from .outline import outline
from .parsing import build, parse, peek, read_yaml
from .script import run

__all__ = [
    "arguments_from", "as_dict", "build", "flag_of", "key_of", "keys", "option", "outline", "parse", "parse_with",
    "peek", "read_yaml", "run", "with_arguments",
]  # fmt: skip
