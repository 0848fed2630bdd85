"""Plans of reductions of large tensors, by each strategy, carried out here with NumPy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy_machine import NumpyExecutable, address_of_constant, run_steps, tensor_in

from cudnnpy import Graph, TensorSpec, raw
from cudnnpy._core.dtypes import numpy_dtype
from cudnnpy._core.layouts import packed_strides, packed_strides_like
from cudnnpy._launch import implicit_operands
from cudnnpy._launch.dispatch import Call, Specs
from cudnnpy._launch.program import Operand
from cudnnpy._launch.steps import FunctionCall, StepSequence
from cudnnpy.graph import float64_reduction, matmul_reduction, pooling_reduction, reductions
from cudnnpy.graph.matmul_reduction import MatmulSum
from cudnnpy.graph.reductions import (
    _by_graphs,
    _by_halves,
    _by_pooling,
    _by_product,
    _coalesced_axes,
    _Task,
    _view,
    reduction,
)

# In place of the limits of the roads, so that small tensors have long rows and large images.
LIMITS = {"_MAX_ROW_ELEMENTS": 32, "_PART": 32, "_MIN_BYTES": 0, "_WHOLE": 2000}
WINDOWS = {"SHORT": 4, "MEDIUM": 6, "BUSY": 64, "LONGEST": 32}
CALL = Call(Specs({}), {}, 0, 0, {})
FLOAT16 = np.dtype("float16")


@pytest.fixture(autouse=True, scope="module")
def short_rows() -> Iterator[None]:
    def constant(self: Any, spec: TensorSpec, value: float, call: Call) -> None:
        self.address = address_of_constant(np.full(math.prod(spec.shape), value, spec.dtype))

    with pytest.MonkeyPatch.context() as patch:
        for name, value in LIMITS.items():
            patch.setattr(reductions, name, value)
        for name, value in WINDOWS.items():
            patch.setattr(pooling_reduction, name, value)
        patch.setattr(float64_reduction, "SHORTEST", 2)
        patch.setattr(matmul_reduction, "_ROWS", 4)
        patch.setattr(matmul_reduction, "_IMAGE", 3)
        patch.setattr(implicit_operands.ConstantBuffer, "__init__", constant)
        patch.setattr(Graph, "executable", lambda self, device, pick=0: Planned(self, pick))
        yield


@dataclass
class Planned(NumpyExecutable):
    """A graph in a plan's place."""

    graph: Graph
    pick: int
    workspace_size = 0

    def run(self, *memories: np.ndarray) -> None:
        *sources, target = memories
        (y,) = self.graph.outputs
        given = zip(self.graph.inputs, sources, strict=True)
        values: dict[int, Any] = {x.uid: tensor_in(source, x.spec).astype(np.float32) for x, source in given}
        values |= {node.uid: node.number.value for node in self.graph._constants if node.number}
        for kind, _, what in self.graph._nodes:
            if kind == "OPERATION_MATMUL":
                values[what["CDESC"].uid] = values[what["ADESC"].uid] @ values[what["BDESC"].uid]
                continue
            first = values[what["XDESC"].uid]
            if kind == "OPERATION_RESAMPLE_FWD":
                values[what["YDESC"].uid] = first.mean((2, 3), keepdims=True)  # whole images
                assert what["YDESC"].shape[2:] == (1, 1)
                continue
            if "PW_DESCRIPTOR" in what:
                absolute = what["PW_DESCRIPTOR"][1]["MODE"] == raw.CUDNN_POINTWISE_ABS
                assert absolute or what["PW_DESCRIPTOR"][1]["MODE"] == raw.CUDNN_POINTWISE_MUL
                values[what["YDESC"].uid] = np.abs(first) if absolute else first * values[what["BDESC"].uid]
                continue
            result = what["YDESC"]
            axes = tuple(a for a, (m, n) in enumerate(zip(first.shape, result.shape, strict=True)) if m != n)
            how = {raw.CUDNN_REDUCE_TENSOR_ADD: np.add, raw.CUDNN_REDUCE_TENSOR_MAX: np.maximum}
            how[raw.CUDNN_REDUCE_TENSOR_MIN] = np.minimum
            reduce = how[what["DESC"][1]["OPERATOR"]].reduce
            values[result.uid] = reduce(first, axis=axes, keepdims=True)
        tensor_in(target, y.spec)[...] = values[y.uid]


