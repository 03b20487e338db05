"""Unrolled optimizers as timm models: a VisionTransformer whose blocks carry a tuple of states.

A family is a block class with `step(*states) -> states` and, where it has more than one state, a model class with
`init(tokens) -> states` and `readout(states) -> tokens`. Everything else (stem, positions, pooling, head, resizing,
feature extraction, checkpointing) is timm's.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from timm.layers import LayerNorm
from timm.models import build_model_with_cfg
from timm.models._features import feature_take_indices
from timm.models._manipulate import checkpoint
from torch import Tensor, nn

from aotadmm_timm.errors import UserError
from aotadmm_timm.layers.patch_embed import LinearPatchEmbed
from aotadmm_timm.models.checkpoint import checkpoint_filter_fn
from aotadmm_timm.models.initialization import Float32InitTransformer


class UnrolledBlock(nn.Module):
    """One iteration of an optimizer as a layer: subclasses define `step(self, *states) -> states`.

    `step` takes and returns as many tensors (B, N, d) as the model has states, with TorchScript's type annotations
    (`def step(self, z: Tensor, v: Tensor) -> tuple[Tensor, Tensor]`); it becomes the module's forward, so hooks see it.
    Constructors are called with timm's block arguments (`dim`, `num_heads`, `proj_drop`, `attn_drop`, `drop_path`,
    `norm_layer`, `device`, `dtype`, ...); take what is used and swallow the rest in `**unused`.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "step" in cls.__dict__:
            cls.forward = cls.__dict__["step"]

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        """Names, within this block, of parameters that an optimizer must not decay: all but matrices by default."""
        return {name for name, parameter in self.named_parameters() if parameter.ndim < 2}


class UnrolledTransformer(Float32InitTransformer):
    """timm's VisionTransformer over blocks that map a tuple of states to a tuple of states.

    states = init(tokens);  states = block(*states) for every layer;  features = norm(readout(states))

    Takes timm's VisionTransformer arguments. `block_fn` builds an `UnrolledBlock`; `embed_layer` is CRATE's linear
    stem by default; `norm_eps` is the epsilon of the LayerNorms after it (CRATE's 1e-5). Arguments that only an MLP or
    separate queries and keys could use are refused.

    Raises: UserError for such an argument.
    """

    # Arguments of timm's VisionTransformer that are refused: no layer here has an MLP, or queries apart from keys. A
    # family whose layers have one names fewer.
    meaningless: ClassVar[frozenset[str]] = frozenset(
        {
            "mlp_ratio", "qkv_bias", "qk_norm", "scale_attn_norm", "scale_mlp_norm", "init_values", "fix_init",
            "act_layer", "mlp_layer", "attn_layer",
        }
    )  # fmt: skip

    def __init__(
        self,
        *,
        embed_layer: Any = LinearPatchEmbed,
        norm_eps: float = 1e-5,
        norm_layer: Any = None,
        **kwargs: Any,
    ) -> None:
        if refused := sorted(self.meaningless & kwargs.keys()):
            raise UserError(f"{type(self).__name__} has no use for {', '.join(refused)}: its layers have no such part")
        norm_layer = norm_layer or partial(LayerNorm, eps=norm_eps)
        super().__init__(embed_layer=embed_layer, norm_layer=norm_layer, **kwargs)
        # nn.Sequential carries one tensor only.
        self.blocks = nn.ModuleList(self.blocks)  # type: ignore[assignment]
        # timm cannot adapt a linear stem to other channel counts; the checkpoint filter adapts every stem.
        self._traits = {"first_conv": None}

    def init(self, tokens: Tensor) -> tuple[Tensor]:
        """States before the first layer, from tokens (B, N, d)."""
        return (tokens,)

    def readout(self, states: tuple[Tensor]) -> Tensor:
        """Tokens (B, N, d) that the model returns, from the states after a layer."""
        return states[0]

    def embed(self, x: Tensor) -> Tensor:
        """Images (B, C, H, W) -> tokens with prefix and positions (B, N, d)."""
        return self.norm_pre(self.patch_drop(self._pos_embed(self.patch_embed(x))))

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Images (B, C, H, W) -> logits (B, num_classes), or pooled features (B, d) if there is no classifier."""
        return self.forward_head(self.forward_features(x))

    def forward_features(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Images (B, C, H, W) -> normalized readout of the last layer (B, N, d)."""
        states = self.init(self.embed(x))
        for block in self.blocks:
            if self.grad_checkpointing and not torch.jit.is_scripting():
                states = checkpoint(block, *states)
            else:
                states = block(*states)
        return self.norm(self.readout(states))

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
        output_dict: bool = False,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Any:
        """Readouts of chosen layers; arguments and result as in timm's VisionTransformer, without masks.

        Raises: ValueError for an attention mask or another output format than NCHW and NLC.
        """
        if output_fmt not in ("NCHW", "NLC"):
            raise ValueError(f"output_fmt must be 'NCHW' or 'NLC', got {output_fmt!r}")
        if attn_mask is not None or is_causal:
            raise ValueError("unrolled models take no attention mask")
        take, last = feature_take_indices(len(self.blocks), indices)
        tokens: list[Tensor] = []
        states = self.init(self.embed(x))
        for i, block in enumerate(self.blocks[: last + 1] if stop_early else self.blocks):
            states = checkpoint(block, *states) if self.grad_checkpointing else block(*states)
            if i in take:
                out = self.readout(states)
                tokens.append(self.norm(out) if norm else out)

        prefix = [t[:, : self.num_prefix_tokens] for t in tokens] if self.num_prefix_tokens else None
        maps = [t[:, self.num_prefix_tokens :] for t in tokens]
        if output_fmt == "NCHW":
            h, w = self.patch_embed.dynamic_feat_size((x.shape[-2], x.shape[-1]))
            maps = [m.unflatten(1, (h, w)).permute(0, 3, 1, 2).contiguous() for m in maps]
        if output_dict:
            result: dict[str, Any] = {"image_intermediates": maps}
            if prefix is not None and return_prefix_tokens:
                result["image_intermediates_prefix"] = prefix
            if not intermediates_only:
                result["image_features"] = self.norm(self.readout(states))
            return result
        intermediates: list[Any] = maps
        if prefix is not None and return_prefix_tokens:
            intermediates = list(zip(maps, prefix, strict=True))
        return intermediates if intermediates_only else (self.norm(self.readout(states)), intermediates)

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        """timm's tokens and positions, and what each block names."""
        names = super().no_weight_decay()
        for i, block in enumerate(self.blocks):
            if isinstance(block, UnrolledBlock):
                names |= {f"blocks.{i}.{name}" for name in block.no_weight_decay()}
        return names


