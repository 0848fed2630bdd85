"""Where no GPU can be used, the first use of one says so, as cuDNN's own error and with what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPECS = "cudnnpy.TensorSpec((1, 3, 8, 8)), cudnnpy.TensorSpec((4, 3, 3, 3))"


@pytest.mark.parametrize(
    "use",
    [
        "cudnnpy.Handle()",
        "cudnnpy.to_device([1.0])",
        "cudnnpy.empty((2, 3))",
        f"cudnnpy.Convolution().plan('forward', {SPECS})",
        f"cudnnpy.Convolution().candidates('forward', {SPECS})",
    ],
)
def test_the_first_use_of_a_gpu_says_that_there_is_none(use):
    program = (
        "import cudnnpy\n"
        "try:\n"
        f"    {use}\n"
        "except cudnnpy.errors.NotInitializedError as error:\n"
        "    assert '`cudnnpy info` tells' in str(error)\n"
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