# Problems: sizes, an order of memory, which axes


@st.composite
def problems(draw: st.DrawFn) -> tuple[TensorSpec, tuple[int, ...]]:
    """A dense tensor, and the shape that it is reduced to, in which an axis of size 2 or more is 1."""
    rank = draw(st.integers(1, 5))
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4, 16, 96]), min_size=rank, max_size=rank)))
    if math.prod(shape) > 20_000 or math.prod(shape) == 1:
        shape = (2,) * rank
    order = draw(st.permutations(range(rank)))
    reduced = [draw(st.booleans()) for _ in shape]
    if not any(is_reduced and size > 1 for is_reduced, size in zip(reduced, shape, strict=True)):
        reduced = [True] * rank
    result = tuple(1 if is_reduced else size for is_reduced, size in zip(reduced, shape, strict=True))
    return TensorSpec(
        shape, draw(st.sampled_from(["float16", "float32", "float64"])), packed_strides(shape, order)
    ), result


EXACT = {
    "add": lambda x, axes: x.sum(axes, keepdims=True),
    "avg": lambda x, axes: x.mean(axes, keepdims=True),
    "norm1": lambda x, axes: np.abs(x).sum(axes, keepdims=True),
    "norm2": lambda x, axes: np.sqrt((x * x).sum(axes, keepdims=True)),
    "max": lambda x, axes: x.max(axes, keepdims=True),
    "min": lambda x, axes: x.min(axes, keepdims=True),
    "amax": lambda x, axes: np.abs(x).max(axes, keepdims=True),
}


def test_every_reduction_by_graphs_is_carried_out_here() -> None:
    assert set(EXACT) == set(reductions._BY_GRAPH)


def check(
    spec: TensorSpec, shape: tuple[int, ...], op: str, alpha: float, beta: float, strides: tuple[int, ...] | None = None
) -> None:
    """The result of each road is that of NumPy, and x is as it was."""
    y = TensorSpec(shape, spec.dtype, strides or packed_strides(shape))
    task = _Task(0, spec, y, op, alpha, beta)
    roads = [(_by_halves if spec.dtype == "float64" else _by_graphs)(task)]
    if op in ("add", "avg"):
        roads += [_by_pooling(task._replace(deterministic=deterministic)) for deterministic in (False, True)]
        roads.append(_by_product(CALL, task))
    for found in filter(None, roads):
        check_steps(found, spec, y, op, alpha, beta)


def check_steps(found: Any, spec: TensorSpec, y: TensorSpec, op: str, alpha: float, beta: float) -> None:
    shape = y.shape
    dtype = np.dtype(spec.dtype)
    rng = np.random.default_rng(0)
    memory = rng.integers(-4, 5, math.prod(spec.shape)).astype(dtype)
    kept = memory.copy()
    out = rng.integers(-4, 5, math.prod(shape)).astype(dtype)
    before = tensor_in(out, y).astype(np.float64)
    with np.errstate(over="ignore"):  # a sum beyond float16 is infinite, in the plan as in NumPy
        run_steps(found.steps, found.scratch, memory, out)
    axes = tuple(axis for axis, (m, n) in enumerate(zip(spec.shape, shape, strict=True)) if m != n or n == 1)
    exact = alpha * EXACT[op](tensor_in(kept, spec).astype(np.float64), axes) + beta * before
    with np.errstate(over="ignore"):
        exact = np.where(np.isinf(exact.astype(dtype)), exact.astype(dtype), exact)
    np.testing.assert_array_equal(memory, kept)
    np.testing.assert_allclose(
        tensor_in(out, y).astype(np.float64), exact, rtol=2e-3 if dtype == FLOAT16 else 1e-5, atol=1e-3
    )


