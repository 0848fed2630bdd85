"""A child process that runs engines on problems that they are known to get wrong, without the table that rejects them.

    PYTHONPATH=.:tests/shared python tests/gpu/known_issue_problems.py weight-gradient-nan

A line of JSON for each run says what is about to run, and the last one what was found: {"fault": ...} at the first wrong
result or failure of the device, else {"ran": how many}. Some of these engines end the CUDA context, so each issue has a
process of its own. Nothing but NumPy, ml_dtypes and the package is
needed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from math import gcd, prod
from typing import Any

import ml_dtypes  # noqa: F401  (NumPy's bfloat16)
import numpy as np
from issue_graphs import WRONG, Make, attention, random_arrays, summed_axis

import cudnnpy
from cudnnpy import Graph, TensorSpec, raw, reference
from cudnnpy._convolution.options import ConvolutionOptions
from cudnnpy._convolution.specification import ConvolutionSpec, make_problem
from cudnnpy._core.layouts import byte_extent, channels_last_strides, packed_strides
from cudnnpy._launch.steps import Executable
from cudnnpy._planning import engines
from cudnnpy._planning.engines import EngineConfiguration, GraphExecutable, Target
from cudnnpy._planning.known_issues import ISSUES, Issue
from cudnnpy.errors import StatusError
from cudnnpy.graph.convolutions import convolution_graph, uids
from cudnnpy.graph.descriptors import build_graph
from cudnnpy.graph.operation_graph import canonical_graph
from cudnnpy.graph.problem import GraphProblem
from cudnnpy.handle import Handle, on_device
from cudnnpy.reference.graph import compare, evaluate
from cudnnpy.tuning.measuring.bench_buffers import GuardedMemory

UNWRITTEN = 0xFF  # in every byte that nothing was written to: NaN in a type that has one
MARGIN = 256  # bytes before each tensor
ROUNDED = 0.02  # of the largest element: above every rounding of a stored result, below any product that is missing
RUNS = 50  # of a sum, which is to have the same bits in each


@dataclass(frozen=True)
class Convolved:
    """A convolution on whole numbers, whose sums are exact in every type.

    `last` names the tensors, of "xwy", that are channels last; x has every axis `step` times as far apart as it is long.
    `offset`: by how many elements the addresses are off 16 bytes. `guarded` tensors end where mapped memory does.
    `knobs` are those of the engine. `largest` number, and the error allowed of the largest element.
    """

    operation: str
    x_shape: tuple[int, ...]
    w_shape: tuple[int, ...]
    dtype: str = "float32"
    result: str | None = None
    last: str = ""
    step: int = 1
    offset: int = 0
    guarded: bool = False
    knobs: dict[int, int] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    bias: bool = False
    activation: str | None = None
    alpha: float = 1.0
    beta: float = 0.0
    largest: int = 2
    allowed: float = ROUNDED

    @property
    def problem(self) -> ConvolutionSpec:
        """What is asked of the engine: the whole of it in one plan."""
        options = ConvolutionOptions(**self.options)
        y_shape = cudnnpy.Convolution(**self.options).output_shape(self.x_shape, self.w_shape)
        alignment = gcd(16, self.offset * np.dtype(self.dtype).itemsize)
        x, w, y = (
            TensorSpec(
                shape, self.dtype, (channels_last_strides if name in self.last else packed_strides)(shape), alignment
            )
            for name, shape in (("x", self.x_shape), ("w", self.w_shape), ("y", y_shape))
        )
        if self.step > 1:
            x = x._replace(strides=tuple(self.step * stride for stride in x.strides or ()))
        if self.operation == "forward":
            y = y._replace(dtype=self.result or self.dtype)
        bias = TensorSpec((self.w_shape[0],), self.dtype, alignment=alignment) if self.bias else None
        how: dict[str, Any] = {"bias": bias, "activation": self.activation, "alpha": self.alpha, "beta": self.beta}
        return make_problem(options, self.operation, x, w, y, **how)


@dataclass(frozen=True)
class Evaluated:
    """A graph of random numbers, which NumPy evaluates."""

    make: Make

    @property
    def graph(self) -> Graph:
        """The graph."""
        g = Graph()
        self.make(g)
        return g


@dataclass(frozen=True)
class Repeated(Evaluated):
    """A graph of random numbers whose results are to have the same bits in every run."""


Trial = Convolved | Evaluated

TEXTURE, TILE = int(raw.CUDNN_KNOB_TYPE_USE_TEX), int(raw.CUDNN_KNOB_TYPE_TILE_SIZE)
MULTIPLY = {int(raw.CUDNN_KNOB_TYPE_MULTIPLY): 1}
SAME: dict[str, Any] = {"padding": "same"}
DILATED: dict[str, Any] = {"padding": "same", "dilation": 2, "groups": 2}
_MISALIGNED = [
    Convolved("forward", (3, 32, 7, 8), (32, 16, 3, 3), dtype, last=last, offset=offset, options=o, activation="relu")
    for dtype, offset in (("float16", 2), ("float32", 1))
    for last in ("xwy", "")
    for o in ({"groups": 2}, {"stride": (1, 2), "dilation": 3, "groups": 2})
] + [
    Convolved("forward", (4, 32, 8, 8), (32, 32, 3, 3), dtype, last=last, offset=offset, bias=bias, activation="relu")
    for dtype, offset in (("float16", 2), ("float32", 1))
    for last in ("xwy", "")
    for bias in (False, True)
]
_ORDERS = [
    # the filter is not as x is; then x or y of one position beside channels first
    Convolved("forward", (4, 32, 8, 8), (32, 32, 3, 3), "float16", last="xy", bias=True, activation="relu"),
    Convolved("forward", (2, 64, 28, 28), (64, 64, 3, 3), "float16", last="xy", options={"padding": 1}, bias=True),
    Convolved(
        "forward",
        (3, 32, 7, 8),
        (32, 16, 3, 3),
        "float16",
        options={"stride": (1, 2), "dilation": 3, "groups": 2},
        activation="relu",
    ),
    Convolved(
        "forward",
        (3, 32, 7, 8),
        (32, 32, 3, 3),
        "float16",
        options={"stride": (1, 2), "dilation": 3},
        bias=True,
        activation="relu",
    ),
    Convolved("forward", (8, 64, 3, 3), (64, 64, 3, 3), "float16", bias=True, activation="relu"),
]
_UNEVEN: list[dict[str, Any]] = [{"padding": ((1, 0), (0, 2))}, {"padding": ((2, 1), (1, 2)), "stride": (2, 1)}]
_PADDED: list[Trial] = [
    Convolved(operation, (2, 8, 9, 8), (8, 8, 3, 3), dtype, last=last, options=options)
    for operation in ("backward_filter", "backward_data")
    for options in _UNEVEN
    for dtype, last in (("float32", ""), ("float32", "xwy"), ("float16", "xwy"))
]

TRIALS: dict[str, list[Trial]] = {
    "converted-to-float16": [
        Convolved(operation, (4, 64, 14, 14), (64, 64, 3, 3), last=last, options={"padding": 1}, largest=1 << 20)
        for operation in ("backward_filter", "backward_data", "forward")
        for last in ("", "xwy")
    ],
    "weight-gradient-nan": [
        Convolved("backward_filter", (2, 8, 5, 4), (4, 8, 3, 4), dtype, last=last, options={"stride": (1, 3)})
        for dtype, last in (("float32", ""), ("float32", "xwy"), ("float16", ""), ("float16", "xwy"))
    ]
    + [
        Convolved("backward_filter", (2, 8, 7, 6), (16, 4, 3, 3), "float16", last=last, options={"groups": 2})
        for last in ("", "xwy")
    ]
    + [Convolved("backward_filter", (4, 64, 12, 11), (64, 32, 3, 3), "float16", last="xwy", options={"groups": 2})],
    "weight-gradient-texture": [
        Convolved(
            "backward_filter", (1, 128, 147, 147), (128, 128, 1, 1), "bfloat16", last="xwy", knobs={TILE: 8, TEXTURE: 1}
        ),
        Convolved(
            "backward_filter",
            (64, 480, 14, 14),
            (120, 160, 1, 1),
            guarded=True,
            knobs={TILE: 6, TEXTURE: 1},
            options={"groups": 3},
        ),
        Convolved(
            "backward_filter",
            (1, 2, 8, 7, 8),
            (130, 2, 11, 1, 11),
            "bfloat16",
            guarded=True,
            knobs={TEXTURE: 1},
            options={"padding": (5, 0, 5), "stride": 2},
        ),
    ],
    "depthwise-endless": [
        Convolved(
            "forward",
            (32, 48, 160, 160),
            (48, 1, 3, 3),
            last="xwy",
            knobs=MULTIPLY,
            options={"padding": 1, "groups": 48},
        ),
        Convolved(
            "backward_filter",
            (1, 192, 134, 134),
            (192, 1, 4, 4),
            "float16",
            knobs=MULTIPLY,
            options={"groups": 192},
        ),
    ],
    "weight-gradient-misaligned": [
        Convolved(
            "backward_filter",
            (3, 8, 1),
            (8, 8, 5),
            last="xwy",
            offset=offset,
            options={**SAME, "stride": 2, "dilation": 3, "mode": "convolution"},
        )
        for offset in (1, 3)
    ]
    + [Convolved("backward_filter", (4, 16, 12, 11), (32, 16, 3, 3), last=last, offset=1) for last in ("xwy", "")],
    "data-gradient-unwritten": [
        Convolved("backward_data", (1, 12, 13), (12, 4, 2), options={"padding": 1, "groups": 3}, last="xwy"),
        Convolved("backward_data", (2, 8, 7, 1), (8, 8, 3, 1), "float16", options={"padding": (1, 0)}, last="xwy"),
        Convolved("backward_data", (2, 8, 1, 7), (8, 8, 1, 3), options={"padding": (0, 1)}, last="xwy"),
        Convolved("backward_data", (2, 8, 7, 1), (8, 8, 3, 1), options={"padding": (1, 0)}),
    ],
    "forward-gaps": [
        Convolved("forward", (2, 16, 9, 8), (16, 16, 3, 3), dtype, last="wy", step=2)
        for dtype in ("float32", "float16")
    ],
    "forward-alpha": [
        Convolved("forward", (2, 8, 2, 3), (16, 8, 2, 3), last="xwy", alpha=0.75),
        Convolved("forward", (2, 1, 2), (16, 1, 2), options={"stride": 2}, alpha=0.75),
        Convolved("forward", (2, 1, 2), (16, 1, 2), last="xwy", options={"stride": 2}, alpha=0.75),
    ]
    + [
        Convolved("forward", x_shape, w_shape, dtype, last="xwy", alpha=0.5)
        for x_shape, w_shape in (((3, 4, 6, 4), (8, 4, 1, 1)), ((3, 64, 14, 14), (64, 64, 1, 1)))
        for dtype in ("float32", "float16")
    ],
    "fused-tanh": [
        Convolved("forward", (3, 32, 8, 6), (16, 16, 2, 4), options=DILATED, bias=True, activation="tanh", largest=8),
        Convolved("forward", (4, 64, 9, 8), (64, 64, 3, 3), bias=True, activation="tanh", largest=8),
    ],
    "int8-to-int32": [
        Convolved("forward", (2, 32, 9, 8), (16, 32, 3, 3), "int8", "int32", last=last) for last in ("xwy", "")
    ],
    "int8-to-float32": [
        Convolved("forward", (2, 32, 9, 8), (16, 32, 3, 3), "int8", "float32", last=last) for last in ("", "xw")
    ],
    "graph-orders": [*_ORDERS],
    "fused-orders": [*_ORDERS],
    "fused-misaligned": [*_MISALIGNED],
    "graph-misaligned": [*_MISALIGNED],
    "gradient-padding": _PADDED,
    "data-gradient-beta": [
        Convolved("backward_data", (2, 16, 9, 8), (16, 16, 1, 1), dtype, last=last, options={"stride": 2}, beta=0.5)
        for dtype, last in (("float32", ""), ("float32", "xwy"), ("float16", "xwy"), ("float16", ""))
    ]
    + [Convolved("backward_data", (8, 32, 1), (16, 32, 1), "float16", last="xwy", options={"stride": 2}, beta=-1.0)],
    "weight-gradient-beta": [
        Convolved(
            "backward_filter", (2, 16, 9, 8), (16, 8, 3, 3), "float16", last=last, options={"groups": 2}, beta=0.5
        )
        for last in ("", "xwy")
    ]
    + [
        Convolved("backward_filter", (8, 16, 3), (4, 4, 3), last="xwy", options={"padding": 1, "groups": 4}, beta=2.0),
        Convolved("backward_filter", (8, 8, 4), (4, 2, 4), last="xwy", options={"padding": 1, "groups": 4}, beta=2.0),
    ],
    "graph-sums": [
        Repeated(partial(summed_axis, shape=shape, axis=axis))
        for shape, axis in (((65536, 64), 0), ((4096, 4096), 1), ((1024, 1024), 0))
    ],
    "attention-one-query": [
        Repeated(partial(attention, heads=198, kv_heads=1, queries=1, keys=keys, size=size))
        for keys, size in ((600, 256), (2304, 256), (600, 128))
    ],
    "forward-not-proposed": [
        Convolved("forward", (2, 16, 9, 8), (16, 16, 4, 1), "float16", last=last, options=options)
        for last in ("xwy", "")
        for options in ({}, {"padding": (2, 0)}, SAME)
    ]
    + [
        Convolved(
            "forward",
            (3, 8, 6, 10),
            (16, 8, 1, 3),
            "float16",
            options={"padding": (2, 0), "stride": 3, "dilation": (1, 2)},
        ),
        Convolved("forward", (1, 16, 7), (4, 8, 3), "float16", options={"stride": 3, "groups": 2}),
        Convolved("forward", (1, 8, 12), (32, 8, 3), "float16", options={"padding": 1, "dilation": 2}),
    ],
    "fused-bias-tf32": [
        Convolved(
            "forward", (2, 64, 9, 8), (64, 64, 3, 3), last=last, bias=True, activation="relu", largest=15, allowed=0.0
        )
        for last in ("xwy", "")
    ],
    **{name: [Evaluated(make) for make in graphs] for name, graphs in WRONG.items()},
    # reported with x of 3.7 GB, of which NumPy's result would take minutes
    "three-axes-half": [
        Convolved("forward", (1, 16, depth, size + 2, size + 2), (16, 16, 1, 3, 3), dtype)
        for depth, size in ((124, 16), (12, 80))
        for dtype in ("bfloat16", "float16")
    ]
    + [Convolved("forward", (2, 32, 9, 16, 16), (64, 32, 3, 3, 3), "bfloat16", options={"padding": 1})],
    "three-axes-tf32": [
        Convolved(operation, (2, 32, 9, 16, 16), (64, 32, *taps), last=last, options={"padding": "same"})
        for operation in ("forward", "backward_data", "backward_filter")
        for taps in ((3, 3, 3), (1, 3, 3))
        for last in ("", "xwy")
    ],
    "long-filters": [
        Convolved("forward", (2, 48, 500), (48, 8, taps), last=last, options={"padding": taps // 2, "groups": 6})
        for taps in (129, 257, 513)
        for last in ("xwy", "")
    ],
    "fused-bias-float32": [
        Convolved("forward", (64, 64, 7, 7), (64, 64, 3, 3), options={"padding": 1}, bias=True),
        Convolved("forward", (27, 32, 32, 32), (32, 32, 3, 3), options={"padding": 1}, bias=True, activation="relu"),
    ],
}


# What runs


class Buffer:
    """A tensor in device memory of its own, every other byte of which is UNWRITTEN; the host's copy is `values`.

    With an `address` the tensor is there, and has no other bytes.
    """

    def __init__(self, spec: TensorSpec, offset: int = 0, address: int = 0) -> None:
        kind = np.dtype(spec.dtype)
        self._address, margin = address, 0 if address else MARGIN
        self._host = np.full(2 * margin + byte_extent(spec) + offset * kind.itemsize, UNWRITTEN, np.uint8)
        self._start = margin + offset * kind.itemsize
        self._shape, self._kind = spec.shape, kind
        self._strides = tuple(kind.itemsize * stride for stride in spec.strides or (1,))
        self._device: Any = None

    @property
    def values(self) -> np.ndarray[Any, Any]:
        """The elements, in their places."""
        return np.ndarray(self._shape, self._kind, self._host, self._start, self._strides)

    def send(self) -> int:
        """Copies to the device; the address."""
        if self._address:
            from cuda.bindings import driver

            driver.cuMemcpyHtoD(self._address, self._host.ctypes.data, self._host.nbytes)
            return self._address
        self._device = cudnnpy.to_device(self._host.view(np.int8))
        return int(self._device.pointer) + self._start

    def fetch(self) -> None:
        """Copies from the device."""
        if self._address:
            from cuda.bindings import driver

            driver.cuMemcpyDtoH(self._host.ctypes.data, self._address, self._host.nbytes)
            return
        self._host = np.asarray(cudnnpy.to_numpy(self._device)).view(np.uint8)


def synchronize() -> str:
    """Waits for the device; what the driver says of it, "" for success."""
    from cuda.bindings import driver

    (status,) = driver.cuCtxSynchronize()
    return "" if status == driver.CUresult.CUDA_SUCCESS else str(status.name)


def launched(executable: GraphExecutable, addresses: list[int], handle: Handle) -> str:
    """Runs a plan in a workspace full of UNWRITTEN; what went wrong, "" if nothing did."""
    space = cudnnpy.to_device(np.full(max(executable.workspace_size, 1), UNWRITTEN, np.uint8).view(np.int8))
    launch = executable.bind(handle, tuple(addresses), space.pointer if executable.workspace_size else 0)
    status = launch()
    failed = synchronize()
    if status or failed:
        return f"status {status}, the device says {failed or 'nothing'}"
    return ""


def offered(built: Any, target: Target, issue: Issue, knobs: dict[int, int]) -> Iterator[EngineConfiguration]:
    """The configurations that the issue is about: with the knobs of the trial, or as the heuristics propose them and then with
    the engines' own knobs.
    """
    own = (found for found in engines.engines(built, target) if found.engine in issue.engines or not compiled(found))
    every = chain(engines.heuristics(built, target), own)
    if knobs:
        every = chain.from_iterable(with_knobs(built, target, index, knobs) for index in issue.engines)
    found = [one for one in every if issue.is_of(one.engine, one.notes)]
    yield from sorted(found, key=lambda one: one.engine not in issue.engines)


def with_knobs(built: Any, target: Target, index: int, knobs: dict[int, int]) -> Iterator[EngineConfiguration]:
    """An engine with these knobs; nothing where it does not support the problem with them."""
    with suppress(StatusError):
        yield engines.engine(built, target, index, knobs)


def compiled(found: EngineConfiguration) -> bool:
    """Whether an engine is compiled at run time."""
    return "runtime_compilation" in found.behavior_notes


def whole(shape: tuple[int, ...], largest: int, seed: int) -> np.ndarray[Any, Any]:
    """Whole numbers that are not all small."""
    return np.random.default_rng([seed, prod(shape)]).integers(-largest, largest + 1, shape).astype(np.float64)


def expected(trial: Convolved, inputs: list[np.ndarray[Any, Any]], out: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The right result in float64, by the reference implementation; `inputs` are in the order of the problem's operands."""
    conv, (first, second, *bias) = reference.Convolution(**trial.options), inputs
    scaled = {"out": out.copy(), "alpha": trial.alpha, "beta": trial.beta}
    if trial.operation == "forward":
        return np.asarray(conv.forward(first, second, bias[0] if bias else None, trial.activation, **scaled))
    return np.asarray(getattr(conv, trial.operation)(first, second, **scaled))


