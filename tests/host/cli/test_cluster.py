"""Tuning on a Dask cluster: processes of a LocalCluster, whose GPUs and work are made up (cluster_work.py)."""

from __future__ import annotations

import json
import logging
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from cluster_work import CUDNN, H200, L4, MadeUp, entry_of, fault_of
from local_clusters import local_cluster, ready
from messages import says
from stand_in_tuning import worker

import cudnnpy
from cudnnpy import raw
from cudnnpy._planning.measurement import Measurement
from cudnnpy._store.entry import Entry, Key
from cudnnpy.cli.tune import dask_cluster, dask_worker
from cudnnpy.cli.tune.cluster_workers import ClusterError
from cudnnpy.cli.tune.dask_cluster import TRIES, DaskCluster
from cudnnpy.cli.tune.dask_worker import Answer, TuneHere
from cudnnpy.cli.tune.tune_problem import Job, Result

HERE = Path(__file__).resolve().parents[2] / "shared"
SECONDS = 1.5  # tune_seconds
LONG = 120.0  # the seconds that a worker may take to start on a machine under load


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """The address of a scheduler with two workers, in place of which others are started when they end."""
    with local_cluster("2") as (address, _):
        yield address


@pytest.fixture(autouse=True)
def _cudnn_of_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw, "version", lambda: CUDNN)


@pytest.fixture
def work(tmp_path: Path) -> MadeUp:
    return MadeUp(str(tmp_path))


def tells(text: str, pattern: str) -> bool:
    """Whether the whole text is as the pattern, in which `...` stands for any text."""
    return re.fullmatch(says(pattern), text) is not None


def jobs(*texts: str, kind: str = H200) -> list[Job]:
    return [Job(text, SECONDS, kind, entry_of(text, kind, SECONDS).key) for text in texts]


def results(cluster: DaskCluster, wanted: list[Job]) -> dict[str, Result]:
    """The results of jobs, by their texts; each has one."""
    found = list(cluster.run(wanted))
    assert sorted(one.job for one in found) == sorted(wanted)
    return {one.job.text: one for one in found}


# What is tuned


def test_the_results_are_those_of_one_process(scheduler: str, work: MadeUp) -> None:
    wanted = jobs(*(f"forward {number}" for number in range(40)))
    with closing(ready(scheduler, work)) as cluster:
        found = results(cluster, wanted)
        assert cluster.devices == [(0, H200), (1, H200)]
        assert all(tells(note, "GPU ... is the one with UUID GPU-... of worker tcp://...") for note in cluster.notes)
    assert {one.device for one in found.values()} == {0, 1}
    assert [found[job.text].entry for job in wanted] == [entry_of(job.text, H200, SECONDS) for job in wanted]
    assert {one.reason for one in found.values()} == {""}
    tries = work.tries("forward")
    assert len(tries) == 40
    assert len({(one.device, one.process) for one in tries}) == 2  # a process for each GPU
    assert {one.device for one in tries} == {0, 1}


def test_each_kind_of_gpu_gets_its_own_jobs(scheduler: str, tmp_path: Path) -> None:
    work = MadeUp(str(tmp_path), (H200, L4))
    wanted = [*jobs("a", "b", "c"), *jobs("a", "b", kind=L4)]
    with closing(ready(scheduler, work)) as cluster:
        assert {kind for _, kind in cluster.devices} == {H200, L4}
        found = list(cluster.run(wanted))
    assert sorted((one.job, one.entry) for one in found) == sorted(
        (job, entry_of(job.text, job.kind, SECONDS)) for job in wanted
    )
    assert sorted(one.device for one in work.tries("")) == [0, 0, 0, 1, 1]