@example((TensorSpec((2, 96, 96), "float16", (9216, 96, 1)), (1, 1, 1)), "norm1", (2.0, 0.0))
@given(problems(), st.sampled_from(list(EXACT)), st.sampled_from([(1.0, 0.0), (2.0, 0.0), (-0.5, 3.0)]))
def test_the_steps_reduce_what_numpy_reduces(
    problem: tuple[TensorSpec, tuple[int, ...]], op: str, scales: tuple[float, float]
) -> None:
    check(*problem, op, *scales)


@given(problems(), st.randoms())
def test_a_result_may_lie_as_it_likes(problem: tuple[TensorSpec, tuple[int, ...]], random: Any) -> None:
    spec, shape = problem
    order = random.sample(range(len(shape)), len(shape))
    check(spec, shape, "add", 1.0, 1.0, packed_strides(shape, order))


@pytest.mark.parametrize("op", EXACT)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("shape", [(1, 64), (64, 1, 1), (1,)])
def test_axes_of_size_1_may_be_all_that_is_reduced(op: str, dtype: str, shape: tuple[int, ...]) -> None:
    """Each element is reduced by itself: nothing is left to do but its absolute value, or the plan is left to C."""
    check(TensorSpec(shape, dtype, packed_strides(shape)), shape, op, 1.0, 0.0)


# Long rows


