"""The command `cudnnpy tune`: look up problems in the store, tune the others on all GPUs, store the choices, and report.

The problems are read from a file, or recorded from a program.
"""

from __future__ import annotations

import argparse
import html
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from cudnnpy import store as stores
from cudnnpy._checks.preferences import TUNE_SECONDS
from cudnnpy._core.atomic_file import replace_file
from cudnnpy.availability import UnavailableError
from cudnnpy.cli import text_table
from cudnnpy.cli.arguments import UsageError, check_writable, positive
from cudnnpy.cli.text_table import say
from cudnnpy.cli.tune import report, tune_problem
from cudnnpy.cli.tune.dask_cluster import ABSENCE_SECONDS, ClusterError, DaskCluster
from cudnnpy.cli.tune.tune_problem import Job, LostPlace, Result, TuningGpu, distribute, jobs_of, local_places
from cudnnpy.errors import LibraryNotFoundError
from cudnnpy.tuning import problem_file, recording
from cudnnpy.tuning.measurement import UNPROMISING
from cudnnpy.tuning.problem_file import ListedProblem
from cudnnpy.tuning.profiles import stub_driver
from cudnnpy.tuning.store.entry import Entry
from cudnnpy.tuning.store.levels import VARIABLE, Layers
from cudnnpy.tuning.store.store import Store, why_not_written


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to a parser."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("problems", nargs="?", metavar="PROBLEMS.txt", help="a file of problems, one a line")
    source.add_argument(
        "--record",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT.py",
        help="run a program (SCRIPT.py or -m MODULE, with all following arguments) and tune its problems; the last option",
    )
    parser.add_argument("--save", metavar="PROBLEMS.txt", help="with --record: write the file of its problems")
    parser.add_argument(
        "--store", metavar="FILE", help="the store of the choices (default: CUDNNPY_STORE, or the user's)"
    )
    parser.add_argument("--dask", metavar="SCHEDULER", help="the scheduler of a Dask cluster, on whose GPUs to tune")
    parser.add_argument(
        "--seconds",
        type=positive,
        help=f"the time limit of one problem (default: its tune_seconds in the file, otherwise {TUNE_SECONDS:g})",
    )
    parser.add_argument("--thorough", action="store_true", help="measure all candidates within the time limit")
    parser.add_argument("--html", metavar="FILE.html", help="write the report as a page of HTML")
    parser.add_argument("--force", action="store_true", help="overwrite existing files")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    if options.record is not None:
        _check_program(options.record)
    elif options.save is not None:
        raise UsageError("--save must be with --record; got it without")
    # missing input is an error before an existing output is
    requests, errors = ([], []) if options.problems is None else problem_file.read_with_errors(options.problems)
    for error in errors:
        _say(str(error))
    status = len(errors)
    for path in (options.html, options.save):
        if path is not None:
            check_writable(path, overwrite=options.force)
    with ExitStack() as stack:
        if options.dask is None:
            try:
                gpus = _gpus(options.record)
            except UnavailableError:
                if options.save is None or stub_driver.has_driver():
                    raise
                status, requests = _record(options.record, options.save)
                _say_how_to_plan(options, len(requests))
                return 1 if status else 0
            local = stack.enter_context(local_places(gpus))
            distributed = partial(distribute, places=lambda: local)
        else:
            cluster = stack.enter_context(closing(DaskCluster(options.dask)))
            gpus = cluster.gpus
            distributed = partial(distribute, places=cluster.present, absence_seconds=ABSENCE_SECONDS)
            for note in cluster.notes:
                _say(note)
        store = stack.enter_context(_open_store(options.store))
        if options.record is not None:
            status, requests = _record(options.record, options.save)
        jobs = jobs_of(requests, dict.fromkeys(gpu.kind for gpu in gpus), options.seconds, options.thorough)
        entries, failed = _tune(distributed, jobs, store)
        _report(options, entries, failed)
        if lost := why_not_written(store):
            _say(f"choices are not stored: {store.path}: {lost}")
    return 1 if failed or status or lost else 0


def _say_how_to_plan(options: argparse.Namespace, count: int) -> None:
    """Say what the file of a program's problems is for, on a machine without a driver."""
    if not count:
        advice = "PyTorch's convolutions are recorded within enable()"
        _say(f"{options.save} has no problems: {options.record[0]} planned nothing; {advice}")
        return
    _say(
        f"{options.save} has {count} problem{'s' * (count != 1)}, and none is tuned, since there is no CUDA driver "
        f"({stub_driver.LIBRARY}). To plan them: cudnnpy plan {options.save} --device h200 -o plans.jsonl"
    )