def convolved(trial: Convolved, found: EngineConfiguration, handle: Handle) -> str | None:
    """What is wrong with an engine's result, "" if nothing is; None where the engine cannot run the problem."""
    problem = trial.problem
    try:
        executable = GraphExecutable(found.finalize(), uids(problem.operands))
    except StatusError:
        return None
    memory = GuardedMemory(problem.specs, 0) if trial.guarded else None
    addresses = [0] * len(problem.specs) if memory is None else memory.pointers
    buffers = [Buffer(spec, trial.offset, at) for spec, at in zip(problem.specs, addresses, strict=True)]
    *inputs, result = buffers
    given = []
    for seed, buffer in enumerate(inputs):
        numbers = whole(buffer.values.shape, trial.largest, seed)
        buffer.values[...] = numbers
        given.append(numbers)
    before = whole(result.values.shape, 4 * trial.largest, 9)
    if trial.beta:
        result.values[...] = before
    if failed := launched(executable, [buffer.send() for buffer in buffers], handle):
        return failed
    result.fetch()
    return difference(result.values.astype(np.float64), expected(trial, given, before), trial.allowed)


def difference(values: np.ndarray[Any, Any], right: np.ndarray[Any, Any], allowed: float) -> str:
    """What is wrong with a result, "" if nothing is."""
    with np.errstate(invalid="ignore"):
        off = ~(np.abs(values - right) <= allowed * max(1.0, float(np.abs(right).max())))
    if not off.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(off)[0])
    return f"{int(off.sum())} of {off.size} elements are wrong: {float(values[at])!r} at {at}, not {float(right[at])!r}"


