"""`cudnnpy tune --dask`: whole runs of the command with the processes of a LocalCluster, and every bad input."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from cluster_work import ForProfile, Planned
from local_clusters import local_cluster, ready
from planning import profile
from stand_in_tuning import KINDS, tuned

from cudnnpy import store as stores
from cudnnpy._store.entry import Entry
from cudnnpy.cli.tune import command as tune_command
from cudnnpy.cli.tune import session
from cudnnpy.cli.tune.dask_cluster import DaskCluster
from cudnnpy.cli.tune.session import TuningBackend

ROOT = Path(__file__).resolve().parents[3]
PROBLEMS = tuple(f"forward {batch}x8x9x9 16x8x3x3 pad=1 float16 channels_last" for batch in range(1, 9))


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    with local_cluster("2") as (address, _):
        yield address


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with problems.txt; the store is a file there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDNNPY_STORE", str(tmp_path / "user.sqlite"))
    write_problems(*PROBLEMS)
    return tmp_path


def write_problems(*texts: str) -> None:
    Path("problems.txt").write_text("\n".join(texts))


def tune(scheduler: str, work: Planned | ForProfile) -> int:
    parser = argparse.ArgumentParser()
    tune_command.add_arguments(parser)
    ready(scheduler, work).close()
    options = parser.parse_args(["problems.txt", "--dask", scheduler])
    return session.run(options, TuningBackend(cluster=partial(DaskCluster, worker_task=work)))


def stored() -> list[Entry]:
    with stores.open("user.sqlite", read_only=True) as store:
        return sorted(store)


def test_the_entries_of_all_workers_are_in_one_store(
    scheduler: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = Planned(str(tmp_path), KINDS[:1] * 2)
    assert tune(scheduler, work) == 0
    assert stored() == sorted(tuned(text, 0, 2.0) for text in PROBLEMS)  # as one process gives them
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == len(PROBLEMS) + 3
    assert "[8/8] " in printed.err
    assert re.search("GPU 1 is the one with UUID GPU-1 of worker tcp://", printed.err)
    Path("tries").mkdir()
    assert tune(scheduler, work._replace(folder="tries")) == 0  # finds all of them
    assert list(Path("tries").iterdir()) == []
    assert "8 of 8 problems are in the store" in capsys.readouterr().err


def test_each_problem_is_tuned_for_each_kind_of_gpu(scheduler: str, tmp_path: Path) -> None:
    assert tune(scheduler, Planned(str(tmp_path), KINDS)) == 0
    expected = [tuned(text, 0, 2.0, kind=kind) for text in PROBLEMS for kind in range(2)]
    assert stored() == sorted(expected)


def test_what_is_set_aside_is_reported(scheduler: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune(scheduler, Planned(str(tmp_path), KINDS[:1] * 2, poison=PROBLEMS[3])) == 1
    assert len(stored()) == len(PROBLEMS) - 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("cudnnpy tune: not tuned")]
    assert line.startswith(f"cudnnpy tune: not tuned: {PROBLEMS[3]}: set aside after 3 tries: its worker tcp://")


def test_workers_plan_as_one_process_does(planning_environment: dict[str, str], tmp_path: Path) -> None:
    """The real libcudnn plans for a device profile, and a worker is killed while it does."""
    program = [sys.executable, str(ROOT / "tests" / "shared" / "cluster_work.py"), str(profile()), *PROBLEMS]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "shared")])
    environment = {**planning_environment, "PYTHONPATH": paths}
    done = subprocess.run(program, capture_output=True, text=True, check=True, env=environment)
    expected = [Entry.of(json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len({one.plan for one in expected}) == len(PROBLEMS)
    work = ForProfile(str(tmp_path), profile().read_text(), unlucky=PROBLEMS[2])
    with local_cluster("2", environment=environment) as (address, _):
        assert tune(address, work) == 0
    assert Path("unlucky").exists()
    assert stored() == sorted(expected)


PROGRAM = """
import sys
from functools import partial
from cluster_work import Planned
from cudnnpy.cli import command
from cudnnpy.cli.tune import session
from cudnnpy.cli.tune.dask_cluster import DaskCluster

work = Planned(sys.argv[1], tuple(sys.argv[3:]), slow=True)
session.TuningBackend.__new__.__defaults__ = (
    *session.TuningBackend.__new__.__defaults__[:-1], partial(DaskCluster, worker_task=work),
)
sys.exit(command.main(["tune", "problems.txt", "--dask", sys.argv[2]]))
"""


def test_control_c_keeps_what_is_done(scheduler: str, tmp_path: Path) -> None:
    ready(scheduler, Planned(str(tmp_path), KINDS[:1] * 2)).close()
    paths = [str(ROOT), str(ROOT / "tests" / "shared"), str(ROOT / "tests" / "shared")]
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path), scheduler, *KINDS[:1] * 2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    ) as process:
        assert process.stderr is not None
        lines = []
        while not (lines and lines[-1].startswith("[1/8]")):
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
    begun = len(list(tmp_path.glob("*.try")))
    assert begun <= count + 2


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "nowhere", "missing.json"])
def test_a_scheduler_that_is_not_there_is_one_line(address: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cudnnpy", "tune", "problems.txt", "--dask", address],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("cudnnpy tune: --dask must be the address of a Dask scheduler that runs, such as ")
    assert f"got {address!r}: " in line
    assert not Path("user.sqlite").exists()


@pytest.mark.parametrize("arguments", [["--gpus", "0"], ["--report-only"]])
def test_options_of_this_machine_are_refused(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cudnnpy", "tune", "problems.txt", "--dask", "tcp://127.0.0.1:1", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 2
    assert done.stderr.startswith("cudnnpy tune: --dask must be without --gpus and --report-only; got ")
