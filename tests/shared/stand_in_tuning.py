"""Stand-ins for the processes that measure: each answers as its first argument, a function of this module, says.

As a program this is such a process: requests are lines of JSON, and nothing is measured. The GPUs are made up.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from made_up_entries import entry

from cudnnpy import __version__
from cudnnpy._planning.choice import Choice, Engine, GpuKind
from cudnnpy.cli.tune import tune_problem
from cudnnpy.cli.tune.tune_problem import TuningGpu
from cudnnpy.tuning.measurement import Measurement
from cudnnpy.tuning.measuring import gpu_worker
from cudnnpy.tuning.measuring.child_process import WorkerProcess
from cudnnpy.tuning.measuring.gpu_worker import GpuWorker
from cudnnpy.tuning.store.entry import Entry

Message = dict[str, Any]

KINDS = GpuKind("Stand-in A", "9.0", 132), GpuKind("Stand-in B", "8.0", 108)


def gpus_of(*kinds: GpuKind) -> list[TuningGpu]:
    """GPUs of these kinds."""
    return [TuningGpu(f"GPU-{device}", device, kind) for device, kind in enumerate(kinds)]


def started(behaviour: str, opening: Mapping[str, Any]) -> WorkerProcess:
    """A process that does what a function of this module says."""
    return WorkerProcess(opening, command=[sys.executable, __file__, behaviour])


def worker(behaviour: str) -> Callable[[str], GpuWorker]:
    """What makes the worker of a GPU, whose processes do what a function of this module says."""
    return partial(GpuWorker, start=partial(started, behaviour))


class Machine(NamedTuple):
    """The GPUs of a machine, and what makes the worker of a GPU."""

    gpus: Callable[[], Sequence[TuningGpu]]
    worker: Callable[[str], Any]

    def replace(self, patch: Any) -> None:
        """Put them in place of this machine's, by `patch`, a function like setattr."""
        patch(tune_problem, "tuning_gpus", self.gpus)
        for module in (tune_problem, gpu_worker):
            patch(module, "GpuWorker", self.worker)


# In such a process


def as_told(text: str, device: int, seconds: float) -> Entry:
    """Do what the text says: "crash", "hang", "bad", ...; "once FILE ..." does it the first time only."""
    what = text
    if text.startswith("once "):
        _, file, what = text.split(maxsplit=2)
        try:
            Path(file).touch(exist_ok=False)
        except FileExistsError:
            what = "done"
    if what.startswith("crash"):
        os.kill(os.getpid(), signal.SIGSEGV)
    if what.startswith("exit"):
        os._exit(3)
    if what.startswith("hang"):
        time.sleep(600)
    if what.startswith("nonsense"):
        print("nonsense", flush=True)
    if what.startswith("bad"):
        raise ValueError("text must be a problem; got 'bad'")
    made = entry(text, tune_seconds=seconds, made_with={"device": str(device), "process": str(os.getpid())})
    return made._replace(key=made.key._replace(gpu="another GPU")) if what.startswith("another") else made


def tuned(text: str, device: int, seconds: float, kind: int = 0, **fields: object) -> Entry:
    """An entry for a problem on a kind of GPU."""
    from cudnnpy._planning.problem_notation import parse
    from cudnnpy.tuning.stored_choice import key_of

    key = key_of(*parse(text), KINDS[kind])
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
    """Tune the problem of batch 1; take an hour for any other, as the process whose number is in the file `endless`."""
    if " 1x" not in text:
        Path(f"endless.{os.getpid()}").touch()
        time.sleep(3600)
    while not [*Path().glob("endless.*")]:  # until the other GPU is at work
        time.sleep(0.01)
    return tuned(text, device, seconds)


def never(text: str, device: int, seconds: float) -> Entry:
    """Fail: nothing was to be tuned."""
    raise AssertionError(text)


def answers(request: Message, gpu: str, behaviour: str) -> Iterator[Message]:
    """The messages for a request. `engine 9` crashes, alone as well, if the behaviour is "faulty"."""
    device = int(gpu.removeprefix("GPU-"))
    if behaviour == "faulty" and "engine 9" not in request.get("left_out", ()):
        yield {"begin": "engine 9", "seconds": 30, "choice": Choice("engine 9", "engines", Engine(9)).plain()}
        os.kill(os.getpid(), signal.SIGABRT)
    yield {"begin": "", "seconds": 0.5 if request["text"].startswith("hang") else 30.0}
    if behaviour == "scarce":
        yield answer(tuned(request["text"], device, 1.0), was_memory_limited=True)
        return
    work = tune if behaviour == "faulty" else globals()[behaviour]
    try:
        found = work(request["text"], device, request["seconds"])
    except ValueError as error:
        yield {"error": str(error), "kind": "ValueError"}
    else:
        yield answer(found)


def answer(found: Entry, *, was_memory_limited: bool = False) -> Message:
    """The answer to a request to measure."""
    return {"answer": Measurement(found, was_memory_limited=was_memory_limited).plain()}


def refuse_to_start(gpu: str, behaviour: str) -> None:
    """Device 1 cannot be used with some behaviours."""
    if gpu == "GPU-1" and behaviour == "all_but_one":
        say({"error": "this GPU\nhas fallen off the bus", "kind": "RuntimeError"})
        sys.exit()
    if gpu == "GPU-1" and behaviour == "crash_at_start":
        os.kill(os.getpid(), signal.SIGKILL)


def say(message: Message) -> None:
    print(json.dumps(message), flush=True)


def main(behaviour: str) -> None:
    from cudnnpy.tuning.measuring.end_with_parent import end_with_parent

    end_with_parent(0)
    gpu = json.loads(sys.stdin.readline())["gpu"]
    refuse_to_start(gpu, behaviour)
    say({"answer": __version__})
    for line in sys.stdin:
        for message in answers(json.loads(line), gpu, behaviour):
            say(message)


all_but_one = crash_at_start = as_told

if __name__ == "__main__":
    main(sys.argv[1])
