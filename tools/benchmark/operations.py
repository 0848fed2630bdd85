"""The operations other than convolutions, compared with PyTorch: host cost on tiny tensors, GPU time on drawn shapes.

The shapes are families: rows of many lengths and images of many sizes, in each data type and memory format.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from tools.benchmark import cases
from tools.benchmark.cases import CHANNELS_LAST, PACKED, Case, CaseCalls, Tensors, cudnnpy
from tools.benchmark.runs import Task
from tools.benchmark.timing import Budget, host_timer, interleaved, quiet, rotation, summary, times_in_turns

LENGTHS = (64, 100, 197, 256, 512, 768, 1000, 1024, 2048, 3072, 4096, 5120, 8192)  # of rows
LONG_LENGTHS = (10000, 16384, 32000, 50257, 65536, 131072)
COUNTS = (1, 16, 256, 4096, 65536, 262144)  # of rows
BATCHES = (1, 8, 128)
CHANNELS = (1, 3, 16, 64, 144, 512, 2048, 4096)
SIZES = (1, 2, 7, 14, 28, 56, 112, 200, 256)  # height and width of images
MIN_ELEMENTS, MAX_ELEMENTS = 1 << 12, 1 << 26  # of x
MAX_FUSED_CHANNELS = 512
TINY, TINY_ROWS = (2, 4, 4, 4), (32, 4)  # of the host rows

MOST, LEAST = 25, 3  # repetitions on the GPU
HOST_MOST, HOST_LEAST = 200, 15
TIMING_SECONDS = 0.3  # of a row on the GPU
SETS = 8  # of tensors, at most
TF32 = 5e-3  # tolerance of a float32 convolution, in which both libraries may use tf32


class Kind(NamedTuple):
    """A data type, its memory format, and the tolerance between two libraries (relative)."""

    name: str
    dtype: str
    channels_last: bool
    tolerance: float


KINDS = tuple(
    Kind(f"{name} {'NHWC' if last else 'NCHW'}", dtype, last, tolerance)
    for name, dtype, tolerance in (
        ("fp32", "float32", 1e-4),
        ("fp16", "float16", 5e-3),
        ("bf16", "bfloat16", 3e-2),
        ("fp64", "float64", 1e-9),
    )
    for last in (False, True)
)
_ACTIVATIONS: dict[str, Callable[..., cases.Call]] = {
    "relu": lambda torch, x: partial(torch.relu, x),
    "sigmoid": lambda torch, x: partial(torch.sigmoid, x),
    "tanh": lambda torch, x: partial(torch.tanh, x),
    "clipped_relu": lambda torch, x: partial(torch.nn.functional.hardtanh, x, 0.0, 1.0),
    "elu": lambda torch, x: partial(torch.nn.functional.elu, x),
    "swish": lambda torch, x: partial(torch.nn.functional.silu, x),
}


class Problem(NamedTuple):
    """An operation on x of one shape, data type and memory format."""

    case: Case
    shape: tuple[int, ...]
    kind: Kind

    @property
    def name(self) -> str:
        """The name of the row."""
        kind = self.kind.name if len(self.shape) > 2 else self.kind.name.partition(" ")[0]
        return f"{self.case.name} | {'x'.join(map(str, self.shape))} | {kind}"


def of_rows() -> Iterator[Case]:
    """Yield the operations over the last axis of x, or over its rows."""
    yield from cases.plain("softmax", lambda: cudnnpy.Softmax(), lambda torch, x: partial(torch.softmax, x, 1), "y")
    yield from cases.plain(
        "log softmax", lambda: cudnnpy.Softmax(algorithm="log"), lambda torch, x: partial(torch.log_softmax, x, 1), "y"
    )
    yield from cases.normalization("Layer", cases.layer_norm, rows=True)
    yield from cases.normalization("RMS", cases.rms_norm, rows=True)
    for op, axes in (("sum", (1,)), ("max", (1,)), ("norm2", (1,)), ("sum", (0,)), ("max", (0,)), ("sum", None)):
        yield cases.reduction(op, axes)


def of_images(shape: tuple[int, ...]) -> Iterator[Case]:
    """Yield the operations on (N, C, H, W) that PyTorch has for images of this shape."""
    n, c, height, width = shape
    yield from cases.plain(
        "softmax over channels", lambda: cudnnpy.Softmax(), lambda torch, x: partial(torch.softmax, x, 1), "y"
    )
    if c >= 5:  # alpha is larger than in networks, where the sum over the channels hardly shows in the result
        yield from cases.plain(
            "local response norm",
            lambda: cudnnpy.LocalResponseNormalization(size=5, alpha=0.1, beta=0.75, k=2.0),
            lambda torch, x: partial(torch.nn.functional.local_response_norm, x, 5, 0.1, 0.75, 2.0),
        )
    if min(height, width) >= 2:
        for mode in ("max", "average_include_padding"):
            yield from cases.pooling(mode, 2, 0)
            yield from cases.pooling(mode, 3, 1)
        yield from cases.pooling("average_exclude_padding", 3, 1)
        yield from cases.global_pooling((height, width))
        yield from cases.normalization("Instance", cases.instance_norm)
    for name, theirs in _ACTIVATIONS.items():
        yield from cases.activation(name, theirs)
    if n * height * width > 1:
        yield Case("batch norm, training", cases.batch_training)
        yield Case("batch norm + relu, training", partial(cases.batch_training, relu=True))
        yield Case("batch norm, backward", cases.batch_backward, host=False)
    yield Case("batch norm, inference", cases.batch_inference)
    if c > 1:
        yield Case("add a bias", partial(cases.add, bias=True))
    yield Case("add a tensor", partial(cases.add, bias=False))
    yield Case("scale", cases.scale)
    yield Case("set", cases.fill)
    if c > 1 and height * width > 1:  # otherwise the two memory formats are one
        yield Case("transform: memory order", cases.turn)
    yield Case("transform: element type", cases.convert)
    for op, axes in (
        ("sum", (0, 2, 3)),
        ("sum", (1,)),
        ("sum", (2, 3)),
        ("max", (2, 3)),
        ("max", (1,)),
        ("norm2", None),
    ):
        yield cases.reduction(op, axes)
    yield Case("dropout", cases.dropout)
    yield Case("dropout, backward", cases.dropout_backward, host=False)
    if c % 4 == 0 and c <= MAX_FUSED_CHANNELS:
        for name, residual in (("convolution + bias + residual + relu", True), ("convolution * scale + bias", False)):
            yield Case(name, partial(cases.fused, residual=residual), True, CHANNELS_LAST, TF32, has_float64=False)


def cases_of(shape: tuple[int, ...]) -> Iterator[Case]:
    """Yield the operations on x of a shape of two or four axes."""
    yield from of_images(shape) if len(shape) > 2 else of_rows()


def kinds_of(case: Case, shape: tuple[int, ...]) -> list[Kind]:
    """Return the kinds in which an operation is measured on x of a shape."""
    orders = case.orders if len(shape) > 2 else PACKED
    return [kind for kind in KINDS if kind.channels_last in orders and (case.has_float64 or kind.dtype != "float64")]


def operation(name: str, shape: Sequence[int]) -> str:
    """Return the name of an operation on rows or on images."""
    return name if len(shape) > 2 else f"{name} (rows)"


def problems() -> dict[str, list[Problem]]:
    """Return all problems by operation."""
    found: dict[str, list[Problem]] = {}
    rows = [(count, length) for length in (*LENGTHS, *LONG_LENGTHS) for count in COUNTS]
    images = [(n, c, size, size) for size in SIZES for c in CHANNELS for n in BATCHES]
    for shape in (*rows, *images):
        if not MIN_ELEMENTS <= math.prod(shape) <= MAX_ELEMENTS:
            continue
        for case in cases_of(shape):
            mine = [Problem(case, shape, kind) for kind in kinds_of(case, shape)]
            found.setdefault(operation(case.name, shape), []).extend(mine)
    return found


def in_order(seed: int) -> list[Problem]:
    """Return every problem once, in an order drawn by the seed, in which the operations take turns."""
    draw, left = random.Random(seed), problems()
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


def tasks(torch: Any, seed: int) -> Iterator[Task]:
    """Yield a task for each problem, in the order of the seed."""
    for problem in in_order(seed):
        yield Task("operations", problem.name, partial(measure, torch, problem))


def host_tasks(torch: Any) -> Iterator[Task]:
    """Yield a task for each forward operation on a tiny tensor."""
    for shape in (TINY, TINY_ROWS):
        for case in cases_of(shape):
            if case.host:
                problem = Problem(case, shape, kinds_of(case, shape)[0])
                yield Task("host operations", problem.name, partial(measure_host, torch, problem))


def _describe(problem: Problem, row: dict[str, Any]) -> None:
    row.update(operation=problem.case.name, shape=problem.shape, kind=problem.kind.name)


def measure_host(torch: Any, problem: Problem, row: dict[str, Any], budget: Budget) -> None:
    """Fill a row with microseconds of the host for a call, with `out` and without."""
    _describe(problem, row)
    with torch.no_grad():
        tensors = Tensors(torch, problem.kind.dtype, problem.kind.channels_last, problem.shape)
        of_case = problem.case.make(tensors)
        contenders = {"cudnnpy, out=": of_case.out}
        if of_case.new is not None:
            contenders["cudnnpy, new"] = of_case.new
        right = _right(torch, tensors, of_case, contenders, problem, row)
        if not right:
            return
        timers = {name: host_timer(contenders[name], torch.cuda.synchronize) for name in right}
        timers["torch"] = timers["torch, again"] = host_timer(of_case.torch, torch.cuda.synchronize)
        for timer in timers.values():
            timer()
        with quiet():
            times = interleaved(timers, HOST_MOST, HOST_LEAST, budget)
        row["us"] = {name: summary(measured) for name, measured in times.items()}


def measure(torch: Any, problem: Problem, row: dict[str, Any], budget: Budget) -> None:
    """Fill a row with milliseconds of the GPU; `bytes` is the size of the operands.

    A contender that raises, or whose result differs from PyTorch's, has no time; the row's `error` names it.
    """
    _describe(problem, row)
    torch.backends.cudnn.benchmark = torch.backends.cudnn.allow_tf32 = True
    with torch.no_grad():
        made = _sets(torch, problem)
        tensors, of_case = next(made)
        row["bytes"] = tensors.bytes
        contenders = {"cudnnpy": of_case.out}
        if of_case.separate is not None:
            contenders["separate"] = of_case.separate
        right = _right(torch, tensors, of_case, contenders, problem, row)
        if not right:
            return
        sets = [of_case, *(more for _, more in made)]
        calls = {"torch": [_keeping(each.torch) for each in sets]}
        for name, field in (("cudnnpy", "out"), ("separate", "separate")):
            if name in right:
                calls[name] = [_keeping(getattr(each, field)) for each in sets]
        times = times_in_turns(torch, calls, MOST, LEAST, Budget(TIMING_SECONDS))
        row["ms"] = {name: summary(measured) for name, measured in times.items()}


def _sets(torch: Any, problem: Problem) -> Iterator[tuple[Tensors, CaseCalls]]:
    """Sets of tensors that are four times the L2 cache together, so that no call finds its inputs there."""
    count, made = 1, 0
    while made < count:
        tensors = Tensors(torch, problem.kind.dtype, problem.kind.channels_last, problem.shape)
        yield tensors, problem.case.make(tensors)
        made += 1
        count = rotation(torch, tensors.bytes, SETS)


def _keeping(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call, whose newest result lives until the next, so that an allocator rotates buffers as `out` does."""
    last: list[Any] = []

    def keeping() -> Any:
        last[:] = [call()]
        return last[0]

    return keeping


