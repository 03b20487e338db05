"""What timm expects of a registered model, as rows that a user can run on a model of their own.

Each row is a function of `build`, which creates the model with extra keyword arguments. A row fails by raising.
"""

import io
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import timm
import torch
from timm.data import resolve_input_data_config
from timm.layers import create_feature_extractor
from timm.models import save_for_hf
from timm.models._features import FeatureGetterNet
from timm.models._input import get_model_input_config
from timm.optim import create_optimizer_v2
from torch import Tensor, nn

from aotadmm_timm.errors import UserError
from aotadmm_timm.models.unrolled import UnrolledTransformer, layer_states

Build = Callable[..., Any]


class ContractError(AssertionError):
    """Rows of timm's contract that a model breaks."""


def check_contract(name: str, *, exports: bool = True, **model_kwargs: Any) -> list[str]:
    """Run every row of timm's contract on a registered model.

    Args:
        name: registered model name; the module that registers it must be imported.
        exports: also TorchScript, torch.jit.trace, torch.fx, torch.export, ONNX and full-graph compilation (some 10 s
            for a small model; ONNX needs the packages onnx and onnxscript).
        model_kwargs: model arguments of every build, to check a large entry at a smaller depth or image size.
    Returns: names of the rows that passed, in order.
    Raises: ContractError listing every row that failed and why; UserError if the name is not registered.
    """
    if not timm.is_model(name):
        raise UserError(f"no registered model is called {name!r}; import the module that registers it")

    def build(**kwargs: Any) -> Any:
        torch.manual_seed(0)
        return timm.create_model(name, **{"num_classes": 5, **model_kwargs, **kwargs})

    failures = []
    rows = ROWS + EXPORT_ROWS if exports else ROWS
    for row in rows:
        try:
            row(build)
        except Exception as error:
            failures.append(f"{row.__name__}: {type(error).__name__}: {error}")
    if failures:
        listing = "\n  ".join(failures)
        raise ContractError(f"{name} breaks {len(failures)} of {len(rows)} rows:\n  {listing}")
    return [row.__name__ for row in rows]


def images(model: Any, batch: int = 2) -> Tensor:
    """Seeded images (B, C, H, W) of the size, channels and precision a model is built for."""
    generator = torch.Generator().manual_seed(0)
    parameter = next(model.parameters())
    shape = (batch, *resolve_input_data_config(model)["input_size"])
    return torch.randn(shape, generator=generator).to(parameter.device, parameter.dtype)


def randomize(model: Any) -> Any:
    """Move every parameter off its initial value, so that no unit gain or zero bias hides a mistake. In place."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise * (0.3 if parameter.ndim < 2 else 0.02))
    return model


def expect(condition: bool, message: str) -> None:
    """Raise AssertionError(message) unless the condition holds, also under `python -O`."""
    if not condition:
        raise AssertionError(message)


def expect_close(actual: Tensor, expected: Tensor, message: str, tolerance: float = 1e-5) -> None:
    """Largest absolute difference at most `tolerance` times the largest expected magnitude (at least 1)."""
    expect(actual.shape == expected.shape, f"{message}: shape {tuple(actual.shape)} not {tuple(expected.shape)}")
    difference = (actual - expected).abs().max().item()
    scale = max(1.0, expected.abs().max().item())
    expect(difference <= tolerance * scale, f"{message}: differs by {difference:.2e}")


def attributes(build: Build) -> None:
    """Configs and size attributes exist and agree with the outputs."""
    model = build().eval()
    cfg = model.pretrained_cfg
    expect(model.default_cfg is cfg, "default_cfg is not pretrained_cfg")
    expect(all(cfg.get(key) for key in ("input_size", "mean", "std", "interpolation", "license")), "incomplete cfg")
    state = model.state_dict()
    for key in ("classifier", "first_conv"):
        expect(f"{cfg[key]}.weight" in state, f"{key} {cfg[key]!r} names no weight")
    x = images(model)
    features = model.forward_features(x)
    expect(features.shape[-1] == model.num_features == model.embed_dim, "num_features is not the feature width")
    prefix = model.num_prefix_tokens
    expect(features.shape[1] == prefix + model.patch_embed.num_patches, "token count is not prefix + patches")
    pooled = model.forward_head(features, pre_logits=True)
    expect(pooled.shape == (2, model.head_hidden_size), "pre-logits width is not head_hidden_size")
    expect(model(x).shape == (2, model.num_classes), "output is not (B, num_classes)")
    expect(bool(model(x).isfinite().all()), "output is not finite")


def input_size(build: Build) -> None:
    """A model for one image size refuses others, and says so, so that timm's tools keep to it."""
    model = build().eval()
    channels, height, width = images(model).shape[1:]
    patch_height, patch_width = model.patch_embed.patch_size
    other = torch.randn(1, channels, height + patch_height, width + patch_width)
    try:
        flexible = bool(model(other).isfinite().all())
    except (AssertionError, RuntimeError):
        flexible = False
    said = bool(model.pretrained_cfg.get("fixed_input_size", False))
    expect(said != flexible, f"fixed_input_size is {said}, but other sizes are {'taken' if flexible else 'refused'}")
    expect(
        get_model_input_config(model)["fixed_input_size"] == said, "the model and its cfg differ in fixed_input_size"
    )
    free = build(dynamic_img_size=True).eval()
    expect(not get_model_input_config(free)["fixed_input_size"], "dynamic_img_size leaves the input size fixed")
    expect(bool(free(other).isfinite().all()), "dynamic_img_size does not take another size")


