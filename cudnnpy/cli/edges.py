"""The edge detector of `cudnnpy edges`: one 3x3 convolution, with cuDNN on a GPU or with NumPy on the CPU."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from cudnnpy import reference
from cudnnpy._options.checks import check_option
from cudnnpy._options.convolution import canonical
from cudnnpy.availability import UnavailableError, why_unavailable
from cudnnpy.cli.pictures import Canvas, Picture
from cudnnpy.cli.tiles import Tile, tiles
from cudnnpy.errors import CudnnError

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

    from cudnnpy._memory.device_array import DeviceArray
    from cudnnpy._planning.plan import Plan
    from cudnnpy.typing import Preference

Device = Literal["auto", "cuda", "cpu"]
DEVICES: tuple[Device, ...] = get_args(Device)

EDGE_KERNEL: NDArray[np.float32] = np.tile(np.array([[1, 1, 1], [1, -8, 1], [1, 1, 1]], np.float32), (3, 3, 1, 1))
"""(3 output channels, 3 input channels, 3, 3): the sum of a pixel's 8 neighbours minus 8 times the pixel, over all colours.
"""

_AREA_ON_CPU = 1 << 18  # pixels of a tile; NumPy's temporary arrays stay near the cache
_AREA_ON_GPU = 1 << 21  # a picture of 1920 x 1080 is one tile

# Bytes of results that `draw` keeps from its first pass for its second; results beyond are computed twice.
_KEPT = 128 << 20


@dataclass(frozen=True)
class Computation:
    """How edges were computed.

    Attributes
    ----------
    device : str
        The GPU's name, or "CPU".
    algorithm : str
        The name of cuDNN's engine or v7 algorithm, or of the implementation on the CPU.
    workspace_size : int
        Bytes of workspace.
    milliseconds : float
        Time of the convolution and the sigmoid, without copies and set-up.
    why_no_gpu : str or None
        With device="auto", the reason why the GPU was not used.
    """

    device: str
    algorithm: str
    workspace_size: int
    milliseconds: float
    why_no_gpu: str | None


@dataclass(frozen=True)
class Drawing(Computation):
    """The result of `draw`: `image`, a Pillow image of the picture's size."""

    image: PillowImage


def draw(
    picture: Picture,
    *,
    device: Device = "auto",
    sigmoid: bool = False,
    prefer: Preference = "fastest",
    workspace_limit: int | None = None,
) -> Drawing:
    """Convolve a picture with EDGE_KERNEL, with zero padding, and draw the result as an 8-bit image, one tile at a time.

    Products are computed in float32 (tf32=False). Negative results are set to 0; the smallest then becomes 0 and the largest
    255. The first pass computes the range of the results, the second draws them. Beside the picture, this takes 4 bytes per
    pixel and about 200 MB.

    Parameters
    ----------
    picture : Picture
        The picture.
    device : {"auto", "cuda", "cpu"}
        "auto" is the GPU if cuDNN can be used, else the CPU.
    sigmoid : bool
        Whether the sigmoid is applied to the result.
    prefer, workspace_limit
        How cuDNN's algorithm is chosen for the shape of one tile, as in `cudnnpy.Convolution`; without effect on the CPU.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong.
    UnavailableError
        The device is "cuda" and cuDNN cannot be used.
    NoAlgorithmError
        No algorithm meets the options.
    StatusError
        cuDNN fails.
    """
    with _detector(device, sigmoid, prefer, workspace_limit) as detector:
        places = tiles(picture.height, picture.width, detector.area)

        def result(tile: Tile) -> NDArray[np.float32]:
            found = detector.convolve(picture.pixels(tile.rows.read, tile.columns.read))
            found = found[0, tile.rows.inner, tile.columns.inner]
            return np.maximum(found, 0, out=found)

        low, high, room = np.inf, -np.inf, _KEPT
        kept: deque[NDArray[np.float32]] = deque()  # the results of the first tiles
        for tile in places:
            found = result(tile)
            low, high = min(low, float(found.min())), max(high, float(found.max()))
            if not np.isfinite(found).all():
                raise CudnnError("the result has values that are not finite")
            room -= found.nbytes
            if room >= 0:
                kept.append(found)
        computation = detector.computation()  # before tiles are computed again, which would count twice
        canvas = Canvas(picture.height, picture.width, low, high)
        for tile in places:
            found = kept.popleft() if kept else result(tile)
            canvas.paint(found, tile.rows.result.start, tile.columns.result.start)
        return Drawing(**computation, image=canvas.image)


