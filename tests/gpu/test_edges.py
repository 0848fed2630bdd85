"""The edge detector on a GPU: its result against the CPU's, every preference, the command and the example."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cudnnpy._checks.preferences import PREFERENCES
from cudnnpy._planning import candidates
from cudnnpy.cli import command as cli
from cudnnpy.cli import edges

ROOT = Path(__file__).resolve().parents[2]


@cache
def sample_or_photograph(name):
    """The sample, or something like a photograph: light that changes smoothly, and noise; 1920 x 1080."""
    if name == "sample":
        return edges.load(edges.SAMPLE)
    random = np.random.default_rng(7)
    coarse = random.uniform(size=(10, 17, 3))
    rows, columns = np.linspace(0, 8.999, 1080), np.linspace(0, 15.999, 1920)
    top, left = rows.astype(int), columns.astype(int)
    down, across = (rows - top)[:, None, None], (columns - left)[None, :, None]
    upper = coarse[top][:, left] * (1 - across) + coarse[top][:, left + 1] * across
    lower = coarse[top + 1][:, left] * (1 - across) + coarse[top + 1][:, left + 1] * across
    values = upper * (1 - down) + lower * down + random.normal(scale=0.02, size=(1080, 1920, 3))
    return np.clip(values, 0, 1).astype(np.float32)[None]


@cache
def levels_on_the_cpu(name, sigmoid):
    return edges.to_levels(edges.detect(sample_or_photograph(name), device="cpu", sigmoid=sigmoid).values).astype(int)


@pytest.mark.parametrize("prefer", PREFERENCES)
@pytest.mark.parametrize("sigmoid", [False, True])
@pytest.mark.parametrize("name", ["sample", "photograph"])
def test_the_gpus_result_is_the_cpus_within_one_grey_level(name, sigmoid, prefer):
    found = edges.detect(sample_or_photograph(name), device="cuda", sigmoid=sigmoid, prefer=prefer)
    difference = abs(edges.to_levels(found.values).astype(int) - levels_on_the_cpu(name, sigmoid))
    print(f"{name}, sigmoid={sigmoid}, {prefer}: {found.algorithm}, {found.workspace_size} bytes,", end=" ")
    print(f"{found.milliseconds:.3f} ms, largest difference {difference.max()}, pixels {np.count_nonzero(difference)}")
    assert difference.max() <= 1
    assert found.device != "CPU"
    assert found.algorithm.startswith("engine ")
    assert found.milliseconds > 0
    assert prefer != "no_workspace" or found.workspace_size == 0


def test_the_floats_agree_too():
    """No tf32: its ten bits would differ by about 1e-3 here."""
    found = edges.detect(sample_or_photograph("photograph"), device="cuda").values
    np.testing.assert_allclose(found, edges.detect(sample_or_photograph("photograph"), device="cpu").values, atol=5e-5)


def test_auto_takes_the_gpu():
    assert edges.detect(sample_or_photograph("sample")).device != "CPU"


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (5, 2)])
def test_small_images(size):
    small = np.random.default_rng(1).uniform(size=(1, *size, 3)).astype(np.float32)
    on_gpu, on_cpu = (edges.detect(small, device=device).values for device in ("cuda", "cpu"))
    np.testing.assert_allclose(on_gpu, on_cpu, atol=2e-5)


@pytest.fixture
def every_candidate_is_refused(monkeypatch):
    monkeypatch.setattr(candidates, "rejection_by_options", lambda *_: "refused by this test")


@pytest.mark.usefixtures("every_candidate_is_refused")
def test_the_command_prints_that_table_and_its_status_is_2(tmp_path, capsys):
    assert cli.main(["edges", "--device", "cuda", "--prefer", "no_workspace", "-o", str(tmp_path / "x.png")]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("cudnnpy edges: no algorithm for forward ")
    assert printed.err.count("refused by this test\n") > 5
    assert list(tmp_path.iterdir()) == []


def program(*arguments):
    return subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def assert_like_the_cpu(path, sigmoid):
    assert abs(np.asarray(Image.open(path)).astype(int) - levels_on_the_cpu("sample", sigmoid)).max() <= 1


def test_the_command(tmp_path):
    out = tmp_path / "x.png"
    printed = program(
        "-m", "cudnnpy", "edges", "-o", out, "--prefer", "limited_workspace", "--workspace-limit", "64MiB"
    )
    assert_like_the_cpu(out, sigmoid=False)
    assert "\nalgorithm  engine " in printed
    assert "without cuDNN" not in printed


def test_info():
    printed = program("-m", "cudnnpy", "info")
    assert printed.splitlines()[-1] == "cuDNN can be used here"
    assert "compute capability" in printed


@pytest.mark.parametrize("options", [[], ["--sigmoid"], ["--workspace-limit", "0"]])
def test_the_example(tmp_path, options):
    out = tmp_path / "x.png"
    printed = program("docs/examples/edge_detector.py", edges.SAMPLE, "-o", out, *options)
    assert_like_the_cpu(out, sigmoid="--sigmoid" in options)
    size = next(line for line in printed.splitlines() if line.startswith("Workspace size: "))
    assert size.endswith(" MB")
    assert "--workspace-limit" not in options or size == "Workspace size: 0.0 MB"
