"""Without a usable GPU, the first use of one raises cuDNN's own error with advice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SPECS = "cudnnpy.TensorSpec((1, 3, 8, 8)), cudnnpy.TensorSpec((4, 3, 3, 3))"


@pytest.mark.parametrize(
    "use",
    [
        "cudnnpy.Handle()",
        "cudnnpy.Handle.default()",
        "cudnnpy.to_device([1.0])",
        "cudnnpy.empty((2, 3))",
        f"cudnnpy.Convolution().plan('forward', {SPECS})",
        f"cudnnpy.Convolution().candidates('forward', {SPECS})",
        "cudnnpy.Convolution().forward(OnGpu(), OnGpu())",
        "cudnnpy.Convolution().backward_bias(OnGpu())",
        "cudnnpy.Softmax().forward(OnGpu())",
        "cudnnpy.to_numpy(OnGpu())",
        "cudnnpy.raw.check(cudnnpy.raw.cudnnCreate(ctypes.byref(cudnnpy.raw.cudnnHandle_t())))",
        "cudnnpy.raw.call('cudnnCreate', ctypes.byref(cudnnpy.raw.cudnnHandle_t()))",
    ],
)
def test_the_first_use_of_a_gpu_says_that_there_is_none(use):
    """In the words of why_unavailable, and before everything else."""
    program = (
        "import ctypes, cudnnpy\n"
        "class OnGpu:\n"
        "    __cuda_array_interface__ = dict(shape=(4, 4, 3, 3), typestr='<f4', data=(1 << 20, False), version=3)\n"
        "try:\n"
        f"    {use}\n"
        "except cudnnpy.errors.NotInitializedError as error:\n"
        "    lines = str(error).splitlines()\n"
        "    assert lines[0] == cudnnpy.why_unavailable(), error\n"
        "    assert 'CUDNN_STATUS_NOT_INITIALIZED (1001)' in lines[1], error\n"
        "else:\n"
        "    raise SystemExit('it was found')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ("'forward', of(2, 3, 8, 8), of(4, 5, 3, 3)", "ValueError", "x must have 5 channels"),
        ("'forward', of(2, 3, 8, 8), of(4, 3, 3, 3)._replace(dtype='float16')", "TypeError", "w must be float32, as x"),
        ("'backward_data', of(2, 4, 6, 6), of(4, 3, 3, 3)", "TypeError", "x_shape must be the shape of the result"),
        ("'forward', of(0, 3, 8, 8), of(4, 3, 3, 3)", "ValueError", "a planned problem must have elements"),
    ],
)
@pytest.mark.parametrize("method", ["plan", "candidates"])
def test_bad_arguments_are_told_before_the_gpu_is_looked_for(method, arguments, kind, message):
    program = (
        "import cudnnpy\n"
        "of = lambda *shape: cudnnpy.TensorSpec(shape)\n"
        "try:\n"
        f"    cudnnpy.Convolution().{method}({arguments})\n"
        f"except {kind} as error:\n"
        f"    assert str(error).startswith({message!r}), error\n"
        "else:\n"
        "    raise SystemExit('it was taken')\n"
    )
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