class _Detector(ABC):
    """Convolves tiles of one shape and measures the time. A context manager, which frees its events."""

    area: int  # of a tile, in pixels
    device = algorithm = ""  # set, as workspace_size is, when the first tile is convolved
    workspace_size = 0

    def __init__(self, sigmoid: bool, why_no_gpu: str | None = None) -> None:
        self._sigmoid, self._why_no_gpu = sigmoid, why_no_gpu
        self._milliseconds = 0.0

    @abstractmethod
    def convolve(self, pixels: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the result for (1, rows, columns, 3) as a new array of the same shape."""

    def computation(self) -> dict[str, Any]:
        """Return the fields of `Computation` for the tiles that have been convolved."""
        return {
            "device": self.device,
            "algorithm": self.algorithm,
            "workspace_size": self.workspace_size,
            "milliseconds": self._milliseconds,
            "why_no_gpu": self._why_no_gpu,
        }

    def __enter__(self) -> _Detector:
        return self

    def __exit__(self, *_: object) -> None:
        return


def _detector(device: Device, sigmoid: bool, prefer: Preference, workspace_limit: int | None) -> _Detector:
    check_option("device", device, DEVICES)
    canonical({"prefer": prefer, "workspace_limit": workspace_limit})  # also on the CPU, where they have no effect
    if device == "cpu":
        return _OnCpu(sigmoid)
    why = why_unavailable()
    if why is None:
        return _OnGpu(sigmoid, prefer, workspace_limit)
    if device == "cuda":
        raise UnavailableError(why)
    return _OnCpu(sigmoid, why)


class _OnCpu(_Detector):
    area = _AREA_ON_CPU
    device, algorithm = "CPU", "matrix products in NumPy (cudnnpy.reference)"

    def convolve(self, pixels: NDArray[np.float32]) -> NDArray[np.float32]:
        start = time.perf_counter()
        result: NDArray[np.float32] = reference.Convolution(padding=1, layout="NHWC").forward(pixels, _kernel())
        if self._sigmoid:
            reference.sigmoid(result, out=result)
        self._milliseconds += (time.perf_counter() - start) * 1e3
        return result


class _OnGpu(_Detector):
    area = _AREA_ON_GPU

    def __init__(self, sigmoid: bool, prefer: Preference, limit: int | None) -> None:
        from cudnnpy._memory.copies import to_device
        from cudnnpy.convolution.convolution import Convolution

        super().__init__(sigmoid)
        self._conv = Convolution(padding=1, layout="NHWC", tf32=False, prefer=prefer, workspace_limit=limit)
        self._w = to_device(_kernel())
        self._y: DeviceArray | None = None
        self._plan: Plan
        self._events: list[Any] = []

    def convolve(self, pixels: NDArray[np.float32]) -> NDArray[np.float32]:
        from cuda.bindings import runtime

        from cudnnpy._memory.copies import to_device, to_numpy
        from cudnnpy._memory.device_array import empty
        from cudnnpy._memory.workspace import workspace

        stream = 0  # the default stream, which to_device, empty and to_numpy use
        x = to_device(np.ascontiguousarray(pixels))
        first = self._y is None
        if self._y is None:
            self._events = [_cuda(runtime.cudaEventCreate()) for _ in range(2)]
            y = empty(pixels.shape)
            self._plan = self._conv.plan("forward", x, self._w, out=y, activation="sigmoid" if self._sigmoid else None)
            self._y = y
            properties = _cuda(runtime.cudaGetDeviceProperties(y.device))
            self.device = properties.name.decode().rstrip("\0")
            self.algorithm, self.workspace_size = self._plan.name, self._plan.workspace_size
        space = workspace(self.workspace_size, self._y.device, stream) if self.workspace_size else 0
        addresses = (x.pointer, self._w.pointer, self._y.pointer, space, stream)
        if first:
            self._plan.execute(*addresses)  # loads the kernels, which is not timed
        start, end = self._events
        _cuda(runtime.cudaEventRecord(start, stream))
        self._plan.execute(*addresses)
        _cuda(runtime.cudaEventRecord(end, stream))
        result: NDArray[np.float32] = to_numpy(self._y)
        self._milliseconds += _cuda(runtime.cudaEventElapsedTime(start, end))
        return result

    def __exit__(self, *_: object) -> None:
        from cuda.bindings import runtime

        for event in self._events:
            runtime.cudaEventDestroy(event)


def _kernel() -> NDArray[np.float32]:
    """EDGE_KERNEL in layout "NHWC": (K, R, S, C)."""
    return np.ascontiguousarray(EDGE_KERNEL.transpose(0, 2, 3, 1))


def _cuda(result: tuple[Any, ...]) -> Any:
    """Return the results of a call of the CUDA runtime after its status; raise CudnnError if that is an error."""
    from cuda.bindings import runtime

    error, *values = result
    if error != runtime.cudaError_t.cudaSuccess:
        _status, text = runtime.cudaGetErrorString(error)
        raise CudnnError(f"CUDA: {text.decode()} ({error.name})")
    return values[0] if len(values) == 1 else tuple(values)