def classifier(build: Build) -> None:
    """reset_classifier and num_classes=0 give pre-logits; dtype and mode survive."""
    model = build(dtype=torch.float64)
    x = images(model)
    expect(model.get_classifier().out_features == model.num_classes, "get_classifier is not the head")
    model.reset_classifier(7)
    head = model.get_classifier()
    expect(head.weight.dtype == torch.float64 and head.training, "reset_classifier loses dtype or mode")
    expect(model(x).shape == (2, 7), "reset_classifier(7) does not give 7 outputs")
    model.reset_classifier(0)
    expect(model(x).shape == (2, model.head_hidden_size), "reset_classifier(0) does not give pre-logits")
    bare = build(num_classes=0)
    expect(bare(images(bare)).shape == (2, bare.head_hidden_size), "num_classes=0 does not give pre-logits")
    model.reset_classifier(3, "avg")
    expect(model(x).shape == (2, 3), "reset_classifier(3, 'avg') fails")


def gradients(build: Build) -> None:
    """Every parameter gets a finite gradient; gradient checkpointing changes nothing."""
    model = randomize(build()).train()
    x = images(model)
    out = model(x)
    out.square().sum().backward()
    grads = {key: p.grad for key, p in model.named_parameters()}
    missing = [key for key, grad in grads.items() if grad is None or not grad.abs().sum() > 0]
    expect(not missing, f"no gradient for {missing}")
    expect(all(bool(g.isfinite().all()) for g in grads.values() if g is not None), "gradients are not finite")
    model.zero_grad()
    model.set_grad_checkpointing()
    again = model(x)
    again.square().sum().backward()
    expect_close(again, out, "output with gradient checkpointing")
    for key, parameter in model.named_parameters():
        expect(parameter.grad is not None, f"no gradient for {key} with gradient checkpointing")
        expect_close(parameter.grad, grads[key], f"gradient of {key} with gradient checkpointing", 1e-4)


def intermediates(build: Build) -> None:
    """Maps of all layers; the last, normalized, is forward_features; pruning keeps what was asked for."""
    model = randomize(build()).eval()
    x = images(model)
    full = model.forward_features(x)
    grid, prefix = model.patch_embed.grid_size, model.num_prefix_tokens
    expect(len(model.feature_info) >= 3, "fewer than 3 feature_info entries")
    out, maps = model.forward_intermediates(x)
    expect_close(out, full, "forward_intermediates output", 0.0)
    expect(len(maps) == len(model.feature_info), "not one map per feature_info entry")
    expect(all(m.shape == (2, model.embed_dim, *grid) for m in maps), "maps are not (B, C, H, W)")
    (last,) = model.forward_intermediates(x, indices=1, norm=True, intermediates_only=True, output_fmt="NLC")
    expect_close(last, full[:, prefix:], "last normalized intermediate against forward_features", 0.0)
    (last,) = model.forward_intermediates(x, indices=1, norm=True, intermediates_only=True)
    expect_close(last.flatten(2).transpose(1, 2), full[:, prefix:], "last map against forward_features", 0.0)
    ((patches, tokens),) = model.forward_intermediates(
        x, indices=1, norm=True, intermediates_only=True, output_fmt="NLC", return_prefix_tokens=True
    )
    expect_close(torch.cat([tokens, patches], 1), full, "prefix and patch tokens", 0.0)
    named = model.forward_intermediates(x, indices=[0, 1], output_dict=True, return_prefix_tokens=True)
    expect_close(named["image_features"], full, "image_features", 0.0)
    expect_close(named["image_intermediates"][1], maps[1], "image_intermediates", 0.0)
    stopped = model.forward_intermediates(x, indices=[0, 1], stop_early=True, intermediates_only=True)
    model.prune_intermediate_layers([0, 1])
    pruned = model.forward_intermediates(x, indices=[0, 1], intermediates_only=True)
    for i in range(2):
        expect_close(stopped[i], maps[i], f"map {i} with stop_early", 0.0)
        expect_close(pruned[i], maps[i], f"map {i} after pruning", 0.0)