def test_the_names_of_the_tasks_are_the_problems(scheduler: str, work: MadeUp) -> None:
    """The dashboard shows them, below one bar: Dask takes the text before the first number for the bar's name."""
    from distributed.utils import key_split

    text = "forward 128x64x56x56 64x64x3x3 pad=1"
    with closing(ready(scheduler, work)) as cluster:
        results(cluster, jobs(text, "graph " + "{" * 500, "unlucky"))
    (of_text,), (of_graph,) = work.tries(text), work.tries("graph")
    assert text in of_text.task
    assert 200 < len(of_graph.task) < 300
    assert any("(try 2)" in one.task for one in work.tries("unlucky"))
    assert {key_split(one.task) for one in work.tries("")} == {"cudnnpy tune"}


# What is lost


def test_a_problem_whose_worker_is_killed_is_tried_elsewhere(scheduler: str, work: MadeUp) -> None:
    def kill() -> None:
        while not (tries := work.tries("stuck")):
            time.sleep(0.01)
        os.kill(tries[0].process, signal.SIGKILL)
        Path(work.folder, "go").touch()

    killer = threading.Thread(target=kill)
    killer.start()
    with closing(ready(scheduler, work)) as cluster:
        found = results(cluster, jobs("stuck", *"abcdef"))
    killer.join()
    assert {one.reason for one in found.values()} == {""}
    assert found["stuck"].entry == entry_of("stuck", H200, SECONDS)
    first, second = sorted(work.tries("stuck"), key=lambda one: "(try 2)" in one.task)
    assert second.device != first.device


def test_a_problem_that_kills_its_workers_is_set_aside(scheduler: str, work: MadeUp) -> None:
    with closing(ready(scheduler, work)) as cluster:
        found = results(cluster, jobs("a", "poison", "b", "unlucky", "c"))
    assert found["poison"].entry is None
    assert tells(found["poison"].reason, "set aside after 3 tries: its worker tcp://... was lost")
    assert TRIES == 3
    tries = work.tries("poison")
    assert len({one.process for one in tries}) == len(tries) == 3
    assert {one.device for one in tries} == {0, 1}
    others = [found[text] for text in ("a", "b", "unlucky", "c")]
    assert [one.reason for one in others] == [""] * 4
    assert len(work.tries("unlucky")) == 2


def test_a_problem_that_cannot_be_tuned_is_not_tried_again(scheduler: str, work: MadeUp) -> None:
    with closing(ready(scheduler, work)) as cluster:
        found = results(cluster, jobs("wrong", "a"))
    assert found["wrong"][3:] == (None, "wrong is no problem", ())
    assert found["a"].reason == ""
    assert len(work.tries("wrong")) == 1


def test_a_problem_that_fails_on_a_gpu_is_tried_on_another(scheduler: str, work: MadeUp) -> None:
    """The GPU stays well, so its process does, too."""
    with closing(ready(scheduler, work)) as cluster:
        found = results(cluster, jobs("fails"))
    assert found["fails"][3:] == (None, "set aside after 3 tries: no memory is left", ())
    first, second, third = sorted(work.tries("fails"), key=lambda one: re.findall(r"try \d", one.task))
    assert first.device == third.device != second.device
    assert first.process == third.process != second.process


def test_the_faults_of_all_tries_come_back_and_are_known_to_the_next(scheduler: str, work: MadeUp) -> None:
    with closing(ready(scheduler, work)) as cluster:
        known = jobs("faulty later")[0]._replace(known=(fault_of(0), fault_of(1)))
        found = results(cluster, [*jobs("faulty", "a"), known])
    assert {one.reason for one in found.values()} == {""}
    assert found["faulty"].faults == (fault_of(0), fault_of(1))
    assert found["faulty later"].faults == found["a"].faults == ()
    assert len(work.tries("faulty")) == 4  # of the two, each fails once


def test_an_entry_for_something_else_is_refused(scheduler: str, work: MadeUp) -> None:
    """One that differs in any part of the key, or in the text of the problem."""
    fields = (*Key._fields, "text")
    with closing(ready(scheduler, work)) as cluster:
        found = results(cluster, jobs(*(f"of another {field}" for field in fields), "a"))
    assert found.pop("a").reason == ""
    for field in fields:
        one = found[f"of another {field}"]
        assert one.entry is None
        assert tells(one.reason, f"worker tcp://... must send an entry with {field} ...; got ...")


