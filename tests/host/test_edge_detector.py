"""The edge detector without a GPU: the kernel, the CPU's picture, the example and the gpu marker (rows A1-A6)."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cudnnpy import edges, pictures

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "edge_detector.py"


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def without_gpu(*arguments, **environment):
    return run(*arguments, CUDA_VISIBLE_DEVICES="", **environment)


def neighbours(picture):
    """What the kernel computes, by shifting: the sum over colours of the eight neighbours less eight times itself."""
    height, width = picture.shape[1:3]
    total = np.pad(picture[0].astype(np.float64).sum(axis=2), 1)
    around = sum(total[dy : dy + height, dx : dx + width] for dy in range(3) for dx in range(3))
    return np.repeat((around - 9 * total[1:-1, 1:-1])[None, :, :, None], 3, axis=3)


def test_the_kernel_is_the_template_in_every_pair_of_channels():
    assert edges.EDGE_KERNEL.shape == (3, 3, 3, 3)
    assert edges.EDGE_KERNEL.dtype == np.float32
    for kernel in edges.EDGE_KERNEL.reshape(9, 3, 3):
        assert kernel.tolist() == [[1, 1, 1], [1, -8, 1], [1, 1, 1]]


@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.just(1), st.integers(1, 12), st.integers(1, 12), st.just(3)),
        elements=st.floats(0, 1, width=32),
    ),
    st.booleans(),
)
def test_the_cpus_picture(picture, sigmoid):
    found = edges.detect(picture, device="cpu", sigmoid=sigmoid)
    expected = neighbours(picture)
    if sigmoid:
        expected = 1 / (1 + np.exp(-expected))
    assert found.picture.dtype == np.float32
    np.testing.assert_allclose(found.picture, expected, rtol=1e-6, atol=1e-5)
    assert (found.device, found.workspace_size) == ("CPU", 0)
    assert found.milliseconds > 0


def test_edges_are_bright_and_gradients_dark():
    picture = pictures.load(pictures.SAMPLE)
    levels = pictures.to_bytes(edges.detect(picture, device="cpu").picture)
    assert levels.shape == (400, 640, 3)
    assert levels[320:384, 40:104].max() > 200  # the chessboard
    assert levels[20:140, 20:380].max() <= 2  # the sky


def test_auto_is_the_cpu_where_cudnn_cannot_be_used(monkeypatch):
    monkeypatch.setattr(edges, "why_unavailable", lambda: "there is none")
    picture = np.ones((1, 2, 2, 3), np.float32)
    assert edges.detect(picture).device == "CPU"
    with pytest.raises(edges.UnavailableError, match="there is none"):
        edges.detect(picture, device="cuda")


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"device": "gpu"}, ValueError, "device: 'gpu' given; expected one of 'auto', 'cuda', 'cpu'"),
        (
            {"prefer": "quickest"},
            ValueError,
            "prefer: 'quickest' given; expected one of 'fastest', 'limited_workspace'",
        ),
        ({"workspace_limit": -1}, ValueError, "workspace_limit: -1 given; expected a number of bytes, 0 or more"),
        (
            {"workspace_limit": "1GiB"},
            TypeError,
            "workspace_limit: '1GiB' given; expected a number of bytes, 0 or more",
        ),
    ],
)
def test_wrong_options_are_refused(arguments, kind, words):
    with pytest.raises(kind, match=words):
        edges.detect(np.ones((1, 2, 2, 3), np.float32), **arguments)


def test_wrong_pictures_are_refused():
    with pytest.raises(TypeError, match="expected float32"):
        edges.detect(np.ones((1, 2, 2, 3)))
    for shape in ((2, 2, 3), (2, 2, 2, 3), (1, 2, 2, 4), (1, 0, 2, 3)):
        with pytest.raises(ValueError, match="expected \\(1, height, width, 3\\)"):
            edges.detect(np.ones(shape, np.float32))


@pytest.mark.parametrize(
    "arguments",
    [
        ["missing.png"],
        ["README.md"],
        ["-o", "no/such/folder/x.png"],
        ["-o", "x.unknown"],
        ["--workspace-limit", "many"],
        ["--unknown"],
    ],
)
def test_the_example_refuses_bad_input_in_one_line(arguments):
    done = run(EXAMPLE, *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("edge_detector.py: ")


def test_the_example_without_a_gpu_says_where_and_why(tmp_path):
    done = without_gpu(EXAMPLE, "-o", tmp_path / "x.png")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    line = int(done.stderr.partition("error on line ")[2].partition(":")[0])
    assert "raw.cudnnCreate(" in EXAMPLE.read_text().splitlines()[line - 1]
    assert "CUDNN_STATUS_NOT_INITIALIZED (1001)" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_example_is_a_port():
    """It crosses into cuDNN by the raw API alone, and in the walkthrough's order."""
    program = EXAMPLE.read_text()
    assert "cudnnpy import pictures, raw\n" in program
    assert runpy.run_path(str(EXAMPLE))["raw"].__name__ == "cudnnpy.raw"
    steps = (
        "cudnnCreate(",
        "cudnnSetTensor4dDescriptor(",
        "cudnnSetFilter4dDescriptor(",
        "cudnnSetConvolution2dDescriptor(",
        "cudnnGetConvolutionForwardAlgorithm_v7(",
        "cudnnGetConvolutionForwardWorkspaceSize(",
        "cudaMalloc(",
        "cudaMemcpyHostToDevice",
        "cudnnConvolutionForward(",
        "cudnnActivationForward(",
        "cudaMemcpyDeviceToHost",
    )
    places = [program.index(step) for step in steps]
    assert places == sorted(places)


def test_a_gpu_test_is_skipped_without_a_gpu_and_fails_where_one_is_required():
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu/test_edges.py")
    skipped = without_gpu(*command, CUDNNPY_REQUIRE_GPU="")
    assert skipped.returncode == 0, skipped.stdout
    assert " skipped" in skipped.stdout.splitlines()[-1]
    assert "passed" not in skipped.stdout.splitlines()[-1]
    required = without_gpu(*command, CUDNNPY_REQUIRE_GPU="1")
    assert required.returncode == 1, required.stdout
    assert "CUDNNPY_REQUIRE_GPU=1, and cuDNN cannot be used" in required.stdout
    assert not {"passed", "skipped"} & set(required.stdout.splitlines()[-1].split())
