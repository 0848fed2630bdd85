"""One run of `cudnnpy tune`: what is to be tuned, what the store has of it, the workers for the rest, and the report."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple, cast

from cudnnpy import store as stores
from cudnnpy._measuring.gpu_worker import GpuWorker
from cudnnpy._planning import problem_file
from cudnnpy._planning.candidate_filter import FoundFault, Symptom
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem_file import ListedProblem
from cudnnpy._planning.problem_notation import ProblemTextError
from cudnnpy._planning.stored_choice import choice_text
from cudnnpy._store import exports
from cudnnpy._store.database import Store, why_in_memory
from cudnnpy._store.entry import Entry, Key
from cudnnpy._store.layers import VARIABLE, Layers
from cudnnpy.availability import UnavailableError
from cudnnpy.cli import output_files, tuning, tuning_page, tuning_report
from cudnnpy.cli.output_files import OutputError
from cudnnpy.cli.text_table import say
from cudnnpy.cli.tuning import Job, TuningGpu
from cudnnpy.cli.tuning_cluster import Cluster
from cudnnpy.cli.tuning_progress import progress
from cudnnpy.cli.tuning_report import Row
from cudnnpy.cli.tuning_roster import ClusterError
from cudnnpy.cli.tuning_workers import Result, Workers
from cudnnpy.errors import LibraryNotFoundError

_FILES = ("table.txt", "table.csv", "plots.pdf")


class _RequestError(ValueError):
    """Arguments do not fit together, or to this machine."""


# Errors of which one line is all that a user needs.
BAD_INPUT = (
    ProblemTextError,
    OutputError,
    UnavailableError,
    LibraryNotFoundError,
    ImportError,
    ClusterError,
    _RequestError,
)


class Machine(NamedTuple):
    """Dependencies of a tuning run; tests replace them. `worker` returns the worker of a GPU's UUID."""

    gpus: Callable[[], Sequence[TuningGpu]] = tuning.tuning_gpus
    worker: Callable[[str], GpuWorker] = GpuWorker
    cluster: Callable[[str], Cluster] = Cluster


def run(options: argparse.Namespace, machine: Machine | None = None) -> int:
    """Run the command and return its exit status. Raises one of BAD_INPUT."""
    _check_arguments(options)
    _check_outputs(options)
    if options.report_only:
        return _report_only(options)
    machine = machine or Machine()
    with ExitStack() as stack:
        cluster = None if options.dask is None else stack.enter_context(closing(_joined(options.dask, machine)))
        gpus = _gpus(options, machine) if cluster is None else []
        kinds = [gpu.kind for gpu in gpus] if cluster is None else [kind for _, kind in cluster.devices]
        store = stack.enter_context(_opened(options.store, read_only=False))
        workers = cluster or Workers(gpus, machine.worker)
        status, requests = _requests(options)
        entries, failed = _tune(workers, _wanted(options, requests, dict.fromkeys(kinds)), store)
        _report(options, entries, failed)
        lost = why_in_memory(store)
        if lost:
            _say(f"choices are not kept: {store.path}: {lost}")
    return 1 if failed or status or lost else 0


def _check_arguments(options: argparse.Namespace) -> None:
    given = [name for name, value in (("a file", options.problems), ("--record", options.record)) if value is not None]
    if len(given) == 2:
        raise _RequestError("problems must come from a file or from --record; got both")
    if not given and not options.report_only:
        raise _RequestError("a file of problems must be named, or a program with --record; got neither")
    if options.record is not None:
        if options.report_only:
            raise _RequestError("--report-only must be without --record; got both")
        if not options.record or options.record == ["-m"]:
            raise _RequestError("--record must be followed by SCRIPT.py or -m MODULE; got nothing")
        if options.record[0] != "-m" and not Path(options.record[0]).is_file():
            raise _RequestError(f"--record must be followed by a program; there is no file {options.record[0]}")
    elif options.save is not None:
        raise _RequestError("--save must be with --record; got it without")
    if options.dask is not None and (options.report_only or options.gpus is not None):
        raise _RequestError(
            f"--dask must be without --gpus and --report-only; got --dask {options.dask} with one of them"
        )


def _check_outputs(options: argparse.Namespace) -> None:
    """Find what cannot be written before anything is measured."""
    if options.output is not None:
        tuning_report.check_matplotlib()
        output_files.check_folder(options.output, _FILES, overwrite=options.force)
    for path in (options.html, options.save):
        if path is not None:
            output_files.check_writable(path, overwrite=options.force)