def _gpus(recorded: Sequence[str] | None) -> list[TuningGpu]:
    """Return all GPUs. `recorded` is a program with its arguments."""
    try:
        return tune_problem.tuning_gpus()
    except (UnavailableError, LibraryNotFoundError) as error:
        listing = "; with --save, --record lists the problems of a program" if recorded else ""
        if recorded and "--save" in recorded:
            listing = "; --save must be before --record, whose program takes all words after its name"
        raise UnavailableError(f"{error}; cudnnpy plan chooses without a GPU{listing}") from None


# Programs, whose problems are recorded


def _check_program(command: Sequence[str]) -> None:
    """Raise UsageError unless a command is SCRIPT.py or -m MODULE, with its arguments."""
    if not command or command == ["-m"]:
        raise UsageError("--record must be followed by SCRIPT.py or -m MODULE; got nothing")
    if command[0] != "-m" and not Path(command[0]).is_file():
        raise UsageError(f"--record must be followed by a program; there is no file {command[0]}")


def _record(command: Sequence[str], save: str | None) -> tuple[int, list[ListedProblem]]:
    """Run a program. Return its exit status and the problems that its processes plan, and save them if a file is named."""
    name = " ".join(command[: 1 + (command[0] == "-m")])
    with tempfile.TemporaryFile(prefix="cudnnpy-") as file:  # it has no name, so that no file is left behind
        path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        problem_file.write(path, ())
        status, interrupt = _run_program(path, command)
        requests = problem_file.read(path)
    how = f"signal {-status}" if status < 0 else f"exit status {status}"
    count = f"{len(requests)} problem{'s' * (len(requests) != 1)} recorded"
    _say(f"{name} ended with {how}; {count}")
    if save is not None:
        problem_file.write(save, [request.text for request in requests])
    if interrupt:
        raise interrupt
    return status, requests


def _run_program(path: str, command: Sequence[str]) -> tuple[int, KeyboardInterrupt | None]:
    """Run a program, whose processes add their problems to a file.

    Return its exit status, negative for a signal, and the interrupt that stopped it.
    """
    process = subprocess.Popen([sys.executable, *command], env={**os.environ, recording.VARIABLE: path})
    try:
        return process.wait(), None
    except KeyboardInterrupt as interrupt:  # Ctrl-C reaches the program, too
        for number in interrupt.args:  # another signal may have been sent to this process alone
            process.send_signal(number)
        return process.wait(), interrupt


# The store


def _open_store(path: str | None) -> Store:
    """Open the store. Raises UsageError if it cannot be written."""
    name = VARIABLE if path is None and VARIABLE in os.environ else "--store"
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".* New choices stay in memory", RuntimeWarning)  # it is an error here
            store = stores.open(path)
            reason = why_not_written(store)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None
    if reason:
        raise UsageError(f"{name} must name a file that can be written; got {store.path!r}: {reason}")
    return store


def _stored(store: Store, job: Job) -> Entry | None:
    """Return the measured entry of a job; None if there is none, or if a search may now take longer or measure more."""
    entry = store.get(job.key)
    if entry is None or entry.choice.milliseconds is None or not (entry.complete or entry.tune_seconds >= job.seconds):
        return None
    was_thorough = all(candidate.rejection_reason != UNPROMISING for candidate in entry.candidates)
    return None if job.thorough and not was_thorough else entry


# Tuning


def _tune(
    distributed: Callable[[Sequence[Job]], Iterator[Result | LostPlace]], jobs: Sequence[Job], store: Store
) -> tuple[list[Entry], list[tuple[str, str]]]:
    """Tune the jobs that the store does not have. Return the entries of all, and the texts of failed ones with the reasons."""
    entries = {job.key: entry for job in jobs if (entry := _stored(store, job)) is not None}
    open_jobs = [job._replace(known=tuple(store.faults_of(job.key))) for job in jobs if job.key not in entries]
    if entries:
        _say(f"{len(entries)} of {len(jobs)} problems are in the store")
    failed: list[tuple[str, str]] = []
    faults = 0
    try:
        progress = report.Progress(len(open_jobs))
        for result in distributed(open_jobs):
            if isinstance(result, Result):
                faults += Layers(store).add_faults(result.job.key, result.job.text, result.faults)
                if result.entry is not None:
                    is_open = _stored(store, result.job) is None  # unless another process has tuned it
                    entries[result.job.key] = store.put(result.entry, replace=is_open)
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
    """Print the table, and write the page that the options name."""
    lines = [*report.lines_of(entries)]
    not_tuned = [f"not tuned: {text}: {reason}" for text, reason in failed]
    text_table.show(lines)
    for line in not_tuned:
        _say(line)
    if options.html is not None:
        text = html.escape(text_table.printed("\n".join([*lines, *not_tuned])))
        page = f'<!DOCTYPE html>\n<meta charset="utf-8">\n<title>cudnnpy tune</title>\n<pre>\n{text}\n</pre>\n'
        check_writable(options.html, overwrite=options.force)
        replace_file(options.html, page.encode())
        _say(f"{options.html} is written")


def _say(text: str) -> None:
    say("cudnnpy tune", text)
