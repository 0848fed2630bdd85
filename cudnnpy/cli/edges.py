"""The command `cudnnpy edges`: read an image, convolve it with a 3x3 kernel, by cuDNN or by NumPy, and write its edges.

Reading and writing needs Pillow, which the extra `images` installs.
"""

from __future__ import annotations

import argparse
import time
import warnings
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from cudnnpy import reference
from cudnnpy._arrays.copies import to_device, to_numpy
from cudnnpy._checks.preferences import PREFERENCES, PreferenceOptions
from cudnnpy._core.atomic_file import replace_file
from cudnnpy._core.cuda_python import cuda_python
from cudnnpy._launch.dispatch import MEMORY_ADVICE
from cudnnpy._layers.convolution import Convolution
from cudnnpy._process.installation import with_extra
from cudnnpy.availability import UnavailableError, why_unavailable
from cudnnpy.cli.arguments import UsageError, check_writable, size
from cudnnpy.cli.text_table import labelled, printed, say, show
from cudnnpy.errors import CudnnError
from cudnnpy.typing import ConvolutionActivation, Preference

SAMPLE = str(Path(__file__).with_name("data") / "sample.png")
"""The sample image of the package, 640 x 400."""

EDGE_KERNEL: NDArray[np.float32] = np.tile(np.array([[1, 1, 1], [1, -8, 1], [1, 1, 1]], np.float32), (3, 3, 1, 1))
"""(3 output channels, 3 input channels, 3, 3): the sum of a pixel's 8 neighbours minus 8 times the pixel, over all colours.
"""

Device = Literal["auto", "cuda", "cpu"]

