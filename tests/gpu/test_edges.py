"""The edge detector on a GPU: its picture against the CPU's, every preference, the command and the example."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cudnnpy import edges, pictures
from cudnnpy.errors import CudnnError

ROOT = Path(__file__).resolve().parents[2]


@cache
def picture(name):
    """The sample, or something like a photograph: light that changes smoothly, and noise; 1920 x 1080."""
    if name == "sample":
        return pictures.load(pictures.SAMPLE)
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
    return pictures.to_bytes(edges.detect(picture(name), device="cpu", sigmoid=sigmoid).picture).astype(int)


@pytest.mark.parametrize("prefer", edges.PREFERENCES)
@pytest.mark.parametrize("sigmoid", [False, True])
@pytest.mark.parametrize("name", ["sample", "photograph"])
def test_the_gpus_picture_is_the_cpus_within_one_grey_level(name, sigmoid, prefer):
    found = edges.detect(picture(name), device="cuda", sigmoid=sigmoid, prefer=prefer)
    difference = abs(pictures.to_bytes(found.picture).astype(int) - levels_on_the_cpu(name, sigmoid))
    print(f"{name}, sigmoid={sigmoid}, {prefer}: {found.algorithm}, {found.workspace_size} bytes,", end=" ")
    print(f"{found.milliseconds:.3f} ms, largest difference {difference.max()}, pixels {np.count_nonzero(difference)}")
    assert difference.max() <= 1
    assert found.device != "CPU"
    assert found.algorithm.startswith("CUDNN_CONVOLUTION_FWD_ALGO_")
    assert found.milliseconds > 0
    assert prefer != "no_workspace" or found.workspace_size == 0


def test_the_floats_agree_too():
    """No tf32: its ten bits would differ by about 1e-3 here."""
    found = edges.detect(picture("photograph"), device="cuda").picture
    np.testing.assert_allclose(found, edges.detect(picture("photograph"), device="cpu").picture, atol=5e-5)


@pytest.mark.parametrize("prefer", edges.PREFERENCES)
def test_a_limit_is_kept(prefer):
    assert edges.detect(picture("sample"), device="cuda", prefer=prefer, workspace_limit=0).workspace_size == 0


def test_auto_takes_the_gpu():
    assert edges.detect(picture("sample")).device != "CPU"


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (5, 2)])
def test_small_pictures(size):
    small = np.random.default_rng(1).uniform(size=(1, *size, 3)).astype(np.float32)
    on_gpu, on_cpu = (edges.detect(small, device=device).picture for device in ("cuda", "cpu"))
    np.testing.assert_allclose(on_gpu, on_cpu, atol=2e-5)


def test_where_no_algorithm_remains_each_is_listed_with_the_reason(monkeypatch):
    offered = edges._candidates

    def on_tensor_cores(*arguments):
        candidates = offered(*arguments)
        for candidate in candidates:
            candidate.mathType = edges.raw.CUDNN_TENSOR_OP_MATH
        return candidates

    monkeypatch.setattr(edges, "_candidates", on_tensor_cores)
    with pytest.raises(CudnnError, match="prefer='no_workspace' within 0 bytes") as caught:
        edges.detect(picture("sample"), device="cuda", prefer="no_workspace")
    table = str(caught.value).splitlines()[1:]
    assert len([line for line in table if line.startswith("  CUDNN_CONVOLUTION_FWD_ALGO_")]) >= 6
    assert any("tensor cores" in line for line in table)


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
    assert "CUDNN_CONVOLUTION_FWD_ALGO_" in printed
    assert "without cuDNN" not in printed


def test_info():
    printed = program("-m", "cudnnpy", "info")
    assert printed.splitlines()[-1] == "cuDNN can be used here"
    assert "compute capability" in printed


@pytest.mark.parametrize("options", [[], ["--sigmoid"], ["--workspace-limit", "0"]])
def test_the_example(tmp_path, options):
    out = tmp_path / "x.png"
    printed = program("docs/examples/edge_detector.py", "-o", out, *options)
    assert_like_the_cpu(out, sigmoid="--sigmoid" in options)
    size = next(line for line in printed.splitlines() if line.startswith("Workspace size: "))
    assert size.endswith(" MB")
    assert "--workspace-limit" not in options or size == "Workspace size: 0.0 MB"