def features_only(build: Build) -> None:
    """The feature backbone gives the chosen layers; normalized, the last is forward_features."""
    model = randomize(build()).eval()
    x = images(model)
    depth = len(model.blocks)
    backbone = build(features_only=True, out_indices=(0, depth - 1)).eval()
    backbone.model.load_state_dict(model.state_dict(), strict=False)
    maps = model.forward_intermediates(x, indices=[0, depth - 1], intermediates_only=True)
    for got, want, channels in zip(backbone(x), maps, backbone.feature_info.channels(), strict=True):
        expect_close(got, want, "features_only map", 0.0)
        expect(channels == got.shape[1], "feature_info names other channels than the map has")
    normed = FeatureGetterNet(randomize(build()), out_indices=(depth - 1,), norm=True).eval()
    want = model.forward_features(x)[:, model.num_prefix_tokens :]
    expect_close(normed(x)[0].flatten(2).transpose(1, 2), want, "normalized features_only map", 0.0)


def channels(build: Build) -> None:
    """Weights move to 1 and 6 input channels: grey and doubled RGB give the outputs of the 3-channel model."""
    source = randomize(build(in_chans=3)).eval()
    overlay = {"state_dict": source.state_dict(), "num_classes": 5, "input_size": (3, *source.patch_embed.img_size)}
    x = images(source)
    grey = build(in_chans=1, pretrained=True, pretrained_cfg_overlay=overlay).eval()
    expect_close(grey(x[:, :1]), source(x[:, :1].expand(-1, 3, -1, -1)), "1 channel against grey RGB")
    double = build(in_chans=6, pretrained=True, pretrained_cfg_overlay=overlay).eval()
    expect_close(double(torch.cat([x, x], 1)), source(x), "6 channels against RGB twice")


def rectangles(build: Build) -> None:
    """A non-square model sees rows as rows: in its tokens, its maps and its resampled positions."""
    (ph, pw), rows, columns = build().patch_embed.patch_size, 4, 6
    model = randomize(build(img_size=(rows * ph, columns * pw), num_classes=0)).eval()
    x = torch.zeros(1, model.in_chans, rows * ph, columns * pw)
    bright = x.clone()
    bright[:, :, 1 * ph : 2 * ph, 4 * pw : 5 * pw] = torch.randn(model.in_chans, ph, pw)
    before, after = (model.forward_intermediates(i, indices=[0], intermediates_only=True)[0] for i in (x, bright))
    change = (after - before).abs().sum(1)[0]
    expect(change.shape == (rows, columns), f"map of a {rows}x{columns} grid is {tuple(change.shape)}")
    # Not strictly the most: patches of convolutional stems overlap, and their neighbors see it too.
    expect(bool(change[1, 4] > change.max() / 2), "a bright patch changes another place of the map most")
    if not isinstance(model.pos_embed, Tensor):
        return
    # Positions whose value is their row stay constant along columns, whatever grid they are resampled to.
    with torch.no_grad():
        positions = torch.arange(rows).repeat_interleave(columns).float()
        model.pos_embed[:, -rows * columns :] = positions.view(1, -1, 1)
    with tempfile.TemporaryDirectory() as folder:
        save_for_hf(model, folder, safe_serialization=True)
        turned: Any = timm.create_model(f"local-dir:{folder}", pretrained=True, img_size=(columns * ph, rows * pw))
        same = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    expect_close(same(bright), model(bright), "rectangular model after saving and loading", 0.0)
    grid = turned.pos_embed[0, -rows * columns :, 0].view(columns, rows)
    expect_close(grid, grid[:, :1].expand(-1, rows), "columns of positions resampled to the turned image", 1e-4)
    expect(bool((grid[1:] >= grid[:-1]).all()), "rows of resampled positions are out of order")


