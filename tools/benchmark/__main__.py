"""`python -m tools.benchmark SECTION -o FILE`: times of cudnnpy over PyTorch's, side by side in one run on a GPU.

host        host cost of a tiny convolution, by each way to call it and by the number of address tuples
inference   whole networks that docs/examples/torch_network.py converted
training    steps with and without cudnnpy.torch.enable()

A row is appended to FILE when it is measured, and its ratios are printed. The same command continues a run that was
stopped. The exit status is 1 if a row failed. README.md in this folder describes the rows.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from tools.benchmark import runs
from tools.benchmark.runs import Rows, Task

SECTIONS = ("host", "inference", "training")
HANG_SECONDS = 400.0  # without a new line in the file, after which a child is ended


def tasks(torch: Any, sections: Sequence[str], tune_seconds: float | None) -> Iterator[Task]:
    """Yield the rows of some sections."""
    from tools.benchmark import host
    from tools.benchmark.networks import measure_programs

    if "host" in sections:
        for dtype in host.DTYPES:
            yield Task(f"host | {dtype}", partial(host.measure, torch, dtype))
    for program in (*measure_programs.INFERENCE, *measure_programs.TRAINING):
        if program.part in sections:

            def measured(row: dict[str, Any], program: measure_programs.Program = program) -> None:
                measure_programs.measure(torch, program, row, tune_seconds)

            yield Task(program.key, measured)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    os.environ.setdefault("CUDNNPY_STORE", "")  # nothing of an earlier run
    os.environ.setdefault("CUDNNPY_STORED_CHOICES", "autotune")  # "fastest" takes no choice of autotune's
    parser = argparse.ArgumentParser(prog="python -m tools.benchmark", description=__doc__.split("\n\n")[0])
    parser.add_argument("sections", nargs="+", choices=SECTIONS, metavar="SECTION", help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("-o", "--rows", type=Path, required=True, metavar="FILE", help="rows are appended to it")
    parser.add_argument("--seconds", type=float, default=480.0, help="after which no row begins (480)")
    parser.add_argument("--tune-seconds", type=float, metavar="SECONDS", help="autotune's limit for each problem")
    parser.add_argument("--child", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.child:
        torch = usable_torch()
        run = {**environment(torch, given.child), "command": " ".join(("python -m tools.benchmark", *given.sections))}
        runs.leave(runs.measure(torch, tasks(torch, given.sections, given.tune_seconds), given.rows, run))
    words = sys.argv[1:] if arguments is None else arguments
    ended = runs.supervise(given.rows, given.seconds, HANG_SECONDS, "tools.benchmark", words)
    print(f"rows are in {given.rows}" + (f"; ended early: {ended}" if ended else ""))
    found = Rows(given.rows).rows.values()
    return int(bool(ended) or not found or any(row["error"] for row in found))


def usable_torch() -> Any:
    """Return torch. Exits if it cannot use a GPU."""
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("the benchmark needs a CUDA GPU that torch can use")
    return torch


def environment(torch: Any, seconds: float) -> dict[str, Any]:
    """Return the line of a run: the versions and the machine that its numbers depend on."""
    import cudnnpy
    from cudnnpy import raw

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=False, timeout=30).stdout.split("\n")[0]
    return {
        "run": uuid.uuid4().hex[:8],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": seconds,
        "GPU": torch.cuda.get_device_name(0),
        "driver": driver,
        "CUDA": torch.version.cuda,
        "cuDNN (torch)": raw.version_text(torch.backends.cudnn.version()),
        "cuDNN (cudnnpy)": raw.version_text(raw.version()),
        "cudnnpy": cudnnpy.__version__,
        "torch": torch.__version__,
        "cudnn-frontend": _installed("nvidia-cudnn-frontend"),
        "Python": platform.python_version(),
        "CPU": f"{platform.machine()}, {os.cpu_count()} cores",
    }


def _installed(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    sys.exit(main())