def as_graph(graph: Graph) -> GraphProblem:
    """The problem of a graph as one, also if it is a convolution."""
    return GraphProblem(canonical_graph(graph._operation_graph({}))[0], 0)


def repeated(trial: Repeated, found: EngineConfiguration, handle: Handle) -> str | None:
    """Whether the bits of the results change from run to run, as text; None where the engine cannot run it."""
    buffers = prepared(trial, found, handle)
    if buffers is None:
        return None
    executable, results, addresses = buffers
    seen = set()
    for _ in range(RUNS):
        if failed := launched(executable, addresses, handle):
            return failed
        for buffer in results.values():
            buffer.fetch()
        seen.add(b"".join(buffer.values.tobytes() for buffer in results.values()))
    return f"{len(seen)} different results in {RUNS} runs" if len(seen) > 1 else ""


def evaluated(trial: Evaluated, found: EngineConfiguration, handle: Handle) -> str | None:
    """What is wrong with the outputs of a graph, "" if nothing is; None where the engine cannot run it."""
    buffers = prepared(trial, found, handle)
    if buffers is None:
        return None
    executable, results, addresses = buffers
    if failed := launched(executable, addresses, handle):
        return failed
    g = trial.graph
    expected, allowed = evaluate(g, random_arrays(g), found.notes)
    for name, buffer in results.items():
        buffer.fetch()
        check = compare(buffer.values, expected[name], allowed[name])
        if not check.is_right:
            return f"{name}: {check}"
    return ""


