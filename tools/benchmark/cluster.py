"""`python -m tools.benchmark.cluster`: tuning and training on 1, 2 and more GPUs of a machine, within a budget of seconds.

- The time to tune problems that a seed draws from the benchmark's networks: by `cudnnpy tune` on 1, 2, ... GPUs, and by
  `cudnnpy tune --dask` with a LocalCluster that has a worker for each GPU.
- Whether processes on all GPUs choose alike afterwards, without measuring.
- docs/examples/data_parallel.py: the images per second of ResNet-50, and their scaling.

Parts without time are cut short. Writes cluster.json and logs to --out, and prints a summary last.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from cudnnpy import store as stores
from cudnnpy._planning import problem_file
from tools.ranking.drawing import draw

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "data_parallel.py"
LEAST_SECONDS = 10.0  # below which nothing more is begun


class Run:
    """The results so far, and the remaining time."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.rows = given, dict[str, Any]()
        self.end: float = time.monotonic() + given.budget
        self.problems = given.out / "problems.txt"

    @property
    def left(self) -> float:
        """Seconds."""
        return self.end - time.monotonic()

    def command(self, name: str, arguments: Sequence[str], most: float, **environment: str) -> tuple[int, str, float]:
        """Run Python with arguments; interrupt it after `most` seconds. Returns the exit status, the output and the seconds."""
        begin, log = time.monotonic(), self.given.out / f"{file_name(name)}.log"
        with log.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": _paths(), "PYTHONUNBUFFERED": "1", **environment},
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait(max(min(most, self.left), LEAST_SECONDS))
            except subprocess.TimeoutExpired:
                _stop(process)
        return process.returncode, log.read_text(errors="replace"), time.monotonic() - begin


def file_name(name: str) -> str:
    """Return a file name for a part."""
    return re.sub(r"\W+", "-", name)


def _paths() -> str:
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def _stop(process: subprocess.Popen[Any]) -> None:
    """Interrupt a process group, as Ctrl-C does; kill it if it does not end."""
    for number, seconds in ((signal.SIGINT, 10.0), (signal.SIGKILL, None)):
        os.killpg(process.pid, number)
        try:
            process.wait(seconds)
            break
        except subprocess.TimeoutExpired:
            continue


# Tuning


def tune(run: Run, name: str, most: float, *how: str) -> None:
    """Tune the problems into a store of their own."""
    store = run.given.out / f"{file_name(name)}.sqlite"
    arguments = ["-m", "cudnnpy", "tune", str(run.problems), "--store", str(store), *how]
    status, printed, seconds = run.command(name, [*arguments, "--seconds", str(run.given.seconds)], most)
    done = 0
    if store.exists():
        with stores.open(store, read_only=True) as opened:
            done = len(opened)
    failed = [line for line in printed.splitlines() if "not tuned: " in line]
    run.rows[name] = {"status": status, "seconds": round(seconds, 1), "done": done, "not tuned": failed[:20]}


