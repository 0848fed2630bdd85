"""docs/examples/data_parallel.py without a GPU: two ranks by gloo learn the digits, and its arguments."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "data_parallel.py"


def load() -> Any:
    spec = importlib.util.spec_from_file_location(EXAMPLE.stem, EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


example = load()


def run(*arguments: str, launcher: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *launcher, str(EXAMPLE), *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_two_ranks_learn_the_digits() -> None:
    done = run("--device", "cpu", "--gpus", "2", "--precision", "fp32", "--steps", "250")
    assert done.returncode == 0, done.stderr
    found = re.search(r"accuracy on 360 pictures not trained on: ([\d.]+)%", done.stdout)
    assert found is not None
    assert 97 <= float(found[1]) <= 100
    rates = re.search(r"pictures per second: (\d+); of each rank: (\d+), (\d+)", done.stdout)
    assert rates is not None
    assert int(rates[1]) == pytest.approx(int(rates[2]) + int(rates[3]), abs=2)
    assert "; scaling " in done.stdout


def test_torchrun_starts_its_ranks_and_too_few_steps_are_a_failure() -> None:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = run("--device", "cpu", "--steps", "1", launcher=launcher)
    assert done.returncode == 1
    assert done.stdout.startswith("digits, bf16, batch 128 a rank, 1 steps, 2 x CPU")


# How the processes of the ranks end


LEAVING = """
import sys, threading
import data_parallel as example

options = example.arguments(["--device", "cpu"])
example.join(0, 0, 1, options, "file://" + sys.argv[1])
threading.Thread(target=threading.Event().wait).start()  # the end of the interpreter would wait for it
print("done")
example.leave(7)
"""


def test_the_end_of_a_rank_waits_for_no_thread(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAVING, str(tmp_path / "ranks")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(EXAMPLE.parent), str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (7, "done\n"), done.stderr


class Process:
    """In the place of a rank's process, which ends with an exit status, None for never.

    It ends right after it was alive for `looks` looks.
    """

    def __init__(self, ends_with: int | None, looks: int = 0) -> None:
        self.exitcode: int | None = None
        self.ends_with, self.looks, self.sentinel = ends_with, looks, object()

    def start(self) -> None:
        self.look()

    def look(self) -> None:
        if self.looks == 0:
            self.exitcode = self.ends_with
        self.looks -= 1

    def is_alive(self) -> bool:
        found = self.exitcode is None
        self.look()
        return found

    def kill(self) -> None:
        self.exitcode = self.ends_with = -signal.SIGKILL

    def join(self) -> None:
        assert self.exitcode is not None


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiprocessing's wait() of nothing never returns."""

    def wait(sentinels: list[object]) -> list[object]:
        assert sentinels
        return sentinels

    monkeypatch.setattr(example, "wait", wait)


@pytest.mark.parametrize("looks", range(1, 6))
def test_ranks_may_end_at_any_moment(looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    assert example.supervised([Process(0), Process(0, looks)]) == 0
    assert example.supervised([Process(0, looks), Process(0)]) == 0
    assert example.supervised([Process(0, looks)]) == 0


@pytest.mark.parametrize(
    ("ends", "status", "told"),
    [
        ([0, 0], 0, ""),
        ([0, 1], 1, ""),
        ([1, None], 1, ""),
        ([0, -signal.SIGALRM], 1, "rank 1 was ended by signal 14: Alarm clock\n"),
        ([-signal.SIGSEGV, None], 1, "rank 0 was ended by signal 11: Segmentation fault\n"),
    ],
)
def test_one_rank_that_fails_ends_all(
    ends: list[int | None], status: int, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch)
    monkeypatch.setattr(example.time, "sleep", lambda seconds: None)
    assert example.supervised([Process(one) for one in ends]) == status
    assert capsys.readouterr().err == told


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--tune-seconds", "-1"], "tune_seconds must be "),
        (["--store", str(ROOT)], "path must be a file; got "),
        (["--gpus", "0"], "argument --gpus: must be 1 or more; got 0"),
        (["--batch", "-1"], "argument --batch: must be 1 or more; got -1"),
        (["--network", "lenet"], "argument --network: invalid choice: 'lenet'"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        example.arguments(["--device", "cpu", *arguments])
    assert raised.value.code == 2
    assert says in capsys.readouterr().err


def test_without_a_gpu_it_says_what_is_needed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(example.cudnnpy, "why_unavailable", lambda: "there is no\ndriver")
    with pytest.raises(SystemExit) as raised:
        example.arguments([])
    assert raised.value.code == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert "a GPU is needed: there is no driver; --device cpu tries the program" in printed


def test_ranks_are_torchruns_to_choose(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(SystemExit):
        example.arguments(["--device", "cpu", "--gpus", "2"])
    assert "--gpus must be left to torchrun; got 2" in capsys.readouterr().err


def test_resnet50_has_its_layers() -> None:
    with torch.device("meta"):
        network = example.resnet50()
        assert network(torch.empty(2, 3, 224, 224)).shape == (2, 1000)
    assert sum(parameter.numel() for parameter in network.parameters()) == 25_557_032  # as torchvision's
    convolutions = [module for module in network.modules() if isinstance(module, torch.nn.Conv2d)]
    assert len(convolutions) == 53
