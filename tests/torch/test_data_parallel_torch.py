"""docs/examples/data_parallel.py without a GPU: two ranks by gloo learn the digits, and its arguments."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "data_parallel.py"


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
