"""`python -m tools.measured.survey FOLDER`: tunes convolutions that a seed draws from the benchmark's networks.

`cudnnpy tune` measures their candidates without a table, on all visible GPUs, into FOLDER/SEED.sqlite. FOLDER/SEED.jsonl is the
export, of which tools.measured makes a table. The same command continues an earlier run.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path

from cudnnpy import store
from cudnnpy._planning import problem_file
from cudnnpy._planning.problem_notation import text_of
from tools.benchmark.networks import catalogue
from tools.benchmark.networks.cells import in_order
from tools.ranking.problems import problem_of

STOP_SECONDS = 60.0  # that `cudnnpy tune` may take to end after an interrupt
INTERRUPTED = 130  # its exit status then


def write_problems(path: Path, count: int, seed: int) -> int:
    """Write a file of the first problems in the order of the seed; return how many."""
    texts = (text_of(*problem_of(cell)) for cell in in_order(catalogue.read(), seed))
    distinct = list(islice(dict.fromkeys(islice(texts, 2 * count)), count))
    problem_file.write(path, distinct)
    return len(distinct)


def tune(problems: Path, path: Path, seconds: float, each: float) -> int:
    """Tune problems into a store for some seconds; return the exit status of `cudnnpy tune`."""
    command = [sys.executable, "-m", "cudnnpy", "tune", str(problems), "--store", str(path), "--seconds", str(each)]
    with subprocess.Popen(command, env={**os.environ, "CUDNNPY_TABLES": ""}) as process:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            return process.wait(STOP_SECONDS)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.measured.survey", description=__doc__)
    parser.add_argument("folder", type=Path, help="for the problems, the store and its export")
    parser.add_argument("--seconds", type=float, default=120.0, help="of all tuning (120)")
    parser.add_argument("--tune-seconds", type=float, default=5.0, help="of tuning for each problem (5)")
    parser.add_argument("--seed", type=int, default=0, help="draws the problems (0)")
    parser.add_argument("--count", type=int, default=2000, help="of problems (2000)")
    given = parser.parse_args(arguments)
    given.folder.mkdir(parents=True, exist_ok=True)
    problems, path = given.folder / f"{given.seed}.toml", given.folder / f"{given.seed}.sqlite"
    write_problems(problems, given.count, given.seed)
    status = tune(problems, path, given.seconds, given.tune_seconds)
    if path.exists():
        with store.open(path, read_only=True) as opened:
            opened.export(given.folder / f"{given.seed}.jsonl")
            print(f"wrote {given.folder / f'{given.seed}.jsonl'}: {len(opened)} problems")
    return 0 if status == INTERRUPTED else status


if __name__ == "__main__":
    sys.exit(main())