@pytest.mark.parametrize(
    ("length", "parts"),
    [
        (32, [32]),
        (33, None),
        (64, [32, 2]),
        (96, [32, 3]),
        (34, [17, 2]),
        (37, None),
        (32 * 37, None),
        (2048, [32, 32, 2]),
    ],
)
def test_long_rows_are_reduced_as_rows_of_at_most_the_longest(length: int, parts: list[int] | None) -> None:
    spec = TensorSpec((3, length), "float32", (length, 1))
    found = _by_graphs(_Task(0, spec, TensorSpec((3, 1), "float32", (1, 1)), "add", 1.0, 0.0))
    if parts is None:
        assert found is None  # no divisor between 16 and the longest: C does it
        return
    assert found is not None
    graphs = [step.executable for step in found.steps if isinstance(step.executable, Planned)]
    shapes = [planned.graph.inputs[0].shape for planned in graphs]
    assert [shape[1] for shape in shapes] == parts
    assert [math.prod(shape) for shape in shapes] == [3 * length // math.prod(parts[:at]) for at in range(len(parts))]
    assert found.scratch == [4 * 3 * length // math.prod(parts[: at + 1]) for at in range(len(parts) - 1)]
    check(spec, (3, 1), "norm1", 1.0, 0.0)


@pytest.mark.parametrize(
    ("dtype", "count", "columns", "pick"),
    [("float32", 1500, 8, 2), ("float32", 1500, 3, 0), ("float32", 1000, 8, 0), ("float16", 1500, 8, 0)],
)
def test_rows_that_are_not_the_fastest_axis_are_not_split(dtype: Any, count: int, columns: int, pick: int) -> None:
    spec, y = (TensorSpec((n, columns), dtype, (columns, 1)) for n in (count, 1))
    found = _by_graphs(_Task(0, spec, y, "max", 1.0, 0.0))
    assert found is not None
    planned = found.steps[0].executable
    assert isinstance(planned, Planned)
    assert planned.graph.inputs[0].shape == (count, columns, 1, 1)
    assert planned.pick == pick
    check(spec, y.shape, "add", 1.0, 0.0)


# Straight into the result


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    ("op", "alpha", "beta", "strides", "alignment", "direct"),
    [
        ("add", 1.0, 0.0, (3, 1), 16, True),
        ("amax", 1.0, 0.0, (3, 1), 16, True),
        ("avg", 1000.0, 0.0, (3, 1), 16, True),
        ("avg", 1.0, 0.0, (3, 1), 16, False),
        ("add", 2.0, 0.0, (3, 1), 16, False),
        ("add", 1.0, 1.0, (3, 1), 16, False),
        ("norm2", 1.0, 0.0, (3, 1), 16, False),
        ("add", 1.0, 0.0, (6, 2), 16, False),
        ("add", 1.0, 0.0, (3, 1), 8, False),
    ],
)
def test_the_last_graph_writes_the_result_where_nothing_is_left_to_do(
    op: str, alpha: float, beta: float, strides: tuple[int, int], alignment: int, direct: bool, dtype: str
) -> None:
    spec, y = TensorSpec((1000, 3), dtype, (3, 1)), TensorSpec((1, 3), dtype, strides, alignment)
    found = _by_graphs(_Task(0, spec, y, op, alpha, beta))
    assert found is not None
    assert [isinstance(step.executable, Planned) for step in found.steps] == [True, *[False] * (len(found.steps) - 1)]
    assert (len(found.steps) == 1) == (found.scratch == []) == direct


def test_a_result_that_no_engine_writes_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_float32(graph: Graph, device: int, pick: int = 0) -> Planned | None:
        return Planned(graph, pick) if graph.outputs[0].spec.dtype == "float32" else None

    monkeypatch.setattr(Graph, "executable", in_float32)
    spec, y = TensorSpec((1000, 3), "float16", (3, 1)), TensorSpec((1, 3), "float16", (3, 1))
    found = _by_graphs(_Task(0, spec, y, "add", 1.0, 0.0))
    assert found is not None
    assert [type(step.executable) for step in found.steps] == [Planned, FunctionCall]
    check(spec, y.shape, "add", 1.0, 0.0)


# Halves


@pytest.mark.parametrize("op", ["max", "min", "amax", "norm1", "norm2"])
@pytest.mark.parametrize("shape", [(7, 2), (2, 33), (3, 513), (97, 3), (2, 31, 5), (2, 32, 3), (2, 1024)])
@pytest.mark.parametrize("scales", [(1.0, 0.0), (-2.0, 0.5)])
def test_float64_is_reduced_by_halves(op: str, shape: tuple[int, ...], scales: tuple[float, float]) -> None:
    axis = shape.index(max(shape))
    result = tuple(1 if at == axis else size for at, size in enumerate(shape))
    spec, y = (TensorSpec(size, "float64", packed_strides(size)) for size in (shape, result))
    found = _by_halves(_Task(0, spec, y, op, *scales))
    if op.startswith("norm") and max(shape) in (33, 97):  # longer than a window, and in no parts
        assert found is None
        return
    assert found is not None
    check_steps(found, spec, y, op, *scales)


def test_the_nan_of_a_half_is_the_maximum() -> None:
    found = _by_halves(
        _Task(0, TensorSpec((2, 9), "float64", (9, 1)), TensorSpec((2, 1), "float64", (1, 1)), "max", 1.0, 0.0)
    )
    assert found is not None
    for at in range(9):
        x, out = np.arange(18.0), np.zeros(2)
        x[at] = np.nan
        run_steps(found.steps, found.scratch, x, out)
        assert np.isnan(out[0])
        assert out[1] == 17


@pytest.mark.parametrize("op", ["max", "min", "amax", "norm1", "norm2", "mul", "add"])
@pytest.mark.parametrize(("rows", "length"), [(4, 511), (4, 512), (1, 512)])
def test_short_runs_and_single_results_are_left_to_the_function(
    op: str, rows: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(float64_reduction, "SHORTEST", 512)
    spec, y = TensorSpec((rows, length), "float64", (length, 1)), TensorSpec((rows, 1), "float64", (1, 1))
    is_taken = (rows, length) == (4, 512) and op not in ("mul", "add")
    assert (_by_halves(_Task(0, spec, y, op, 1.0, 0.0)) is not None) == is_taken


# Everything


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(("size", "pick"), [(1600, 0), (3200, 1)])
def test_everything_is_reduced_at_once(size: int, pick: int, dtype: Any) -> None:
    spec, y = TensorSpec((size,), dtype, (1,)), TensorSpec((1,), dtype, (1,))
    found = _by_graphs(_Task(0, spec, y, "add", 1.0, 0.0))
    assert found is not None
    planned = found.steps[0].executable
    assert isinstance(planned, Planned)
    assert math.prod(planned.graph.inputs[0].shape) == size
    assert planned.pick == pick
    assert len(found.steps) == (1 if dtype == "float32" else 2)  # a float32 is written where it belongs
    for op in EXACT:
        check(spec, (1,), op, 1.0, 0.0)


@pytest.mark.parametrize("size", [32 * 13, 32 * 32 * 3])
def test_everything_is_reduced_in_steps_where_no_engine_does_it_at_once(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reductions, "_all_reduced", lambda *given: None)
    spec = TensorSpec((size,), "float32", (1,))
    found = _by_graphs(_Task(0, spec, TensorSpec((1,), "float32", (1,)), "add", 1.0, 0.0))
    assert found is not None
    assert len(found.steps) > 1
    check(spec, (1,), "norm2", 1.0, 0.0)


# Between two others


MIDDLE = TensorSpec((2, 3, 4, 5), "float16", packed_strides((2, 3, 4, 5)))
KEPT = [(2, 1, 4, 5), (2, 1, 1, 5), (2, 3, 1, 5)]


@pytest.mark.parametrize("op", ["max", "norm1", "add"])
@pytest.mark.parametrize("shape", [*KEPT, (1, 3, 1, 5)])
def test_graphs_reduce_what_lies_between_two_others_after_bringing_it_to_the_end(
    shape: tuple[int, ...], op: str
) -> None:
    found = _by_graphs(_Task(0, MIDDLE, MIDDLE._replace(shape=shape, strides=packed_strides(shape)), op, 1.0, 0.0))
    assert found is not None
    first, second = (step.executable for step in found.steps[:2])
    assert isinstance(first, FunctionCall)
    assert first.name == "cudnnTransformTensor"
    assert isinstance(second, Planned)
    check(MIDDLE, shape, op, 2.0, 1.0)


@pytest.mark.parametrize("reversed_axes", [False, True])
@pytest.mark.parametrize("op", ["add", "avg"])
@pytest.mark.parametrize("shape", KEPT)
def test_a_sum_over_it_is_an_average_over_windows(shape: tuple[int, ...], op: str, reversed_axes: bool) -> None:
    strides = packed_strides(shape, [3, 2, 1, 0]) if reversed_axes else None
    y = TensorSpec(shape, "float16", strides or packed_strides(shape))
    found = _by_pooling(_Task(0, MIDDLE, y, op, 1.0, 0.0, True))
    assert found is not None
    assert len(found.steps) == len(found.scratch) + 1 == (2 if strides else 1)
    for alpha, beta in ((1.0, 0.0), (-0.5, 3.0)):
        check(MIDDLE, shape, op, alpha, beta, strides)


@pytest.mark.parametrize("shape", [(1, 3, 4, 5), (2, 3, 4, 1), (2, 1, 4, 1)])
def test_what_is_not_between_is_no_pooling(shape: tuple[int, ...]) -> None:
    assert (
        _by_pooling(_Task(0, MIDDLE, TensorSpec(shape, "float16", packed_strides(shape)), "add", 1.0, 0.0, True))
        is None
    )


@pytest.mark.parametrize(
    ("dtype", "shape", "windows"),
    [
        ("float32", (2, 120, 8), [12, 10]),
        ("float64", (2, 120, 8), [12, 10]),
        ("float32", (2, 11, 8), [11]),  # no divisor
        ("float32", (2, 37, 8), []),
        ("float16", (2, 12, 8), [12]),
        ("float16", (2, 33, 8), []),
        ("float64", (40, 120), [12, 10]),  # rows and columns, which graphs do not add in a fixed order
        ("float64", (1, 120, 8), [12, 10]),
        ("float32", (40, 120), [12, 10]),
        ("float16", (40, 12), []),
    ],
)
def test_a_long_run_is_averaged_twice_unless_that_rounds_twice(
    dtype: Any, shape: tuple[int, ...], windows: list[int]
) -> None:
    kept = (shape[0], 1, *shape[2:])
    spec, y = (TensorSpec(sizes, dtype, packed_strides(sizes)) for sizes in (shape, kept))
    found = _by_pooling(_Task(0, spec, y, "add", 2.0, 1.0, True))
    functions = [step.executable for step in found.steps] if found else []
    assert [math.prod(one.arguments[0].window) for one in functions if isinstance(one, FunctionCall)] == windows
    for op, alpha, beta in (("add", 2.0, 1.0), ("avg", 1.0, 0.0)):
        check(spec, kept, op, alpha, beta)


@pytest.mark.parametrize(
    ("size", "results", "dtype", "windows"),
    [
        (4, 1, "float32", [4]),
        (100, 8, "float32", [10, 10]),
        (100, 8, "float16", None),
        (31, 8, "float32", [31]),
        (37, 8, "float32", None),
    ],
)
def test_windows_are_short_or_there_are_two(size: int, results: int, dtype: Any, windows: list[int] | None) -> None:
    assert pooling_reduction._parts(size, results, dtype) == windows


def test_runs_of_medium_length_are_averaged_at_once_if_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooling_reduction, "MEDIUM", 100)
    assert pooling_reduction._parts(100, pooling_reduction.BUSY, "float32") is None  # longer than a window here
    monkeypatch.setattr(pooling_reduction, "LONGEST", 100)
    assert pooling_reduction._parts(100, pooling_reduction.BUSY, "float32") == [100]
    assert pooling_reduction._parts(100, pooling_reduction.BUSY - 1, "float32") == [10, 10]


def test_too_many_rows_for_one_pooling_are_left_to_the_function() -> None:
    count = 65_537  # a prime: one channel, and more images than cuDNN takes
    spec, y = (TensorSpec((count, n), "float64", (n, 1)) for n in (3, 1))
    assert _by_pooling(_Task(0, spec, y, "add", 1.0, 0.0, False)) is None


@pytest.mark.parametrize(
    ("dtype", "channels", "deterministic", "by_graph"),
    [
        ("float16", 8, False, True),
        ("float32", 8, False, True),
        ("float32", 8, True, False),
        ("float32", 9, False, False),
        ("bfloat16", 8, False, False),
        ("float64", 8, False, False),
    ],
)
def test_means_of_small_images_are_the_resample_node_where_it_is_right(
    dtype: Any, channels: int, deterministic: bool, by_graph: bool
) -> None:
    spec, y = (TensorSpec((2, n, channels), dtype, packed_strides((2, n, channels))) for n in (3, 1))
    found = _by_pooling(_Task(0, spec, y, "avg", 1.0, 0.0, deterministic))
    assert found is not None
    assert [isinstance(step.executable, Planned) for step in found.steps] == [by_graph]


@pytest.mark.parametrize("beta", [0.0, 1.0])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_sum_keeps_what_its_average_is_too_small_for(dtype: Any, beta: float) -> None:
    """One element of each sum is the smallest number of the type: divided by the count it is 0 in the type."""
    spec, y = (TensorSpec((2, n, 8), dtype, packed_strides((2, n, 8))) for n in (4, 1))
    smallest = 2.0**-24 if dtype == "float16" else 2.0**-133 if dtype == "bfloat16" else 2.0**-120
    found = _by_pooling(_Task(0, spec, y, "add", 1.0, beta, False))
    assert found is not None
    memory, out = (np.zeros(math.prod(one.shape), numpy_dtype(dtype)) for one in (spec, y))
    tensor_in(memory, spec)[:, 1, :] = smallest
    run_steps(found.steps, found.scratch, memory, out)
    np.testing.assert_array_equal(out.astype(np.float64), smallest)


# Matrix products


@pytest.mark.parametrize(
    ("sums", "faster"),
    [
        (MatmulSum(4, 100, 1, "float16", 1.0), True),
        (MatmulSum(3, 100, 1, "bfloat16", 1.0), False),  # few rows
        (MatmulSum(1, 2, 3, "bfloat16", 1.0), True),
        (MatmulSum(2, 3, 4, "float16", 1.0), True),
        (MatmulSum(2, 2, 4, "float16", 1.0), False),  # a small image
        (MatmulSum(4, 100, 1, "float32", 1.0), False),  # tf32 would round
        (MatmulSum(4, 100, 1, "float64", 1.0), False),
    ],
)
def test_sums_of_16_bits_are_products_where_these_are_fast(sums: MatmulSum, faster: bool) -> None:
    assert sums.is_faster() == faster


@pytest.mark.parametrize(
    ("shape", "kept", "pick"), [((8, 40), (8, 1), 1), ((40, 8), (1, 8), 0), ((4, 10, 8), (4, 1, 8), 1)]
)
def test_a_product_is_one_step_whatever_the_factor(shape: Any, kept: Any, pick: int) -> None:
    spec, y = (TensorSpec(sizes, "float16", packed_strides(sizes)) for sizes in (shape, kept))
    for op, alpha in (("add", 1.0), ("avg", 1.0), ("add", -0.5)):
        found = _by_product(CALL, _Task(0, spec, y, op, alpha, 0.0))
        assert found is not None
        assert len(found.steps) == 1
        check(spec, kept, op, alpha, 0.0)
    executable: Any = found.steps[0].executable
    assert executable.executable.pick == pick
    misaligned = _by_product(CALL, _Task(0, spec, y._replace(alignment=8), "add", 1.0, 0.0))
    assert misaligned is not None
    assert len(misaligned.steps) == 2


def test_sums_whose_ones_would_take_much_memory_are_no_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul_reduction, "_MAX_ONES", 40)
    spec, y = (TensorSpec((n, 2), "float16", (2, 1)) for n in (40, 1))
    assert _by_product(CALL, _Task(0, spec, y, "add", 1.0, 0.0)) is not None
    longer = spec._replace(shape=(41, 2))
    assert _by_product(CALL, _Task(0, longer, y, "add", 1.0, 0.0)) is None
    check(longer, y.shape, "add", 1.0, 0.0)