def test_closing_cancels_what_has_not_begun(scheduler: str, work: MadeUp) -> None:
    with closing(ready(scheduler, work)) as cluster:
        run = cluster.run(jobs("a", "stuck", *"bcdef"))
        assert next(run).job.text == "a"
        run.close()
        Path(work.folder, "go").touch()
        again = results(cluster, jobs("x", "y"))  # the cluster is as it was
    assert {one.reason for one in again.values()} == {""}
    assert not [text for text in "bcdef" if work.tries(text)]


def test_a_process_that_another_one_was_taken_for_does_nothing(work: MadeUp) -> None:
    """A nanny may start a worker at the same address, to which Dask sends the task of the one before again."""
    assert dask_worker.tune(work, "the process before", *jobs("a"), "GPU-0").is_restarted
    assert work.tries("a") == []


# What cannot be used


def refusal(scheduler: str, work: MadeUp | None = None) -> str:
    with pytest.raises(ClusterError) as raised:
        DaskCluster(scheduler, work, connect_seconds=1.0)
    text = str(raised.value)
    assert "\n" not in text
    return text


def odd(tmp_path: Path, **differences: object) -> MadeUp:
    return MadeUp(str(tmp_path))._replace(**differences)


def test_a_worker_without_a_gpu_is_left_out(scheduler: str, tmp_path: Path) -> None:
    with closing(ready(scheduler, odd(tmp_path, odd_kinds=()), gpus=1)) as cluster:
        left_out = "worker tcp://... is left out: no CUDA-capable device is detected"
        assert any(tells(note, left_out) for note in cluster.notes)
        assert len(results(cluster, jobs(*"abcd"))) == 4


def test_a_cluster_without_a_gpu_is_refused(scheduler: str, tmp_path: Path) -> None:
    text = refusal(scheduler, MadeUp(str(tmp_path), kinds=()))
    assert tells(
        text, "worker tcp://... must have a GPU that cuDNN can use; got none: no CUDA-capable device is detected"
    )


def test_a_worker_too_many_for_the_gpus_is_left_out(scheduler: str, tmp_path: Path) -> None:
    with closing(ready(scheduler, MadeUp(str(tmp_path), (H200,)), gpus=1)) as cluster:
        left_out = "worker tcp://... is left out: other workers have the GPUs that it sees"
        assert any(tells(note, left_out) for note in cluster.notes)
        assert len(results(cluster, jobs("a", "unlucky"))) == 2  # the other one takes over


def test_a_worker_that_sees_one_gpu_gets_that(scheduler: str, tmp_path: Path) -> None:
    """The other one sees two, and gets the second."""
    with closing(ready(scheduler, odd(tmp_path, odd_kinds=(H200,)))) as cluster:
        assert {device for device, _ in cluster.devices} == {0, 1}


def test_other_versions_are_refused(scheduler: str, tmp_path: Path) -> None:
    ready(scheduler, MadeUp(str(tmp_path))).close()
    Path(tmp_path, "odd").unlink()
    text = refusal(scheduler, odd(tmp_path, odd_cudnn=91900))
    assert tells(text, "worker tcp://... must have cuDNN 92800, as here; got 91900")
    Path(tmp_path, "odd").unlink()
    text = refusal(scheduler, odd(tmp_path, odd_version="0.0.1"))
    assert tells(text, f"worker tcp://... must have cudnnpy {cudnnpy.__version__}; got 0.0.1")


