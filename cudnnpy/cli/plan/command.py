"""The command `cudnnpy plan`: choose for a file of problems, for a store to import, or to compare releases of cuDNN."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cudnnpy.cli.argument_types import positive, size
from cudnnpy.cli.errors import UsageError
from cudnnpy.cli.text_table import printed, say, show_progress

if TYPE_CHECKING:
    from cudnnpy.tuning.problem_file import ListedProblem
    from cudnnpy.tuning.store.entry import Entry, Key

    Choose = Callable[[ListedProblem], Entry]
    Planned = list[tuple[ListedProblem, Entry | None]]


# The end of the errors for a problem in place of the file.
_OF_ONE_PROBLEM = "; a file of problems must be named, and cudnnpy explain takes a problem itself"
_TIMED_SECONDS = 0.01  # of the search that times a choice: too short for candidates after the default choice


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to a parser."""
    parser.set_defaults(advice_on_unknown=_OF_ONE_PROBLEM)
    parser.add_argument("problems", metavar="PROBLEMS.txt", help="the file of problems, one a line")
    parser.add_argument(
        "--device",
        required=True,
        metavar="DEVICE",
        help="the device profile: a name, such as h200, or a file; with --time the ordinal of a GPU of this machine",
    )
    parser.add_argument("-o", "--output", "--save", metavar="PLANS.jsonl", help="the file to write")
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    parser.add_argument(
        "--time", action="store_true", help="run each choice on the GPU, time it and compare its result with float64"
    )
    comparison = parser.add_argument_group("comparing with another release of cuDNN")
    comparison.add_argument(
        "--compare",
        metavar="BEFORE.jsonl",
        help="print the changes since this file was written; exit status 1 if a problem is refused now",
    )
    comparison.add_argument(
        "--workspace-growth", type=size, metavar="SIZE", help="exit status 1 if a workspace grows by more than this"
    )
    comparison.add_argument(
        "--slowdown", type=positive, metavar="RATIO", help="exit status 1 if a time grows by more than this factor"
    )


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    from cudnnpy.cli import output_files
    from cudnnpy.cli.tune import tune_problem
    from cudnnpy.tuning import problem_file

    _check_arguments(options)
    try:
        requests, errors = problem_file.read_with_errors(options.problems)
    except FileNotFoundError:
        raise UsageError(f"{options.problems}: No such file or directory{_OF_ONE_PROBLEM}") from None
    before = [] if options.compare is None else _read(options.compare)
    if options.output is not None:
        output_files.check_writable(options.output, overwrite=options.force)
    with _on_gpu(options.device) if options.time else _for_profile(options.device) as (kind, choose):
        keys = [tune_problem.key_for(request.problem, request.options, kind) for request in requests]
        _check_gpu(options, before, keys)
        for error in errors:
            say("cudnnpy plan", error)
        planned = []
        for number, request in enumerate(requests, 1):
            show_progress(f"planning {number} of {len(requests)}")
            planned.append((request, _entry(request, choose, options.problems)))
        show_progress("")
    if options.compare is not None:
        is_worse = _print_comparison(options, before, planned, keys)
    else:
        _print_choices(planned)
        is_worse = any(entry is None for _, entry in planned)
    if options.output is not None:
        _write(options.output, planned, len(errors))
    return 1 if is_worse or errors else 0


def _check_arguments(options: argparse.Namespace) -> None:
    if options.output == "-":
        raise UsageError("-: plans must be written to a file; got standard output")
    for option, limit in (("--workspace-growth", options.workspace_growth), ("--slowdown", options.slowdown)):
        if limit is not None and options.compare is None:
            raise UsageError(f"{option} must be with --compare; got it without")
    if options.slowdown is not None and not options.time:
        raise UsageError("--slowdown must be with --time; got it without")
    is_ordinal = options.device.isascii() and options.device.isdigit()
    if is_ordinal is not options.time:
        expected = "the ordinal of a GPU, such as 0, with --time" if options.time else "a device profile without --time"
        raise UsageError(f"--device must be {expected}; got {options.device}")


# The GPU kind (TuningGpu.kind), and the function that chooses for it


@contextmanager
def _for_profile(name: str) -> Iterator[tuple[str, Choose]]:
    """Plan for the GPU of a device profile."""
    from cudnnpy.tuning.profiles import device_profile
    from cudnnpy.tuning.profiles.device_profile import DeviceProfile
    from cudnnpy.tuning.profiles.planner_process import PlannerProcess

    profile = DeviceProfile.load(name)
    device_profile.check_release()
    with closing(PlannerProcess(profile)) as planner:
        yield profile.text, lambda request: planner.plan(request.text)