def test_sums_that_no_engine_multiplies_are_reduced_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Graph, "executable", lambda self, device, pick=0: None)
    spec, y = (TensorSpec((n, 8), "float16", (8, 1)) for n in (40, 1))
    assert _by_product(CALL, _Task(0, spec, y, "add", 1.0, 0.0)) is None


# Which road


@pytest.mark.parametrize(
    ("dtype", "op", "deterministic", "alignment", "road"),
    [
        ("float16", "add", False, 16, "_by_product"),
        ("float16", "avg", False, 16, "_by_product"),
        ("float16", "add", True, 16, "_by_pooling"),
        ("float16", "add", False, 8, "_by_pooling"),
        ("float32", "add", False, 16, "_by_pooling"),
        ("float64", "add", False, 16, "_by_pooling"),
        ("float16", "max", True, 16, "_by_graphs"),
        ("float32", "norm1", False, 16, "_by_graphs"),
        ("float32", "norm1", True, 16, "_by_function"),
        ("float64", "max", False, 16, "_by_halves"),
        ("float64", "mul", False, 16, "_by_function"),
        ("float32", "mul", False, 16, "_by_function"),
    ],
)
def test_the_road_follows_from_the_type_the_operation_and_the_options(
    dtype: Any, op: str, deterministic: bool, alignment: int, road: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []
    for name in ("_by_product", "_by_pooling", "_by_graphs", "_by_halves", "_by_function"):
        real = getattr(reductions, name)

        def recorded(*given: Any, name: str = name, real: Any = real) -> Any:
            found = StepSequence([]) if name == "_by_function" else real(*given)
            taken.extend([name] if found else [])
            return found

        monkeypatch.setattr(reductions, name, recorded)
    spec = TensorSpec((4, 10, 8), dtype, packed_strides((4, 10, 8)), alignment)
    y = TensorSpec((4, 1, 8), dtype, packed_strides((4, 1, 8)))
    reduction("", 0, (Operand("x", spec), Operand("out", y, True)), op, 1.0, 0.0, deterministic, CALL)
    assert taken == [road]


def test_roads_beyond_the_memory_there_is_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reductions, "_by_function", lambda *given: StepSequence([]))
    spec, y = (TensorSpec((2, n, 3), "float16", packed_strides((2, n, 3))) for n in (64, 1))
    operands = Operand("x", spec), Operand("out", y, True)
    sizes = {}
    for cap in (None, 1 << 20, 100):
        call = Call(Specs({}), {}, 0, 0, {}, cap)
        program = reduction("", 0, operands, "max", 1.0, 0.0, False, call)
        sizes[cap] = program.workspace_size, len(program.steps)
    assert sizes[None] == sizes[1 << 20]
    assert sizes[None][0] > 100
    assert sizes[100] == (0, 0)  # the function


