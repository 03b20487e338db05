"""Slow literal versions of the papers' formulas in float64, written from the papers and published state dicts."""

import math

import torch
from torch import Tensor

State = dict[str, Tensor]


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    centered = x - x.mean(-1, keepdim=True)
    return centered / (centered.square().mean(-1, keepdim=True) + eps).sqrt() * weight + bias


def attention(x: Tensor, u_t: Tensor, heads: int) -> Tensor:
    """softmax(w w^T / sqrt(p)) w of one image x (N, d), head by head, concatenated."""
    p = u_t.shape[0] // heads
    out = []
    for k in range(heads):
        w = x @ u_t[k * p : (k + 1) * p].t()
        out.append((w @ w.t() / math.sqrt(p)).softmax(-1) @ w)
    return torch.cat(out, -1)


def token_statistics(x: Tensor, u_t: Tensor, temperature: Tensor, heads: int) -> Tensor:
    """-Pi w D of one image x (N, d), number by number, heads side by side."""
    n, p = len(x), u_t.shape[0] // heads
    w = [(x @ u_t[k * p : (k + 1) * p].t()).tolist() for k in range(heads)]
    total = [[sum(w[k][i][j] ** 2 for i in range(n)) for j in range(p)] for k in range(heads)]
    pi = [[0.0] * n for _ in range(heads)]
    for i in range(n):
        energy = [sum(w[k][i][j] ** 2 / total[k][j] for j in range(p)) for k in range(heads)]
        weight = [math.exp(float(temperature[k]) * energy[k]) for k in range(heads)]
        for k in range(heads):
            pi[k][i] = weight[k] / sum(weight)
    out = torch.empty(n, heads * p, dtype=x.dtype)
    for k in range(heads):
        for j in range(p):
            moment = sum(pi[k][i] * w[k][i][j] ** 2 for i in range(n)) / sum(pi[k])
            for i in range(n):
                out[i, k * p + j] = -pi[k][i] * w[k][i][j] / (1 + moment)
    return out


