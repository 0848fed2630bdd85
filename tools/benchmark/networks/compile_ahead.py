"""Fills torch.compile's cache on disk for the inference rows, one process for each: compiling them in turn takes minutes.

`python -m tools.benchmark.networks.compile_ahead NETWORK BATCH` compiles one; the rows then find it in the cache.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tools.benchmark.networks.measure_programs import Program, inference_model

THREADS = 2  # of each process


def compile_ahead(programs: Iterable[Program], seconds: float) -> int:
    """Compile programs side by side for at most `seconds`; return how many were compiled. The rows compile the others."""
    end = time.perf_counter() + seconds
    command = [sys.executable, "-m", __name__]
    started = [
        subprocess.Popen(
            [*command, program.network, str(program.batch)],
            cwd=Path(__file__).parents[3],
            env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": str(THREADS)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for program in programs
    ]
    done = 0
    try:
        for process in started:
            with suppress(subprocess.TimeoutExpired):
                done += process.wait(max(end - time.perf_counter(), 0.0)) == 0
    finally:  # also where the run is stopped
        for process in started:
            process.kill()
            process.wait()
    return done


def main(network: str, batch: str) -> None:
    """Compile one network, as its row does."""
    import torch

    model, x = inference_model(torch, network, int(batch))
    model, x = (one.half().to(memory_format=torch.channels_last) for one in (model, x))
    torch.backends.cudnn.benchmark = torch.backends.cudnn.allow_tf32 = True
    with torch.no_grad():
        torch.compile(model, mode="reduce-overhead")(x)


if __name__ == "__main__":
    main(*sys.argv[1:])
