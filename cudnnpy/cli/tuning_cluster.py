"""`cudnnpy tune --dask SCHEDULER`: the workers of a Dask cluster in place of this machine's (tuning_workers).

Each GPU gets one problem at a time from here. Dask's scheduler would queue many on a worker, and blame all of them for its
end; so it is certain which problem a worker was lost at. That problem is tried again, on another GPU if there is one, and
set aside after TRIES.
"""

from __future__ import annotations

import asyncio
import json
import logging
import queue
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from uuid import uuid4

from cudnnpy import raw
from cudnnpy._installation import with_extra
from cudnnpy._planning.candidate_filter import FoundFault
from cudnnpy._store.entry import Entry
from cudnnpy._version import __version__
from cudnnpy.cli import tuning_worker
from cudnnpy.cli.tuning import EXTRA_SECONDS, Job, mismatch
from cudnnpy.cli.tuning_roster import ClusterError, Member, Roster
from cudnnpy.cli.tuning_worker import Answer, TuneHere, Work, one_line, received
from cudnnpy.cli.tuning_workers import Result

TRIES = 3  # of a problem whose worker is lost, or that a GPU has no choice for
_PATIENCE_SECONDS = 2 * EXTRA_SECONDS  # for the two tries of a worker
CONNECT_SECONDS = 5.0
_LOOK_SECONDS = 1.0  # between two looks at which workers there are
_ABSENCE_SECONDS = 30.0  # without a worker that has a kind of GPU: a nanny takes some of them to start another
_NAME_LENGTH = 200  # of a problem in the name of a task


@dataclass(eq=False)
class _Task:
    """A job, when it was begun, how often it was tried, the UUID of the GPU that it was tried on last, and the faults found."""

    job: Job
    begin: float = 0.0
    tries: int = 0
    last: str = ""
    failure: str = ""
    faults: list[FoundFault] = field(default_factory=list)


