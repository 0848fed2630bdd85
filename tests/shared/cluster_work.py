"""Work for the workers of test_cluster.py, whose GPUs are made up; what it does follows from the text of the problem."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import made_up_entries
import stand_in_tuning

import cudnnpy
from cudnnpy import raw
from cudnnpy._planning.choice import GpuKind
from cudnnpy.cli.tune.tune_problem import Job, TuningGpu
from cudnnpy.tuning.measurement import FoundFault, Measurement
from cudnnpy.tuning.store.entry import Entry

VARIABLE = "CUDNNPY_TEST_CLUSTER_WORK"  # the file of the work of a cluster


class Try(NamedTuple):
    """A try of a problem: on which GPU, in which process, and the name of the task."""

    device: int
    process: int
    task: str


class Work(NamedTuple):
    """Each process sees the same GPUs, as the processes of one machine do. `folder` gets a file for each try.

    One process, whichever comes first, may see `odd_kinds` instead, or have another version of cudnnpy.
    `behaviours` has the behaviour of a problem by its text, by default the text itself.
    """

    folder: str
    kinds: tuple[GpuKind, ...] = stand_in_tuning.KINDS[:1] * 2
    odd_kinds: tuple[GpuKind, ...] | None = None
    odd_version: str = cudnnpy.__version__
    behaviours: Mapping[str, str] = {}

    def is_odd(self) -> bool:
        file = Path(self.folder, "odd")
        try:
            with file.open("x") as stream:
                stream.write(str(os.getpid()))
        except FileExistsError:
            return file.read_text() == str(os.getpid())  # asked again
        return True

    def gpus(self) -> list[TuningGpu]:
        kinds = self.odd_kinds if self.odd_kinds is not None and self.is_odd() else self.kinds
        if not kinds:
            raise RuntimeError("no CUDA-capable device is detected\nand more lines")
        return stand_in_tuning.gpus_of(*kinds)

    def tune(self, job: Job, gpu: str) -> Measurement:
        from distributed import get_worker

        behaviour = self.behaviours.get(job.text, job.text)
        earlier = self.tries(job.text)
        name = f"{job.text[:60]}.{gpu.removeprefix('GPU-')}.{os.getpid()}.{uuid4().hex[:6]}"
        Path(self.folder, f"{name}.part").write_text(str(get_worker().get_current_task()))
        Path(self.folder, f"{name}.part").rename(Path(self.folder, name))
        if behaviour.startswith("poison") or (behaviour.startswith("unlucky") and not earlier):
            os.kill(os.getpid(), signal.SIGKILL)
        while behaviour.startswith("stuck") and not Path(self.folder, "go").exists():
            time.sleep(0.01)
        if behaviour.startswith("slow"):
            time.sleep(0.3)
        if behaviour.startswith("wrong"):
            raise ValueError(f"{job.text} is no problem\nand a second line")
        if behaviour.startswith("fails"):
            raise MemoryError("no memory is left")
        faults = [fault_of(number) for number in range(2)] if behaviour.startswith("faulty") else []
        found = tuple(fault for fault in faults if fault.candidate not in {one.candidate for one in job.known})
        if behaviour.startswith("faulty") and not earlier:
            return Measurement(None, "the process that measures ended", faults=found[:1])
        return MALFORMED.get(behaviour, lambda right: right)(Measurement(entry_of(job), faults=found))

    def tries(self, text: str) -> list[Try]:
        """The tries of the problems whose text begins so."""
        files = [path for path in Path(self.folder).glob(f"{text[:60]}*.*.*.*") if path.suffix != ".part"]
        return [Try(int(path.name.split(".")[-3]), int(path.name.split(".")[-2]), path.read_text()) for path in files]


def fault_of(number: int) -> FoundFault:
    """A fault that tuning finds."""
    return FoundFault(f"engine {number}", "context lost", "CUDA_ERROR_ILLEGAL_ADDRESS", "13.0")


def entry_of(job: Job) -> Entry:
    """The entry of a job."""
    return made_up_entries.entry(job.text, tune_seconds=job.seconds)._replace(key=job.key)


def _of(right: Measurement, **fields: Any) -> Measurement:
    assert right.entry is not None
    return right._replace(entry=right.entry._replace(**fields))


# Answers that no worker should give, by the text of the problem.
MALFORMED = {
    "NaN": lambda right: _of(right, tune_seconds=float("nan")),
    "escapes": lambda right: _of(right, text=f"{right.entry.text}\x1b[2J"),
    "an integer for a candidate": lambda right: _of(right, candidates=(7,)),
    "100,000 faults": lambda right: right._replace(faults=(fault_of(0),) * 100_000),
    "an unknown symptom": lambda right: right._replace(faults=(fault_of(0)._replace(symptom="\x1b"),)),  # type: ignore[arg-type]
    "no measurement": lambda right: 7,
    "another text": lambda right: _of(right, text="another"),
    "another GPU": lambda right: _of(right, key=right.entry.key._replace(gpu="another")),
}


def install(path: str) -> None:
    """Let this process, a worker, do the work that a file has at the time of each request."""
    from cudnnpy.cli.tune import dask_cluster

    def work() -> Work:
        found: Work = pickle.loads(Path(path).read_bytes())
        return found

    def gpus() -> list[TuningGpu]:
        odd = work().odd_version
        vars(dask_cluster)["__version__"] = (
            odd if odd != cudnnpy.__version__ and work().is_odd() else cudnnpy.__version__
        )
        return work().gpus()

    assert raw.version()
    vars(dask_cluster).update(tuning_gpus=gpus, tune_on=lambda worker, job: work().tune(job, worker.uuid))