def prepared(
    trial: Evaluated, found: EngineConfiguration, handle: Handle
) -> tuple[Executable, dict[str, Buffer], list[int]] | None:
    """The executable of a graph, its results by name, and the addresses of all tensors; None where the engine cannot run it."""
    g = trial.graph
    data, canonical = canonical_graph(g._operation_graph({}))
    try:
        executable = next(GraphProblem(data, 0).lowerings()).executable(found.finalize(), Target(handle))
    except StatusError:
        return None
    buffers = {canonical[node.uid]: Buffer(node.spec) for node in (*g.inputs, *g.outputs)}
    arrays = random_arrays(g)
    for node in g.inputs:
        buffers[canonical[node.uid]].values[...] = arrays[node.name]
    results = {node.name: buffers[canonical[node.uid]] for node in g.outputs}
    return executable, results, [buffers[uid].send() for uid in data.in_memory]


def tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


RUNNERS: dict[type, Any] = {Convolved: convolved, Repeated: repeated, Evaluated: evaluated}


def main(name: str) -> None:
    issue = next(issue for issue in ISSUES if issue.id == name)
    handle = Handle.default(0)
    target = Target(handle)
    ran = 0
    for trial in TRIALS[name]:
        try:
            if isinstance(trial, Convolved):
                built = build_graph(convolution_graph(trial.problem), target)
            else:
                built = next(as_graph(trial.graph).lowerings()).build_graph(target)
        except StatusError as error:
            tell(running=str(trial), nothing=str(error))
            continue
        run: Callable[[Any, EngineConfiguration, Handle], str | None] = RUNNERS[type(trial)]
        for found in offered(built, target, issue, trial.knobs if isinstance(trial, Convolved) else {}):
            tell(running=f"{found.name}: {trial}")
            wrong = run(trial, found, handle)
            ran += wrong is not None
            if wrong:
                tell(fault=f"{found.name}: {wrong}")
                return
    tell(ran=ran)


if __name__ == "__main__":
    with on_device(0):
        main(sys.argv[1])
