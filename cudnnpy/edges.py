"""The edge detector behind `cudnnpy edges`: one 3x3 convolution, by cuDNN on a GPU or by NumPy without one."""

from __future__ import annotations

import time
from contextlib import ExitStack
from ctypes import byref, c_float, c_int, c_size_t
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from cudnnpy import raw, reference
from cudnnpy.availability import UnavailableError, why_unavailable
from cudnnpy.errors import CudnnError

Device = Literal["auto", "cuda", "cpu"]
Preference = Literal["fastest", "limited_workspace", "no_workspace", "autotune"]
PREFERENCES: tuple[Preference, ...] = get_args(Preference)
DEVICES: tuple[Device, ...] = get_args(Device)
DEFAULT_LIMIT = 2**30

EDGE_KERNEL: NDArray[np.float32] = np.tile(np.array([[1, 1, 1], [1, -8, 1], [1, 1, 1]], np.float32), (3, 3, 1, 1))
"""(3 output channels, 3 input channels, 3, 3): each pixel's neighbours less eight times itself, summed over colours."""


@dataclass(frozen=True)
class Edges:
    """What `detect` found, and how.

    picture         float32, (1, height, width, 3), as the convolution (and the sigmoid) left it
    device          the GPU's name, or "CPU"
    algorithm       cuDNN's name of it, or what computed it on the CPU
    workspace_size  bytes
    milliseconds    of the convolution and the sigmoid, without copies and set-up
    """

    picture: NDArray[np.float32]
    device: str
    algorithm: str
    workspace_size: int
    milliseconds: float


def detect(
    picture: NDArray[np.float32],
    *,
    device: Device = "auto",
    sigmoid: bool = False,
    prefer: Preference = "fastest",
    workspace_limit: int | None = None,
) -> Edges:
    """Convolve a picture (1, height, width, 3), float32, with EDGE_KERNEL; zeros surround it, so the size stays.

    device            "cuda", "cpu", or "auto": the GPU if cuDNN can be used, else the CPU
    prefer            how cuDNN's algorithm is chosen: its heuristics' first that runs (fastest), that fits into the
                      limit (limited_workspace), that needs no workspace (no_workspace), or the quickest of all when
                      measured (autotune). Without effect on the CPU
    workspace_limit   bytes; by default the free memory (fastest) or 1 GiB (limited_workspace and autotune)

    Raises ValueError or TypeError for a wrong argument, UnavailableError for device "cuda" where cuDNN cannot be used,
    CudnnError, with every algorithm and what spoke against it, where none does what was asked.
    """
    if device not in DEVICES:
        raise ValueError(f"device={device!r}: expected one of {', '.join(DEVICES)}")
    if prefer not in PREFERENCES:
        raise ValueError(f"prefer={prefer!r}: expected one of {', '.join(PREFERENCES)}")
    if workspace_limit is not None and (not isinstance(workspace_limit, int) or workspace_limit < 0):
        raise ValueError(f"workspace_limit={workspace_limit!r}: expected a number of bytes, 0 or more")
    if picture.dtype != np.float32:
        raise TypeError(f"picture has dtype {picture.dtype}; expected float32")
    if picture.ndim != 4 or picture.shape[0] != 1 or picture.shape[3] != 3 or 0 in picture.shape:
        raise ValueError(f"picture has shape {picture.shape}; expected (1, height, width, 3), with at least one pixel")
    why = None if device == "cpu" else why_unavailable()
    if device == "cuda" and why is not None:
        raise UnavailableError(why)
    if device == "cpu" or why is not None:
        return _on_cpu(picture, sigmoid)
    return _on_gpu(np.ascontiguousarray(picture), sigmoid, prefer, workspace_limit)


def _on_cpu(picture: NDArray[np.float32], sigmoid: bool) -> Edges:
    kernel = np.ascontiguousarray(EDGE_KERNEL.transpose(0, 2, 3, 1))  # (K, R, S, C), as layout "NHWC" has it
    start = time.perf_counter()
    result = reference.Convolution(padding=1, layout="NHWC").forward(picture, kernel)
    if sigmoid:
        result = reference.sigmoid(result, out=result)
    milliseconds = (time.perf_counter() - start) * 1e3
    return Edges(result, "CPU", "matrix products in NumPy (cudnnpy.reference)", 0, milliseconds)