def tune_by_dask(run: Run, gpus: int, most: float) -> None:
    """Tune the problems with a LocalCluster."""
    name = f"dask, {gpus} GPUs"
    try:
        import distributed  # noqa: F401
    except ImportError as error:
        run.rows[name] = {"absent": str(error)}
        return
    with subprocess.Popen(
        [sys.executable, "-m", "tools.benchmark.cluster", "--serve", str(gpus)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": _paths()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        tune(run, name, most, "--dask", address)
        process.stdin.close()


def serve(gpus: int) -> int:
    """A LocalCluster with a worker for each GPU, until the input ends; prints its address."""
    from distributed import LocalCluster

    with LocalCluster(n_workers=gpus, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
    return 0


# Choices


def choices(path: Path, device: int) -> int:
    """Plan problems on a device with the stored choices; prints the digest of the choices."""
    import cudnnpy
    from cudnnpy._measuring.tuner import Tuner
    from cudnnpy._planning.options import with_limit
    from cudnnpy._planning.selection import plan_for
    from cudnnpy.handle import on_device

    names, begin = [], time.perf_counter()
    with cudnnpy.freeze() as frozen, on_device(device):
        for request in problem_file.read(path, device):
            options = with_limit(request.options)._replace(prefer="autotune", tune_seconds=0.1)
            plan = plan_for(request.problem, options, Tuner(device))
            names.append((request.text, plan.name, plan.workspace_size))
    digest = hashlib.sha256(repr(names).encode()).hexdigest()[:16]
    seconds = round(time.perf_counter() - begin, 1)
    print(json.dumps({"digest": digest, "problems": len(names), "unknown": len(frozen.unknown), "seconds": seconds}))
    return 0


def choose_alike(run: Run, name: str, gpus: int, most: float) -> None:
    """Plan the problems of a store in a process on each GPU, one after another."""
    found = []
    for device in range(gpus):
        arguments = ["-m", "tools.benchmark.cluster", "--choices", str(run.problems), "--device", str(device)]
        store = str(run.given.out / f"{file_name(name)}.sqlite")
        status, printed, _ = run.command(f"choices-{device}", arguments, most, CUDNNPY_STORE=store)
        last = printed.strip().splitlines()[-1:] or [""]
        found.append(json.loads(last[0]) if status == 0 else {"failed": last[0]})
    digests = {one.get("digest") for one in found}
    alike = len(digests) == 1 and None not in digests
    run.rows["choices"] = {"status": int(not alike), "alike": alike, "store": name, "processes": found}


# Training


def train(run: Run, network: str, gpus: int, most: float, *more: str) -> None:
    """Run the example with a store of its own."""
    name = f"{network}, {gpus} GPUs"
    store = run.given.out / f"{network}-{gpus}.sqlite"
    arguments = [str(EXAMPLE), "--network", network, "--gpus", str(gpus), "--store", str(store)]
    status, printed, seconds = run.command(name, [*arguments, *more], most)
    lines = [line for line in printed.splitlines() if line.strip() and "Warning" not in line]
    run.rows[name] = {"status": status, "seconds": round(seconds, 1), "printed": lines[-9:]}


# The command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status: 1 if a part failed."""
    parser = argparse.ArgumentParser(prog="python -m tools.benchmark.cluster", description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=Path("cluster"), help="folder for the results")
    parser.add_argument("--gpus", type=int, default=2, help="the most GPUs (2)")
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=0.25, help="of tuning for each problem (0.25)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=280.0, help="seconds for all of it (280)")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--choices", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--device", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.serve is not None:
        return serve(given.serve)
    if given.choices is not None:
        return choices(given.choices, given.device)
    given.out = given.out.absolute()
    given.out.mkdir(parents=True, exist_ok=True)
    run = Run(given)
    count = write_problems(run.problems, given.problems, given.seed)
    for part in parts(run):
        if run.left < LEAST_SECONDS:
            break
        part()
    (given.out / "cluster.json").write_text(json.dumps(run.rows, indent=1))
    print("\n".join(summary(run.rows, count)))
    return 0 if all(row.get("status", 0) in (0, 130) for row in run.rows.values()) else 1


def write_problems(path: Path, count: int, seed: int) -> int:
    """Write a file of problems that a seed draws from the benchmark's networks; return how many."""
    texts = dict.fromkeys(draw(seed, number, around=0.0).text for number in range(2 * count))
    distinct = list(islice(texts, count))
    problem_file.write(path, distinct)
    return len(distinct)


def parts(run: Run) -> list[Callable[[], None]]:
    """Return the parts in the order of importance, each with its time limit."""
    most = run.given.gpus
    counts = [count for count in (2, 4, 8) if count <= most]
    found: list[Callable[[], None]] = []
    for gpus in counts:
        found += [
            lambda gpus=gpus: train(run, "resnet50", gpus, 90.0, "--tune-seconds", "0.3", "--steps", "40"),  # type: ignore[misc]
            lambda gpus=gpus: tune(run, f"pool, {gpus} GPUs", 70.0, "--gpus", ",".join(map(str, range(gpus)))),  # type: ignore[misc]
        ]
    last = counts[-1] if counts else 1
    return [
        *found,
        lambda: tune_by_dask(run, last, 70.0),
        lambda: choose_alike(run, f"pool, {last} GPUs" if counts else "pool, 1 GPU", last, 20.0),
        lambda: tune(run, "pool, 1 GPU", 150.0, "--gpus", "0"),
    ]


def summary(rows: dict[str, Any], count: int) -> list[str]:
    """Return the results as lines."""
    lines = []
    for name, row in rows.items():
        if "done" in row:
            rate = row["done"] / row["seconds"]
            lines.append(f"tune, {name}: {row['done']} of {count} problems in {row['seconds']} s, {rate:.2f} a second")
            lines += [f"    {line}" for line in row["not tuned"][:3]]
        elif "printed" in row:
            lines.append(f"{name}: exit status {row['status']}, {row['seconds']} s")
            lines += [f"    {line}" for line in row["printed"]]
        else:
            lines.append(f"{name}: {json.dumps(row)}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
