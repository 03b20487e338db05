"""What the online probe adds to a training step, in per cent.

    python tests/benchmarks/online_probe.py

LeJEPA steps of the default model on the default views (128 images) with and without it, alternating.
"""

import time

import numpy as np
import torch

from aotadmm_timm.data.multicrop import DIGITS
from aotadmm_timm.engine.backbone import create_backbone
from aotadmm_timm.engine.online_probe import OnlineProbe
from aotadmm_timm.methods import LeJEPA, Views


def main() -> None:
    torch.manual_seed(0)
    model, _, _ = create_backbone("aot_admm_nano", [32, 16])
    method = LeJEPA(model, projector=(512, 512, 64))
    optimizer = torch.optim.AdamW(method.parameters())
    probe = OnlineProbe(model.num_features, 10)
    images = torch.randint(0, 256, (128, 3, 32, 32), dtype=torch.uint8)
    labels = torch.randint(0, 10, (128,))
    step_times, probe_times = [], []
    for step in range(12):
        began = time.perf_counter()
        output = method(Views(*DIGITS(images, step, np.arange(128))), step)
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        between = time.perf_counter()
        probe(output.features, labels)
        step_times.append(between - began)
        probe_times.append(time.perf_counter() - between)
    step_time, probe_time = min(step_times[2:]), min(probe_times[2:])
    print(f"step {1e3 * step_time:.1f} ms, probe {1e3 * probe_time:.2f} ms: {100 * probe_time / step_time:.2f} %")


if __name__ == "__main__":
    main()
