"""The problems of `cudnnpy tune`: read from a file, or recorded from a program; and their jobs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from cudnnpy.cli.arguments import UsageError
from cudnnpy.cli.text_table import say
from cudnnpy.cli.tune import tune_problem
from cudnnpy.cli.tune.tune_problem import Job
from cudnnpy.tuning import problem_file, recording
from cudnnpy.tuning.problem_file import ListedProblem
from cudnnpy.tuning.store.entry import Key
from cudnnpy.tuning.stored_choice import choice_text


def check_program(command: Sequence[str]) -> None:
    """Raise UsageError unless a command is SCRIPT.py or -m MODULE, with its arguments."""
    if not command or command == ["-m"]:
        raise UsageError("--record must be followed by SCRIPT.py or -m MODULE; got nothing")
    if command[0] != "-m" and not Path(command[0]).is_file():
        raise UsageError(f"--record must be followed by a program; there is no file {command[0]}")


def record(command: Sequence[str], save: str | None) -> tuple[int, list[ListedProblem]]:
    """Run a program. Return its exit status and the problems that its processes plan, and save them if a file is named."""
    name = " ".join(command[: 1 + (command[0] == "-m")])
    with tempfile.TemporaryFile(prefix="cudnnpy-") as file:  # it has no name, so that no file is left behind
        path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        problem_file.write(path, ())
        status, interrupt = _run_program(path, command)
        requests = problem_file.read(path)
    how = f"signal {-status}" if status < 0 else f"exit status {status}"
    count = f"{len(requests)} problem{'s' * (len(requests) != 1)} recorded"
    say("cudnnpy tune", f"{name} ended with {how}; {count}")
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


def jobs_of(
    requests: Sequence[ListedProblem], kinds: Iterable[str], seconds: float | None, thorough: bool = False
) -> list[Job]:
    """Return one job for each problem and GPU kind, with the longest time limit of its requests or the one that is passed."""
    jobs: dict[Key, Job] = {}
    for request in requests:
        limit = request.options.tune_seconds if seconds is None else seconds
        for kind in kinds:
            key = tune_problem.key_for(request.problem, request.options, kind)
            if key not in jobs or jobs[key].seconds < limit:
                jobs[key] = Job(choice_text(request.problem, request.options), limit, kind, key, thorough)
    return list(jobs.values())
