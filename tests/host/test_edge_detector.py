"""The edge detector without a GPU: the kernel, the CPU's picture, the example and the gpu marker."""

from __future__ import annotations

import io
import os
import re
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import whole_pictures
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from cudnnpy import reference
from cudnnpy.cli import edges, pictures, tiles

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
    found = whole_pictures.detect(picture, device="cpu", sigmoid=sigmoid)
    expected = neighbours(picture)
    if sigmoid:
        expected = 1 / (1 + np.exp(-expected))
    assert found.picture.dtype == np.float32
    np.testing.assert_allclose(found.picture, expected, rtol=1e-6, atol=1e-5)
    assert (found.device, found.workspace_size) == ("CPU", 0)
    assert found.milliseconds > 0


def test_edges_are_bright_and_gradients_dark():
    picture = whole_pictures.load(pictures.SAMPLE)
    levels = whole_pictures.to_bytes(whole_pictures.detect(picture, device="cpu").picture)
    assert levels.shape == (400, 640, 3)
    assert levels[320:384, 40:104].max() > 200  # the chessboard
    assert levels[20:140, 20:380].max() <= 2  # the sky


@given(
    hnp.arrays(np.uint16, st.tuples(st.integers(1, 12), st.integers(1, 12))),
    st.integers(1, 60),
    st.integers(1, 9),
    st.sampled_from([0, 200, 1 << 20]),
    st.booleans(),
)
def test_tiles_change_no_result(values, area, longest, kept, sigmoid):
    """Whatever their shape, and whether results are kept for the second pass or computed again."""
    file = io.BytesIO()
    Image.fromarray(values).save(file, format="PNG")
    picture = pictures.Picture(file)
    pixels = picture.pixels(slice(0, picture.height), slice(0, picture.width))
    whole = reference.Convolution(padding=1, layout="NHWC").forward(pixels, edges.EDGE_KERNEL.transpose(0, 2, 3, 1))
    if sigmoid:
        whole = reference.sigmoid(whole)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edges._OnCpu, "area", area)
        patch.setattr(tiles, "LONGEST", longest)
        patch.setattr(edges, "_KEPT", kept)
        assert (whole_pictures.detect(pixels, device="cpu", sigmoid=sigmoid).picture == whole).all()
        drawn = edges.draw(picture, device="cpu", sigmoid=sigmoid)
    assert (np.asarray(drawn.image) == whole_pictures.to_bytes(whole)).all()
    assert drawn.milliseconds > 0


def test_memory_does_not_grow_by_more_than_two_pictures(tmp_path):
    """4 bytes a pixel for the picture that is read and 4 for the one that is written; whole arrays of floats took 74."""
    path = tmp_path / "p.bmp"
    Image.linear_gradient("L").resize((3600, 3600)).convert("RGB").save(path)
    program = (
        "import resource, subprocess, sys\n"
        "done = subprocess.run([sys.executable, '-m', 'cudnnpy', 'edges', *sys.argv[1:]])\n"
        "print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)"
    )
    peaks = []
    for source in ([], [path]):
        done = run("-c", program, *source, "-o", tmp_path / "x.bmp", "--force", "--device", "cpu")
        status, peak = done.stdout.splitlines()[-1].split()
        assert status == "0", done.stderr
        peaks.append(int(peak))
    small, large = peaks
    assert large - small < 9 * 3600 * 3600 + edges._KEPT
    assert small + 9 * 9000 * 9000 + edges._KEPT < 1e9


def test_a_result_that_is_not_finite_is_an_error_of_the_device(monkeypatch):
    monkeypatch.setattr(edges._OnCpu, "convolve", lambda _self, pixels: np.full_like(pixels, np.nan))
    with pytest.raises(edges.CudnnError, match="not finite"):
        edges.draw(pictures.Picture(pictures.SAMPLE), device="cpu")


def test_auto_is_the_cpu_where_cudnn_cannot_be_used(monkeypatch):
    monkeypatch.setattr(edges, "why_unavailable", lambda: "there is none")
    picture = np.ones((1, 2, 2, 3), np.float32)
    assert whole_pictures.detect(picture).device == "CPU"
    with pytest.raises(edges.UnavailableError, match="there is none"):
        whole_pictures.detect(picture, device="cuda")


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"device": "gpu"}, ValueError, r"device must be one of 'auto', 'cuda', 'cpu'.*; got 'gpu'"),
        ({"prefer": "quickest"}, ValueError, r"prefer must be one of 'fastest', 'limited_workspace'.*; got 'quickest'"),
        ({"workspace_limit": -1}, ValueError, r"workspace_limit must be a number of bytes, 0 or more.*; got -1"),
        ({"workspace_limit": "1GiB"}, TypeError, r"workspace_limit must be a number of bytes, 0 or more.*; got '1GiB'"),
    ],
)
def test_wrong_options_are_refused(arguments, kind, words):
    with pytest.raises(kind, match=words):
        whole_pictures.detect(np.ones((1, 2, 2, 3), np.float32), **arguments)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["missing.png"], "No such file or directory: 'missing.png'"),
        (["README.md"], "cannot identify image file"),
        ([pictures.SAMPLE, "-o", "README.md"], "README.md: the file exists; --force overwrites it"),
        ([pictures.SAMPLE, "--workspace-limit", "many"], "invalid int value: 'many'"),
        ([], "the following arguments are required: input"),
    ],
)
def test_the_example_says_what_is_wrong(arguments, told):
    done = without_gpu(EXAMPLE, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith("edge_detector.py: ")
    assert told in done.stderr.splitlines()[-1]


def test_the_example_without_pillow_says_what_to_install(tmp_path):
    (tmp_path / "PIL.py").write_text("raise ModuleNotFoundError(\"No module named 'PIL'\")")
    done = run(EXAMPLE, pictures.SAMPLE, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "edge_detector.py: No module named 'PIL'. Install it: pip install Pillow cuda-python\n"


def test_the_example_without_a_gpu_says_where_and_why(tmp_path):
    done = without_gpu(EXAMPLE, pictures.SAMPLE, "-o", tmp_path / "x.png")
    assert done.returncode == 2
    assert done.stderr.startswith("edge_detector.py: ")
    assert "CUDNN_STATUS_NOT_INITIALIZED (1001)" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@given(st.binary(min_size=12, max_size=12), st.integers(1, 4).filter(lambda height: 4 % height == 0))
def test_the_examples_pictures_are_the_commands(content, height):
    """It loads and saves as the walkthrough does, and so does `cudnnpy edges`."""
    example = runpy.run_path(str(EXAMPLE))
    pixels = np.frombuffer(content, np.uint8).reshape(height, 4 // height, 3)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "p.png")
        Image.fromarray(pixels).save(path)
        loaded = example["load_image"](path)
        assert (loaded.shape, loaded.dtype) == ((1, *pixels.shape), np.float32)
        np.testing.assert_allclose(loaded, whole_pictures.load(path), atol=1e-6)
        values = loaded * 3 - 1
        example["save_image"](path, values)
        written = np.asarray(Image.open(path))
    assert written.dtype == np.uint8
    assert abs(written.astype(int) - whole_pictures.to_bytes(values)).max() <= 1


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
