"""The edge detector behind `cudnnpy edges`: one 3x3 convolution, by cuDNN on a GPU or by NumPy without one."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from cudnnpy import reference
from cudnnpy.availability import UnavailableError, why_unavailable
from cudnnpy.checks import check_option
from cudnnpy.convolution.problem import Options, checked
from cudnnpy.errors import CudnnError

Device = Literal["auto", "cuda", "cpu"]
DEVICES: tuple[Device, ...] = get_args(Device)

EDGE_KERNEL: NDArray[np.float32] = np.tile(np.array([[1, 1, 1], [1, -8, 1], [1, 1, 1]], np.float32), (3, 3, 1, 1))
"""(3 output channels, 3 input channels, 3, 3): each pixel's neighbours less eight times itself, summed over colours."""


@dataclass(frozen=True)
class Edges:
    """What `detect` found, and how.

    picture         float32, (1, height, width, 3), as the convolution (and the sigmoid) left it
    device          the GPU's name, or "CPU"
    algorithm       the name of cuDNN's engine or v7 algorithm, or what computed it on the CPU
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
    prefer: str = "fastest",
    workspace_limit: int | None = None,
) -> Edges:
    """Convolve a picture (1, height, width, 3), float32, with EDGE_KERNEL; zeros surround it, so the size stays.

    device            "cuda", "cpu", or "auto": the GPU if cuDNN can be used, else the CPU
    prefer            how cuDNN's algorithm is chosen, as in cudnnpy.Convolution; without effect on the CPU
    workspace_limit   bytes; None for the preference's own

    Float32 is multiplied as float32 (tf32=False). Raises ValueError or TypeError for a wrong argument, UnavailableError
    for device "cuda" where cuDNN cannot be used, NoAlgorithmError where no algorithm does what was asked, StatusError
    where cuDNN fails.
    """
    check_option("device", device, DEVICES)
    checked(Options(prefer=prefer, workspace_limit=workspace_limit))  # on the CPU too, where they have no effect
    if picture.dtype != np.float32:
        raise TypeError(f"picture has dtype {picture.dtype}; expected float32")
    if picture.ndim != 4 or picture.shape[0] != 1 or picture.shape[3] != 3 or 0 in picture.shape:
        raise ValueError(f"picture has shape {picture.shape}; expected (1, height, width, 3), with at least one pixel")
    why = None if device == "cpu" else why_unavailable()
    if device == "cuda" and why is not None:
        raise UnavailableError(why)
    if device == "cpu" or why is not None:
        return _on_cpu(picture, sigmoid)
    return _on_gpu(picture, sigmoid, prefer, workspace_limit)


def _on_cpu(picture: NDArray[np.float32], sigmoid: bool) -> Edges:
    start = time.perf_counter()
    result = reference.Convolution(padding=1, layout="NHWC").forward(picture, _kernel())
    if sigmoid:
        result = reference.sigmoid(result, out=result)
    milliseconds = (time.perf_counter() - start) * 1e3
    return Edges(result, "CPU", "matrix products in NumPy (cudnnpy.reference)", 0, milliseconds)


def _on_gpu(picture: NDArray[np.float32], sigmoid: bool, prefer: str, limit: int | None) -> Edges:
    from cuda.bindings import runtime

    from cudnnpy.arrays import empty, to_device, to_numpy
    from cudnnpy.convolution.convolution import Convolution
    from cudnnpy.workspace import workspace

    conv = Convolution(padding=1, layout="NHWC", tf32=False, prefer=prefer, workspace_limit=limit)
    x, w, y = to_device(np.ascontiguousarray(picture)), to_device(_kernel()), empty(picture.shape)
    plan = conv.plan("forward", x, w, out=y, activation="sigmoid" if sigmoid else None)
    stream = 0  # the default one, on which to_device, empty and to_numpy work
    space = workspace(plan.workspace_size, y.device, stream) if plan.workspace_size else 0
    addresses = (x.pointer, w.pointer, y.pointer, space, stream)
    plan.execute(*addresses)  # the first run also loads the kernels
    start, end = _cuda(runtime.cudaEventCreate()), _cuda(runtime.cudaEventCreate())
    try:
        _cuda(runtime.cudaEventRecord(start, stream))
        plan.execute(*addresses)
        _cuda(runtime.cudaEventRecord(end, stream))
        result = to_numpy(y)
        milliseconds = _cuda(runtime.cudaEventElapsedTime(start, end))
    finally:
        runtime.cudaEventDestroy(start)
        runtime.cudaEventDestroy(end)
    device = _cuda(runtime.cudaGetDeviceProperties(y.device)).name.decode().rstrip("\0")
    return Edges(result, device, plan.name, plan.workspace_size, milliseconds)


def _kernel() -> NDArray[np.float32]:
    """EDGE_KERNEL as layout "NHWC" has it: (K, R, S, C)."""
    return np.ascontiguousarray(EDGE_KERNEL.transpose(0, 2, 3, 1))


def _cuda(result: tuple[Any, ...]) -> Any:
    """Return what a call of CUDA's runtime gave beside its status; raise CudnnError for a bad status."""
    from cuda.bindings import runtime

    error, *values = result
    if error != runtime.cudaError_t.cudaSuccess:
        _status, text = runtime.cudaGetErrorString(error)
        raise CudnnError(f"CUDA: {text.decode()} ({error.name})")
    return values[0] if len(values) == 1 else tuple(values)
