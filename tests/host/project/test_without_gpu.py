"""Without a usable GPU, the first use of one raises cuDNN's own error with advice."""

from __future__ import annotations

from fresh_process import python

SPECS = "cudnnpy.TensorSpec((1, 3, 8, 8)), cudnnpy.TensorSpec((4, 3, 3, 3))"
USES = (
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
)
# Each use is the first one of its process, a fork of one that has imported cudnnpy alone.
FIRST_USES = """
import ctypes, os, sys, cudnnpy
class OnGpu:
    __cuda_array_interface__ = dict(shape=(4, 4, 3, 3), typestr="<f4", data=(1 << 20, False), version=3)
for use in sys.argv[1:]:
    if not os.fork():
        try:
            exec(use)
        except cudnnpy.errors.NotInitializedError as error:
            lines = str(error).splitlines()
            is_right = lines[0] == cudnnpy.why_unavailable() and "CUDNN_STATUS_NOT_INITIALIZED (1001)" in lines[1]
            os._exit(not is_right)
        os._exit(2)
    if os.wait()[1]:
        print(use)
"""
BAD_ARGUMENTS = """
import cudnnpy
of = lambda *shape: cudnnpy.TensorSpec(shape)
for arguments, kind, message in (
    (("forward", of(2, 3, 8, 8), of(4, 5, 3, 3)), ValueError, "x must have 5 channels"),
    (("forward", of(2, 3, 8, 8), of(4, 3, 3, 3)._replace(dtype="float16")), TypeError, "w must be float32, as x"),
    (("backward_data", of(2, 4, 6, 6), of(4, 3, 3, 3)), TypeError, "x_shape must be the shape of the result"),
    (("forward", of(0, 3, 8, 8), of(4, 3, 3, 3)), ValueError, "a planned problem must have elements"),
):
    for method in ("plan", "candidates"):
        try:
            getattr(cudnnpy.Convolution(), method)(*arguments)
        except kind as error:
            assert str(error).startswith(message), error
        else:
            raise SystemExit("it was taken")
"""


def test_the_first_use_of_a_gpu_says_that_there_is_none() -> None:
    """In the words of why_unavailable, and before everything else."""
    assert python(FIRST_USES, *USES, CUDA_VISIBLE_DEVICES="") == ""


def test_bad_arguments_are_told_before_the_gpu_is_looked_for() -> None:
    assert python(BAD_ARGUMENTS, CUDA_VISIBLE_DEVICES="") == ""