class Cluster:
    """The GPUs of a Dask cluster's workers.

    Parameters
    ----------
    scheduler : str
        The address of the scheduler, such as "tcp://host:8786", or the path of its scheduler file (.json).
    work : Work, optional
        What the workers do. By default they tune on their GPUs.
    connect_seconds : float
        How long to wait for the scheduler.
    patience : float
        A worker is ended that has not answered after this many seconds, and 20 times those of its job.

    Attributes
    ----------
    devices : list of (int, str)
        The numbers of the GPUs, and the kind of each.
    notes : list of str
        Which worker has which GPU, and why a worker has none; one line for each.

    Raises
    ------
    ClusterError
        The scheduler does not answer; no worker has a GPU; or a worker has another version of cudnnpy or cuDNN.
    """

    def __init__(
        self,
        scheduler: str,
        work: Work | None = None,
        connect_seconds: float = CONNECT_SECONDS,
        patience: float = _PATIENCE_SECONDS,
    ) -> None:
        self._work, self._patience = TuneHere() if work is None else work, patience
        self._roster = Roster(raw.version())
        self._ended: queue.SimpleQueue[Member] = queue.SimpleQueue()
        self._kept: list[Any] = []  # futures of what was done: the dashboard counts them
        self._numbers, self._name = count(), uuid4().hex[:8]
        self._looked = 0.0
        self._client: Any = None
        _need_distributed()
        self._quiet = _Quiet()
        try:
            self._client = _connected(scheduler, connect_seconds)
            self._check_scheduler()
            self._look()
            self._check_workers(scheduler)
        except BaseException:
            self.close()
            raise
        members = sorted(self._roster.members.values(), key=lambda member: member.number)
        self.devices = [(member.number, member.gpu.kind) for member in members]
        self.notes = [
            f"GPU {member.number} is the one with UUID {member.gpu.uuid} of worker {member.address}"
            for member in members
        ]
        self.notes += [f"worker {address} is left out: {why}" for address, why in self._roster.useless.items()]
        self.notes += [
            f"worker {address} is left out: other workers have the GPUs that it sees"
            for address in self._roster.spare()
        ]

    def run(self, jobs: Sequence[Job]) -> Iterator[Result]:
        """Yield a result for each job, in the order in which they are done. Closing the generator cancels the others.

        Raises ClusterError if the scheduler is lost.
        """
        waiting = {kind: deque[_Task]() for kind in dict.fromkeys(job.kind for job in jobs)}
        for job in jobs:
            waiting[job.kind].append(_Task(job))
        seen = dict.fromkeys(waiting, time.monotonic())  # when there was a worker of a kind
        try:
            while any(waiting.values()) or self._roster.busy():
                if time.monotonic() - self._looked > _LOOK_SECONDS:
                    yield from self._account(self._look(), waiting)
                    yield from self._given_up(waiting, seen)
                for member in self._roster.members.values():
                    if member.task is None and (task := self._next(member, waiting.get(member.gpu.kind))):
                        self._start(member, task)
                with suppress(queue.Empty):
                    yield from self._account([self._ended.get(timeout=_LOOK_SECONDS / 4)], waiting)
        finally:
            self._cancel()

    def close(self) -> None:
        """Leave the cluster, whose workers go on running. This can be called repeatedly."""
        if self._client is not None:
            self._cancel()
            self._kept.clear()
            with suppress(Exception):
                self._client.close(timeout=2)
            self._client = None
        self._quiet.end()

    # Workers

    def _look(self) -> list[Member]:
        """Find out which workers there are. Return those that were lost at work, or that were ended since they hang."""
        self._looked = time.monotonic()
        if self._client.status != "running":  # the futures of a lost connection are cancelled
            raise ClusterError("the scheduler was lost")
        try:
            present = self._client.nthreads()
            lost = self._roster.keep(present)
            new = self._roster.unknown(present)
            asked = self._client.run(tuning_worker.announce, self._work, workers=new, on_error="return") if new else {}
        except Exception as error:
            raise ClusterError(f"the scheduler was lost: {one_line(error)}") from None
        self._roster.add(asked)
        for member in self._roster.busy():
            seconds = self._patience + 20 * member.task.job.seconds
            if time.monotonic() - member.since > seconds:
                member.task.failure = f"no answer after {seconds:g} s"
                self._end(member)
                lost.append(member)
        return lost

    def _end(self, member: Member) -> None:
        """End the process of a worker."""
        self._roster.dismiss(member)
        with suppress(Exception):
            self._client.run(tuning_worker.leave, workers=[member.address], on_error="ignore")

    def _check_scheduler(self) -> None:
        """Raise ClusterError unless the scheduler has cudnnpy, without which it cannot read what it is to distribute."""
        try:
            found = self._client.run_on_scheduler(tuning_worker.version)
        except Exception as error:
            found = one_line(error)
        if found != __version__:
            raise ClusterError(f"the scheduler must have cudnnpy {__version__}; got {found}")

    def _check_workers(self, scheduler: str) -> None:
        """Raise ClusterError for a worker of another version, and if no worker has a GPU."""
        for why in self._roster.refused.values():
            raise ClusterError(why)
        if self._roster.members:
            return
        for address, why in self._roster.useless.items():
            raise ClusterError(f"worker {address} must have a GPU that cuDNN can use; got none: {why}")
        raise ClusterError(
            f"the cluster must have workers; got none: on each machine start one for each GPU, with "
            f"dask worker {scheduler} --nworkers N --nthreads 1"
        )

    # Tasks

    def _next(self, member: Member, tasks: deque[_Task] | None) -> _Task | None:
        """Take the next task for a worker: one that failed on its GPU goes to another one, if there is another."""
        is_alone = sum(other.gpu.kind == member.gpu.kind for other in self._roster.members.values()) == 1
        for place, task in enumerate(tasks or ()):
            if task.last != member.gpu.uuid or is_alone:
                del tasks[place]  # type: ignore[union-attr]
                return task
        return None

    def _start(self, member: Member, task: _Task) -> None:
        """Send a task to a worker. Its name is the problem, which the dashboard shows."""
        member.task, member.since = task, time.monotonic()
        task.tries, task.last, task.begin = task.tries + 1, member.gpu.uuid, task.begin or member.since
        again = f" (try {task.tries})" if task.tries > 1 else ""
        member.future = self._client.submit(
            tuning_worker.tune,
            self._work,
            member.process,
            task.job.text,
            member.gpu.uuid,
            task.job.seconds,
            [fault._asdict() for fault in (*task.job.known, *task.faults)],
            key=f"cudnnpy tune-{task.job.text[:_NAME_LENGTH]}{again} {self._name}.{next(self._numbers)}",
            workers=[member.address],
            allow_other_workers=False,
            pure=False,
        )
        member.future.add_done_callback(lambda _: self._ended.put(member))

    def _account(self, members: Iterable[Member], waiting: dict[str, deque[_Task]]) -> Iterator[Result]:
        """Yield the results of workers that ended their task or were lost, unless the task is to be tried again."""
        for member in members:
            if member.task is None:  # it was accounted for when it was lost
                continue
            task: _Task = member.task
            answer, member.task = self._answer(member), None
            task.faults += answer.faults
            entry, reason = self._entry(member, task.job, answer) if answer.entry else (None, answer.failure)
            if not answer.entry and not answer.is_final:
                reason = task.failure or reason
                if task.tries < TRIES:
                    task.failure = ""
                    waiting[task.job.kind].append(task)
                    continue
                reason = f"set aside after {TRIES} tries: {reason}"
            seconds = time.monotonic() - task.begin
            yield Result(task.job, member.number, seconds, entry, reason, tuple(task.faults))

    def _answer(self, member: Member) -> Answer:
        """Return the answer of a worker, a failure if it was lost."""
        future, member.future = member.future, None
        if future.status == "finished":
            with suppress(Exception):  # it was lost after its last task
                given = future.result(timeout=CONNECT_SECONDS)
                self._kept.append(future)
                try:
                    answer = received(Answer, given)
                    answer = answer._replace(faults=[received(FoundFault, one) for one in answer.faults])
                except ValueError as wrong:
                    return Answer({}, [], f"worker {member.address} must send an answer: {wrong}")
                if answer.is_restarted:
                    self._roster.dismiss(member)
                return answer
        error = future.exception() if future.status == "error" else None
        with suppress(Exception):
            future.cancel()
        self._roster.dismiss(member)
        return Answer({}, [], f"its worker {member.address} was lost" if error is None else one_line(error))

    def _entry(self, member: Member, job: Job, answer: Answer) -> tuple[Entry | None, str]:
        """Return the entry of an answer, which must be one for the job, and the reason if there is none."""
        try:
            entry = Entry.of(answer.entry)
        except ValueError as error:
            return None, f"worker {member.address} sent no entry: {one_line(error)}"
        wrong = mismatch(entry, job)
        return (None, f"worker {member.address} must send an entry with {wrong}") if wrong else (entry, "")

    def _given_up(self, waiting: dict[str, deque[_Task]], seen: dict[str, float]) -> Iterator[Result]:
        """Give up the tasks of a kind of GPU that no worker has any more, after a while."""
        for member in self._roster.members.values():
            seen[member.gpu.kind] = time.monotonic()
        for kind, tasks in waiting.items():
            while tasks and time.monotonic() - seen[kind] > _ABSENCE_SECONDS:
                yield Result(tasks.popleft().job, None, 0.0, None, "no GPU is left to tune it on")

    def _cancel(self) -> None:
        """Cancel what is queued or running in the cluster; a problem that is being measured is measured to its end."""
        futures = [member.future for member in self._roster.busy()]
        for member in self._roster.busy():
            member.task = member.future = None
        if futures and self._client is not None and self._client.status == "running":
            with suppress(Exception):
                self._client.cancel(futures)


