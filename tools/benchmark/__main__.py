"""`python -m tools.benchmark SECTION -o FILE`: times of cudnnpy over PyTorch's, side by side in one run on a GPU.

host        host cost of a tiny convolution, by each way to call it and by the number of address tuples
inference   whole networks that docs/examples/torch_network.py converted
training    steps with and without cudnnpy.torch.enable()

A row is appended to FILE when it is measured, and its ratios are printed. The same command continues a run that was
stopped. The exit status is 1 if a row failed. README.md in this folder describes the rows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from tools.benchmark import command
from tools.benchmark.runs import Row, Task

SECTIONS = ("host", "inference", "training")
HANG_SECONDS = 400.0  # without a new line in the file, after which a child is ended


def tasks(torch: Any, given: argparse.Namespace) -> Iterator[Task]:
    """Yield the rows of the sections that are given."""
    from tools.benchmark import host
    from tools.benchmark.networks import measure_programs

    if "host" in given.sections:
        for dtype in host.DTYPES:
            yield Task(f"host | {dtype}", partial(host.measure, torch, dtype))
    for program in (*measure_programs.INFERENCE, *measure_programs.TRAINING):
        if program.part in given.sections:
            measured = partial(measure_programs.measure, torch, program, tune_seconds=given.tune_seconds)
            yield Task(program.key, measured)


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the number of rows: each was printed when it was measured."""
    yield f"{len(rows)} rows, {sum(bool(row['error']) for row in rows)} failed"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    parser = command.parser("tools.benchmark", __doc__, 480)
    parser.add_argument("sections", nargs="+", choices=SECTIONS, metavar="SECTION", help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("--tune-seconds", type=float, metavar="SECONDS", help="autotune's limit for each problem")
    return command.main(parser, tasks, lines, HANG_SECONDS, arguments)


if __name__ == "__main__":
    sys.exit(main())
