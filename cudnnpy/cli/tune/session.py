"""One run of `cudnnpy tune`: look up the problems in the store, tune the others, store the choices, and report."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from cudnnpy import store as stores
from cudnnpy.availability import UnavailableError
from cudnnpy.cli import output_files, text_table
from cudnnpy.cli.errors import UsageError
from cudnnpy.cli.text_table import Line, say
from cudnnpy.cli.tune import problems, report, tune_problem
from cudnnpy.cli.tune.dask_cluster import ABSENCE_SECONDS, ClusterError, DaskCluster
from cudnnpy.cli.tune.progress import Progress
from cudnnpy.cli.tune.tune_problem import Job, LostPlace, Result, TuningGpu, distribute, local_places
from cudnnpy.errors import LibraryNotFoundError
from cudnnpy.tuning import problem_file
from cudnnpy.tuning.measurement import UNPROMISING, FoundFault
from cudnnpy.tuning.problem_file import ListedProblem
from cudnnpy.tuning.profiles import stub_driver
from cudnnpy.tuning.store.database import Store, why_in_memory
from cudnnpy.tuning.store.entry import Entry
from cudnnpy.tuning.store.levels import VARIABLE, Layers


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    _check_arguments(options)
    # missing input is an error before an existing output is
    listed = None if options.problems is None else _read(options.problems)
    _check_outputs(options)
    with ExitStack() as stack:
        if options.dask is None:
            try:
                gpus = _gpus(options.record)
            except UnavailableError:
                if options.save is None or stub_driver.has_driver():
                    raise
                return _record_only(options)
            local = stack.enter_context(local_places(gpus))
            distributed = partial(distribute, places=lambda: local)
        else:
            cluster = stack.enter_context(closing(DaskCluster(options.dask)))
            gpus = cluster.gpus
            distributed = partial(distribute, places=cluster.present, absence_seconds=ABSENCE_SECONDS)
            for note in cluster.notes:
                _say(note)
        store = stack.enter_context(_open_store(options.store))
        status, requests = listed or problems.record(options.record, options.save)
        jobs = problems.jobs_of(requests, dict.fromkeys(gpu.kind for gpu in gpus), options.seconds, options.thorough)
        entries, failed = _tune(distributed, jobs, store)
        _report(options, entries, failed)
        lost = why_in_memory(store)
        if lost:
            _say(f"choices are not stored: {store.path}: {lost}")
    return 1 if failed or status or lost else 0


def _record_only(options: argparse.Namespace) -> int:
    """Run a program on a machine without a driver, write the file of its problems, and return the program's exit status."""
    status, requests = problems.record(options.record, options.save)
    count = f"{len(requests)} problem{'s' * (len(requests) != 1)}"
    if not requests:
        advice = "PyTorch's convolutions are recorded within enable()"
        _say(f"{options.save} has no problems: {options.record[0]} planned nothing; {advice}")
        return 1 if status else 0
    _say(
        f"{options.save} has {count}, and none is tuned, since there is no CUDA driver ({stub_driver.LIBRARY}). To plan them: "
        f"cudnnpy plan {options.save} --device h200 -o plans.jsonl"
    )
    return 1 if status else 0


def _read(path: str) -> tuple[int, list[ListedProblem]]:
    """Return the problems of a file; and 1, after a line for each text that is not a problem, otherwise 0."""
    requests, errors = problem_file.read_with_errors(path)
    for error in errors:
        _say(str(error))
    return 1 if errors else 0, requests


def _check_arguments(options: argparse.Namespace) -> None:
    sources = {"a file": options.problems, "--record": options.record}
    count = sum(value is not None for value in sources.values())
    if count == 2:
        raise UsageError("problems must come from a file or from --record; got both")
    if not count:
        raise UsageError("a file of problems must be named, or a program with --record; got neither")
    if options.record is not None:
        problems.check_program(options.record)
    elif options.save is not None:
        raise UsageError("--save must be with --record; got it without")


def _check_outputs(options: argparse.Namespace) -> None:
    """Raise an error before the search for output files that cannot be written."""
    if options.html is not None:
        text_table.check_rich("--html")
    for path in (options.html, options.save):
        if path is not None:
            output_files.check_writable(path, overwrite=options.force)


def _gpus(recorded: Sequence[str] | None) -> list[TuningGpu]:
    """Return all GPUs. `recorded` is a program with its arguments."""
    try:
        return tune_problem.tuning_gpus()
    except (UnavailableError, LibraryNotFoundError) as error:
        listing = "; with --save, --record lists the problems of a program" if recorded else ""
        if recorded and "--save" in recorded:
            listing = "; --save must be before --record, whose program takes all words after its name"
        raise UnavailableError(f"{error}; cudnnpy plan chooses without a GPU{listing}") from None


