"""A Dask cluster on this machine's GPUs, and the data-parallel example: ranks that share a store choose alike."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch

import cudnnpy
from cudnnpy import raw
from cudnnpy import store as stores
from cudnnpy._planning.selection import plan_for
from cudnnpy.cli.tune.dask_cluster import ABSENCE_SECONDS, DaskCluster
from cudnnpy.cli.tune.tune_problem import Job, Result, distribute, tuning_gpus
from cudnnpy.tuning.stored_choice import key_of

ROOT = Path(__file__).resolve().parents[2]
HOST = ROOT / "tests" / "shared"
EXAMPLE = ROOT / "docs" / "examples" / "data_parallel.py"
SECONDS = 120
PROBLEMS = (
    "forward 8x32x14x14 64x32x3x3 pad=1 float16 channels_last",
    "backward_data 8x32x14x14 64x32x3x3 pad=1 float16 channels_last",
    "backward_filter 8x32x14x14 64x32x3x3 pad=1 bfloat16 channels_last",
    "forward 8x32x14x14 64x32x1x1",
)


@pytest.fixture
def scheduler() -> Iterator[str]:
    """The address of a scheduler that has a worker for each GPU; each worker sees all of them."""
    pytest.importorskip("distributed", reason="tuning on a cluster needs dask.distributed")
    sys.path.append(str(HOST))
    try:
        from local_clusters import local_cluster

        with local_cluster(str(torch.cuda.device_count())) as (address, _):
            yield address
    finally:
        sys.path.remove(str(HOST))


def test_a_cluster_tunes_on_each_gpu(scheduler: str) -> None:
    from cudnnpy._planning.problem_notation import parse

    with closing(DaskCluster(scheduler)) as cluster:
        assert sorted(gpu.kind for gpu in cluster.gpus) == sorted(gpu.kind for gpu in tuning_gpus())
        kind = cluster.gpus[0].kind
        jobs = [Job(text, 0.5, kind, key_of(*parse(text), kind)) for text in PROBLEMS]
        jobs.append(jobs[0]._replace(text="forward nonsense"))
        reports = distribute(jobs, cluster.present, ABSENCE_SECONDS)
        found = {one.job.text: one for one in reports if isinstance(one, Result)}
        assert len(found) == len(jobs)
    assert found.pop("forward nonsense").reason.startswith("column 9: word must be one of ")
    assert {one.faults for one in found.values()} == {()}
    for text, one in found.items():
        assert one.reason == ""
        assert one.entry is not None
        assert one.entry.key == key_of(*parse(text), kind)
        assert one.entry.choice.milliseconds is not None
        assert one.entry.key.cudnn == raw.version()
    with stores.open("") as store:  # the entries serve this process: nothing is measured again
        for one in found.values():
            assert one.entry is not None
            store.put(one.entry)
        stores.use(store)
        try:
            with cudnnpy.freeze() as frozen:
                for text in PROBLEMS:
                    problem, options = parse(text)
                    plan, entry = plan_for(problem, options._replace(prefer="autotune")), found[text].entry
                    assert entry is not None
                    assert (plan.store_layer, plan.milliseconds) == ("user", entry.choice.milliseconds)
            assert frozen.unknown == ()
        finally:
            stores.use(None)


def trained(*arguments: str, gpus: int, launcher: tuple[str, ...] = ()) -> str:
    """Run the example, and return what it prints. If it does not end, its threads tell where they are."""
    given = [*launcher, str(EXAMPLE), "--tune-seconds", "0.3", *arguments]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with subprocess.Popen(
        [sys.executable, *given, *(() if launcher else ("--gpus", str(gpus)))],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "PYTHONFAULTHANDLER": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that the signal below reaches the ranks alone
    ) as process:
        try:
            printed, errors = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGABRT)
            printed, errors = process.communicate()
            pytest.fail(f"the example did not end within {SECONDS} s:\n{printed}{errors[-9000:]}")
    assert process.returncode == 0, printed + errors[-3000:]
    return printed


def check(printed: str) -> None:
    assert "the ranks run the same kernels: yes" in printed
    assert "not in the store" not in printed
    assert re.search(r"convolutions of rank 0 on cudnnpy: \{'forward': [1-9]\d*, .*left to torch: \{\}", printed)


def test_one_rank_learns_the_digits(tmp_path: Path) -> None:
    printed = trained("--store", str(tmp_path / "s.jsonl"), gpus=1)
    check(printed)
    found = re.search(r"accuracy on 360 pictures not trained on: ([\d.]+)%", printed)
    assert found is not None
    assert 97 <= float(found[1]) <= 100
    with stores.open(tmp_path / "s.jsonl", read_only=True) as store:
        assert len(store) >= 8  # three layers forward and to the filter, two of them to the input


@pytest.mark.skipif("torch.cuda.device_count() < 2", reason="several ranks need several GPUs")
@pytest.mark.parametrize("how", ["rank 0 measures", "together", "torchrun"])
def test_ranks_choose_alike(how: str, tmp_path: Path) -> None:
    arguments = ["--store", str(tmp_path / "s.jsonl"), *(["--together"] if how == "together" else [])]
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2") if how == "torchrun" else ()
    check(trained(*arguments, gpus=2, launcher=launcher))