@contextmanager
def _on_gpu(ordinal: str) -> Iterator[tuple[str, Choose]]:
    """Run the default choices on a GPU of this machine. The entries have their times and errors."""
    from cudnnpy.cli.tune import problems, tune_problem
    from cudnnpy.errors import PlanningError
    from cudnnpy.tuning.measuring.gpu_worker import GpuWorker

    gpus, device = tune_problem.tuning_gpus(), int(ordinal)
    if device >= len(gpus):
        raise UsageError(f"--device must be of a GPU that is here, 0 to {len(gpus) - 1}; got {ordinal}")

    def choose(request: ListedProblem) -> Entry:
        (job,) = problems.jobs_of([request], [gpus[device].kind], _TIMED_SECONDS)
        try:
            measurement = tune_problem.tune_on(worker, job)
        except ValueError as error:  # a problem that cuDNN rejects
            raise PlanningError(str(error)) from None
        if measurement.entry is None:
            raise PlanningError(measurement.reason)
        return measurement.entry

    with closing(GpuWorker(gpus[device].uuid)) as worker:
        yield gpus[device].kind, choose


def _entry(request: ListedProblem, choose: Choose, file: str) -> Entry | None:
    """Return the choice for a problem; None, with the reason on standard error, if it cannot be planned."""
    from cudnnpy.errors import PlanningError

    try:
        return choose(request)
    except PlanningError as error:
        show_progress("")
        say("cudnnpy plan", f"{file}, line {request.line}: {error}")
        return None


# The output


def _write(path: str, planned: Planned, invalid: int) -> None:
    """Write the export of a store with the first entry for each key. `invalid` texts are not problems."""
    from cudnnpy.tuning.store import exports

    entries = {entry.key: entry for _, entry in reversed(planned) if entry is not None}
    if entries or not (planned or invalid):  # a file without problems has an export without plans
        try:
            count = exports.write(Path(os.path.realpath(path)), entries.values())
        except OSError as error:
            raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None
        print(printed(f"{path}: {count} plan{'s' * (count != 1)}"))
    else:
        print(printed(f"{path}: not written, since nothing was planned"))
    failed = invalid + sum(entry is None for _, entry in planned)
    if failed:
        print(f"{failed} of {len(planned) + invalid} problems cannot be planned")


def _named(request: ListedProblem) -> str:
    """Return the text of a problem; for a graph, whose text is long, its line and its operations."""
    from cudnnpy.graph.problem import GraphProblem

    problem = request.problem
    return f"line {request.line}: {problem.title}" if isinstance(problem, GraphProblem) else request.text


def _print_choices(planned: Planned) -> None:
    from cudnnpy._checks.byte_counts import bytes_text
    from cudnnpy.cli import text_table

    rows = [("problem", "choice", "workspace", "candidates")]
    for request, entry in planned:
        if entry is None:
            rows.append((_named(request), "none, see above", "", ""))
            continue
        usable = sum(not candidate.rejection_reason for candidate in entry.candidates)
        count = f"{usable} of {len(entry.candidates)}"
        rows.append((_named(request), entry.choice.name, bytes_text(entry.choice.workspace_size or 0), count))
    if planned:
        text_table.show(text_table.table(rows, text_table.width(), wraps=False))


# The comparison


def _read(path: str) -> list[Entry]:
    """Return the choices that an earlier run wrote. Raises UsageError for choices of several GPUs or releases."""
    from cudnnpy.tuning.store import exports

    try:
        entries = exports.read(Path(path)).entries
    except ValueError as error:
        raise UsageError(f"--compare: {error}") from None
    if len({entry.key[2:] for entry in entries}) > 1:
        raise UsageError(
            f"--compare must name a file of one GPU and one release of cuDNN; got {path}, which has several"
        )
    return entries


def _check_gpu(options: argparse.Namespace, before: Sequence[Entry], keys: Sequence[Key]) -> None:
    """Raise UsageError if an earlier run was for another GPU."""
    if before and keys and before[0].key[2:5] != keys[0][2:5]:
        raise UsageError(f"--device must be as in {options.compare}, {before[0].key.gpu}; got {keys[0].gpu}")


def _print_comparison(
    options: argparse.Namespace, before: Sequence[Entry], planned: Planned, keys: Sequence[Key]
) -> bool:
    """Print the changes since an earlier run. Return whether a choice is worse, by the limits of the options."""
    from cudnnpy import raw
    from cudnnpy.cli import text_table
    from cudnnpy.cli.plan import comparison
    from cudnnpy.cli.plan.comparison import Comparison

    former = {entry.key[:2]: entry for entry in before}
    comparisons = [
        Comparison(_named(request), former.get(key[:2]), entry)
        for (request, entry), key in zip(planned, keys, strict=True)
    ]
    text_table.show(comparison.table(comparisons, text_table.terminal_width()))
    if others := former.keys() - {key[:2] for key in keys}:
        count = f"{len(others)} problem{'s' * (len(others) != 1)}"
        print(printed(f"not compared: {count} of {options.compare}, not in {options.problems}"))
    worse = [(one.text, one.why_worse(options.workspace_growth, options.slowdown)) for one in comparisons]
    worse = [(text, reason) for text, reason in worse if reason]
    for text, reason in worse:
        print(printed(f"worse: {text}: {reason}"))
    release = before[0].key.cudnn if before else raw.version()
    print(comparison.summary(comparisons, release, raw.version()))
    return bool(worse)