# The store


def _open_store(path: str | None) -> Store:
    """Open the store. Raises UsageError if it cannot be written."""
    name = VARIABLE if path is None and VARIABLE in os.environ else "--store"
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".* New choices stay in memory", RuntimeWarning)  # it is an error here
            store = stores.open(path)
    except OSError as error:
        raise UsageError(f"{name}: {error.filename or path}: {error.strerror or error}") from None
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None
    if not store.path:
        raise UsageError(f"{name} must name a file for the choices; got ''. Name one with --store")
    if store.read_only:
        raise UsageError(f"{name} must name a writable store; got {store.path}, a read-only export")
    if reason := why_in_memory(store):
        raise UsageError(f"{name} must be a store that can be used; got {store.path}: {reason}")
    _check_writable(name, Path(store.path))
    return store


def _check_writable(name: str, path: Path) -> None:
    """Raise UsageError if the file of a store cannot be written, or not made."""
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not os.access(path if path.exists() else folder, os.W_OK) or not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{name} must be a file that may be written; got {path}")


def _stored(store: Store, job: Job) -> Entry | None:
    """Return the measured entry of a job; None if there is none, or if a search may now take longer or measure more."""
    entry = store.get(job.key)
    if entry is None or entry.choice.milliseconds is None or not (entry.complete or entry.tune_seconds >= job.seconds):
        return None
    return None if job.thorough and not _is_thorough(entry) else entry


def _is_thorough(entry: Entry) -> bool:
    return all(candidate.rejection_reason != UNPROMISING for candidate in entry.candidates)


def _put(store: Store, entry: Entry) -> Entry:
    """Store an entry and return the current one. An entry of a longer or more thorough search replaces it."""
    current = store.get(entry.key)
    is_replaced = current is not None and (
        (not current.complete and current.tune_seconds < entry.tune_seconds)
        or (not _is_thorough(current) and _is_thorough(entry))
    )
    return store.put(entry, replace=is_replaced)


def _with_known_faults(store: Store, job: Job) -> Job:
    faults = store.faults_of(job.key)
    known = (FoundFault(one.candidate, one.symptom, one.detail, one.driver) for one in faults)
    return job._replace(known=tuple(known))


# Tuning


def _tune(
    distributed: Callable[[Sequence[Job]], Iterator[Result | LostPlace]], jobs: Sequence[Job], store: Store
) -> tuple[list[Entry], list[tuple[str, str]]]:
    """Tune the jobs that the store does not have. Return the entries of all, and the texts of failed ones with the reasons."""
    entries = {job.key: entry for job in jobs if (entry := _stored(store, job)) is not None}
    open_jobs = [_with_known_faults(store, job) for job in jobs if job.key not in entries]
    if entries:
        _say(f"{len(entries)} of {len(jobs)} problems are in the store")
    failed: list[tuple[str, str]] = []
    faults = 0
    try:
        with Progress(len(open_jobs), sys.stderr) as progress:
            for result in distributed(open_jobs):
                if isinstance(result, Result):
                    faults += Layers(store).add_faults(result.job.key, result.job.text, result.faults)
                    if result.entry is not None:
                        entries[result.job.key] = _put(store, result.entry)
                    else:
                        failed.append((result.job.text, result.reason))
                progress.show(result)
    except (KeyboardInterrupt, ClusterError):
        _say(
            f"stopped; {len(entries)} of {len(jobs)} problems are in {store.path}. The same command goes on from there"
        )
        raise
    if faults:
        count = f"{faults} fault{'s' * (faults != 1)} of candidates stored"
        _say(f"{count}, which Store.faults lists: these are not run again")
    return [entries[job.key] for job in jobs if job.key in entries], failed


# The report


def _report(options: argparse.Namespace, entries: Sequence[Entry], failed: Sequence[tuple[str, str]]) -> None:
    """Print the table, and write the files that the options name."""
    explained = [*([Line(report.LEGEND)] if entries else []), Line(report.summary(entries))]
    not_tuned = [Line(f"not tuned: {text}: {reason}") for text, reason in failed]
    if entries:
        text_table.show(report.table(entries, text_table.terminal_width()))
    for line in explained:
        print(line.text)
    for line in not_tuned:
        _say(line.text)
    if options.html is not None:
        page = text_table.html([*report.table(entries), Line(""), *explained, *not_tuned])
        output_files.write(options.html, page, overwrite=options.force)
        _say(f"{options.html} is written")


def _say(text: str) -> None:
    say("cudnnpy tune", text)
