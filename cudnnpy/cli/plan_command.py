"""The command `cudnnpy plan`: plans a file of problems for a device profile, for a store to import."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cudnnpy.cli.text_table import printed, say

if TYPE_CHECKING:
    from cudnnpy._planning.problem_file import ListedProblem
    from cudnnpy._store.entry import Entry
    from cudnnpy.cli.planner import Planner


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to a parser."""
    parser.add_argument("problems", metavar="PROBLEMS.toml", help="the file of problems")
    parser.add_argument("--device", required=True, metavar="PROFILE.json", help="the file of the device profile")
    parser.add_argument("-o", "--output", required=True, metavar="PLANS.jsonl", help="the file to write")
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    parser.add_argument(
        "--stub-driver", action="store_true", help="build a stand-in for the CUDA driver, if there is none"
    )


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    from cudnnpy.cli.planner import NoDriverError
    from cudnnpy.cli.stub_driver import StubDriverError
    from cudnnpy.errors import CudnnError, LibraryError, StatusError

    try:
        return _plan(options)
    except StatusError as error:  # some are ValueErrors
        return say("cudnnpy plan", error, 1)
    except (ValueError, NoDriverError, StubDriverError, LibraryError) as error:
        return say("cudnnpy plan", error, 2)
    except (CudnnError, MemoryError, RuntimeError) as error:
        return say("cudnnpy plan", error, 1)


def _plan(options: argparse.Namespace) -> int:
    from cudnnpy._planning import device_profile
    from cudnnpy.cli import output_files, stub_driver
    from cudnnpy.cli.planner import Planner

    if options.output == "-":
        raise output_files.OutputError("-: plans must be written to a file; got standard output")
    output_files.check_writable(options.output, overwrite=options.force)
    requests = _read(options.problems)
    device = device_profile.read(options.device)
    device_profile.check_release()
    if note := stub_driver.note(options.stub_driver):
        say("cudnnpy plan", note)
    with Planner(device, stub=options.stub_driver) as planner:
        planned = []
        for number, request in enumerate(requests, 1):
            _show_progress(f"planning {number} of {len(requests)}")
            planned.append((request, _entry(request, planner, options.problems)))
        _show_progress("")
    entries = [entry for _, entry in planned if entry is not None]
    is_written = bool(entries) or not planned  # a file without problems has an export without plans
    written = _write(entries, options.output) if is_written else None
    _print_summary(planned, written, options)
    return 0 if len(entries) == len(planned) else 1


def _read(path: str) -> list[ListedProblem]:
    from cudnnpy._planning import problem_file
    from cudnnpy._planning.problem_notation import ProblemTextError

    try:
        return problem_file.read(path)
    except OSError as error:
        raise ProblemTextError(error.strerror or str(error), file=path) from None


def _entry(request: ListedProblem, planner: Planner, file: str) -> Entry | None:
    """Return the choice for a problem; None, with the reason on standard error, if it cannot be planned."""
    from cudnnpy.cli.planner import PlanningError

    try:
        return planner.plan(request.text)
    except PlanningError as error:
        _show_progress("")
        say("cudnnpy plan", f"{file}, line {request.line}: {error}")
        return None


def _show_progress(text: str) -> None:
    """Replace the last line of standard error by a text, if it is a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _write(entries: list[Entry], path: str) -> int:
    """Write the export of a store with these entries, the first one for each key. Return how many they are."""
    from cudnnpy._store import exports
    from cudnnpy.cli.output_files import OutputError

    distinct = {entry.key: entry for entry in reversed(entries)}
    try:
        return exports.write(Path(os.path.realpath(path)), distinct.values())
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from None


def _print_summary(
    planned: list[tuple[ListedProblem, Entry | None]], written: int | None, options: argparse.Namespace
) -> None:
    from cudnnpy._options.byte_counts import bytes_text
    from cudnnpy.cli import explanation, text_table

    rows = [("problem", "choice", "workspace", "candidates")]
    for request, entry in planned:
        if entry is None:
            rows.append((request.text, "none, see above", "", ""))
            continue
        usable = sum(not one.refused for one in entry.candidates)
        count = f"{usable} of {len(entry.candidates)}"
        rows.append((request.text, explanation.name_of(entry.plan), bytes_text(entry.workspace_size), count))
    if planned:
        text_table.show(text_table.table(rows, text_table.width()))
    failed = sum(entry is None for _, entry in planned)
    count = f"{written} plan{'s' * (written != 1)}"
    said = "not written, since nothing was planned" if written is None else count
    print(printed(f"{options.output}: {said}"))
    if failed:
        print(f"{failed} of {len(planned)} problems cannot be planned")
