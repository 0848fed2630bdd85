"""The operations beside the convolutions, against torch: GPU time on large tensors, host cost on tiny ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from tools.benchmark import cases
from tools.benchmark.cases import CHANNELS_LAST, LONG, TINY, WIDE, Case, Roads, Tensors, cudnnpy
from tools.benchmark.timing import Budget, host_timer, interleaved, quiet, rotation, summary, times_in_turns

# unit of the time, kind, operation, and what measures it
Problem: TypeAlias = tuple[str, str, str, Callable[[Budget, dict[str, Any]], Any]]

HOST = "host fp32"
HOST_PART = 0.15  # of the budget
MOST, LEAST = 25, 3  # repetitions on the GPU
HOST_MOST, HOST_LEAST = 200, 15
SETS = 8  # of tensors, at most


class Kind(NamedTuple):
    """An element type, its memory order, and how far two libraries may differ (relative)."""

    name: str
    dtype: str
    channels_last: bool
    tolerance: float


KINDS = (
    Kind("fp32 NCHW", "float32", False, 1e-4),
    Kind("fp32 NHWC", "float32", True, 1e-4),
    Kind("fp16 NCHW", "float16", False, 5e-3),
    Kind("fp16 NHWC", "float16", True, 5e-3),
)
TF32 = 5e-3  # the tolerance of a convolution of float32, in which both sides may use tf32

CASES: tuple[Case, ...] = (
    *cases.plain("softmax", lambda: cudnnpy.Softmax(), lambda torch, x: partial(torch.softmax, x, 1), "y"),
    *cases.plain(
        "log softmax",
        lambda: cudnnpy.Softmax(algorithm="log"),
        lambda torch, x: partial(torch.log_softmax, x, 1),
        "y",
    ),
    # alpha is larger than in networks, where the sum over the channels hardly shows in the result
    *cases.plain(
        "local response norm",
        lambda: cudnnpy.LocalResponseNormalization(size=5, alpha=0.1, beta=0.75, k=2.0),
        lambda torch, x: partial(torch.nn.functional.local_response_norm, x, 5, 0.1, 0.75, 2.0),
    ),
    *cases.pooling("max", 3, 1),
    *cases.pooling("max", 2, 0),
    *cases.pooling("average_include_padding", 3, 1),
    *cases.pooling("average_exclude_padding", 3, 1),
    *cases.pooling("average_include_padding", 2, 0),
    *cases.activation("relu", lambda torch, x: partial(torch.relu, x)),
    *cases.activation("sigmoid", lambda torch, x: partial(torch.sigmoid, x)),
    *cases.activation("tanh", lambda torch, x: partial(torch.tanh, x)),
    *cases.activation("clipped_relu", lambda torch, x: partial(torch.nn.functional.hardtanh, x, 0.0, 1.0)),
    *cases.activation("elu", lambda torch, x: partial(torch.nn.functional.elu, x)),
    *cases.activation("swish", lambda torch, x: partial(torch.nn.functional.silu, x)),
    Case("batch norm, training", cases.batch_training),
    Case("batch norm + relu, training", partial(cases.batch_training, relu=True)),
    Case("batch norm, inference", cases.batch_inference),
    Case("batch norm, backward", cases.batch_backward, host=False),
    *cases.normalization("Instance", cases.instance_norm),
    *cases.normalization("Layer", cases.layer_norm, LONG),
    *cases.normalization("Layer", cases.layer_norm, WIDE),
    *cases.normalization("RMS", cases.rms_norm, LONG),
    *cases.normalization("RMS", cases.rms_norm, WIDE),
    Case("add a bias", partial(cases.add, bias=True)),
    Case("add a tensor", partial(cases.add, bias=False)),
    Case("scale", cases.scale),
    Case("set", cases.fill),
    Case("transform: memory order", cases.turn),
    Case("transform: element type", cases.convert),
    cases.reduction("sum", (0, 2, 3)),
    cases.reduction("sum", (1,)),
    cases.reduction("sum", None),
    cases.reduction("max", (1,)),
    cases.reduction("norm2", None),
    Case("dropout", cases.dropout),
    Case("dropout, backward", cases.dropout_backward, host=False),
    Case("convolution + bias + residual + relu", partial(cases.fused, residual=True), True, CHANNELS_LAST, TF32),
    Case("convolution * scale + bias", partial(cases.fused, residual=False), True, CHANNELS_LAST, TF32),
)


def measure(torch: Any, budget: Budget) -> Iterator[dict[str, Any]]:
    """A row for each operation on the host, then one for each kind and operation on the GPU.

    A row's `error` tells every contender that raised or whose result is not torch's; such a one has no time.
    """
    torch.backends.cudnn.benchmark = torch.backends.cudnn.allow_tf32 = True
    host: list[Problem] = [("us", HOST, case.name, partial(_measure_host, torch, case)) for case in CASES if case.host]
    device: list[Problem] = [
        ("ms", kind.name, f"{case.name}, {case.size}".rstrip(", "), partial(measure_device, torch, case, kind))
        for kind in KINDS
        for case in CASES
        if kind.channels_last in case.orders
    ]
    with torch.no_grad():
        with quiet():
            yield from _rows(host, budget.part(HOST_PART))
        yield from _rows(device, budget)


def _rows(problems: list[Problem], budget: Budget) -> Iterator[dict[str, Any]]:
    for index, (unit, kind, name, measure_one) in enumerate(problems):
        row: dict[str, Any] = {"kind": kind, "operation": name, "unit": unit, "error": None}
        try:
            measure_one(budget.part(1 / (len(problems) - index)), row)
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"
        yield row


def _measure_host(torch: Any, case: Case, budget: Budget, row: dict[str, Any]) -> None:
    tensors = Tensors(torch, "float32", case.orders[0], TINY)
    roads = case.make(tensors)
    contenders = {"cudnnpy, out=": roads.out}
    if roads.new is not None:
        contenders["cudnnpy, new"] = roads.new
    right = _right(torch, tensors, roads, contenders, max(KINDS[0].tolerance, case.tolerance), row)
    if not right:
        return
    timers = {name: host_timer(contenders[name], torch.cuda.synchronize) for name in right}
    timers["torch"] = timers["torch, again"] = host_timer(roads.torch, torch.cuda.synchronize)
    for timer in timers.values():
        timer()
    times = interleaved(timers, HOST_MOST, HOST_LEAST, budget)
    row["us"] = {name: summary(measured) for name, measured in times.items()}


def measure_device(
    torch: Any,
    case: Case,
    kind: Kind,
    budget: Budget,
    row: dict[str, Any],
    shape: tuple[int, ...] | None = None,
) -> int:
    """Fills a row with the GPU's times on tensors of a shape; returns the bytes of the operands."""
    made = _sets(torch, case, kind, shape or cases.SHAPE)
    tensors, roads = next(made)
    moved = tensors.bytes
    contenders = {"cudnnpy": roads.out}
    if roads.separate is not None:
        contenders["separate"] = roads.separate
    right = _right(torch, tensors, roads, contenders, max(kind.tolerance, case.tolerance), row)
    if not right:
        return moved
    sets = [roads, *(more for _, more in made)]
    calls = {"torch": [_keeping(each.torch) for each in sets]}
    for name, field in (("cudnnpy", "out"), ("separate", "separate")):
        if name in right:
            calls[name] = [_keeping(getattr(each, field)) for each in sets]
    times = times_in_turns(torch, calls, MOST, LEAST, budget)
    row["ms"] = {name: summary(measured) for name, measured in times.items()}
    return moved


