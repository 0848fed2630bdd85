"""Convolutions laid out as a plan with copies and an epilogue: carried out with NumPy, against the whole problem."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy_machine import NumpyExecutable, run_steps, tensor_in

from cudnnpy import reference
from cudnnpy._convolution.options import ConvolutionOptions
from cudnnpy._convolution.sizes import output_shape
from cudnnpy._convolution.specification import ConvolutionSpec, make_problem
from cudnnpy._core.layouts import TensorSpec, byte_extent, channels_last_strides, packed_strides
from cudnnpy._launch.steps import StepSequence
from cudnnpy._layers.lowerings import convolution_lowerings as lowering_of
from cudnnpy._layers.lowerings.convolution_lowerings import ConvolutionLowering, lowerings
from cudnnpy._planning.engines import Target

TARGET = Target(profile="none is asked for")
X, W = (2, 4, 6, 5), (6, 2, 3, 2)
OPTIONS: dict[str, Any] = {"groups": 2, "stride": (1, 2)}
UNEQUAL = ((2, 0), (0, 1))


class Planned(NumpyExecutable):
    """The reference in a plan's place, for the part of a lowering."""

    workspace_size = 100

    def __init__(self, problem: ConvolutionSpec) -> None:
        self.problem = problem

    def run(self, *memories: np.ndarray) -> None:
        part = self.problem
        arrays = [tensor_in(m, spec) for m, spec in zip(memories, part.specs, strict=True)]
        arrays[-1][...] = computed(part, arrays)


def computed(problem: ConvolutionSpec, arrays: list[np.ndarray]) -> np.ndarray:
    """The problem's result by the reference, of its operands' values; the last has what beta is for."""
    g = problem.geometry
    conv = reference.Convolution(
        padding=tuple(zip(g.pre_padding, g.post_padding, strict=True)),
        stride=g.stride,
        dilation=g.dilation,
        groups=problem.groups,
        mode=problem.mode,
    )
    first, second, *_, out = (array.copy() for array in arrays)
    if problem.operation == "forward":
        bias = arrays[2] if problem.bias is not None else None
        return conv.forward(first, second, bias, problem.activation, out, problem.alpha, problem.beta)
    run = getattr(conv, problem.operation)
    found = run(first, second, out.shape, out=out, alpha=problem.alpha, beta=problem.beta)
    if problem.bias is not None:
        found = found + arrays[2].reshape(-1, *(1 for _ in g.stride))
    return found if problem.activation is None else reference.Activation(problem.activation).forward(found)


def lying(shape: tuple[int, ...], how: str) -> TensorSpec:
    strides = channels_last_strides(shape) if how == "last" else packed_strides(shape)
    return TensorSpec(shape, "float32", tuple(2 * s for s in strides) if how == "gaps" else strides)


def problem(operation: str, lie: tuple[str, str, str], padding: Any, beta: float, **more: Any) -> ConvolutionSpec:
    options = ConvolutionOptions(padding=padding, **OPTIONS)
    shapes = X, W, output_shape(options, X, W)
    x, w, y = (lying(shape, how) for shape, how in zip(shapes, lie, strict=True))
    return make_problem(options, operation, x, w, y, alpha=0.5, beta=beta, **more)


