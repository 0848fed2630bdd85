"""The families: each operation over rows or images of many sizes, element types and memory orders; in an order by seed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from tools.benchmark import cases
from tools.benchmark.cases import PACKED, Case
from tools.benchmark.operations import Kind

LENGTHS = (
    64,
    100,
    197,
    256,
    512,
    768,
    1000,
    1024,
    2048,
    3072,
    4096,
    5120,
    8192,
    10000,
    16384,
    32000,
    50257,
    65536,
    131072,
)
COUNTS = (1, 16, 256, 4096, 65536, 262144)  # of rows
BATCHES = (1, 8, 128)
CHANNELS = (1, 3, 16, 64, 144, 512, 2048, 4096)
SIZES = (1, 2, 7, 14, 28, 56, 112, 200, 256)  # height and width of images
FEWEST, MOST = 1 << 12, 1 << 26  # elements of x

KINDS = (
    Kind("fp32 NCHW", "float32", False, 1e-4),
    Kind("fp32 NHWC", "float32", True, 1e-4),
    Kind("fp16 NCHW", "float16", False, 5e-3),
    Kind("fp16 NHWC", "float16", True, 5e-3),
    Kind("bf16 NCHW", "bfloat16", False, 3e-2),
    Kind("bf16 NHWC", "bfloat16", True, 3e-2),
    Kind("fp64 NCHW", "float64", False, 1e-9),
    Kind("fp64 NHWC", "float64", True, 1e-9),
)


class Problem(NamedTuple):
    """What is measured in one row."""

    case: Case
    shape: tuple[int, ...]
    kind: Kind

    @property
    def name(self) -> str:
        """The problem in words."""
        kind = self.kind.name if len(self.shape) > 2 else self.kind.name.partition(" ")[0]
        return f"{self.case.name} | {'x'.join(map(str, self.shape))} | {kind}"

    @property
    def key(self) -> str:
        """What a row is known by."""
        return f"operations | {self.name}"


def of_rows(shape: tuple[int, ...]) -> Iterator[Case]:
    """The operations over the last axis of x, or over the rows, for x of this shape."""
    count, length = shape
    yield from cases.plain(
        "softmax", lambda: cases.cudnnpy.Softmax(), lambda torch, x: partial(torch.softmax, x, 1), "y"
    )
    yield from cases.plain(
        "log softmax",
        lambda: cases.cudnnpy.Softmax(algorithm="log"),
        lambda torch, x: partial(torch.log_softmax, x, 1),
        "y",
    )
    yield from cases.normalization("Layer", cases.layer_norm, (count, length))
    yield from cases.normalization("RMS", cases.rms_norm, (count, length))
    for op, axes in (("sum", (1,)), ("max", (1,)), ("norm2", (1,)), ("sum", (0,)), ("max", (0,)), ("sum", None)):
        yield cases.reduction(op, axes)


def of_images(shape: tuple[int, ...]) -> Iterator[Case]:
    """The operations on (N, C, H, W) that PyTorch has, too, for images of this size."""
    n, c, *size = shape
    height, width = size
    yield from cases.plain(
        "softmax over channels", lambda: cases.cudnnpy.Softmax(), lambda torch, x: partial(torch.softmax, x, 1), "y"
    )
    if min(size) >= 2:
        for mode in ("max", "average_include_padding"):
            yield from cases.pooling(mode, 2, 0)
            yield from cases.pooling(mode, 3, 1)
        yield from cases.global_pooling((height, width))
        yield from cases.normalization("Instance", cases.instance_norm)
    for name in ("relu", "sigmoid", "elu", "swish"):
        yield from cases.activation(name, _ACTIVATIONS[name])
    if n * height * width > 1:
        yield Case("batch norm, training", cases.batch_training)
        yield Case("batch norm + relu, training", partial(cases.batch_training, relu=True))
        yield Case("batch norm, backward", cases.batch_backward)
    yield Case("batch norm, inference", cases.batch_inference)
    if c > 1:
        yield Case("add a bias", partial(cases.add, bias=True))
    yield Case("add a tensor", partial(cases.add, bias=False))
    yield Case("scale", cases.scale)
    yield Case("set", cases.fill)
    if c > 1 and height * width > 1:  # otherwise the two orders are one
        yield Case("transform: memory order", cases.turn)
    yield Case("transform: element type", cases.convert)
    for op, axes in (("sum", (0, 2, 3)), ("sum", (2, 3)), ("max", (2, 3)), ("max", (1,)), ("norm2", None)):
        yield cases.reduction(op, axes)
    yield Case("dropout", cases.dropout)


_ACTIVATIONS: dict[str, Callable[..., cases.Call]] = {
    "relu": lambda torch, x: partial(torch.relu, x),
    "sigmoid": lambda torch, x: partial(torch.sigmoid, x),
    "elu": lambda torch, x: partial(torch.nn.functional.elu, x),
    "swish": lambda torch, x: partial(torch.nn.functional.silu, x),
}


def problems() -> dict[str, list[Problem]]:
    """Every problem of each operation, by the operation's name."""
    found: dict[str, list[Problem]] = {}

    rows = [(count, length) for length in LENGTHS for count in COUNTS]
    images = [(n, c, size, size) for size in SIZES for c in CHANNELS for n in BATCHES]
    for shape in (*rows, *images):
        if not FEWEST <= math.prod(shape) <= MOST:
            continue
        for case in of_images(shape) if len(shape) > 2 else of_rows(shape):
            orders = case.orders if len(shape) > 2 else PACKED
            mine = [Problem(case, shape, kind) for kind in KINDS if kind.channels_last in orders]
            found.setdefault(operation(case.name, shape), []).extend(mine)
    return found


def operation(name: str, shape: Sequence[int]) -> str:
    """The name of an operation, which tells rows from images."""
    return name if len(shape) > 2 else f"{name} (rows)"


def in_order(seed: int) -> list[Problem]:
    """Every problem once, in an order drawn by the seed: the operations take turns, however many problems they have."""
    draw = random.Random(seed)
    left = problems()
    for mine in left.values():
        draw.shuffle(mine)
    found = []
    while left:
        names = list(left)
        draw.shuffle(names)
        for name in names:
            found.append(left[name].pop())
            if not left[name]:
                del left[name]
    return found
