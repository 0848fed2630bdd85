"""What the commands of the benchmark share: the options, the machine that a run describes, and the summary at the end."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from tools.benchmark import runs
from tools.benchmark.runs import Row, Task


def parser(module: str, description: str, seconds: float) -> argparse.ArgumentParser:
    """Return a parser with the options of all commands. `seconds` is the default time of a run."""
    made = argparse.ArgumentParser(prog=f"python -m {module}", description=description.split("\n\n", maxsplit=1)[0])
    made.add_argument("-o", "--rows", type=Path, required=True, metavar="FILE", help="rows are appended to it")
    limit = f"after which no row begins ({seconds:.0f})"
    made.add_argument("--seconds", type=float, default=seconds, metavar="SECONDS", help=limit)
    made.add_argument("--summary", action="store_true", help="only print the summary of FILE, which needs no GPU")
    made.add_argument("--child", type=float, help=argparse.SUPPRESS)
    return made


def main(
    parser: argparse.ArgumentParser,
    tasks: Callable[[Any, argparse.Namespace], Iterable[Task]],
    lines: Callable[[Sequence[Row]], Iterable[str]],
    hang_seconds: float,
    arguments: Sequence[str] | None = None,
) -> int:
    """Measure the tasks of a command and print the lines of its summary; return the exit status: 1 if a row failed."""
    os.environ["CUDNNPY_STORE"] = ""  # in memory, empty in each process
    given = parser.parse_args(arguments)
    if given.child:
        torch = usable_torch()
        run = {**environment(torch, given.child), "command": parser.prog, "options": str(vars(given))}
        runs.leave(runs.measure(torch, tasks(torch, given), given.rows, run))
    ended = ""
    if not given.summary:
        words = sys.argv[1:] if arguments is None else arguments
        ended = runs.supervise(given.rows, given.seconds, hang_seconds, parser.prog.split()[-1], words)
    rows = list(runs.measured(given.rows).values())
    print("\n".join([*lines(rows), *([f"ended early: {ended}"] if ended else [])]))
    return int(bool(ended) or not rows or any(row["error"] for row in rows))


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
