"""`cudnnpy tune --dask` with the processes of a Dask cluster, whose GPUs and work are made up (cluster_work.py)."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import cluster_work
import pytest
from cluster_work import Work, entry_of
from fresh_process import python
from local_clusters import local_cluster
from messages import says
from stand_in_tuning import KINDS

import cudnnpy
from cudnnpy import store as stores
from cudnnpy._planning.choice import GpuKind
from cudnnpy._planning.problem_notation import parse
from cudnnpy.cli import command
from cudnnpy.cli.tune import dask_cluster
from cudnnpy.cli.tune.dask_cluster import ClusterError, DaskCluster
from cudnnpy.cli.tune.tune_problem import Job, Result, distribute
from cudnnpy.tuning.store.entry import Entry
from cudnnpy.tuning.stored_choice import key_of

ROOT = Path(__file__).resolve().parents[3]
PROBLEMS = tuple(f"forward {batch}x8x9x9 16x8x3x3 pad=1 float16 channels_last" for batch in range(1, 9))


class Cluster(NamedTuple):
    """A cluster with two workers, in place of which others are started when they end."""

    address: str
    process: subprocess.Popen[str]
    file: Path

    def does(self, work: Work, gpus: int = 2, workers: int = 2) -> DaskCluster:
        """The cluster when it has so many GPUs and workers, which do this work."""
        part = self.file.with_suffix(".part")
        part.write_bytes(pickle.dumps(work))
        part.replace(self.file)
        notes: list[str] = []
        for _ in range(600):
            try:
                found = DaskCluster(self.address)
                if (len(found.gpus), len(found.notes)) == (gpus, workers):
                    return found
                notes = found.notes
                found.close()
            except ClusterError as error:
                notes = [str(error)]
            Path(work.folder, "odd").unlink(missing_ok=True)
            time.sleep(0.1)
        raise AssertionError(f"the cluster must have {gpus} GPUs and {workers} workers; got {notes}")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Iterator[Cluster]]:
    def started(*arguments: str) -> Iterator[Cluster]:
        file = tmp_path_factory.mktemp("cluster") / "work"
        file.write_bytes(pickle.dumps(Work(str(file.parent))))
        with local_cluster(*arguments, environment={**os.environ, cluster_work.VARIABLE: str(file)}) as (
            address,
            process,
        ):
            yield Cluster(address, process, file)

    return started


@pytest.fixture(scope="module")
def cluster(start: Callable[..., Iterator[Cluster]]) -> Iterator[Cluster]:
    yield from start("2")


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(str(tmp_path))


def job(text: str, kind: GpuKind = KINDS[0]) -> Job:
    return Job(text, 1.5, kind, key_of(*parse(PROBLEMS[0]), kind)._replace(problem=json.dumps(text)))


def run(cluster: DaskCluster, jobs: Sequence[Job], absence_seconds: float = 30.0) -> Iterator[Result]:
    for report in distribute(jobs, cluster.present, absence_seconds):
        assert isinstance(report, Result)
        yield report


def results(cluster: DaskCluster, *texts: str) -> dict[str, Result]:
    """The results of problems, by their texts; each has one."""
    found = list(run(cluster, [job(text) for text in texts]))
    assert sorted(one.job.text for one in found) == sorted(texts)
    return {one.job.text: one for one in found}


def tells(text: str, pattern: str) -> bool:
    """Whether the whole text is as the pattern, in which `...` stands for any text."""
    return re.fullmatch(says(pattern), text) is not None


# What is tuned


def test_problems_are_tuned_on_every_gpu_of_their_kind(cluster: Cluster, work: Work) -> None:
    with closing(cluster.does(work._replace(kinds=KINDS))) as dask:
        assert sorted(gpu.kind for gpu in dask.gpus) == sorted(KINDS)
        assert all(tells(note, "worker tcp://... has the GPU with UUID GPU-...") for note in dask.notes)
        wanted = [job(text, kind) for text in "abcdefghij" for kind in KINDS]
        found = list(run(dask, wanted))
    assert sorted((one.job, one.entry) for one in found) == sorted((job, entry_of(job)) for job in wanted)
    assert {one.reason for one in found} == {""}
    assert len({(one.device, one.process) for one in work.tries("")}) == 2  # a process for each GPU


# What is lost


def test_a_problem_whose_worker_is_killed_is_tried_elsewhere(cluster: Cluster, work: Work) -> None:
    def kill() -> None:
        while not (tries := work.tries("stuck")):
            time.sleep(0.01)
        os.kill(tries[0].process, signal.SIGKILL)
        Path(work.folder, "go").touch()

    killer = threading.Thread(target=kill)
    killer.start()
    with closing(cluster.does(work)) as dask:
        found = results(dask, "stuck", *"abcdef")
    killer.join()
    assert {one.reason for one in found.values()} == {""}
    first, second = work.tries("stuck")
    assert second.device != first.device


def test_a_problem_that_kills_its_workers_is_set_aside(cluster: Cluster, work: Work) -> None:
    with closing(cluster.does(work)) as dask:
        found = results(dask, "a", "poison", "b", "unlucky", "c")
    assert tells(found.pop("poison").reason, "set aside after 3 tries: worker tcp://... was lost")
    tries = work.tries("poison")
    assert len({one.process for one in tries}) == len(tries) == 3
    assert {one.device for one in tries} == {0, 1}
    assert {one.reason for one in found.values()} == {""}
    assert len(work.tries("unlucky")) == 2


def test_a_problem_that_fails_on_a_gpu_is_tried_on_another(cluster: Cluster, work: Work) -> None:
    """One that is no problem is not tried again."""
    with closing(cluster.does(work)) as dask:
        found = results(dask, "fails", "wrong")
    assert found["fails"][3:] == (None, "set aside after 3 tries: no memory is left", ())
    assert sorted(one.device for one in work.tries("fails")) in ([0, 0, 1], [0, 1, 1])
    assert found["wrong"][3:] == (None, "wrong is no problem", ())
    assert len(work.tries("wrong")) == 1


def test_a_malformed_answer_ends_its_problem_alone(cluster: Cluster, work: Work) -> None:
    with closing(cluster.does(work)) as dask:
        found = results(dask, "a", *cluster_work.MALFORMED, "b")
    assert found.pop("a").reason == found.pop("b").reason == ""
    for text, one in found.items():
        assert one.entry is None, text
        assert tells(one.reason, "worker tcp://... must send ...; got ..."), one.reason
        assert (one.faults, len(work.tries(text))) == ((), 1)


def test_closing_cancels_what_has_not_begun(cluster: Cluster, work: Work) -> None:
    with closing(cluster.does(work)) as dask:
        reports = run(dask, [job(text) for text in ("a", "stuck", *"bcdef")])
        assert next(reports).job.text == "a"
        del reports
        Path(work.folder, "go").touch()
        results(dask, "x", "y")  # the cluster is as it was
    assert not [text for text in "bcdef" if work.tries(text)]


def test_a_scheduler_that_is_lost_ends_the_run(start: Callable[..., Iterator[Cluster]], work: Work) -> None:
    for cluster in start("1"):
        with closing(cluster.does(work, 1, 1)) as dask:
            reports = run(dask, [job(text) for text in ("a", "stuck", "b")])
            assert next(reports).job.text == "a"
            cluster.process.kill()
            with pytest.raises(ClusterError, match="the scheduler was lost"):
                next(reports)
            Path(work.folder, "go").touch()


# What cannot be used


def refusal(scheduler: str) -> str:
    with pytest.raises(ClusterError) as raised:
        DaskCluster(scheduler)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_workers_without_a_gpu_of_their_own_are_left_out(cluster: Cluster, work: Work) -> None:
    with closing(cluster.does(work._replace(odd_kinds=()), gpus=1)) as dask:
        assert any(tells(note, "worker ... is left out: no CUDA-capable device is detected") for note in dask.notes)
        results(dask, *"abcd")
    with closing(cluster.does(work._replace(kinds=KINDS[:1]), gpus=1)) as dask:
        left_out = "worker ... is left out: other workers have the GPUs that it sees"
        assert any(tells(note, left_out) for note in dask.notes)
        results(dask, "a", "unlucky")  # the other one takes over
    with closing(cluster.does(work._replace(odd_kinds=KINDS[:1]))) as dask:
        assert len({gpu.uuid for gpu in dask.gpus}) == 2  # the other one sees two, and gets the second


def test_other_versions_and_a_cluster_without_a_gpu_are_refused(cluster: Cluster, work: Work) -> None:
    cluster.does(work).close()
    Path(work.folder, "odd").unlink(missing_ok=True)
    cluster.file.write_bytes(pickle.dumps(work._replace(odd_version="0.0.1")))
    text = refusal(cluster.address)
    assert tells(text, f"worker tcp://... must have cudnnpy {cudnnpy.__version__} and cuDNN ...; got cudnnpy 0.0.1 ...")
    cluster.file.write_bytes(pickle.dumps(work._replace(kinds=())))
    none = "worker tcp://... must have a GPU that cuDNN can use; got none: no CUDA-capable device is detected"
    assert tells(refusal(cluster.address), none)


@pytest.mark.parametrize("arguments", [("0",), ("0", "without")])
def test_a_scheduler_without_workers_or_cudnnpy_is_refused(
    start: Callable[..., Iterator[Cluster]], arguments: tuple[str, ...]
) -> None:
    for cluster in start(*arguments):
        text = refusal(cluster.address)
        expected = f"the cluster must have workers; got none: ... dask worker {cluster.address} ..."
        if len(arguments) > 1:
            expected = f"the scheduler must have cudnnpy {cudnnpy.__version__}; got ..."
        assert tells(text, expected), text


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "nowhere", "http://127.0.0.1:1", "", "missing.json"])
def test_a_scheduler_that_does_not_answer_is_one_line(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(dask_cluster, "_CONNECT_SECONDS", 0.3)
    (tmp_path / "problems.txt").write_text(PROBLEMS[0])
    assert command.main(["tune", str(tmp_path / "problems.txt"), "--dask", address]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    said = "cudnnpy tune: --dask must be the address of a Dask scheduler that runs, ...; got {!r}: ..."
    assert tells(line, said.format(address)), line


def test_dask_is_an_extra_that_is_imported_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import sys, cudnnpy.cli.tune.dask_cluster; print('distributed' in sys.modules or 'dask' in sys.modules)"
    assert python(program) == "False\n"
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert tells(refusal("tcp://127.0.0.1:1"), "--dask needs dask.distributed ...: pip install ...[cluster]...")


# The command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with problems.txt; the store is a file there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDNNPY_STORE", str(tmp_path / "user.jsonl"))
    Path("problems.txt").write_text("\n".join(PROBLEMS))
    return tmp_path


def stored() -> list[Entry]:
    with stores.open("user.jsonl", read_only=True) as store:
        return sorted(store)


@pytest.mark.usefixtures("folder")
def test_the_choices_of_all_workers_are_in_one_store(
    cluster: Cluster, work: Work, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.does(work._replace(behaviours={PROBLEMS[3]: "poison"})).close()
    assert command.main(["tune", "problems.txt", "--dask", cluster.address]) == 1
    printed = capsys.readouterr()
    assert [entry.text for entry in stored()] == sorted(set(PROBLEMS) - {PROBLEMS[3]})
    assert re.search("worker tcp://.* has the GPU with UUID GPU-1", printed.err)
    assert f"cudnnpy tune: not tuned: {PROBLEMS[3]}: set aside after 3 tries: worker tcp://" in printed.err
    cluster.does(work).close()
    assert command.main(["tune", "problems.txt", "--dask", cluster.address]) == 0
    assert "7 of 8 problems are in the store" in capsys.readouterr().err
    assert [entry.text for entry in stored()] == sorted(PROBLEMS)


def test_control_c_keeps_what_is_done(cluster: Cluster, work: Work, folder: Path) -> None:
    (folder / "tries").mkdir()
    work = work._replace(folder=str(folder / "tries"), behaviours=dict.fromkeys(PROBLEMS, "slow"))
    cluster.does(work).close()
    with subprocess.Popen(
        [sys.executable, "-m", "cudnnpy", "tune", "problems.txt", "--dask", cluster.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stderr is not None
        lines = [""]
        while not lines[-1].startswith("[1/8]"):
            lines.append(process.stderr.readline())
            assert lines[-1], lines
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert process.returncode == 130
    (stopped,) = [line for line in rest.splitlines() if line.startswith("cudnnpy tune: stopped; ")]
    count = int(re.findall(r"stopped; (\d+) of 8 problems are in", stopped)[0])
    assert 1 <= count == len(stored()) < 8
    assert "Traceback" not in rest
    time.sleep(0.5)  # what was queued does not begin
    assert len(work.tries("")) <= count + 2