def _right(
    torch: Any,
    tensors: Tensors,
    of_case: CaseCalls,
    contenders: dict[str, Callable[[], Any]],
    problem: Problem,
    row: dict[str, Any],
) -> list[str]:
    """Return the contenders whose results agree with PyTorch's, in memory that was full of NaN; the error names the others."""
    tolerance = max(problem.kind.tolerance, problem.case.tolerance)
    row["difference"] = {}
    failures, right = [], []
    for name, call in contenders.items():
        for room in tensors.rooms:
            room.fill_(math.nan)
        try:
            result = call()
            expected = of_case.torch() if of_case.expected is None else of_case.expected(result)
            row["difference"][name] = off = _difference(torch, result, expected)
        except Exception as error:
            failures.append(f"{name}: {type(error).__name__}: {error}")
            continue
        if off <= tolerance:
            right.append(name)
        else:
            failures.append(f"{name}: differs from torch by {off:.2g}, more than {tolerance:g}")
    row["error"] = "; ".join(failures) or None
    return right


def _difference(torch: Any, result: Any, expected: Any) -> float:
    """The largest |result - expected| / |expected| of all results, without division by 0; NaN if one is."""
    found = []
    ours, theirs = (value if isinstance(value, tuple) else (value,) for value in (result, expected))
    for mine, other in zip(ours, theirs, strict=False):
        if mine.squeeze().shape != other.squeeze().shape:
            raise ValueError(f"the result must have shape {tuple(other.shape)}; got shape {tuple(mine.shape)}")
        wide = other if other.element_size() == 8 else other.float()
        off, norm = (float(torch.linalg.vector_norm(one)) for one in (mine.to(wide.dtype) - wide, wide))
        found.append(off / norm if norm else off)
    return math.nan if any(map(math.isnan, found)) else max(found)