def check(lowering: ConvolutionLowering) -> None:
    """The lowering's steps leave in the result's memory what the whole problem says, and everything else as it was."""
    whole = lowering.whole
    rng = np.random.default_rng(0)
    memories = [rng.integers(-4, 5, byte_extent(spec) // 4).astype(np.float32) for spec in whole.specs]
    expected = [memory.copy() for memory in memories]
    tensors = [tensor_in(m, spec) for m, spec in zip(expected, whole.specs, strict=True)]
    tensors[-1][...] = computed(whole, tensors)
    made = lowering.complete(Planned(lowering.part), TARGET)
    if isinstance(made, StepSequence):
        run_steps(made.steps, made.scratch, *memories)
        assert made.workspace_size == sum(-(-size // 256) * 256 for size in made.scratch) + 100
    else:
        assert lowering.is_whole or lowering.flipped_forward
        made.run(*memories)  # type: ignore[attr-defined]
    for found, right in zip(memories, expected, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("beta", [0.0, 2.0])
@pytest.mark.parametrize("padding", [1, UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize("lie", [("first",) * 3, ("last",) * 3, ("gaps",) * 3, ("first", "gaps", "last")])
@pytest.mark.parametrize("operation", ["forward", "backward_data", "backward_filter"])
def test_every_lowering_computes_the_whole(operation: str, lie: Any, padding: Any, beta: float) -> None:
    found = list(lowerings(problem(operation, lie, padding, beta)))
    assert found
    for lowering in found:
        check(lowering)


@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("beta", [0.0, 2.0])
@pytest.mark.parametrize("how", ["first", "gaps"])
@pytest.mark.parametrize("operation", ["forward", "backward_data"])  # the latter for a transposed convolution
def test_an_epilogue_follows_the_copies(
    operation: str, how: str, beta: float, with_bias: bool, activation: str | None
) -> None:
    channels = W[0] if operation == "forward" else X[1]
    bias = TensorSpec((channels,), "float32", (1,)) if with_bias else None
    found = list(lowerings(problem(operation, (how,) * 3, 1, beta, bias=bias, activation=activation)))
    assert found
    for lowering in found:
        check(lowering)
        assert lowering.suffix.endswith(" + epilogue") == (
            not lowering.is_whole and (with_bias or activation is not None)
        )


DEPTHWISE = {"groups": 4, "stride": (1, 2), "padding": 1}


def depthwise(
    operation: str, how: str, dtype: Any = "float32", groups: int = 4, beta: float = 0.0, **more: Any
) -> ConvolutionSpec:
    options = ConvolutionOptions(**{**DEPTHWISE, "groups": groups})
    x, w = (2, 4, 6, 5), (8, 4 // groups, 3, 2)
    shapes = x, w, output_shape(options, x, w)
    specs = (lying(shape, how)._replace(dtype=dtype) for shape in shapes)
    return make_problem(options, operation, *specs, alpha=0.5, beta=beta, **more)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("beta", [0.0, 2.0])
@pytest.mark.parametrize("how", ["first", "gaps"])
@pytest.mark.parametrize("operation", ["forward", "backward_data", "backward_filter"])
def test_copies_to_channels_last_compute_the_whole(operation: str, how: str, beta: float, with_bias: bool) -> None:
    channels = {"forward": 8, "backward_data": 4}.get(operation)
    more: dict[str, Any] = {}
    if with_bias and channels:
        more = {"bias": TensorSpec((channels,), "float32", (1,)), "activation": "relu"}
    *others, last = lowerings(depthwise(operation, how, beta=beta, **more))
    assert last.channels_last_copies
    assert not any(lowering.channels_last_copies for lowering in others)
    for spec in (last.part.x, last.part.w, last.part.y):
        assert spec.strides is not None
        assert spec.strides[1] == 1 or spec.shape[1] == 1
    check(last)
    assert last.suffix == " + channels last" + (" + epilogue" if more else "")


@pytest.mark.parametrize(
    ("dtype", "groups", "how", "is_copied"),
    [
        ("float32", 4, "first", True),
        ("float32", 4, "last", False),
        ("float32", 2, "first", False),
        ("float64", 4, "first", False),
        ("float16", 1, "first", True),
        ("bfloat16", 2, "first", True),
        ("float16", 1, "last", False),
    ],
)
def test_copies_to_channels_last_are_for_what_may_gain(dtype: str, groups: int, how: str, is_copied: bool) -> None:
    for operation in ("forward", "backward_data", "backward_filter"):
        *others, last = lowerings(depthwise(operation, how, dtype, groups))
        assert last.channels_last_copies == is_copied
        assert not any(lowering.channels_last_copies for lowering in others)
        for spec in (last.part.x, last.part.w, last.part.y):
            assert not is_copied or groups == 4 or spec.strides == channels_last_strides(spec.shape)


def test_tensors_of_more_elements_than_are_counted_are_not_copied_to_channels_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    most = max(math.prod(spec.shape) for spec in depthwise("forward", "first").specs)
    for limit, is_copied in ((most, True), (most - 1, False)):
        monkeypatch.setattr(lowering_of, "MAX_TENSOR_ELEMENTS", limit)
        *_, last = lowerings(depthwise("forward", "first"))
        assert last.channels_last_copies == is_copied


SAME = {"groups": 4, "padding": 1}


@pytest.mark.parametrize(
    ("change", "is_forward"),
    [
        ({}, True),
        ({"mode": "convolution"}, True),
        ({"padding": 0}, True),
        ({"padding": ((2, 0), (0, 1))}, True),
        ({"dilation": (2, 1), "padding": (4, 1)}, True),
        ({"padding": 2}, False),  # more than the filter reaches along the second axis
        ({"stride": (1, 2)}, False),
        ({"groups": 2}, False),
        ({"how": "last"}, False),
        ({"how": "gaps"}, False),
        ({"beta": 2.0}, False),
        ({"filters": 8}, False),
        ({"activation": "relu"}, False),
        ({"operation": "forward"}, False),
        ({"operation": "backward_filter"}, False),
    ],
)
def test_a_depthwise_gradient_may_be_a_forward_convolution(change: dict[str, Any], is_forward: bool) -> None:
    given: dict[str, Any] = {"how": "first", "operation": "backward_data", "beta": 0.0, "filters": 4, **SAME, **change}
    how, operation, beta, filters, activation = (
        given.pop(name, None) for name in ("how", "operation", "beta", "filters", "activation")
    )
    options = ConvolutionOptions(**given)
    shapes = (2, 4, 6, 5), (filters, 4 // given["groups"], 3, 2)
    specs = (lying(shape, how) for shape in (*shapes, output_shape(options, *shapes)))
    whole = make_problem(options, operation, *specs, alpha=0.5, beta=beta, activation=activation)
    found = [lowering for lowering in lowerings(whole) if lowering.flipped_forward]
    assert len(found) == is_forward
    for lowering in found:
        check(lowering)
        assert (lowering.part.operation, lowering.suffix) == ("forward", " + forward")
        assert lowering.lowering_options == {"flipped_forward": True}


@pytest.mark.parametrize(("axes", "count"), [(1, 1), (2, 1), (3, 0)])
def test_a_depthwise_gradient_with_three_axes_is_no_forward_convolution(axes: int, count: int) -> None:
    """It takes longer."""
    shapes = (2, 4, *(5,) * axes), (4, 1, *(3,) * axes), (2, 4, *(5,) * axes)
    specs = (lying(shape, "first") for shape in shapes)
    found = lowerings(make_problem(ConvolutionOptions(groups=4, padding=1), "backward_data", *specs))
    assert [lowering.flipped_forward for lowering in found].count(True) == count


@pytest.fixture
def _small_ones_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering_of, "_MIN_BYTES", 0)


STEM = ConvolutionOptions(padding=((3, 2), (1, 3)), stride=(2, 3))


def stem(operation: str, lie: tuple[str, str, str], beta: float, **more: Any) -> ConvolutionSpec:
    """A strided convolution of few channels."""
    shapes = (2, 3, 11, 8), (5, 3, 5, 4), output_shape(STEM, (2, 3, 11, 8), (5, 3, 5, 4))
    x, w, y = (lying(shape, how) for shape, how in zip(shapes, lie, strict=True))
    return make_problem(STEM, operation, x, w, y, alpha=0.5, beta=beta, **more)


@pytest.mark.usefixtures("_small_ones_in_blocks")
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("beta", [0.0, 2.0])
@pytest.mark.parametrize("lie", [("first",) * 3, ("last",) * 3, ("last", "last", "first"), ("last", "last", "gaps")])
@pytest.mark.parametrize("operation", ["forward", "backward_data", "backward_filter"])
def test_blocks_of_pixels_compute_the_whole(operation: str, lie: Any, beta: float, with_bias: bool) -> None:
    epilogue: dict[str, Any] = {}
    result = {"forward": 2, "backward_data": 0}.get(operation)
    if with_bias and result is not None and lie[result] != "last":  # for which a graph would be planned
        channels = (3, 0, 5)[result]
        epilogue = {"bias": TensorSpec((channels,), "float32", (1,)), "activation": "relu"}
    found = list(lowerings(stem(operation, lie, beta, **epilogue)))
    assert {lowering.space_to_depth for lowering in found} == {False, True}
    for lowering in found:
        check(lowering)
        assert (" + blocks" in lowering.suffix) == lowering.space_to_depth


@pytest.mark.usefixtures("_small_ones_in_blocks")
def test_blocks_come_after_the_lowerings_that_cudnn_supports_itself() -> None:
    for operation in ("forward", "backward_data", "backward_filter"):
        found = list(lowerings(stem(operation, ("last",) * 3, 0.0)))
        assert [one.space_to_depth for one in found] == [False] * (len(found) - 1) + [True]