# The scheduler


def _need_distributed() -> None:
    """Raise ClusterError if dask.distributed is not installed."""
    try:
        import distributed  # noqa: F401
    except ImportError as error:
        raise ClusterError(f"--dask needs dask.distributed ({error}): pip install {with_extra('cluster')}") from None


def _connected(scheduler: str, seconds: float) -> Any:
    """Return a client of the scheduler. Raises ClusterError if it does not answer."""
    from distributed import Client

    try:
        address = scheduler
        if scheduler.endswith(".json"):
            with open(scheduler, encoding="utf-8") as file:
                address = str(json.load(file)["address"])
        asyncio.run(_greet(address, seconds))
        return Client(address, timeout=seconds, name="cudnnpy-tune", set_as_default=False)
    except Exception as error:
        raise ClusterError(
            f"--dask must be the address of a Dask scheduler that runs, such as tcp://host:8786, or its scheduler file; "
            f"got {scheduler!r}: {one_line(error)}"
        ) from None


async def _greet(address: str, seconds: float) -> None:
    """Raise unless a Dask process answers at an address. A Client waits without end for a server of another kind."""
    from distributed.comm import connect
    from distributed.core import normalize_address
    from distributed.security import Security

    if not address:
        raise ConnectionError("there is no address")
    arguments = Security().get_connection_args("client")
    try:
        comm = await asyncio.wait_for(connect(normalize_address(address), timeout=seconds, **arguments), seconds + 1)
    except TimeoutError:
        raise TimeoutError(f"no answer in {seconds:g} s") from None
    comm.abort()


class _Quiet:
    """Keeps the log messages of Dask, and of its callbacks in Tornado, from standard error until the end."""

    def __init__(self) -> None:
        names = {name for name in logging.root.manager.loggerDict if name.split(".")[0] in ("distributed", "tornado")}
        self._before = {name: logging.getLogger(name).level for name in {"distributed", *names}}
        for name in self._before:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)

    def end(self) -> None:
        """Set the levels that were set before."""
        for name, level in self._before.items():
            logging.getLogger(name).setLevel(level)
        self._before = {}
