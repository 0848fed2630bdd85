"""The command `cudnnpy plan`: plan a file of problems for a device profile, for a store to import."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from cudnnpy.cli.errors import UsageError
from cudnnpy.cli.text_table import printed, say, show_progress

if TYPE_CHECKING:
    from cudnnpy.tuning.problem_file import ListedProblem
    from cudnnpy.tuning.profiles.planner_process import PlannerProcess
    from cudnnpy.tuning.store.entry import Entry


# The end of the errors for a problem in place of the file.
_OF_ONE_PROBLEM = "; a file of problems must be named, and cudnnpy explain takes a problem itself"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to a parser."""
    parser.set_defaults(advice_on_unknown=_OF_ONE_PROBLEM)
    parser.add_argument("problems", metavar="PROBLEMS.txt", help="the file of problems, one a line")
    parser.add_argument(
        "--device", required=True, metavar="PROFILE", help="the device profile: a name, such as h200, or a file"
    )
    parser.add_argument("-o", "--output", required=True, metavar="PLANS.jsonl", help="the file to write")
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    # Accepted and ignored: the stub driver is always used if there is no driver.
    parser.add_argument("--stub-driver", action="store_true", help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    from cudnnpy.cli import output_files
    from cudnnpy.tuning import problem_file
    from cudnnpy.tuning.profiles import device_profile
    from cudnnpy.tuning.profiles.device_profile import DeviceProfile
    from cudnnpy.tuning.profiles.planner_process import PlannerProcess

    if options.output == "-":
        raise UsageError("-: plans must be written to a file; got standard output")
    try:
        requests, errors = problem_file.read_with_errors(options.problems)
    except FileNotFoundError:
        raise UsageError(f"{options.problems}: No such file or directory{_OF_ONE_PROBLEM}") from None
    output_files.check_writable(options.output, overwrite=options.force)
    profile = DeviceProfile.load(options.device)
    device_profile.check_release()
    for error in errors:
        say("cudnnpy plan", error)
    with PlannerProcess(profile) as planner:
        planned = []
        for number, request in enumerate(requests, 1):
            show_progress(f"planning {number} of {len(requests)}")
            planned.append((request, _entry(request, planner, options.problems)))
        show_progress("")
    entries = [entry for _, entry in planned if entry is not None]
    has_export = bool(entries) or not (planned or errors)  # a file without problems has an export without plans
    written = _write(entries, options.output) if has_export else None
    _print_summary(planned, len(errors), written, options)
    return 0 if len(entries) == len(planned) + len(errors) else 1


def _entry(request: ListedProblem, planner: PlannerProcess, file: str) -> Entry | None:
    """Return the choice for a problem; None, with the reason on standard error, if it cannot be planned."""
    from cudnnpy.errors import PlanningError

    try:
        return planner.plan(request.text)
    except PlanningError as error:
        show_progress("")
        say("cudnnpy plan", f"{file}, line {request.line}: {error}")
        return None


def _write(entries: list[Entry], path: str) -> int:
    """Write the export of a store with the first entry for each key. Return the number of entries."""
    from cudnnpy.tuning.store import exports

    distinct = {entry.key: entry for entry in reversed(entries)}
    try:
        return exports.write(Path(os.path.realpath(path)), distinct.values())
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None


def _print_summary(
    planned: list[tuple[ListedProblem, Entry | None]], invalid: int, written: int | None, options: argparse.Namespace
) -> None:
    """Print the choices and the number of plans. `invalid` is the number of texts that are not problems."""
    from cudnnpy._checks.byte_counts import bytes_text
    from cudnnpy.cli import text_table

    rows = [("problem", "choice", "workspace", "candidates")]
    for request, entry in planned:
        if entry is None:
            rows.append((request.text, "none, see above", "", ""))
            continue
        usable = sum(not candidate.rejection_reason for candidate in entry.candidates)
        count = f"{usable} of {len(entry.candidates)}"
        rows.append((request.text, entry.choice.name, bytes_text(entry.choice.workspace_size or 0), count))
    if planned:
        text_table.show(text_table.table(rows, text_table.width(), wraps=False))
    failed = invalid + sum(entry is None for _, entry in planned)
    count = f"{written} plan{'s' * (written != 1)}"
    print(printed(f"{options.output}: {'not written, since nothing was planned' if written is None else count}"))
    if failed:
        print(f"{failed} of {len(planned) + invalid} problems cannot be planned")
