"""`cudnnpy tune` on real GPUs: it measures once, on all of them at once, and other processes take its choices."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cudnnpy
from cudnnpy import TensorSpec, reference
from cudnnpy import store as stores
from cudnnpy._planning.problem_notation import parse
from cudnnpy.availability import usable_cuda
from cudnnpy.cli.tune import tune_problem
from cudnnpy.store import Entry
from cudnnpy.tuning.measuring.gpu_worker import GpuWorker
from cudnnpy.tuning.stored_choice import key_of

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 3.0  # for each problem, beside other tests
PROBLEMS = (
    "forward 8x32x28x28 64x32x3x3 pad=1 float16 channels_last",
    "backward_data 8x32x28x28 64x32x3x3 pad=1 tf32=False",
    "backward_filter 8x32x28x28 64x32x3x3 pad=1 float16 channels_last deterministic",
)
PROGRAM = """
import sys
import numpy as np
import cudnnpy

assert sys.argv[1:] == ["--steps", "2"]
x = cudnnpy.to_device(np.ones((2, 8, 12, 12), np.float16))
w = cudnnpy.to_device(np.ones((16, 8, 3, 3), np.float16))
for prefer in ("fastest", "autotune"):
    conv = cudnnpy.Convolution(padding=1, prefer=prefer, tune_seconds=60.0)
    y = conv.forward(x, w)
    conv.backward_filter(y, x, (16, 8, 3, 3))
fused = cudnnpy.FusedConvolution(padding=1)
bias = cudnnpy.to_device(np.ones(16, np.float32))
fused.forward(x, w, bias=bias, activation="relu")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with problems.txt; the store of this process and of others is a file there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDNNPY_STORE", str(tmp_path / "store.jsonl"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    Path("problems.txt").write_text("\n".join(PROBLEMS))
    return tmp_path


def tune(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "cudnnpy", "tune", "--seconds", str(SECONDS), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout, done.stderr)
    return done


def stored(path: str = "store.jsonl") -> list[Entry]:
    with stores.open(path, read_only=True) as store:
        return list(store)


@pytest.mark.parametrize("gpus", ["one", "all"])
@pytest.mark.usefixtures("folder")
def test_problems_are_measured_once(gpus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if gpus == "one":
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    done = tune("problems.txt", "--html", "page.html")
    assert done.returncode == 0, done.stderr
    entries = stored()
    assert len(re.findall(r"^\[\d+/\d+\] ", done.stderr, re.M)) == len(entries)
    assert len(entries) == 3 * len({json.dumps(entry.key[2:]) for entry in entries})
    assert all(entry.choice.milliseconds and entry.choice.milliseconds > 0 for entry in entries)
    assert all(sum(one.milliseconds is not None for one in entry.candidates) >= 3 for entry in entries)
    assert all(re.search(rf"^{re.escape(text)}  +engine ", done.stdout, re.M) for text in PROBLEMS)
    again = tune("problems.txt")
    assert again.returncode == 0, again.stderr
    assert f"cudnnpy tune: {len(entries)} of {len(entries)} problems are in the store\n" in again.stderr
    assert not re.search(r"^\[\d+/", again.stderr, re.M)
    assert stored() == entries
    page = Path("page.html").read_text()
    assert all(text in page for text in PROBLEMS)


@pytest.mark.usefixtures("folder")
def test_the_choice_is_taken_by_another_process_and_is_right() -> None:
    assert tune("problems.txt").returncode == 0
    chosen = {entry.text.partition(" ")[0]: entry.choice.name for entry in stored()}
    stores.use("store.jsonl")
    try:
        random = np.random.default_rng(1)
        x = random.integers(-2, 3, (8, 28, 28, 32)).astype(np.float16)
        w = random.integers(-2, 3, (64, 3, 3, 32)).astype(np.float16)
        conv = cudnnpy.Convolution(padding=1, layout="NHWC", prefer="autotune", tune_seconds=1.0)
        plan = conv.plan("forward", TensorSpec(x.shape, "float16"), TensorSpec(w.shape, "float16"))
        assert plan.store_layer == "user"
        assert plan.name.startswith(chosen["forward"])
        y = conv.forward(cudnnpy.to_device(x), cudnnpy.to_device(w))
        right = reference.Convolution(padding=1, layout="NHWC").forward(x, w)
        np.testing.assert_allclose(cudnnpy.to_numpy(y), right, rtol=0.01, atol=1.0)  # sums of up to 1,152
    finally:
        stores.use(None)


@pytest.mark.usefixtures("folder")
def test_what_a_program_plans_is_tuned() -> None:
    Path("program.py").write_text(PROGRAM)
    done = tune("--save", "saved.txt", "--record", "program.py", "--steps", "2")
    assert done.returncode == 0, done.stderr
    entries = stored()
    texts = {entry.text for entry in entries}
    assert {text.partition(" ")[0] for text in texts} == {"forward", "backward_filter", "graph"}
    # the program itself, whose tune_seconds is 60, did not measure
    assert {entry.tune_seconds for entry in entries} == {SECONDS}
    again = tune("saved.txt")
    assert again.returncode == 0
    assert f"{len(stored())} of {len(stored())} problems are in the store\n" in again.stderr


def test_the_parent_knows_the_keys_of_its_workers() -> None:
    """It looks them up by what the driver says of GPUs on which it has no context."""
    gpus = tune_problem.tuning_gpus()
    assert len(gpus) == usable_cuda().gpu_count
    problem, options = parse(PROBLEMS[0])
    for gpu in gpus:
        worker = GpuWorker(gpu.uuid)
        try:
            job = tune_problem.Job(PROBLEMS[0], 0.2, gpu.kind, key_of(problem, options, gpu.kind))
            entry = tune_problem.tune_on(worker, job).entry
        finally:
            worker.close()
        assert entry is not None
        assert entry.key == key_of(problem, options, gpu.kind)
        assert entry.tune_seconds == 0.2


CONTEXTS = """
from cuda.bindings import driver
from cudnnpy.cli.tune.tune_problem import tuning_gpus
for gpu in tuning_gpus():
    print(int(driver.cuDevicePrimaryCtxGetState(driver.cuDeviceGet(gpu.device)[1])[2]))
"""


@pytest.mark.usefixtures("folder")
def test_what_the_command_asks_of_gpus_makes_no_context() -> None:
    done = subprocess.run([sys.executable, "-c", CONTEXTS], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"0"}
