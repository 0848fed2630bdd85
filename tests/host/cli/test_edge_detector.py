"""The edge detector without a GPU: the kernel, the result of the CPU, the example and the gpu marker."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from cudnnpy.cli import edges

ROOT = Path(__file__).resolve().parents[3]
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


def neighbours(image):
    """What the kernel computes, by shifting: the sum over colours of the eight neighbours less eight times itself."""
    height, width = image.shape[1:3]
    total = np.pad(image[0].astype(np.float64).sum(axis=2), 1)
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
def test_the_result_of_the_cpu(image, sigmoid):
    found = edges.detect(image, device="cpu", sigmoid=sigmoid)
    expected = neighbours(image)
    if sigmoid:
        expected = 1 / (1 + np.exp(-expected))
    assert found.values.dtype == np.float32
    np.testing.assert_allclose(found.values, expected, rtol=1e-6, atol=1e-5)
    assert (found.device, found.workspace_size) == ("CPU", 0)
    assert found.milliseconds > 0


def test_a_large_image_on_the_cpu_is_computed_in_bands():
    image = np.random.default_rng(3).random((1, 801, 700, 3), np.float32)
    np.testing.assert_allclose(edges.detect(image, device="cpu").values, neighbours(image), rtol=1e-6, atol=1e-5)


def test_the_example_without_a_gpu_says_where_and_why(tmp_path):
    done = without_gpu(EXAMPLE, edges.SAMPLE, "-o", tmp_path / "x.png")
    assert done.returncode == 2
    assert done.stderr.startswith("edge_detector.py: ")
    assert "CUDNN_STATUS_NOT_INITIALIZED (1001)" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@given(st.binary(min_size=12, max_size=12), st.integers(1, 4).filter(lambda height: 4 % height == 0))
def test_the_example_loads_and_saves_as_the_command(content, height):
    """It loads and saves as the walkthrough does, and so does `cudnnpy edges`."""
    example = runpy.run_path(str(EXAMPLE))
    pixels = np.frombuffer(content, np.uint8).reshape(height, 4 // height, 3)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "p.png")
        Image.fromarray(pixels).save(path)
        loaded = example["load_image"](path)
        assert (loaded.shape, loaded.dtype) == ((1, *pixels.shape), np.float32)
        np.testing.assert_allclose(loaded, edges.load(path), atol=1e-6)
        values = loaded * 3 - 1
        example["save_image"](path, values)
        written = np.asarray(Image.open(path))
    assert written.dtype == np.uint8
    assert abs(written.astype(int) - edges.to_levels(values)).max() <= 1


def test_the_example_is_a_port():
    """It crosses into cuDNN by the raw API and the choice on its handles alone, and in the walkthrough's order."""
    program = EXAMPLE.read_text()
    assert re.findall(r"^from (cudnnpy\S*) import (.+)$", program, re.M) == [
        ("cudnnpy", "raw"),
        ("cudnnpy.descriptors", "choose_algorithm"),
        ("cudnnpy.errors", "CudnnError"),
    ]
    steps = (
        "raw.cudnnCreate(",
        "cudnnSetTensor4dDescriptor(",
        "cudnnSetFilter4dDescriptor(",
        "cudnnSetConvolution2dDescriptor(",
        " choose_algorithm(",
        "Workspace size: ",
        "cudaMalloc(",
        "cudaMemcpyHostToDevice",
        "cudnnConvolutionForward(",
        "cudnnActivationForward(",
        "cudaMemcpyDeviceToHost",
    )
    places = [program.index(step, program.index("with ExitStack()")) for step in steps]
    assert places == sorted(places)
