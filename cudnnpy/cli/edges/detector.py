"""The edge detector: one 3x3 convolution of an image, with cuDNN on a GPU or with NumPy on the CPU."""

from __future__ import annotations

import time
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from cudnnpy import reference
from cudnnpy._checks.option_values import check_option
from cudnnpy._checks.preferences import PreferenceOptions
from cudnnpy._core.cuda_python import cuda_python
from cudnnpy.availability import UnavailableError, why_unavailable
from cudnnpy.typing import ConvolutionActivation, Preference

Device = Literal["auto", "cuda", "cpu"]
DEVICES: tuple[Device, ...] = get_args(Device)

EDGE_KERNEL: NDArray[np.float32] = np.tile(np.array([[1, 1, 1], [1, -8, 1], [1, 1, 1]], np.float32), (3, 3, 1, 1))
"""(3 output channels, 3 input channels, 3, 3): the sum of a pixel's 8 neighbours minus 8 times the pixel, over all colours.
"""

_PIXELS_AT_ONCE = 1_000_000  # on the CPU
_KERNEL = np.ascontiguousarray(EDGE_KERNEL.transpose(0, 2, 3, 1))  # in layout "NHWC": (K, R, S, C)


class Edges(NamedTuple):
    """The result of the convolution, and how it was computed."""

    values: NDArray[np.float32]  #: in the shape of the image
    device: str  #: the GPU's name, or "CPU"
    algorithm: str  #: the name of cuDNN's engine or v7 algorithm, or of the implementation on the CPU
    workspace_size: int  #: in bytes
    milliseconds: float  #: from the call of the convolution to its result, without copies and set-up
    why_no_gpu: str | None = None  #: with device="auto", the reason why the GPU was not used


def detect(
    image: NDArray[np.float32],
    *,
    device: Device = "auto",
    sigmoid: bool = False,
    prefer: Preference = "fastest",
    workspace_limit: int | None = None,
) -> Edges:
    """Convolve an image (1, height, width, 3) with EDGE_KERNEL and zero padding. Products are float32 (tf32=False).

    "auto" is the GPU if cuDNN can be used, else the CPU. `prefer` and `workspace_limit` choose cuDNN's algorithm, as in
    `cudnnpy.Convolution`. Raises UnavailableError if the device is "cuda" and cuDNN cannot be used.
    """
    check_option("device", device, DEVICES)
    PreferenceOptions(prefer=prefer, workspace_limit=workspace_limit)  # also checked for the CPU, which ignores them
    if device == "cpu":
        return _on_cpu(image, sigmoid)
    why = why_unavailable()
    if why is None:
        return _on_gpu(image, sigmoid, prefer, workspace_limit)
    if device == "cuda":
        raise UnavailableError(why)
    return _on_cpu(image, sigmoid)._replace(why_no_gpu=why)


def _on_cpu(image: NDArray[np.float32], sigmoid: bool) -> Edges:
    start = time.perf_counter()
    height, width = image.shape[1:3]
    values = np.empty(image.shape, np.float32)
    rows = max(_PIXELS_AT_ONCE // width, 1)
    for top in range(0, height, rows):
        bottom = min(top + rows, height)
        above, below = min(top, 1), min(height - bottom, 1)  # rows of the image beside the band; zeros elsewhere
        conv = reference.Convolution(padding=((1 - above, 1 - below), 1), layout="NHWC")
        band = values[:, top:bottom]
        band[:] = conv.forward(image[:, top - above : bottom + below], _KERNEL)
        if sigmoid:
            band[:] = reference.sigmoid(band)
    milliseconds = (time.perf_counter() - start) * 1e3
    return Edges(values, "CPU", "matrix products in NumPy (cudnnpy.reference)", 0, milliseconds)


def _on_gpu(image: NDArray[np.float32], sigmoid: bool, prefer: Preference, workspace_limit: int | None) -> Edges:
    from cudnnpy._arrays.copies import to_device, to_numpy
    from cudnnpy._layers.convolution import Convolution

    conv = Convolution(padding=1, layout="NHWC", tf32=False, prefer=prefer, workspace_limit=workspace_limit)
    x, w = to_device(image), to_device(_KERNEL)
    activation: ConvolutionActivation | None = "sigmoid" if sigmoid else None
    y = conv.forward(x, w, activation=activation)  # loads the kernels, which is not timed
    plan = conv.plan("forward", x, w, out=y, activation=activation)
    runtime = cuda_python("bindings.runtime")
    runtime.cudaDeviceSynchronize()  # an error of these calls is raised by the copy to the host
    start = time.perf_counter()
    conv.forward(x, w, out=y, activation=activation)
    runtime.cudaDeviceSynchronize()
    milliseconds = (time.perf_counter() - start) * 1e3
    gpu = str(cuda_python("core").Device(y.device).name)
    return Edges(to_numpy(y), gpu, plan.name, plan.workspace_size, milliseconds)