def resizing(build: Build) -> None:
    """set_input_size resamples and is what gets saved; dynamic_img_size agrees with it."""
    model = randomize(build()).eval()
    (ph, pw), (h, w) = model.patch_embed.patch_size, model.patch_embed.grid_size
    size = ((h + 1) * ph, (w + 2) * pw)
    x = torch.randn(2, model.in_chans, *size)
    dynamic = build(dynamic_img_size=True).eval()
    dynamic.load_state_dict(model.state_dict())
    expect_close(dynamic(images(model)), model(images(model)), "dynamic_img_size at the native size", 0.0)
    model.set_input_size(img_size=size)
    expect(model.patch_embed.grid_size == (h + 1, w + 2), "set_input_size does not change the grid")
    expect_close(dynamic(x), model(x), "dynamic_img_size against set_input_size")
    with tempfile.TemporaryDirectory() as folder:
        save_for_hf(model, folder, safe_serialization=True)
        loaded = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    expect_close(loaded(x), model(x), "resized model after saving and loading", 0.0)
    larger = {"patch_size": (2 * ph, 2 * pw), "img_size": (4 * ph, 6 * pw)}
    if not isinstance(model.patch_embed.proj, nn.Conv2d | nn.Linear):
        expect(_refuses(lambda: model.set_input_size(**larger)), "a stem of several layers takes another patch size")
        return
    model.set_input_size(**larger)
    expect(model.patch_embed.grid_size == (2, 3), "set_input_size does not change the patch size")
    expect(bool(model(torch.randn(2, model.in_chans, 4 * ph, 6 * pw)).isfinite().all()), "not finite at new patch size")


def _refuses(call: Callable[[], None]) -> bool:
    try:
        call()
    except ValueError:
        return True
    return False


def optimizer_groups(build: Build) -> None:
    """Tokens, positions and everything below two dimensions are not decayed; layer decay goes by depth."""
    model = build()
    depth = len(model.blocks)
    groups = create_optimizer_v2(model, opt="adamw", lr=1.0, weight_decay=0.1, layer_decay=0.5).param_groups
    by_id = {id(p): group for group in groups for p in group["params"]}
    names = {key: by_id[id(p)] for key, p in model.named_parameters()}
    for key, parameter in model.named_parameters():
        exempt = parameter.ndim < 2 or key in ("pos_embed", "cls_token", "reg_token")
        exempt = exempt or key in model.no_weight_decay()
        expect((names[key]["weight_decay"] == 0) == exempt, f"{key} is {'' if exempt else 'not '}decayed")
    unknown = model.no_weight_decay() - {"pos_embed", "cls_token", "reg_token", "dist_token"} - names.keys()
    expect(not unknown, f"no_weight_decay names unknown parameters {sorted(unknown)}")
    first = names[f"{model.pretrained_cfg['first_conv']}.weight"]["lr_scale"]
    for key, group in names.items():
        rate = group["lr_scale"]
        if key.startswith("blocks."):
            layer = int(key.split(".")[1])
            expect(rate == first * 2.0 ** (layer + 1), f"{key} has rate {rate}, not that of layer {layer}")
        elif key.startswith(("cls_attn_blocks.", "norm.", "fc_norm.", "head.")):
            expect(rate >= first * 2.0**depth, f"{key} has rate {rate}, less than the last layer")
        else:
            expect(rate == first, f"{key} has rate {rate}, not the stem's {first}")


def devices_and_dtypes(build: Build) -> None:
    """`device=` and `dtype=` reach every tensor; bfloat16 stays finite and near float32; meta costs nothing."""
    meta = build(device="meta")
    expect(all(t.is_meta for t in meta.state_dict().values()), "a tensor is not on the meta device")
    meta.to_empty(device="cpu").init_weights()
    expect(bool(meta(images(meta)).isfinite().all()), "init_weights after the meta device leaves garbage")
    model = build().eval()
    half = build(dtype=torch.bfloat16).eval()
    floats = [t for t in half.state_dict().values() if t.is_floating_point()]  # BatchNorm also counts batches
    expect(all(t.dtype == torch.bfloat16 for t in floats), "a tensor is not bfloat16")
    half.load_state_dict(model.state_dict())
    x = images(model)
    out, reference = half(x.bfloat16()), model(x)
    expect(out.dtype == torch.bfloat16, f"bfloat16 gives {out.dtype}")
    expect_close(out.float(), reference, "bfloat16 against float32", 0.05)
    with torch.autocast("cpu", torch.bfloat16):
        expect_close(model(x).float(), reference, "autocast against float32", 0.05)


