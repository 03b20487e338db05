"""Push with the script, then load as a stranger does: in fresh processes, from a real server, from the cache alone."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import timm
import torch
from loopback_hub import TOKEN, LoopbackHub

ROOT = Path(__file__).parents[2]

# What a stranger runs. The logits of four ways to load go to a file, for a comparison bit by bit.
LOAD = """
import sys
import aotadmm_timm, timm, torch
from aotadmm_timm.pretrained import open_model
name, out = "hf-hub:org/name", sys.argv[1]
def images(channels, size):
    return torch.rand(2, channels, size, size, generator=torch.Generator().manual_seed(0))
with torch.no_grad():
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=True).eval()
    three = timm.create_model(name, pretrained=True, num_classes=3).eval()
    large = timm.create_model(name, pretrained=True, img_size=64).eval()
    four = timm.create_model(name, pretrained=True, in_chans=4).eval()
    encoder, origin = open_model(name, num_classes=0)  # what feature extraction uses: checked, and pinned to a commit
    torch.save({
        "encoder": encoder(images(3, 32)), "revision": origin.revision,
        "logits": model(images(3, 32)),
        "three": three(images(3, 32)), "three_features": three.forward_features(images(3, 32)),
        "large": large(images(3, 64)), "large_patch": large.state_dict()["blocks.0.attn.qkv.weight"],
        "four": four(images(4, 32)), "config": dict(model.pretrained_cfg),
    }, out)
"""


def run(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)),
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
    )


def test_push_then_load_in_fresh_processes(make_run: Callable[..., Path], hub: LoopbackHub, tmp_path: Path) -> None:
    hub.cdn = True  # large files come from another host, which must not see the token
    folder = make_run(num_classes=10)
    pushed = run(sys.executable, ROOT / "hub" / "push.py", folder, "org/name")
    assert pushed.returncode == 0, pushed.stderr
    assert pushed.stdout.startswith(f"pushed: {hub.url}/org/name/commit/")
    assert TOKEN not in pushed.stdout + pushed.stderr + hub.files("org/name")["README.md"].decode()

    source = timm.create_model(f"local-dir:{folder / 'encoder'}", pretrained=True).eval()
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected, features = source(images), source.forward_features(images)
        pooled = source.forward_head(features, pre_logits=True)

    cache = {"HF_HOME": str(tmp_path / "stranger")}
    online = run(sys.executable, "-c", LOAD, tmp_path / "online.pt", **cache)
    assert online.returncode == 0, online.stderr
    requests = len(hub.requests)
    offline = run(sys.executable, "-c", LOAD, tmp_path / "offline.pt", HF_HUB_OFFLINE="1", **cache)
    assert offline.returncode == 0, offline.stderr
    assert len(hub.requests) == requests
    for name in ("online.pt", "offline.pt"):
        loaded = torch.load(tmp_path / name, weights_only=True)
        assert torch.equal(loaded["logits"], expected)
        assert torch.equal(loaded["encoder"], pooled)
        assert loaded["revision"] == hub.repositories["org/name"].branches["main"]
        assert loaded["three"].shape == (2, 3)
        assert torch.equal(loaded["three_features"], features)  # only the head is new
        assert loaded["large"].shape == (2, 10)
        assert torch.equal(loaded["large_patch"], source.state_dict()["blocks.0.attn.qkv.weight"])
        assert loaded["four"].shape == (2, 10)
        assert loaded["four"].isfinite().all()
        assert loaded["config"]["hf_hub_id"] == "org/name"

    without = run(
        sys.executable,
        "-c",
        "import timm; timm.create_model('hf-hub:org/name', pretrained=True)",
        HF_HUB_OFFLINE="1",
        **cache,
    )
    problem = without.stderr.strip().splitlines()[-1]
    assert problem == "RuntimeError: Unknown model (aot_admm_tiny)"
    assert f"`{problem}` means that `import aotadmm_timm` is missing" in " ".join(
        hub.files("org/name")["README.md"].decode().split()
    )
