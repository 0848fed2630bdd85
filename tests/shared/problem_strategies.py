"""What hypothesis draws for the notation: problems of convolutions of every kind, and options of planning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from cudnnpy._convolution.options import ConvolutionOptions
from cudnnpy._convolution.sizes import output_shape
from cudnnpy._convolution.specification import ACTIVATIONS, OPERATIONS, bias_dtype, make_problem
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import TensorSpec, channels_last_strides, packed_strides
from cudnnpy._layers.lowerings.convolution_candidates import ConvolutionProblem
from cudnnpy._planning.options import PlanningOptions

Shape = tuple[int, ...]
RESULTS: dict[str, tuple[str, ...]] = {
    "int8": ("int32", "float32", "int8"),
    **{name: ("float32", "float16", "bfloat16", name) for name in ("float8_e4m3fn", "float8_e5m2")},
    **{name: (name,) for name in ("float16", "bfloat16", "float32", "float64")},
}
SUMS = {"float64": ("float64",), "int8": ("int32", "float32"), "float16": ("float32", "float16")}


@st.composite
def strides(draw: st.DrawFn, shape: Shape) -> Shape | None:
    """The strides of a tensor in one of the named orders or any other, with gaps, and any numbers for axes of size 1."""
    how = draw(st.sampled_from(["default", "packed", "channels last", "any", "any"]))
    if how == "default":
        return None
    if how != "any":
        return (packed_strides if how == "packed" else channels_last_strides)(shape)
    found, reach = [0] * len(shape), 1
    for axis in draw(st.permutations(range(len(shape)))):
        found[axis] = reach * draw(st.sampled_from([1, 1, 1, 2, 3]))
        reach = found[axis] * max(shape[axis], 1) + draw(st.sampled_from([0, 0, 0, 5]))
        if shape[axis] == 1 and draw(st.booleans()):
            found[axis] = draw(st.integers(1, 99))
    return tuple(found)


@st.composite
def specs(draw: st.DrawFn, shape: Shape, dtype: Any, order: Any) -> TensorSpec:
    """A tensor: mostly in the memory order of the others."""
    alone = draw(st.integers(0, 3)) == 0
    least = dtype_of(dtype).itemsize
    alignment = draw(st.sampled_from([16, 16, 16, least, 8, 64, 256]))
    return TensorSpec(shape, dtype, draw(strides(shape)) if alone else order(shape), max(alignment, least))


@st.composite
def geometries(draw: st.DrawFn, rank: int) -> dict[str, Any]:
    """The padding, stride and dilation of a convolution with `rank` spatial axes."""
    side = st.integers(0, 3)
    pads = [
        st.integers(0, 3),
        st.tuples(*[side] * rank),
        st.tuples(*[st.tuples(side, side)] * rank),
        st.sampled_from(["same", "valid", "half", "full"]),
    ]
    steps = st.integers(1, 3) | st.tuples(*[st.integers(1, 3)] * rank)
    return {"padding": draw(st.one_of(pads)), "stride": draw(steps), "dilation": draw(steps)}


@st.composite
def problems(draw: st.DrawFn) -> ConvolutionProblem:
    """A problem of any operation, with 1 to 3 spatial axes; some have no elements."""
    operation = draw(st.sampled_from(OPERATIONS))
    one_byte = () if operation != "forward" else ("int8", "float8_e4m3fn", "float8_e5m2")
    dtype = draw(st.sampled_from(("float16", "bfloat16", "float32", "float64", *one_byte)))
    rank, groups = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2, 4]))
    channels, filters = draw(st.integers(1, 3)), groups * draw(st.integers(1, 3))
    kernel = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    options = ConvolutionOptions(
        **draw(geometries(rank)),
        groups=groups,
        mode=draw(st.sampled_from(["cross_correlation", "convolution"])),
        compute_dtype=draw(st.sampled_from((None, *SUMS.get(dtype, ("float32",))))),
    )
    sizes = tuple(draw(st.integers(9, 12) | st.just(300)) for _ in range(rank))
    if draw(st.booleans()):  # images as small as the filter, whose results have one position
        sizes, options = kernel, replace(options, dilation=1, padding=0)
    batch = draw(st.sampled_from([0, 1, 1, 2, 5]))
    x, w = (batch, groups * channels, *sizes), (filters, channels, *kernel)
    y = output_shape(options, x, w)
    order = draw(st.sampled_from([packed_strides, channels_last_strides]))
    result = draw(st.sampled_from(RESULTS[dtype]))
    bias = None
    if operation != "backward_filter" and draw(st.booleans()):
        size = (x if operation == "backward_data" else y)[1]
        bias = TensorSpec((size,), bias_dtype(result), None, draw(st.sampled_from([16, 8, 32])))
    activations = (None,) if operation == "backward_filter" else (None, *ACTIVATIONS)
    number = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-3, 3)
    return ConvolutionProblem(
        *make_problem(
            options,
            operation,
            draw(specs(x, dtype, order)),
            draw(specs(w, dtype, order)),
            draw(specs(y, result, order)),
            alpha=draw(st.just(1.0) | number),
            beta=draw(st.just(0.0) | number),
            bias=bias,
            activation=draw(st.sampled_from(activations)),
            device=draw(st.integers(0, 3)),
        )
    )


def planning_options() -> st.SearchStrategy[PlanningOptions]:
    """The options that a text has."""
    return st.builds(
        PlanningOptions,
        prefer=st.sampled_from(["fastest", "limited_workspace", "no_workspace", "autotune"]),
        workspace_limit=st.none() | st.integers(0, 1 << 40) | st.integers(0, 40).map(lambda power: 1 << power),
        deterministic=st.booleans(),
        tf32=st.booleans(),
        algorithm=st.none(),
        tune_seconds=st.floats(0, exclude_min=True, allow_nan=False, allow_infinity=False)
        | st.sampled_from([2.0, 10.0]),
        thorough=st.just(False),
    )
