"""What a pretraining script is: options of every pretraining and of one method's constructor, then the training."""

import dataclasses
import inspect
from collections.abc import Sequence
from typing import Any

from aotadmm_timm.cli import arguments_from, outline, parse, with_arguments

from .method_names import METHOD_FOLDER, load_method, make_backbone_terms, outline_method
from .pretrain_options import PretrainConfig

_SUPPLIED = ("backbone",)  # by `pretrain`


class MethodScript:
    """A script for one method.

    Args:
        method: a name of METHODS, or FILE.py:CLASS.
        base: options that are not the method's.
        defaults: of options of either kind, in place of the declared ones.
    """

    def __init__(self, method: str, *, base: type[PretrainConfig] = PretrainConfig, **defaults: Any) -> None:
        fields = {field.name: field for field in dataclasses.fields(base)}
        own = {key: value for key, value in defaults.items() if key not in fields}
        self.method, self.outline = method, outline_method(method, **own)
        changed = [(key, fields[key].type, _with_default(fields[key], defaults[key])) for key in defaults.keys() - own]
        config: Any = dataclasses.make_dataclass(base.__name__, changed, bases=(base,), frozen=True)
        self.Config: Any = with_arguments(config, self.outline, supplied=_SUPPLIED)
        self.beside: type | None = None
        if "backbone_terms" in inspect.signature(self.outline).parameters:
            self.beside = outline(METHOD_FOLDER / "backbone_terms.py", "BackboneTerms")
            self.Config = with_arguments(self.Config, self.beside, supplied=("width",))

    def main(self, description: str | None, argv: Sequence[str] | None = None) -> None:
        """Read the options and pretrain."""
        cfg = parse(self.Config, argv, description=description)
        arguments = arguments_from(cfg, self.outline, supplied=_SUPPLIED)

        beside = arguments_from(cfg, self.beside, supplied=("width",)) if self.beside else {}

        from .pretrain import pretrain  # torch and timm: not for --help

        make = load_method(self.method)

        def build(backbone: Any) -> Any:
            terms = {"backbone_terms": make_backbone_terms(backbone, **beside)} if self.beside else {}
            return make(backbone, **arguments, **terms)

        pretrain(cfg, self.method, build)


def _with_default(field: dataclasses.Field, default: Any) -> Any:
    return dataclasses.field(default=default, metadata=dict(field.metadata))