def states(build: Build) -> None:
    """An unrolled model shows its states: one tuple per layer and the initial one, read out as it computes.

    The class token may be among the tokens of every state, or join them in the readout.
    """
    model = build().eval()
    if not isinstance(model, UnrolledTransformer):
        return
    x = images(model)
    shown: list[Any] = layer_states(model, x)
    expect(len(shown) == len(model.blocks) + 1, "not one tuple of states per layer and the initial one")
    patches, prefix, width = model.patch_embed.num_patches, model.num_prefix_tokens, model.embed_dim
    shapes = {tuple(t.shape) for tuple_ in shown for t in tuple_}
    allowed = {(2, patches, width), (2, prefix + patches, width)}
    expect(len(shapes) == 1 and shapes <= allowed, f"states are {sorted(shapes)}, not one of {sorted(allowed)}")
    expect(model.readout(shown[0]).shape == (2, prefix + patches, width), "the readout lacks tokens")
    expect_close(model.norm(model.readout(shown[-1])), model.forward_features(x), "readout of the last states", 0.0)


def torchscript(build: Build) -> None:
    """torch.jit.script computes the same."""
    model = build().eval()
    x = images(model)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`torch\.jit\.script` is deprecated", category=FutureWarning)
        scripted = torch.jit.script(model)
        expect_close(scripted(x), model(x), "TorchScript")


def tracing(build: Build) -> None:
    """torch.jit.trace, stored and read back, computes the same for another number of images."""
    model = build().eval()
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`torch\.jit\.\w+` is deprecated", category=FutureWarning)
        warnings.filterwarnings("ignore", category=torch.jit.TracerWarning)
        torch.jit.save(torch.jit.trace(model, images(model)), file)
        file.seek(0)
        x = images(model, 3)
        expect_close(torch.jit.load(file)(x), model(x), "torch.jit.trace")


def fx(build: Build) -> None:
    """A graph traced by torch.fx gives the model's bits in float32 inference, can be scripted, and trains all."""
    model = build().eval()
    x = images(model)
    graph = create_feature_extractor(model, return_nodes=["head"])
    with torch.inference_mode():
        expect_close(graph(x)["head"], model(x), "torch.fx", 0.0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`torch\.jit\.script` is deprecated", category=FutureWarning)
        expect_close(torch.jit.script(graph)(x)["head"], model(x), "torch.fx and TorchScript")
    model = build().train()
    create_feature_extractor(model, return_nodes=["head"])(x)["head"].mean().backward()
    missing = [key for key, parameter in model.named_parameters() if parameter.grad is None]
    expect(not missing, f"no gradient through torch.fx for {missing}")


def export(build: Build) -> None:
    """torch.export with a free batch dimension computes the same."""
    model = build().eval()
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(model, (images(model),), dynamic_shapes={"x": {0: batch}}, strict=False)
    x = images(model, batch=3)
    expect_close(program.module()(x), model(x), "torch.export")


def onnx(build: Build) -> None:
    """The ONNX export is a valid model and, run by the reference evaluator, computes the same."""
    import onnx as onnx_package
    from onnx.reference import ReferenceEvaluator

    model = build().eval()
    x = images(model, batch=1)
    program: Any = torch.onnx.export(model, (x,), dynamo=True, verbose=False)
    proto = program.model_proto
    onnx_package.checker.check_model(proto)
    (out,) = ReferenceEvaluator(proto).run(None, {proto.graph.input[0].name: x.numpy()})
    expect_close(torch.from_numpy(out), model(x).detach(), "ONNX", 1e-4)


def compilation(build: Build) -> None:
    """torch.compile captures forward and backward without a graph break."""
    model = build()
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x = images(model)
    expect_close(compiled(x), model(x), "torch.compile")
    compiled(x).sum().backward()


ROWS: list[Callable[[Build], None]] = [
    attributes,
    input_size,
    classifier,
    gradients,
    intermediates,
    features_only,
    channels,
    rectangles,
    resizing,
    optimizer_groups,
    devices_and_dtypes,
    states,
]
EXPORT_ROWS: list[Callable[[Build], None]] = [torchscript, tracing, fx, export, onnx, compilation]
