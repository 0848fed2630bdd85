"""`python -m tools.benchmark.fresh`: seconds of the first three training steps of two networks, everything tuned.

Each figure takes a process of its own with an empty store: with torch's search, and with cudnnpy.torch.enable().
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from typing import Any

from tools.benchmark.networks import models

NETWORKS = (("mobilenet_v2", "float16", 32), ("resnet50", "bfloat16", 16))
PROCESS_SECONDS = 200.0


def steps(network: str, dtype: str, batch: int, side: str) -> dict[str, Any]:
    """Time the first three training steps of a network, each until the GPU is done."""
    import torch

    import cudnnpy.torch
    from cudnnpy import store

    with models.exact_float32(torch):
        model = models.build(torch, network).train()
    model = model.to(getattr(torch, dtype)).to(memory_format=torch.channels_last)
    x = models.pictures(torch, network, batch).to(getattr(torch, dtype)).to(memory_format=torch.channels_last)
    labels = torch.arange(batch, device="cuda") % 1000
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9, momentum=0.9)
    torch.backends.cudnn.benchmark = torch.backends.cudnn.allow_tf32 = True
    torch.cuda.synchronize()
    times: list[float] = []
    with cudnnpy.torch.enable(prefer="autotune") if side == "cudnnpy" else nullcontext():
        for _ in range(3):
            begin = time.perf_counter()
            optimizer.zero_grad(set_to_none=True)
            torch.nn.functional.cross_entropy(model(x).float(), labels).backward()
            optimizer.step()
            torch.cuda.synchronize()
            times.append(round(time.perf_counter() - begin, 3))
    row = {"network": network, "dtype": dtype, "batch": batch, "side": side, "steps": times, "seconds": sum(times)}
    if side == "cudnnpy":
        row |= {"problems": sum(1 for _ in store.default()), "faults": list(map(str, store.default().faults()))}
    return row


def main() -> int:
    """Run the command and print a line of JSON for each process; return the exit status: 1 where one failed."""
    parser = argparse.ArgumentParser(prog="python -m tools.benchmark.fresh", description=__doc__.split("\n\n")[0])
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job is not None:
        print(json.dumps(steps(*given.job)), flush=True)
        return 0
    status = 0
    for job in [(*network, side) for network in NETWORKS for side in ("torch", "cudnnpy")]:
        command = [sys.executable, "-m", "tools.benchmark.fresh", "--job", json.dumps(job)]
        environment = {**os.environ, "CUDNNPY_STORE": ""}
        status |= subprocess.run(command, env=environment, timeout=PROCESS_SECONDS, check=False).returncode != 0
    return status


if __name__ == "__main__":
    sys.exit(main())