def test_a_worker_of_another_version_that_comes_later_is_not_used(scheduler: str, work: MadeUp) -> None:
    with closing(ready(scheduler, work)) as cluster:
        Path(work.folder, "odd").unlink()
        cluster._worker_task = work._replace(odd_version="0.0.1")
        found = results(cluster, jobs("unlucky", *"abcd"))  # the worker that takes its worker's place is another one
        assert {one.reason for one in found.values()} == {""}
        deadline = time.monotonic() + LONG
        while not cluster._registry.mismatched:
            assert time.monotonic() < deadline, "no worker took the place of the one that ended"
            cluster._poll_workers()
        assert len(cluster._registry.gpus) == 1


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:1", "no address", "http://127.0.0.1:1", "127.0.0.1", "", "missing.json"]
)
def test_a_scheduler_that_does_not_answer_is_refused(address: str) -> None:
    before = logging.getLogger("distributed.client").level
    assert tells(
        refusal(address), f"--dask must be the address of a Dask scheduler that runs, ...; got {address!r}: ..."
    )
    assert logging.getLogger("distributed.client").level == before


def test_a_server_that_is_no_scheduler_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        assert tells(refusal(address), f"--dask must be ...; got {address!r}: ...")


def test_a_scheduler_file_names_the_scheduler(scheduler: str, tmp_path: Path, work: MadeUp) -> None:
    file = tmp_path / "scheduler.json"
    file.write_text(json.dumps({"address": scheduler}))
    ready(scheduler, work).close()
    with closing(DaskCluster(str(file), work)) as cluster:
        assert len(cluster.devices) == 2


def test_a_cluster_without_workers_is_refused(work: MadeUp) -> None:
    with local_cluster("0") as (address, _):
        text = refusal(address, work)
    assert tells(text, f"the cluster must have workers; got none: ... dask worker {address} ...")


def test_a_scheduler_without_cudnnpy_is_refused(work: MadeUp) -> None:
    with local_cluster("0", "without") as (address, _):
        text = refusal(address, work)
    assert tells(text, f"the scheduler must have cudnnpy {cudnnpy.__version__}; got ...")


def test_a_scheduler_that_is_lost_ends_the_run(work: MadeUp) -> None:
    with local_cluster("1") as (address, process), closing(ready(address, work, 1, 1)) as cluster:
        run = cluster.run(jobs("a", "stuck", "b"))
        assert next(run).job.text == "a"  # which is kept
        process.kill()
        with pytest.raises(ClusterError, match="the scheduler was lost"):
            next(run)
        Path(work.folder, "go").touch()


def test_a_kind_of_gpu_that_no_worker_has_any_more_is_given_up(
    scheduler: str, work: MadeUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_cluster, "_ABSENCE_SECONDS", 0.5)
    with closing(ready(scheduler, work)) as cluster:
        run = cluster.run(jobs("a", "stuck 1", "stuck 2", "b"))
        first = next(run)
        monkeypatch.setattr(cluster._client, "nthreads", dict)  # the scheduler has no workers any more
        others = list(run)
        Path(work.folder, "go").touch()
    assert first.reason == ""
    assert [one.reason for one in others] == ["no GPU is left to tune it on"] * 3


def test_without_dask_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert tells(refusal("tcp://127.0.0.1:1"), "--dask needs dask.distributed ...: pip install ...[cluster]...")


def test_dask_is_imported_when_it_is_used() -> None:
    program = "import sys, cudnnpy.cli.tune.dask_cluster; print('distributed' in sys.modules or 'dask' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_a_worker_keeps_its_process_between_problems(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What `cudnnpy tune --dask` does in a worker, with processes that do not measure."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # of the locks of GPUs
    monkeypatch.setattr(dask_worker, "GpuWorker", worker("as_told"))
    here = dask_worker.announce(MadeUp(str(tmp_path)))["process"]
    answers = [dask_worker.tune(TuneHere(), here, one, "GPU-1") for one in jobs("one", "bad", "crash", "two", "three")]
    one, bad, crash, two, three = pickle.loads(pickle.dumps(answers))  # as Dask does
    entries: list[Entry] = [answer.measurement.entry for answer in (one, two, three)]
    processes = [entry.made_with["process"] for entry in entries]
    assert processes[0] != processes[1] == processes[2]
    assert bad == Answer(Measurement(None, "text must be a problem; got 'bad'"), is_final=True)
    assert crash == Answer(Measurement(None, "the process that measures ended: signal SIGSEGV"))
    dask_worker._gpu_workers["GPU-1"].close()