def _sets(torch: Any, case: Case, kind: Kind, shape: tuple[int, ...]) -> Iterator[tuple[Tensors, Roads]]:
    """Sets of tensors that are four times the L2 cache together, so that no call finds its inputs there."""
    count, made = 1, 0
    while made < count:
        tensors = Tensors(torch, kind.dtype, kind.channels_last, shape)
        yield tensors, case.make(tensors)
        made += 1
        count = rotation(torch, tensors.bytes, SETS)


def _keeping(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call, whose newest result lives on until the next, so that an allocator rotates buffers as `out` does."""
    last: list[Any] = []

    def kept() -> Any:
        last[:] = [call()]
        return last[0]

    return kept


def _right(
    torch: Any,
    tensors: Tensors,
    roads: Roads,
    contenders: dict[str, Callable[[], Any]],
    tolerance: float,
    row: dict[str, Any],
) -> list[str]:
    """The contenders whose results are torch's, in memory that was full of NaN before; the row tells of the others."""
    row["difference"] = {}
    lost, right = [], []
    for name, call in contenders.items():
        for room in tensors.rooms:
            room.fill_(math.nan)
        try:
            result = call()
            expected = roads.torch() if roads.expected is None else roads.expected(result)
            row["difference"][name] = off = _difference(torch, result, expected)
        except Exception as error:
            lost.append(f"{name}: {type(error).__name__}: {error}")
            continue
        if off <= tolerance:
            right.append(name)
        else:
            lost.append(f"{name}: differs from torch by {off:.2g}, more than {tolerance:g}")
    row["error"] = "; ".join(lost) or None
    return right


def _difference(torch: Any, result: Any, expected: Any) -> float:
    """The largest |result - expected| / |expected| of all that is expected, without division by 0; NaN where anything is."""
    found = []
    ours, theirs = (value if isinstance(value, tuple) else (value,) for value in (result, expected))
    for mine, other in zip(ours, theirs, strict=False):
        if mine.squeeze().shape != other.squeeze().shape:
            raise ValueError(f"the result must have shape {tuple(other.shape)}; got shape {tuple(mine.shape)}")
        wide = other if other.element_size() == 8 else other.float()
        off, norm = (float(torch.linalg.vector_norm(one)) for one in (mine.to(wide.dtype) - wide, wide))
        found.append(off / norm if norm else off)
    return math.nan if any(map(math.isnan, found)) else max(found)
