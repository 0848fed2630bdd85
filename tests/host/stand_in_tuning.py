"""Stand-ins for what tunes problems in worker processes: the text of a problem says what becomes of it.

They run in spawned processes, which import this module by its name.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from made_up_entries import entry

from cudnnpy._store.entry import Entry
from cudnnpy.errors import NoAlgorithmError


def start(device: int) -> None:
    """Every device can be used."""


def start_all_but_one(device: int) -> None:
    """Device 1 cannot be used."""
    if device == 1:
        raise RuntimeError("this GPU\nhas fallen off the bus")


def crash_at_start(device: int) -> None:
    """The process of device 1 dies before it is ready."""
    if device == 1:
        os.kill(os.getpid(), signal.SIGKILL)


class Unreadable:
    """What can be pickled, and not be read again."""

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return int, ("no number",)


def work(text: str, device: int, seconds: float) -> Entry:
    """Do what the text says: "crash", "hang", "error", "no candidate", ...; "once FILE ..." does it the first time only."""
    what = text
    if text.startswith("once "):
        _, file, what = text.split(maxsplit=2)
        try:
            Path(file).touch(exist_ok=False)
        except FileExistsError:
            what = "done"
    if what.startswith("crash"):
        os.kill(os.getpid(), signal.SIGSEGV)
    if what.startswith("interrupt"):
        os.kill(os.getpid(), signal.SIGINT)
    if what.startswith("exit"):
        os._exit(3)
    if what.startswith("hang"):
        time.sleep(600)
    if what.startswith("error"):
        raise RuntimeError("an illegal memory access\nwas encountered")
    if what.startswith("unreadable"):
        return Unreadable()  # type: ignore[return-value]
    if what.startswith("bad"):
        raise ValueError("text must be a problem; got 'bad'")
    if what.startswith("no candidate"):
        raise NoAlgorithmError(text, "prefer='autotune'", "table", [])
    return entry(text, tune_seconds=seconds, made_with={"device": str(device), "process": str(os.getpid())})


# For whole runs of the command: problems in the notation, on GPUs of these kinds

KINDS = (
    '{"deviceName": "Stand-in A", "deviceVer": 900, "multiProcessorCount": 132}',
    '{"deviceName": "Stand-in B", "deviceVer": 800, "multiProcessorCount": 108}',
)


def make_ready(store: str, device: int) -> None:
    """Every device can be used; the store is the parent's."""


def tuned(text: str, device: int, seconds: float, kind: int = 0, **fields: object) -> Entry:
    """An entry for a problem on a kind of GPU."""
    from cudnnpy._planning.notation import parse
    from cudnnpy.cli import tuning

    problem, options = parse(text)
    key = tuning.key_for(problem, options, KINDS[kind])
    return entry(text, **{"tune_seconds": seconds, "made_with": {"device": str(device)}, **fields})._replace(key=key)


def tune(text: str, device: int, seconds: float) -> Entry:
    """Tune at once."""
    return tuned(text, device, seconds)


def tune_on_two_kinds(text: str, device: int, seconds: float) -> Entry:
    """Device 1 is of another kind than device 0."""
    return tuned(text, device, seconds, kind=device)


def tune_but_not_all(text: str, device: int, seconds: float) -> Entry:
    """Crash for the gradients with respect to filters."""
    if text.startswith("backward_filter"):
        os.kill(os.getpid(), signal.SIGSEGV)
    return tuned(text, device, seconds)


def tune_incompletely(text: str, device: int, seconds: float) -> Entry:
    """Use up the time."""
    return tuned(text, device, seconds, complete=False)


def tune_the_first_alone(text: str, device: int, seconds: float) -> Entry:
    """Tune the problem of batch 1; take an hour for any other."""
    if " 1x" not in text:
        time.sleep(3600)
    return tuned(text, device, seconds)


def never(text: str, device: int, seconds: float) -> Entry:
    """Fail: nothing was to be tuned."""
    raise AssertionError(text)