def linear_stem(state: State, image: Tensor, patch: int) -> Tensor:
    """Tokens (N, d) of one image (C, H, W) by CRATE's stem, without class token and positions."""
    c, h, w = image.shape
    tokens = []
    for row in range(h // patch):
        for column in range(w // patch):
            block = image[:, row * patch : (row + 1) * patch, column * patch : (column + 1) * patch]
            flat = block.permute(1, 2, 0).reshape(patch * patch * c)
            flat = layer_norm(flat, state["to_patch_embedding.1.weight"], state["to_patch_embedding.1.bias"], 1e-5)
            token = state["to_patch_embedding.2.weight"] @ flat + state["to_patch_embedding.2.bias"]
            tokens.append(
                layer_norm(token, state["to_patch_embedding.3.weight"], state["to_patch_embedding.3.bias"], 1e-5)
            )
    return torch.stack(tokens)


def crate(state: State, images: Tensor, *, patch: int, heads: int, mean_pool: bool = False) -> Tensor:
    """Logits (B, classes) of the published CRATE, from its own state dict."""
    state = {key: tensor.double() for key, tensor in state.items()}
    depth = sum(key.endswith(".1.fn.weight") for key in state)
    logits = []
    for image in images.double():
        z = torch.cat([state["cls_token"][0], linear_stem(state, image, patch)]) + state["pos_embedding"][0]
        for i in range(depth):
            at, ff = f"transformer.layers.{i}.0", f"transformer.layers.{i}.1"
            x = layer_norm(z, state[f"{at}.norm.weight"], state[f"{at}.norm.bias"], 1e-5)
            x = attention(x, state[f"{at}.fn.qkv.weight"], heads)
            z = z + x @ state[f"{at}.fn.to_out.0.weight"].t() + state[f"{at}.fn.to_out.0.bias"]
            y = layer_norm(z, state[f"{ff}.norm.weight"], state[f"{ff}.norm.bias"], 1e-5)
            d = state[f"{ff}.fn.weight"]
            z = (y + 0.1 * (y @ d - y @ d.t() @ d) - 0.1 * 0.1).clamp(min=0)
        pooled = z.mean(0) if mean_pool else z[0]
        pooled = layer_norm(pooled, state["mlp_head.0.weight"], state["mlp_head.0.bias"], 1e-5)
        logits.append(state["mlp_head.1.weight"] @ pooled + state["mlp_head.1.bias"])
    return torch.stack(logits)


def crate_alpha(state: State, images: Tensor, *, heads: int) -> Tensor:
    """Logits (B, classes) of the published CRATE-alpha, from its own state dict; every LayerNorm has eps 1e-6."""
    state = {key: tensor.double() for key, tensor in state.items()}
    depth = sum(key.endswith(".1.fn.D") for key in state)
    patch = state["conv1.weight"].shape[-1]
    logits = []
    for image in images.double():
        x = torch.nn.functional.conv2d(image[None], state["conv1.weight"], state["conv1.bias"], stride=patch)
        z = torch.cat([state["cls_token"][0], x[0].flatten(1).t()]) + state["pos_embedding"][0]
        for i in range(depth):
            at, ff = f"transformer.layers.{i}.0", f"transformer.layers.{i}.1"
            x = layer_norm(z, state[f"{at}.norm.weight"], state[f"{at}.norm.bias"], 1e-6)
            z = z + attention(x, state[f"{at}.fn.qkv.weight"], heads) @ state[f"{at}.fn.to_out.0.weight"].t()
            y = layer_norm(z, state[f"{ff}.norm.weight"], state[f"{ff}.norm.bias"], 1e-6)
            d, d1 = state[f"{ff}.fn.D"], state[f"{ff}.fn.D1"]
            code = (0.1 * y @ d - 0.01).clamp(min=0)
            code = (code - 0.1 * (code @ d.t() - y) @ d - 0.01).clamp(min=0)
            z = z + code @ d1.t()
        pooled = layer_norm(z[0], state["mlp_head.0.weight"], state["mlp_head.0.bias"], 1e-6)
        logits.append(state["mlp_head.1.weight"] @ pooled + state["mlp_head.1.bias"])
    return torch.stack(logits)


def aot_admm(state: State, images: Tensor, *, patch: int, heads: int, tau: float) -> list[tuple[Tensor, ...]]:
    """States (Z, V, W) of one image, before and after every layer: Algorithm 1, lines 3 to 10, number by number.

    With token statistics in the place of MSSA where the state has temperatures. `state` is the model's own state dict;
    its stem is read under the published names of CRATE's.
    """
    state = {key: tensor.double() for key, tensor in state.items()}
    stem = {"norm_patch": "1", "proj": "2", "norm": "3"}
    for ours, theirs in stem.items():
        for kind in ("weight", "bias"):
            state[f"to_patch_embedding.{theirs}.{kind}"] = state[f"patch_embed.{ours}.{kind}"]
    tokens = torch.cat([state["cls_token"][0], linear_stem(state, images[0].double(), patch)])
    z = tokens + state["pos_embed"][0]
    n, d = z.shape
    v, w = z.clone(), torch.zeros_like(z)
    history = [(z, v, w)]
    for layer in range(sum(key.endswith(".logits") for key in state)):
        key = f"blocks.{layer}"
        logits = [float(x) for x in state[f"{key}.logits"]]
        a, b, c = (math.exp(x) / sum(math.exp(y) for y in logits) for x in logits)
        x = layer_norm(z, state[f"{key}.norm.weight"], state[f"{key}.norm.bias"], 1e-5)
        if f"{key}.attn.temperature" in state:
            mssa = token_statistics(x, state[f"{key}.attn.qkv.weight"], state[f"{key}.attn.temperature"], heads)
        else:
            mssa = attention(x, state[f"{key}.attn.qkv.weight"], heads)
        mssa = mssa @ state[f"{key}.attn.proj.weight"].t() + state[f"{key}.attn.proj.bias"]
        new_z, new_v, new_w = (torch.empty_like(z) for _ in range(3))
        for i in range(n):
            row = [a * float(z[i, j]) + b * float(mssa[i, j]) + c * float(v[i, j] - w[i, j]) for j in range(d)]
            rms = math.sqrt(sum(x * x for x in row) / d + 1e-6)
            dual = []
            for j in range(d):
                new_z[i, j] = row[j] / rms * float(state[f"{key}.gain"][j])
                new_v[i, j] = max(0.0, float(new_z[i, j] + w[i, j]) - tau)
                dual.append(float(w[i, j] + new_z[i, j] - new_v[i, j]))
            rms = math.sqrt(sum(x * x for x in dual) / d + 1e-6)
            for j in range(d):
                new_w[i, j] = dual[j] / rms
        z, v, w = new_z, new_v, new_w
        history.append((z, v, w))
    return history
