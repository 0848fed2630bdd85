"""Work for the workers of test_cluster.py, whose GPUs are made up; what it does follows from the text of the problem."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import stand_in_tuning
from distributed import get_worker

import cudnnpy
from cudnnpy import raw
from cudnnpy._planning.measurement import FoundFault, Measurement
from cudnnpy._store.entry import Entry, Key
from cudnnpy.cli.tune import dask_worker
from cudnnpy.cli.tune.tune_problem import Job, TuningGpu

H200 = json.dumps({"deviceName": "NVIDIA H200", "deviceVer": 900, "multiProcessorCount": 132})
L4 = json.dumps({"deviceName": "NVIDIA L4", "deviceVer": 890, "multiProcessorCount": 58})
CUDNN = 92800
CUDNN_HERE = [CUDNN]  # of this process


class Try(NamedTuple):
    """A try of a problem: on which GPU, in which process, and the name of the task."""

    device: int
    process: int
    task: str


class MadeUp(NamedTuple):
    """Each process sees the same GPUs, as the processes of one machine do. `folder` gets a file for each try.

    One process, whichever comes first, may see `odd_kinds` instead, or have other versions of cudnnpy and cuDNN.
    """

    folder: str
    kinds: tuple[str, ...] = (H200, H200)
    odd_kinds: tuple[str, ...] | None = None
    odd_version: str = cudnnpy.__version__
    odd_cudnn: int = CUDNN

    def gpus(self) -> list[TuningGpu]:
        is_odd = self._is_odd()
        kinds = self.odd_kinds if is_odd and self.odd_kinds is not None else self.kinds
        vars(dask_worker)["__version__"] = self.odd_version if is_odd else cudnnpy.__version__
        CUDNN_HERE[:] = [self.odd_cudnn if is_odd else CUDNN]
        if not kinds:
            raise RuntimeError("no CUDA-capable device is detected\nand more lines")
        return stand_in_tuning.gpus_of(*kinds)

    def cudnn(self) -> int:
        return CUDNN_HERE[0]

    def _is_odd(self) -> bool:
        file = Path(self.folder, "odd")
        try:
            with file.open("x") as stream:
                stream.write(str(os.getpid()))
        except FileExistsError:
            return file.read_text() == str(os.getpid())  # asked again
        return True

    def tune(self, job: Job, gpu: str) -> Measurement:
        text, tune_seconds, known = job.text, job.seconds, job.known
        device = int(gpu.removeprefix("GPU-"))
        earlier = self.tries(text)
        file = Path(self.folder, f"{text[:60]}.{device}.{os.getpid()}.{uuid4().hex[:6]}")
        file.with_suffix(".part").write_text(str(get_worker().get_current_task()))
        file.with_suffix(".part").rename(file)
        if text.startswith("poison") or (text.startswith("unlucky") and not earlier):
            os.kill(os.getpid(), signal.SIGKILL)
        while text.startswith("stuck") and not Path(self.folder, "go").exists():
            time.sleep(0.01)
        if text.startswith("wrong"):
            raise ValueError(f"{text} is no problem\nand a second line")
        if text.startswith("fails"):
            raise MemoryError("no memory is left")
        faults = [fault_of(number) for number in range(2)] if text.startswith("faulty") else []
        found = tuple(fault for fault in faults if fault not in known)
        if text.startswith("faulty") and not earlier:
            return Measurement(None, "the process that measures ended", faults=found[:1])
        entry = entry_of(text, self.kinds[device], tune_seconds)
        if text.startswith("of another "):
            field = text.removeprefix("of another ")
            key = entry.key._asdict()
            other = {**key, field: 1 if isinstance(key.get(field), int) else "another"}
            entry = entry._replace(text="another") if field == "text" else entry._replace(key=Key(**other))
        return Measurement(entry, faults=found)

    def tries(self, text: str) -> list[Try]:
        """The tries of the problems whose text begins so."""
        files = [path for path in Path(self.folder).glob(f"{text[:60]}*.*.*.*") if path.suffix != ".part"]
        return [Try(int(path.name.split(".")[-3]), int(path.name.split(".")[-2]), path.read_text()) for path in files]


def fault_of(number: int) -> FoundFault:
    """A fault that tuning finds."""
    return FoundFault(f"engine {number}", "context lost", "CUDA_ERROR_ILLEGAL_ADDRESS", "13.0")


def entry_of(text: str, kind: str, tune_seconds: float) -> Entry:
    """The entry that tuning a problem gives, wherever that is done."""
    made_at = datetime(2026, 1, 31, tzinfo=UTC).isoformat()
    gpu = json.loads(kind)
    capability = f"{gpu['deviceVer'] // 100}.{gpu['deviceVer'] // 10 % 10}"
    key = Key(f'"{text}"', "{}", gpu["deviceName"], capability, gpu["multiProcessorCount"], CUDNN)
    return Entry(key, text, "{}", float(len(text)), 0.1, None, 64, tune_seconds, True, made_at, {}, ())


class Planned(NamedTuple):
    """Entries of problems in the notation, as stand_in_tuning makes them; `poison` is one that kills its worker."""

    folder: str
    kinds: tuple[str, ...]
    poison: str = ""
    slow: bool = False

    def gpus(self) -> list[TuningGpu]:
        return stand_in_tuning.gpus_of(*self.kinds)

    def cudnn(self) -> int:
        return raw.version()

    def tune(self, job: Job, gpu: str) -> Measurement:
        Path(self.folder, f"{uuid4().hex}.try").touch()
        if job.text == self.poison:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.slow:
            time.sleep(0.3)
        kind = stand_in_tuning.KINDS.index(self.kinds[int(gpu.removeprefix("GPU-"))])
        return Measurement(stand_in_tuning.tuned(job.text, 0, job.seconds, kind))


class ForProfile(NamedTuple):
    """Plans of the real libcudnn for the GPU that a profile describes, of which there are two; the driver is a stand-in.

    The first try of `unlucky` ends its worker while it plans.
    """

    folder: str
    profile: str
    unlucky: str = ""

    @property
    def kind(self) -> str:
        content = json.loads(self.profile)
        return json.dumps({name: content[name] for name in ("deviceName", "deviceVer", "multiProcessorCount")})

    def gpus(self) -> list[TuningGpu]:
        return stand_in_tuning.gpus_of(self.kind, self.kind)

    def cudnn(self) -> int:
        return raw.version()

    def tune(self, job: Job, gpu: str) -> Measurement:
        return Measurement(self.planned(job.text))

    def planned(self, text: str) -> Entry:
        """The entry of a problem."""
        from cudnnpy._planning.engines import Target
        from cudnnpy._planning.plan import Plan
        from cudnnpy._planning.problem_notation import parse
        from cudnnpy._planning.selection import choose
        from cudnnpy._planning.stored_choice import entry_of

        problem, options = parse(text)
        target = Target(profile=self.profile)
        candidate, tried = choose(problem, options, target, 1 << 37)
        if text == self.unlucky:
            with suppress(FileExistsError):
                Path(self.folder, "unlucky").touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        made = entry_of(problem, options, target, Plan(problem, candidate), tried, complete=True)
        return made._replace(made_at=datetime(2026, 1, 31, tzinfo=UTC).isoformat())


if __name__ == "__main__":  # in one process: PROFILE TEXT ... -> a line of JSON for each entry
    work = ForProfile("", Path(sys.argv[1]).read_text())
    for text in sys.argv[2:]:
        print(json.dumps(work.planned(text).plain()))
