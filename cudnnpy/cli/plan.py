"""The command `cudnnpy plan`: choose for a file of problems, for a store to import, or to compare releases of cuDNN."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from statistics import geometric_mean
from typing import NamedTuple

from cudnnpy import raw
from cudnnpy._checks.byte_counts import bytes_text
from cudnnpy._planning.choice import Choice, GpuKind
from cudnnpy._planning.engines import Target, gpu_kind
from cudnnpy.cli.arguments import UsageError, check_writable, is_ordinal, positive, size
from cudnnpy.cli.text_table import choice_cells, printed, say, show, show_progress, table
from cudnnpy.cli.tune import tune_problem
from cudnnpy.errors import NoAlgorithmError, PlanningError
from cudnnpy.graph.problem import GraphProblem
from cudnnpy.tuning import problem_file
from cudnnpy.tuning.measuring import gpu_worker
from cudnnpy.tuning.problem_file import ListedProblem
from cudnnpy.tuning.profiles import device_profile
from cudnnpy.tuning.profiles.device_profile import DeviceProfile
from cudnnpy.tuning.profiles.planner_process import PlannerProcess
from cudnnpy.tuning.store.entry import Entry, Key
from cudnnpy.tuning.store.store import Store
from cudnnpy.tuning.stored_choice import key_of

Choose = Callable[[ListedProblem], Entry]

# The end of the errors for a problem in place of the file.
_OF_ONE_PROBLEM = "; a file of problems must be named, and cudnnpy explain takes a problem itself"
_TIMED_SECONDS = 0.01  # of the search that times a choice: too short for candidates after the default choice
# The values of Planned.change, the most serious first
_CHANGES = ("refused now", "another engine", "other knobs", "planned only now", "the same choice", "refused both times")


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


class Planned(NamedTuple):
    """A problem, its key, and the choices for it now and in an earlier run; None where it is refused, or was not planned."""

    request: ListedProblem
    key: Key
    now: Entry | None
    before: Entry | None

    @property
    def text(self) -> str:
        """The text of the problem; for a graph, whose text is long, its line and its operations."""
        problem = self.request.problem
        return f"line {self.request.line}: {problem.title}" if isinstance(problem, GraphProblem) else self.request.text

    @property
    def change(self) -> str:
        """The difference of the choices."""
        if self.now is None:
            return "refused both times" if self.before is None else "refused now"
        if self.before is None:
            return "planned only now"
        before, now = self.before.choice, self.now.choice
        if before.name == now.name:
            return "the same choice"
        return "other knobs" if _without_knobs(before) == _without_knobs(now) else "another engine"

    @property
    def slowdown(self) -> float:
        """The time now over the time before; 0.0 unless both were measured."""
        before, now = (entry and entry.choice.milliseconds for entry in (self.before, self.now))
        return now / before if before and now else 0.0

    def why_worse(self, workspace_growth: int | None, slowdown: float | None) -> str:
        """Return why the choice is worse than before by these limits; "" if it is not. None is no limit."""
        if self.change == "refused now":
            return "refused now"
        if self.before is None or self.now is None:
            return ""
        growth = (self.now.choice.workspace_size or 0) - (self.before.choice.workspace_size or 0)
        reasons = []
        if workspace_growth is not None and growth > workspace_growth:
            reasons.append(f"needs {bytes_text(growth)} more workspace")
        if slowdown is not None and self.slowdown > slowdown:
            reasons.append(f"takes {self.slowdown:.3f} times as long")
        return ", ".join(reasons)


def _without_knobs(choice: Choice) -> object:
    """Return what choices that differ only in the knobs of the engine have in common."""
    engine = choice.engine
    return choice.name if engine is None else (engine.index, engine._lowering_options, choice.lowering)


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    _check_arguments(options)
    try:
        requests, errors = problem_file.read_with_errors(options.problems)
    except FileNotFoundError:
        raise UsageError(f"{options.problems}: No such file or directory{_OF_ONE_PROBLEM}") from None
    before = [] if options.compare is None else _read(options.compare)
    if options.output is not None:
        check_writable(options.output, overwrite=options.force)
    with _on_gpu(options.device) if options.time else _for_profile(options.device) as (kind, choose):
        keys = [key_of(request.problem, request.options, kind) for request in requests]
        if before and keys and before[0].key[2:5] != keys[0][2:5]:
            raise UsageError(f"--device must be as in {options.compare}, {before[0].key.gpu}; got {keys[0].gpu}")
        for error in errors:
            say("cudnnpy plan", error)
        former = {entry.key[:2]: entry for entry in before}
        planned: list[Planned] = []
        for request, key in zip(requests, keys, strict=True):
            show_progress(f"planning {len(planned) + 1} of {len(requests)}")
            try:
                now = choose(request)
            except (NoAlgorithmError, PlanningError) as error:
                now = None
                say("cudnnpy plan", f"{options.problems}, line {request.line}: {error}")
            planned.append(Planned(request, key, now, former.get(key[:2])))
        show_progress("")
    if options.compare is not None:
        is_worse = _print_comparison(options, before, planned)
    else:
        _print_choices(planned)
        is_worse = any(one.now is None for one in planned)
    if options.output is not None:
        _write(options.output, planned, len(errors))
    return 1 if is_worse or errors else 0


def _check_arguments(options: argparse.Namespace) -> None:
    for option, needed in (("workspace_growth", "compare"), ("slowdown", "compare"), ("slowdown", "time")):
        if getattr(options, option) is not None and not getattr(options, needed):
            raise UsageError(f"--{option.replace('_', '-')} must be with --{needed}; got it without")
    if is_ordinal(options.device) is not options.time:
        expected = "the ordinal of a GPU, such as 0, with --time" if options.time else "a device profile without --time"
        raise UsageError(f"--device must be {expected}; got {options.device}")


def _read(path: str) -> list[Entry]:
    """Return the choices that an earlier run wrote. Raises UsageError for choices of several GPUs or releases."""
    entries = [*Store(path, read_only=True)]
    if len({entry.key[2:] for entry in entries}) > 1:
        raise UsageError(
            f"--compare must name a file of one GPU and one release of cuDNN; got {path}, which has several"
        )
    return entries


# The GPU kind, and the function that chooses for it


@contextmanager
def _for_profile(name: str) -> Iterator[tuple[GpuKind, Choose]]:
    """Plan for the GPU of a device profile."""
    profile = DeviceProfile.load(name)
    device_profile.check_release()
    with closing(PlannerProcess(profile)) as planner:
        yield gpu_kind(Target(profile=profile.text)), lambda request: planner.plan(request.problem, request.options)


@contextmanager
def _on_gpu(ordinal: str) -> Iterator[tuple[GpuKind, Choose]]:
    """Run the default choices on a GPU of this machine. The entries have their times and errors."""
    gpus, device = tune_problem.tuning_gpus(), int(ordinal)
    if device >= len(gpus):
        raise UsageError(f"--device must be of a GPU that is here, 0 to {len(gpus) - 1}; got {ordinal}")

    def choose(request: ListedProblem) -> Entry:
        (job,) = tune_problem.jobs_of([request], [gpus[device].kind], _TIMED_SECONDS)
        try:
            measurement = tune_problem.tune_on(worker, job)
        except ValueError as error:  # a problem that cuDNN rejects
            raise PlanningError(str(error)) from None
        if measurement.entry is None:
            raise PlanningError(measurement.reason)
        return measurement.entry

    with closing(gpu_worker.GpuWorker(gpus[device].uuid)) as worker:
        yield gpus[device].kind, choose


# The output


def _write(path: str, planned: Sequence[Planned], invalid: int) -> None:
    """Write the export of a store with the first entry for each key. `invalid` texts are not problems."""
    store = Store("")
    for one in planned:
        if one.now is not None:
            store.put(one.now)
    if len(store) or not (planned or invalid):  # a file without problems has an export without plans
        count = store.export(path)
        print(printed(f"{path}: {count} plan{'s' * (count != 1)}"))
    else:
        print(printed(f"{path}: not written, since nothing was planned"))
    failed = invalid + sum(one.now is None for one in planned)
    if failed:
        print(f"{failed} of {len(planned) + invalid} problems cannot be planned")


def _print_choices(planned: Sequence[Planned]) -> None:
    rows = []
    for one in planned:
        candidates = () if one.now is None else one.now.candidates
        usable = sum(not candidate.rejection_reason for candidate in candidates)
        counts = f"{usable} of {len(candidates)}" if candidates else "none, see above"
        rows.append({"problem": one.text, **choice_cells(one.now and one.now.choice), "candidates": counts})
    if rows:
        show(table(rows, shortens=True))


def _print_comparison(options: argparse.Namespace, before: Sequence[Entry], planned: Sequence[Planned]) -> bool:
    """Print the changes since an earlier run. Return whether a choice is worse, by the limits of the options."""
    rows = []
    for one in sorted(planned, key=lambda one: _CHANGES.index(one.change)):
        then, now = (choice_cells(entry and entry.choice) for entry in (one.before, one.now))
        cells = {title: text if text == then[title] else f"{then[title]} -> {text}" for title, text in now.items()}
        rows.append({"problem": one.text, "change": one.change, **cells})
    if rows:
        show(table(rows))
    if others := {entry.key[:2] for entry in before} - {one.key[:2] for one in planned}:
        count = f"{len(others)} problem{'s' * (len(others) != 1)}"
        print(printed(f"not compared: {count} of {options.compare}, not in {options.problems}"))
    worse = [(one.text, one.why_worse(options.workspace_growth, options.slowdown)) for one in planned]
    for text, reason in worse:
        if reason:
            print(printed(f"worse: {text}: {reason}"))
    counts = Counter(one.change for one in planned)
    changes = ", ".join(f"{counts[change]} {change}" for change in _CHANGES if counts[change])
    ratios = [one.slowdown for one in planned if one.slowdown]
    times = f"; time now over before: {geometric_mean(ratios):.3f} in the geometric mean" if ratios else ""
    releases = (before[0].key.cudnn if before else raw.version(), raw.version())
    count = f"{len(planned)} problem{'s' * (len(planned) != 1)}"
    print(f"cuDNN {' and '.join(map(raw.version_text, releases))}: {count}: {changes or 'none'}{times}")
    return any(reason for _, reason in worse)
