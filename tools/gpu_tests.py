"""Run the tests that need a GPU in parts, each with as many processes as it takes, and write their whole logs.

    python -m tools.gpu_tests --out logs                      # every part but the long ones
    python -m tools.gpu_tests --out logs --at-once 3          # up to three parts at a time
    python -m tools.gpu_tests --out logs soak memcheck        # these parts
    python -m tools.gpu_tests --out logs --seconds 500        # parts that are not done then are ended

The last lines are a table of the parts with their results, and the exit status is 0 if all passed. The part `rest` is every
file that no other part names. Parts with several processes need pytest-xdist, and `memcheck` needs
compute-sanitizer of the CUDA toolkit. On a machine with several GPUs, parts that run at once take them in turn.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "gpu"
_SANITIZER = ("compute-sanitizer", "--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", "9")
_SUMMARY = re.compile(r"^(=+ )?(\d+ (passed|failed|skipped|error|deselected|warning).*?)( =+)?$")


class Part(NamedTuple):
    """Some files of tests/gpu, with the number of processes and the environment that run them."""

    files: tuple[str, ...]
    processes: int = 1
    environment: tuple[tuple[str, str], ...] = ()
    arguments: tuple[str, ...] = ()
    before: tuple[str, ...] = ()  # the words of the command before Python
    is_long: bool = False
    needs_all_gpus: bool = False


# The slowest first. The part memory fills the GPU's memory: it runs last, and alone.
PARTS: dict[str, Part] = {
    "operations": Part(
        ("test_operations", "test_operations_arrays", "test_operation_strategies", "test_normalizations_gpu"), 9
    ),
    "rest": Part((), 6),
    "networks": Part(("test_torch_kernels_gpu", "test_network_example_gpu", "test_torch_for_the_gpu"), 6),
    "opinfo": Part(("test_opinfo_gpu",), 4),
    "properties": Part(("test_convolution_properties",), environment=(("CUDNNPY_PROPERTY_EXAMPLES", "60"),)),
    "drawn": Part(("test_drawn_graphs",), environment=(("CUDNNPY_PROPERTY_EXAMPLES", "1000"),)),
    "memory": Part(("test_tuning_memory", "test_measuring_process")),
    "cluster": Part(("test_cluster_gpu",), needs_all_gpus=True),
    "soak": Part(("test_soak",), environment=(("CUDNNPY_SOAK", "1000000"),), is_long=True),
    "memcheck": Part((), arguments=("-k", "smoke"), before=_SANITIZER, is_long=True),
}
ALONE = frozenset({"memory", "cluster", "soak"})
_SUMMARY_SECONDS = 15.0  # that a part may take to print its failures when it is ended


class Result(NamedTuple):
    """What came of a part."""

    name: str
    seconds: float
    status: int | None  # None: it was ended
    summary: str

    def __str__(self) -> str:
        status = "ended" if self.status is None else "passed" if self.status == 0 else f"exit status {self.status}"
        return f"{self.name:<11} {self.seconds:6.0f} s  {status:<14} {self.summary}"


def files_of(name: str) -> list[str]:
    """Return the files of a part, relative to the project; "rest" has the files of no other part."""
    part = PARTS[name]
    if part.files:
        return [f"tests/gpu/{file}.py" for file in part.files]
    if part.arguments:
        return ["tests/gpu"]
    others = {file for other in PARTS.values() for file in other.files}
    return [f"tests/gpu/{path.name}" for path in sorted(FOLDER.glob("test_*.py")) if path.stem not in others]


def command(name: str) -> list[str]:
    """Return the command of a part."""
    part = PARTS[name]
    spread = ["-n", str(part.processes)] if part.processes > 1 else []
    quiet = ["-q", "-rsf", "-p", "no:cacheprovider", "-p", "no:benchmark"]  # pytest-benchmark warns beside pytest-xdist
    return [*part.before, sys.executable, "-m", "pytest", *quiet, *spread, *part.arguments, *files_of(name)]


def run(name: str, out: Path, deadline: float, gpu: str | None) -> Result:
    """Run a part, whose log is <out>/<name>.log, until it is done or the deadline is reached."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))  # programs that tests start need it
    environment = {**os.environ, "PYTHONPATH": path, "CUDNNPY_REQUIRE_GPU": "1", "CUDNNPY_STORE": ""}
    environment |= dict(PARTS[name].environment)
    if gpu is not None and not PARTS[name].needs_all_gpus:
        environment["CUDA_VISIBLE_DEVICES"] = gpu
    log, begin = out / f"{name}.log", time.monotonic()
    status: int | None = None
    with log.open("w", encoding="utf-8") as stream:
        started = subprocess.Popen(
            command(name), cwd=ROOT, env=environment, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = started.wait(max(deadline - begin, 0.0))
        except subprocess.TimeoutExpired:
            started.send_signal(signal.SIGINT)  # pytest prints the failures so far
            with suppress(subprocess.TimeoutExpired):
                started.wait(_SUMMARY_SECONDS)
        finally:
            if status is None:
                with suppress(ProcessLookupError):  # all of them have ended
                    os.killpg(started.pid, signal.SIGKILL)
                started.wait()
    return Result(name, time.monotonic() - begin, status, summary(log.read_text(encoding="utf-8", errors="replace")))


def summary(log: str) -> str:
    """Return pytest's line of results, and the sanitizer's, or the last line of a log without one."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    found = [match[2] for line in lines if (match := _SUMMARY.match(line))][-1:]
    found += [line.removeprefix("=").strip("= ") for line in lines if "ERROR SUMMARY" in line][-1:]
    return "; ".join(found or lines[-1:])


def gpus() -> list[str]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names; without it, the numbers of several GPUs, or nothing."""
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return visible.split(",")
    if shutil.which("nvidia-smi") is None:
        return []
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout.splitlines()
    return [str(number) for number in range(len(listed))] if len(listed) > 1 else []


def run_all(names: Sequence[str], out: Path, at_once: int, seconds: float) -> Iterator[Result]:
    """Run parts and yield their results: those that may run beside others, then the others one by one."""
    deadline, turn = time.monotonic() + seconds, itertools.cycle(gpus() or [None])
    beside = [name for name in names if name not in ALONE]
    with ThreadPoolExecutor(at_once) as pool:
        waiting = [pool.submit(run, name, out, deadline, next(turn)) for name in beside]
        yield from (one.result() for one in waiting)
    for name in names:
        if name in ALONE:
            yield run(name, out, deadline, next(turn))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_tests", description=__doc__.split("\n\n")[0])
    usual = [name for name, part in PARTS.items() if not part.is_long]
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; without one, {', '.join(usual)}"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the logs")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="how many parts run at a time (1)")
    parser.add_argument("--seconds", type=float, default=3600.0, help="after which parts are ended (3600)")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.parts if name not in PARTS]
    if unknown:
        parser.error(f"PART must be of {', '.join(PARTS)}; got {', '.join(unknown)}")
    if given.at_once < 1 or given.seconds <= 0:
        parser.error(f"--at-once and --seconds must be above 0; got {given.at_once} and {given.seconds:g}")
    given.out.mkdir(parents=True, exist_ok=True)
    results = []
    for result in run_all(given.parts or usual, given.out, given.at_once, given.seconds):
        print(result, flush=True)
        results.append(result)
    return 0 if all(result.status == 0 for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
