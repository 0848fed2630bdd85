"""`python -m tools.benchmark`: times cudnnpy against torch and cudnn-frontend on the GPU, side by side in one run.

Rows are appended to a file, and a summary is printed. A run that is stopped or killed is continued by the same command with
--rows. The exit status is 0 if no row failed. README.md in this folder describes the parts.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import subprocess
import sys
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from tools.benchmark import runs, summary
from tools.rows import FileError

FULL_SECONDS, QUICK_SECONDS = 480.0, 120.0
HANG_SECONDS = 400.0  # without a new line in the file, after which a child is ended
COMPILE_SECONDS = 60.0  # torch.compile takes this long for one network, or for all of them side by side


def parser_of_options() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    from tools.benchmark.sections import NETWORKS, SECTIONS

    parser = argparse.ArgumentParser(prog="python -m tools.benchmark", description=__doc__.split("\n\n")[0])
    only = "a section; may be repeated (all but networks)"
    parser.add_argument("--only", action="append", choices=list(SECTIONS), help=only)
    parser.add_argument("--part", action="append", choices=NETWORKS, help="a part of networks; may be repeated")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help=f"time to measure ({FULL_SECONDS:.0f})")
    parser.add_argument("--quick", action="store_true", help=f"a budget of {QUICK_SECONDS:.0f} s")
    parser.add_argument("--seed", type=int, default=0, help="draws the order of operations and layers (0)")
    parser.add_argument("--tune-seconds", type=float, metavar="SECONDS", help="autotune's limit for each problem")
    parser.add_argument(
        "--out", type=Path, default=Path("build/benchmark"), help="folder of a new file (build/benchmark)"
    )
    parser.add_argument("--rows", type=Path, metavar="FILE", help="the file of rows, which is continued if it exists")
    parser.add_argument("--known", type=Path, nargs="+", default=[], metavar="FILE", help="rows that are not repeated")
    parser.add_argument(
        "--again", action="store_true", help="measure failed rows again, unless they ended their process"
    )
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="print the summary of files; no GPU")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    os.environ.setdefault("CUDNNPY_STORE", "")  # nothing of an earlier run
    os.environ.setdefault("CUDNNPY_STORED_CHOICES", "autotune")  # "fastest" takes no choice of autotune's
    parser = parser_of_options()
    given = parser.parse_args(arguments)
    for name in ("budget", "tune_seconds"):
        if (value := getattr(given, name)) is not None and value <= 0:
            parser.error(f"--{name.replace('_', '-')} must be above 0; got {value}")
    if given.part and given.only != ["networks"]:
        parser.error("--part: given without --only networks alone")
    try:
        if given.merge:
            return report(given.merge, is_long=True)
        given.rows = given.rows or given.out / f"rows-{datetime.now(UTC):%Y%m%d-%H%M%S}.jsonl"
        if given.child:
            runs.leave(measure(given))
        words = list(sys.argv[1:] if arguments is None else arguments)
        command = ["-m", "tools.benchmark", *words, "--rows", str(given.rows), "--child"]
        seconds = given.budget or (QUICK_SECONDS if given.quick else FULL_SECONDS)
        ended = runs.supervise(given.rows, seconds, HANG_SECONDS, command)
        print(f"rows are in {given.rows}" + (f"; ended early: {ended}" if ended else ""))
        return report([given.rows]) or int(bool(ended))
    except FileError as error:
        print(f"tools.benchmark: {error}", file=sys.stderr)
        return 1


def report(files: Sequence[Path], is_long: bool = False) -> int:
    """Print the summary of files; return 1 if a row failed or there is none."""
    rows = list(runs.Rows(files).rows.values())
    print("\n".join(summary.lines(rows, is_long) or ["no rows"]))
    return int(not rows or any(row["error"] for row in rows))


def measure(given: argparse.Namespace) -> int:
    """Measure rows in this process."""
    from tools.benchmark import sections

    torch = usable_torch()
    chosen = given.only or [section for section in sections.SECTIONS if section != "networks"]
    parts = given.part or [part for section in chosen for part in sections.SECTIONS[section]]
    known = runs.Rows([*given.known, given.rows])
    tasks = sections.tasks(torch, parts, given.seed, given.tune_seconds)
    _compile_ahead({task.key for task in tasks if not known.is_done(task.key, given.again)}, given.budget)
    run = {**environment(torch, given.budget), "command": command(sys.argv[1:]), "seed": given.seed}
    return runs.measure(torch, tasks, sections.PARTS, known, given.rows, run, given.again)


def _compile_ahead(keys: set[str], seconds: float) -> None:
    """Compile the networks of the inference rows side by side, if there is more than one."""
    from tools.benchmark.networks.compile_ahead import compile_ahead
    from tools.benchmark.networks.measure_programs import INFERENCE

    programs = [program for program in INFERENCE if program.key in keys]
    if len(programs) > 1:
        done = compile_ahead(programs, min(COMPILE_SECONDS, seconds / 8))
        print(f"torch.compile: {done} of {len(programs)} networks compiled ahead", flush=True)


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
    try:
        driver = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout.split("\n")[0]
    except (OSError, subprocess.SubprocessError) as error:
        driver = f"unknown ({type(error).__name__})"
    return {
        "run": uuid.uuid4().hex[:8],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": seconds,
        "code": _digest(),
        "GPU": torch.cuda.get_device_name(0),
        "GPU capability": ".".join(map(str, torch.cuda.get_device_capability(0))),
        "driver": driver,
        "CUDA": torch.version.cuda,
        "cuDNN (torch)": raw.version_text(torch.backends.cudnn.version()),
        "cuDNN (cudnnpy)": raw.version_text(raw.version()),
        "cudnnpy": cudnnpy.__version__,
        "torch": torch.__version__,
        "cudnn-frontend": _installed("nvidia-cudnn-frontend"),
        "Python": platform.python_version(),
        "CPU": f"{_processor()}, {os.cpu_count()} cores",
    }


def command(arguments: Sequence[str]) -> str:
    """Return the command as anyone may repeat it, without files and hidden options."""
    text = " ".join(["python -m tools.benchmark", *arguments])
    return re.sub(r" --(child|(out|rows|known|merge)[ =]\S+( (?!-)\S+)*)", "", text)


def _digest() -> str:
    """Return a digest of the package's code."""
    digest = hashlib.sha256()
    for file in sorted((Path(__file__).parents[2] / "cudnnpy").rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _installed(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()


if __name__ == "__main__":
    sys.exit(main())
