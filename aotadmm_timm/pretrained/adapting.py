"""An opened model brought to another image size and number of classes."""

from typing import Any

from aotadmm_timm.errors import UserError


def adapt(model: Any, *, num_classes: int | None = None, img_size: int | None = None) -> list[str]:
    """Give the model another image size (positions are resampled) and number of classes; returns what is new.

    A classifier of the right number of classes is kept. Names of new parameters are returned: the classifier's only.
    Raises: UserError if the model cannot be resized.
    """
    own = getattr(getattr(model, "patch_embed", None), "img_size", None)
    if img_size is not None and own is not None and tuple(own) != (img_size, img_size):
        try:
            model.set_input_size(img_size=(img_size, img_size))
        except (AttributeError, AssertionError, RuntimeError, ValueError) as err:
            raise UserError(f"--img-size {img_size}: the model cannot be resized from {tuple(own)}: {err}") from None
    if num_classes is None or model.num_classes == num_classes:
        return []
    model.reset_classifier(num_classes)
    heads = model.get_classifier()
    new = {id(p) for head in (heads if isinstance(heads, tuple) else (heads,)) for p in head.parameters()}
    return [name for name, p in model.named_parameters() if id(p) in new]
