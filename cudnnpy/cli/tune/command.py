"""The command `cudnnpy tune`: measure the candidates of problems on all GPUs, and store the choices."""

from __future__ import annotations

import argparse

from cudnnpy._checks.preferences import TUNE_SECONDS
from cudnnpy.cli.argument_types import positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to a parser."""
    parser.add_argument(
        "problems",
        nargs="?",
        metavar="PROBLEMS.txt",
        help="a file of problems, one a line",
    )
    parser.add_argument(
        "--record",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT.py",
        help="run a program (SCRIPT.py or -m MODULE, with all following arguments) and tune its problems; the last option",
    )
    parser.add_argument("--save", metavar="PROBLEMS.txt", help="with --record: write the file of its problems")
    parser.add_argument(
        "--store", metavar="FILE", help="the store of the choices (default: the user's store, or CUDNNPY_STORE)"
    )
    parser.add_argument(
        "--dask",
        metavar="SCHEDULER",
        help="tune on the GPUs of a Dask cluster, one worker for each: the address of its scheduler",
    )
    parser.add_argument(
        "--seconds",
        type=positive,
        help=f"the time limit of one problem (default: its tune_seconds in the file, otherwise {TUNE_SECONDS:g})",
    )
    parser.add_argument(
        "--thorough",
        action="store_true",
        help="measure all candidates within the time limit, not only until several in a row gain nothing",
    )
    parser.add_argument("--html", metavar="FILE.html", help="write the report as a page of HTML")
    parser.add_argument("--force", action="store_true", help="overwrite existing files")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    from cudnnpy.cli.tune import session

    return session.run(options)