def _opened(path: str | None, *, read_only: bool) -> Store:
    """Open the store. Raises _RequestError unless it can be read, and written if it is to be."""
    name = VARIABLE if path is None and VARIABLE in os.environ else "--store"
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".* cannot keep choices", RuntimeWarning)  # it is an error here
            store = stores.open(path, read_only=read_only)
    except OSError as error:
        raise _RequestError(f"{name}: {error.filename or path}: {error.strerror or error}") from None
    except ValueError as error:
        raise _RequestError(f"{name}: {error}") from None
    if not store.path:
        raise _RequestError(f"{name} must name a file for choices to be kept in; got ''. Name one with --store")
    if not read_only and store.read_only:
        raise _RequestError(f"{name} must be a file that is changed; got {store.path}, which is an export")
    is_export = read_only and exports.is_export(Path(store.path))
    why = "" if is_export else why_in_memory(store)
    if why and not (read_only and len(store)):  # what can be read of a damaged file is reported
        raise _RequestError(f"{name} must be a store that can be used; got {store.path}: {why}")
    if not read_only:
        _check_writable(name, Path(store.path))
    return store


def _check_writable(name: str, path: Path) -> None:
    """Raise _RequestError if the file of a store cannot be written, or not made."""
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not os.access(path if path.exists() else folder, os.W_OK) or not os.access(folder, os.W_OK | os.X_OK):
        raise _RequestError(f"{name} must be a file that may be written; got {path}")


def _joined(scheduler: str, machine: Machine) -> Cluster:
    """Return the cluster of a scheduler, and tell which GPUs it has."""
    cluster = machine.cluster(scheduler)
    for note in cluster.notes:
        _say(note)
    return cluster


def _gpus(options: argparse.Namespace, machine: Machine) -> list[TuningGpu]:
    """Return the GPUs to use."""
    try:
        gpus = machine.gpus()
    except (UnavailableError, LibraryNotFoundError) as error:
        raise UnavailableError(f"{error}; cudnnpy plan chooses without a GPU") from None
    wanted = range(len(gpus)) if options.gpus is None else options.gpus
    for device in wanted:
        if device >= len(gpus):
            raise _RequestError(f"--gpus must be of GPUs that are here, 0 to {len(gpus) - 1}; got {device}")
    return [gpus[device] for device in wanted]


# What is to be tuned


def _requests(options: argparse.Namespace) -> tuple[int, list[ListedProblem]]:
    """Return the problems, and the exit status of the program that was recorded."""
    if options.record is None:
        return 0, _read(options.problems)
    name = " ".join(options.record[: 1 + (options.record[0] == "-m")])
    with tempfile.TemporaryFile(prefix="cudnnpy-") as file:  # it has no name, so that nothing is left of it
        status, stopped = _run_program(file.fileno(), options.record)
        if not os.fstat(file.fileno()).st_size:
            raise stopped or _RequestError(
                f"{name} must end as Python does to be recorded; it ended with {_status_text(status)}"
            )
        requests = _read(f"/proc/self/fd/{file.fileno()}")
    count = f"{len(requests)} problem{'s' * (len(requests) != 1)} recorded"
    _say(f"{name} ended with {_status_text(status)}; {count}")
    if options.save is not None:
        try:
            problem_file.write(options.save, [request.text for request in requests])
        except OSError as error:
            raise OutputError(f"{options.save}: cannot be written: {error.strerror}") from None
    if stopped:
        raise stopped
    return status, requests


def _read(path: str) -> list[ListedProblem]:
    try:
        return problem_file.read(path)
    except OSError as error:
        raise _RequestError(f"{path}: {error.strerror}") from None