def layer_states(model: nn.Module, images: Tensor) -> list[tuple[Tensor, ...]]:
    """States of an unrolled model before the first layer and after every layer.

    Args:
        model: an `UnrolledTransformer`.
        images: (B, C, H, W), normalized as the model expects.
    Returns: depth + 1 tuples with one tensor (B, N, d) per state.
    Raises: ValueError if the model is not an unrolled one.
    """
    if not isinstance(model, UnrolledTransformer):
        raise ValueError(f"layer_states needs an UnrolledTransformer, got {type(model).__name__}")
    states: tuple[Tensor, ...] = model.init(model.embed(images))
    result = [states]
    for block in model.blocks:
        states = block(*states)
        result.append(states)
    return result


def create_unrolled(
    model_cls: Any,
    variant: str,
    pretrained: bool = False,
    *,
    pretrained_filter_fn: Callable[..., dict[str, Tensor]] = checkpoint_filter_fn,
    **kwargs: Any,
) -> Any:
    """Build a registered unrolled model: `timm.models.build_model_with_cfg` with this package's defaults.

    Args:
        model_cls: an `UnrolledTransformer` class, or a callable that builds one.
        variant: the registered name.
        pretrained: load the weights that the model's pretrained cfg names.
        pretrained_filter_fn: (checkpoint, model) -> state dict for the model; by default for native names alone.
        kwargs: model arguments and timm's factory arguments.
    Raises: ValueError if features are asked for by hooks or graph nodes, which see all states instead of the readout.
    """
    feature_cls = kwargs.pop("feature_cls", "getter")
    if feature_cls != "getter":
        raise ValueError(f"features_only supports feature_cls='getter' for unrolled models, got {feature_cls!r}")
    return build_model_with_cfg(
        model_cls,
        variant,
        pretrained,
        pretrained_filter_fn=pretrained_filter_fn,
        feature_cfg={"out_indices": kwargs.pop("out_indices", 3), "feature_cls": "getter"},
        **kwargs,
    )