# The parts


@given(problems())
@example((TensorSpec((2, 3, 4, 5), "float32", packed_strides((2, 3, 4, 5))), (1, 3, 1, 1)))
def test_runs_are_the_memory_in_order(problem: tuple[TensorSpec, tuple[int, ...]]) -> None:
    spec, shape = problem
    runs = _coalesced_axes(spec, shape)
    assert math.prod(size for size, _ in runs) == math.prod(spec.shape)
    assert all(size > 1 for size, _ in runs)
    assert all(one[1] != two[1] for one, two in itertools.pairwise(runs))  # neighbours are merged
    assert math.prod(size for size, is_reduced in runs if not is_reduced) == math.prod(shape)


@pytest.mark.parametrize(
    ("shape", "order", "kept", "runs"),
    [
        ((2, 3, 4, 5), (0, 1, 2, 3), (1, 3, 1, 1), [(2, True), (3, False), (20, True)]),
        ((2, 3, 4, 5), (0, 2, 3, 1), (1, 3, 1, 1), [(40, True), (3, False)]),
        ((2, 3, 4, 5), (0, 2, 3, 1), (2, 1, 4, 5), [(40, False), (3, True)]),
        ((2, 1, 4, 1), (0, 1, 2, 3), (1, 1, 1, 1), [(8, True)]),
        ((2, 1, 4), (0, 1, 2), (2, 1, 4), [(8, False)]),
        ((1,), (0,), (1,), []),
    ],
)
def test_runs_of_known_tensors(shape: Any, order: Any, kept: Any, runs: Any) -> None:
    assert _coalesced_axes(TensorSpec(shape, "float32", packed_strides(shape, order)), kept) == runs