def _run_program(file: int, command: Sequence[str]) -> tuple[int, KeyboardInterrupt | None]:
    """Run a program; return its exit status, negative for a signal, and what stopped it. Ctrl-C reaches it, too."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cudnnpy.cli.recorded_program", str(file), *command], pass_fds=(file,)
    )
    try:
        return process.wait(), None
    except KeyboardInterrupt as stopped:
        for number in stopped.args:  # another signal may have been sent to this process alone
            process.send_signal(number)
        return process.wait(), stopped


def _status_text(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit status {status}"


def _wanted(options: argparse.Namespace, requests: Sequence[ListedProblem], kinds: Iterable[str]) -> list[Job]:
    """Return each problem for each kind of GPU, once, with the most seconds that it is given."""
    found: dict[Key, Job] = {}
    for request in requests:
        given: PlanningOptions = request.options
        seconds = given.tune_seconds if options.seconds is None else options.seconds
        for kind in kinds:
            key = tuning.key_for(request.problem, given, kind)
            if key not in found or found[key].seconds < seconds:
                found[key] = Job(choice_text(request.problem, given), seconds, kind, key)
    return list(found.values())


# Tuning


def _tune(workers: Workers | Cluster, wanted: Sequence[Job], store: Store) -> tuple[list[Entry], list[tuple[str, str]]]:
    """Return the entries of all problems, and those that failed with their reasons."""
    found = {job.key: entry for job in wanted if (entry := _stored(store, job)) is not None}
    jobs = [job._replace(known=_known(store, job.key)) for job in wanted if job.key not in found]
    if found:
        _say(f"{len(found)} of {len(wanted)} problems are in the store")
    failed: list[tuple[str, str]] = []
    faults = 0
    try:
        with progress(len(jobs), sys.stderr) as shown:
            for report in workers.run(jobs) if jobs else ():
                if isinstance(report, Result):
                    faults += Layers(store).add_faults(report.job.key, report.job.text, report.faults)
                    if report.entry is not None:
                        found[report.job.key] = _kept(store, report.entry)
                    else:
                        failed.append((report.job.text, report.reason))
                shown.note(report)
    except (KeyboardInterrupt, ClusterError):
        _say(
            f"stopped; {len(found)} of {len(wanted)} problems are in {store.path}. The same command goes on from there"
        )
        raise
    if faults:
        _say(
            f"{faults} fault{'s' * (faults != 1)} of candidates stored, which cudnnpy faults lists: these are not run again"
        )
    return [found[job.key] for job in wanted if job.key in found], failed


def _known(store: Store, key: Key) -> tuple[FoundFault, ...]:
    """Return the faults that the store has for the problem of a key."""
    faults = store.faults_of(key)
    return tuple(FoundFault(one.candidate, cast(Symptom, one.symptom), one.detail, one.driver) for one in faults)


def _stored(store: Store, job: Job) -> Entry | None:
    """Return what was measured of a problem earlier; None if nothing was, or if measuring for longer could tell more."""
    entry = store.get(job.key)
    if entry is None or entry.milliseconds is None or not (entry.complete or entry.tune_seconds >= job.seconds):
        return None
    return entry


def _kept(store: Store, entry: Entry) -> Entry:
    """Keep an entry, and return the one that stands. One that was measured for longer replaces an incomplete one."""
    there = store.get(entry.key)
    is_replaced = there is not None and not there.complete and there.tune_seconds < entry.tune_seconds
    return store.put(entry, replace=is_replaced)


# The report


def _report_only(options: argparse.Namespace) -> int:
    """Report what a store has, of some problems or of all, whatever GPU it is for."""
    with _opened(options.store, read_only=True) as store:
        entries, missing = list(store), []
        if options.problems is not None:
            wanted = {job.key[:2]: job for job in _wanted(options, _read(options.problems), ["{}"])}
            order = {parts: number for number, parts in enumerate(wanted)}
            entries = [entry for entry in entries if entry.key[:2] in wanted]
            entries.sort(key=lambda entry: order[entry.key[:2]])
            known = {entry.key[:2] for entry in entries}
            missing = [(job.text, "not in the store") for parts, job in wanted.items() if parts not in known]
    _report(options, entries, missing)
    return 1 if missing else 0


def _report(options: argparse.Namespace, entries: Sequence[Entry], failed: Sequence[tuple[str, str]]) -> None:
    """Print the table, and write the files that were asked for."""
    rows = [tuning_report.row_of(entry) for entry in entries]
    if rows:
        _print_table(rows)
    print(tuning_report.summary(rows))
    for text, reason in failed:
        _say(f"not tuned: {text}: {reason}")
    if options.output is not None:
        table = f"{tuning_report.table(rows)}\n{tuning_report.summary(rows)}\n"
        contents: tuple[str | bytes, ...] = (table, tuning_report.comma_separated(rows), tuning_report.plots(rows))
        for name, content in zip(_FILES, contents, strict=True):
            if not content:
                _say(f"{Path(options.output, name)} is not written, since no candidate was measured")
                continue
            output_files.write(Path(options.output, name), content, overwrite=options.force)
            _say(f"{Path(options.output, name)} is written")
    if options.html is not None:
        output_files.write(options.html, tuning_page.page(rows, failed), overwrite=options.force)
        _say(f"{options.html} is written")


def _print_table(rows: Sequence[Row]) -> None:
    """Print the table: with rich on a terminal, where long texts are folded into their columns, otherwise as plain text."""
    if sys.stdout is not None and sys.stdout.isatty():
        try:
            from rich.console import Console
            from rich.table import Table
        except ImportError:
            pass
        else:
            titles, lines = tuning_report.cells(rows)
            table = Table(header_style="bold")
            for at, title in enumerate(titles):
                table.add_column(title, overflow="fold", justify="right" if at >= len(titles) - 3 else "left")
            for line in lines:
                table.add_row(*line)
            Console(highlight=False, markup=False).print(table)
            return
    print(tuning_report.table(rows), end="")


def _say(text: str) -> None:
    say("cudnnpy tune", text)