def _on_gpu(picture: NDArray[np.float32], sigmoid: bool, prefer: Preference, limit: int | None) -> Edges:
    from cuda.bindings import runtime

    _, height, width, channels = picture.shape
    with ExitStack() as stack:

        def create(kind: Any, name: str) -> Any:
            created = kind()
            raw.call(f"cudnnCreate{name}", byref(created))
            stack.callback(raw.call, f"cudnnDestroy{name}", created)
            return created

        def allocate(size: int) -> int:
            pointer: int = _cuda(runtime.cudaMalloc(size))
            stack.callback(runtime.cudaFree, pointer)
            return pointer

        handle = create(raw.cudnnHandle_t, "")
        tensor = create(raw.cudnnTensorDescriptor_t, "TensorDescriptor")  # of the input and of the output, alike
        shape = (1, channels, height, width)
        raw.call("cudnnSetTensor4dDescriptor", tensor, raw.CUDNN_TENSOR_NHWC, raw.CUDNN_DATA_FLOAT, *shape)
        kernel = create(raw.cudnnFilterDescriptor_t, "FilterDescriptor")
        raw.call("cudnnSetFilter4dDescriptor", kernel, raw.CUDNN_DATA_FLOAT, raw.CUDNN_TENSOR_NCHW, *EDGE_KERNEL.shape)
        convolution = create(raw.cudnnConvolutionDescriptor_t, "ConvolutionDescriptor")
        # padding, stride and dilation, each for height and width
        geometry = (1, 1, 1, 1, 1, 1, raw.CUDNN_CROSS_CORRELATION, raw.CUDNN_DATA_FLOAT)
        raw.call("cudnnSetConvolution2dDescriptor", convolution, *geometry)
        # float32 as it is: by default cuDNN may round to tf32, ten bits, where there are tensor cores
        raw.call("cudnnSetConvolutionMathType", convolution, raw.CUDNN_FMA_MATH)
        activation = create(raw.cudnnActivationDescriptor_t, "ActivationDescriptor")
        modes = (raw.CUDNN_ACTIVATION_SIGMOID, raw.CUDNN_NOT_PROPAGATE_NAN, 0.0)
        raw.call("cudnnSetActivationDescriptor", activation, *modes)

        x, w, y = allocate(picture.nbytes), allocate(EDGE_KERNEL.nbytes), allocate(picture.nbytes)
        to_device = runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        _cuda(runtime.cudaMemcpy(x, picture.ctypes.data, picture.nbytes, to_device))
        _cuda(runtime.cudaMemcpy(w, EDGE_KERNEL.ctypes.data, EDGE_KERNEL.nbytes, to_device))
        start, end = _cuda(runtime.cudaEventCreate()), _cuda(runtime.cudaEventCreate())
        stack.callback(runtime.cudaEventDestroy, start)
        stack.callback(runtime.cudaEventDestroy, end)
        one, zero = c_float(1.0), c_float(0.0)

        def run(algorithm: int, workspace: int, size: int) -> None:
            raw.call(
                "cudnnConvolutionForward", handle, byref(one), tensor, x, kernel, w, convolution, algorithm,
                workspace, size, byref(zero), tensor, y,
            )  # fmt: skip
            if sigmoid:
                raw.call("cudnnActivationForward", handle, activation, byref(one), tensor, y, byref(zero), tensor, y)

        if limit is None:
            limit = _cuda(runtime.cudaMemGetInfo())[0] if prefer == "fastest" else DEFAULT_LIMIT
        if prefer == "no_workspace":
            limit = 0
        question = "Find{}Algorithm" if prefer == "autotune" else "Get{}Algorithm_v7"
        refused: list[str] = []
        for candidate in _candidates(question, handle, tensor, kernel, convolution):
            name = raw.cudnnConvolutionFwdAlgo_t(candidate.algo).name
            try:
                raw.check(candidate.status)
                if candidate.mathType not in (raw.CUDNN_FMA_MATH, raw.CUDNN_DEFAULT_MATH):
                    raise _RefusedError("computes on tensor cores, with fewer bits than float32 has")
                raw.call("cudnnSetConvolutionMathType", convolution, candidate.mathType)
                needed = c_size_t()
                problem = (handle, tensor, kernel, convolution, tensor, candidate.algo)
                raw.call("cudnnGetConvolutionForwardWorkspaceSize", *problem, byref(needed))
                size = needed.value
                if size > limit:
                    raise _RefusedError(f"needs {size} bytes of workspace, and the limit is {limit}")
                workspace = allocate(size) if size else 0
                run(candidate.algo, workspace, size)  # the first run also loads the kernels
            except CudnnError as error:
                refused.append(f"  {name} (math type {candidate.mathType}): {error}")
                continue
            _cuda(runtime.cudaEventRecord(start, 0))
            run(candidate.algo, workspace, size)
            _cuda(runtime.cudaEventRecord(end, 0))
            result = np.empty_like(picture)
            to_host = runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
            _cuda(runtime.cudaMemcpy(result.ctypes.data, y, result.nbytes, to_host))
            milliseconds = _cuda(runtime.cudaEventElapsedTime(start, end))
            device = _cuda(runtime.cudaGetDeviceProperties(_cuda(runtime.cudaGetDevice()))).name.decode().rstrip("\0")
            return Edges(result, device, name, size, milliseconds)
    table = "\n".join(refused) or "  cuDNN offers none"
    raise CudnnError(f"no convolution algorithm does prefer={prefer!r} within {limit} bytes of workspace:\n{table}")


class _RefusedError(CudnnError):
    """An algorithm does not do what was asked."""


def _candidates(question: str, handle: Any, tensor: Any, kernel: Any, convolution: Any) -> list[Any]:
    """Ask cuDNN for its forward algorithms, best first; with Find, which measures them, by time."""
    count = c_int()
    raw.call("cudnnGetConvolutionForwardAlgorithmMaxCount", handle, byref(count))
    found = (raw.cudnnConvolutionFwdAlgoPerf_t * count.value)()
    name = f"cudnn{question.format('ConvolutionForward')}"
    raw.call(name, handle, tensor, kernel, convolution, tensor, len(found), byref(count), found)
    return list(found[: count.value])


def _cuda(result: tuple[Any, ...]) -> Any:
    """Return what a call of CUDA's runtime gave beside its status; raise CudnnError for a bad status."""
    from cuda.bindings import runtime

    error, *values = result
    if error != runtime.cudaError_t.cudaSuccess:
        _status, text = runtime.cudaGetErrorString(error)
        raise CudnnError(f"CUDA: {text.decode()} ({error.name})")
    return values[0] if len(values) == 1 else tuple(values)