@given(st.integers(1, 6), st.integers(1, 6), st.booleans())
def test_views_are_the_same_memory_with_the_reduced_axis_where_graphs_know_it(
    size: int, other: int, is_last: bool
) -> None:
    outer, inner = (other, 1) if is_last else (1, other)
    spec, strides, (axis,) = _view(outer, size, inner, "float32", 8)
    memory = np.arange(outer * size * inner, dtype=np.float32)
    # whatever the axes are called, the elements along `axis` are those of the middle
    rest = np.moveaxis(tensor_in(memory, spec), axis, 0).reshape(size, -1)
    np.testing.assert_array_equal(rest, np.moveaxis(memory.reshape(outer, size, inner), 1, 0).reshape(size, -1))
    assert (axis < 2, spec.alignment) == (True, 8)
    assert spec.strides is not None
    assert spec.strides[1] == 1 or spec.shape[1] == 1  # the stride that engines want
    shape = tuple(1 if at == axis else n for at, n in enumerate(spec.shape))
    places = tensor_in(np.arange(other, dtype=np.float32), TensorSpec(shape, "float32", strides)).ravel()
    np.testing.assert_array_equal(places, np.arange(other))


@given(problems())
def test_results_lie_in_the_order_of_what_was_reduced(problem: tuple[TensorSpec, tuple[int, ...]]) -> None:
    spec, shape = problem
    strides, order = packed_strides_like(spec, shape), spec.strides
    assert order is not None
    kept = [axis for axis, size in enumerate(shape) if size > 1]
    assert sorted(kept, key=strides.__getitem__) == sorted(kept, key=order.__getitem__)
    assert 1 + sum((shape[a] - 1) * strides[a] for a in kept) == math.prod(shape)