_KERNEL = np.ascontiguousarray(EDGE_KERNEL.transpose(0, 2, 3, 1))  # in layout "NHWC": (K, R, S, C)
_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".bmp": "BMP", ".tif": "TIFF", ".tiff": "TIFF"}
_PIXELS_AT_ONCE = 250_000  # on the CPU: a photograph of 12 million at once takes 700 MB more, as float64
_JPEG_PIXELS = 65_500  # libjpeg's limit of a side
_MEMORY_ADVICE = "--prefer no_workspace and --workspace-limit SIZE need less workspace, and --device cpu no GPU"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to a parser."""
    parser.add_argument("input", nargs="?", metavar="INPUT", help="an image (default: the sample image of the package)")
    parser.add_argument("-o", "--output", default="edges.png", help="the image to write (default: %(default)s)")
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    parser.add_argument("--device", choices=get_args(Device), default="auto", help="default: the GPU if it can be used")
    parser.add_argument("--sigmoid", action="store_true", help="apply a sigmoid to the result")
    parser.add_argument("--prefer", choices=PREFERENCES, default="fastest", help="how cuDNN's algorithm is chosen")
    parser.add_argument("--workspace-limit", type=size, metavar="SIZE", help="the largest workspace, for example 64MiB")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    if options.input is not None:
        # raises before an error about the output, which would hide that the input is missing
        open(options.input, "rb").close()
    check_writable(options.output, overwrite=options.force)
    format = format_of(options.output)
    image = load(options.input or SAMPLE)
    height, width = image.shape[1:3]
    if format == "JPEG" and max(height, width) > _JPEG_PIXELS:
        limit = f"a side of a JPEG has at most {_JPEG_PIXELS:,} pixels, and the image is {width} x {height}"
        raise UsageError(f"{options.output}: {limit}: use a name that ends in .png or .tif")
    try:
        choice = {"prefer": options.prefer, "workspace_limit": options.workspace_limit}
        edges = detect(image, device=options.device, sigmoid=options.sigmoid, **choice)
        del image  # as large as the result
        content = encode(options.output, to_levels(edges.values))
    except MemoryError as error:
        raise MemoryError(str(error).replace(MEMORY_ADVICE, _MEMORY_ADVICE)) from None
    replace_file(options.output, content)
    if edges.why_no_gpu is not None:
        why = " ".join(edges.why_no_gpu.split())
        say("cudnnpy edges", f"the GPU was not used: {why} (cudnnpy info tells more)")
    print(printed(f"{options.output}: the edges of {options.input or 'the sample image'}, {width} x {height}"))
    summary = [
        ("device", edges.device + " (without cuDNN)" * (edges.device == "CPU")),
        ("algorithm", edges.algorithm),
        ("workspace", f"{edges.workspace_size} bytes"),
        ("time", f"{edges.milliseconds:.3f} ms"),
    ]
    show(labelled(summary))
    return 0


# The convolution


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
    PreferenceOptions(prefer=prefer, workspace_limit=workspace_limit)  # also checked for the CPU, which ignores them
    activation: ConvolutionActivation | None = "sigmoid" if sigmoid else None
    why = None if device == "cpu" else why_unavailable()
    if device == "cuda" and why is not None:
        raise UnavailableError(why)
    if device == "cpu" or why is not None:
        start = time.perf_counter()
        height, width = image.shape[1:3]
        values, rows = np.empty(image.shape, np.float32), max(_PIXELS_AT_ONCE // width, 1)
        for top in range(0, height, rows):
            bottom = min(top + rows, height)
            conv = reference.Convolution(padding=((int(top == 0), int(bottom == height)), (1, 1)), layout="NHWC")
            band = image[:, max(top - 1, 0) : bottom + 1]
            values[:, top:bottom] = conv.forward(band, _KERNEL, activation=activation)
        milliseconds = (time.perf_counter() - start) * 1e3
        return Edges(values, "CPU", "matrix products in NumPy (cudnnpy.reference)", 0, milliseconds, why)
    on_gpu = Convolution(padding=1, layout="NHWC", tf32=False, prefer=prefer, workspace_limit=workspace_limit)
    x, w = to_device(image), to_device(_KERNEL)
    y = on_gpu.forward(x, w, activation=activation)  # loads the kernels, which is not timed
    plan = on_gpu.plan("forward", x, w, out=y, activation=activation)
    runtime = cuda_python("bindings.runtime")
    runtime.cudaDeviceSynchronize()  # an error of these calls is raised by the copy to the host
    start = time.perf_counter()
    on_gpu.forward(x, w, out=y, activation=activation)
    runtime.cudaDeviceSynchronize()
    milliseconds = (time.perf_counter() - start) * 1e3
    gpu = str(cuda_python("core").Device(y.device).name)
    return Edges(to_numpy(y), gpu, plan.name, plan.workspace_size, milliseconds)


# Images


def load(source: str) -> NDArray[np.float32]:
    """Read an image as float32, (1, height, width, 3), scaled so that its smallest value is 0 and its largest 1.

    Greyscale (also of 16 bits) is repeated in the three channels, and transparent pixels are blended with white. The camera's
    orientation is applied. An animation is represented by its first image, as a line on standard error says. All values of a
    constant image become 0.

    Raises OSError if the file cannot be opened, UsageError if it cannot be read as an image, or has more pixels than Pillow's
    limit against decompression bombs, and ImportError without Pillow.
    """
    Image = _pillow()
    with open(source, "rb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about damaged metadata and large images
        try:
            values = _decode(file)
        except MemoryError:
            raise
        except Image.UnidentifiedImageError:
            raise UsageError(f"{source}: not an image, or of a format that Pillow cannot read") from None
        except Exception as error:  # decoders raise exceptions of any type for damaged files
            raise UsageError(f"{source}: the image cannot be read: {' '.join(str(error).split())}") from None
    with np.errstate(over="ignore", invalid="ignore"):
        values -= values.min()
        values /= values.max() or 1
    if not np.isfinite(values).all():
        raise UsageError(f"{source}: the image has values that are not finite")
    return values[np.newaxis]


def _pillow() -> Any:
    """Return the module PIL.Image. Raises ImportError, which says how to install it, without Pillow."""
    try:
        from PIL import Image
    except ImportError:
        raise ImportError(f"images need Pillow: pip install {with_extra('images')}") from None
    return Image


def _decode(file: BinaryIO) -> NDArray[np.float32]:
    """Return the colours of an image of any of Pillow's modes as an array (height, width, 3)."""
    from PIL import ImageOps

    Image = _pillow()
    with Image.open(file) as image:
        if 0 in image.size:
            raise UsageError("it has no pixels ({} x {})".format(*image.size))
        if (count := getattr(image, "n_frames", 1)) > 1:
            say("cudnnpy edges", f"{file.name}: image 1 of {count} is read")
        image.load()
        ImageOps.exif_transpose(image, in_place=True)
        if image.mode.startswith(("I", "F")):  # wider than 8 bits, which a conversion to RGB would truncate
            return np.repeat(np.asarray(image, dtype=np.float32)[..., np.newaxis], 3, axis=2)
        if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
            white = Image.new("RGBA", image.size, "white")
            image = Image.alpha_composite(white, image.convert("RGBA"))
        return np.array(image.convert("RGB"), dtype=np.float32)


def to_levels(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return results (1, height, width, 3) as 8-bit colours (height, width, 3).

    Negative values become 0; then the smallest becomes 0 and the largest 255.
    """
    if not np.isfinite(values).all():
        raise CudnnError("the result has values that are not finite")
    scaled = np.maximum(values[0], 0)
    scaled -= scaled.min()
    scaled *= 255 / (float(scaled.max()) or 1)
    levels: NDArray[np.uint8] = np.rint(scaled, out=scaled).astype(np.uint8)
    return levels


def format_of(output: str) -> str:
    """Return Pillow's name of the format for the ending of a file's name. Raises UsageError for another ending."""
    suffix = Path(output).suffix.lower()
    if suffix not in _FORMATS:
        raise UsageError(
            f"{output}: the name must end in {', '.join(_FORMATS)}, which gives the format; got {suffix!r}"
        )
    return _FORMATS[suffix]


def encode(output: str, levels: NDArray[np.uint8]) -> bytes:
    """Return an image (height, width, 3) encoded in the format of a file. In memory, an error leaves no partial file."""
    file, format = BytesIO(), format_of(output)
    try:
        _pillow().fromarray(levels).save(file, format=format)
    except MemoryError:
        raise
    except Exception as error:  # encoders raise exceptions of any type
        raise UsageError(f"{output}: cannot be written as {format}: {error}") from None
    return file.getvalue()
