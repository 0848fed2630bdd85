"""Tensors in memory: strides against NumPy's, and where elements lie against counting them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cudnnpy
from cudnnpy._core.layouts import (
    TensorSpec,
    canonical_spec,
    channels_last_strides,
    from_logical,
    has_same_layout,
    normalize_unit_strides,
    packed_strides,
    packed_strides_like,
    result_strides,
    to_logical,
)


def of(*shape: int, strides: tuple[int, ...] | None = None) -> TensorSpec:
    return TensorSpec(shape, "float32", strides)


@st.composite
def tensors(draw: st.DrawFn, dtype: str = "float32", ranks: tuple[int, int] = (1, 5)) -> TensorSpec:
    """Of any memory order, sometimes with gaps."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=ranks[0], max_size=ranks[1])))
    order, gap = draw(st.permutations(range(len(shape)))), draw(st.integers(1, 2))
    return TensorSpec(shape, dtype, tuple(gap * stride for stride in packed_strides(shape, order)))


@pytest.mark.parametrize("spatial", [(), (5,), (5, 6), (5, 6, 7)])
def test_the_channels_move_and_the_other_axes_keep_their_order(spatial: tuple[int, ...]) -> None:
    logical, last = (2, 3, *spatial), (2, *spatial, 3)
    assert to_logical(last, True) == to_logical(logical, False) == from_logical(logical, False) == logical
    assert from_logical(logical, True) == last


def test_a_spec_needs_a_shape_and_has_the_rest_by_default() -> None:
    assert TensorSpec((2, 3)) == ((2, 3), "float32", None, 16)
    assert cudnnpy.TensorSpec is TensorSpec
    assert len({TensorSpec((2, 3)), TensorSpec((2, 3), "float16"), TensorSpec((2, 3), strides=(3, 1))}) == 3


# Strides


@given(st.lists(st.integers(1, 5), max_size=5))
def test_packed_strides_are_numpys(shape: list[int]) -> None:
    expected = tuple(stride // 4 for stride in np.empty(shape, np.float32).strides)
    real = [(a, b) for a, b, size in zip(packed_strides(shape), expected, shape, strict=True) if size > 1]
    assert all(a == b for a, b in real)


@given(
    st.lists(st.integers(1, 4), min_size=3, max_size=5),
    st.permutations(range(5)),
    st.lists(st.integers(0, 3), min_size=5, max_size=5),
    st.integers(0, 99),
)
def test_canonical_strides_reach_the_same_elements(
    sizes: list[int], order: list[int], gaps: list[int], odd: int
) -> None:
    shape = tuple(sizes)
    strides, step = [0] * len(shape), 1
    for axis in [axis for axis in order if axis < len(shape)]:
        strides[axis] = step
        step *= shape[axis]
        step += gaps[axis]
    for axis, size in enumerate(shape):
        if size == 1:
            strides[axis] = odd  # means nothing
    given_spec = TensorSpec(shape, "float32", tuple(strides))
    found = canonical_spec(given_spec, "x")
    assert found.strides is not None
    assert all(stride > 0 for stride in found.strides)
    assert [s for s, n in zip(found.strides, shape, strict=True) if n > 1] == [
        s for s, n in zip(strides, shape, strict=True) if n > 1
    ]
    assert canonical_spec(found, "x") == found
    for odd_axis in [axis for axis, size in enumerate(shape) if size == 1]:  # nor does any other number there
        to_packed = [packed_strides(shape), channels_last_strides(shape)]
        other = tuple(1000 if axis == odd_axis else stride for axis, stride in enumerate(strides))
        if tuple(strides) not in to_packed and other not in to_packed:
            assert canonical_spec(given_spec._replace(strides=other), "x") == found


@given(st.lists(st.integers(1, 3), min_size=3, max_size=4), st.lists(st.integers(1, 9), min_size=4, max_size=4))
def test_strides_that_let_elements_overlap_are_found(sizes: list[int], steps: list[int]) -> None:
    """Whatever is taken has as many addresses as elements; what is refused has fewer, or is interleaved."""
    strides = tuple(steps[: len(sizes)])
    addresses = [
        sum(i * s for i, s in zip(index, strides, strict=True)) for index in itertools.product(*map(range, sizes))
    ]
    distinct = len(set(addresses)) == len(addresses)
    try:
        canonical_spec(TensorSpec(tuple(sizes), "float32", strides), "x")
    except ValueError as error:
        assert "x must not overlap itself in memory" in str(error)  # noqa: PT017
    else:
        assert distinct


def test_results_have_the_memory_order_of_what_they_are_like() -> None:
    shape = (2, 6, 5, 4)
    first, last = packed_strides(shape), channels_last_strides(shape)
    assert last == (120, 1, 24, 6)
    assert result_strides(shape, of(2, 3, 7, 7)) == first
    assert result_strides(shape, of(2, 3, 7, 7, strides=(147, 1, 21, 3))) == last
    assert result_strides(shape, of(2, 3, 7, 7, strides=(1000, 1, 40, 4))) == last
    assert result_strides(shape, of(2, 3, 7, 7, strides=(1000, 200, 20, 2))) == first
    assert result_strides((2, 6, 5), of(2, 3, 7, strides=(21, 1, 3))) == (30, 1, 6)
    for channels in (3, 1):  # the strides of one channel and of the columns are equal
        like = of(2, channels, 7, 7, strides=channels_last_strides((2, channels, 7, 7)))
        assert packed_strides_like(like, shape) == last
        assert packed_strides_like(like, (2, channels, 7, 7)) == like.strides
    assert packed_strides_like(of(2, 1, 7, 7, strides=(49, 49, 7, 1)), shape) == first
    assert packed_strides_like(of(2, 3, 7, 5, strides=(105, 35, 1, 7)), shape) == packed_strides(shape, (0, 1, 3, 2))


# Axes of size 1, whose strides mean nothing


@st.composite
def convolved(draw: st.DrawFn) -> tuple[bool, list[TensorSpec]]:
    """The tensors of a convolution in one memory order, packed, many of their sizes 1; and whether that is channels last."""
    last, rank = draw(st.booleans()), draw(st.integers(3, 5))
    sizes = st.sampled_from([1, 1, 2, 3])
    shapes = [tuple(draw(st.lists(sizes, min_size=rank, max_size=rank))) for _ in range(3)]
    strides = channels_last_strides if last else packed_strides
    return last, [TensorSpec(shape, "float32", strides(shape)) for shape in shapes]


def respelled(spec: TensorSpec, numbers: st.DataObject) -> TensorSpec:
    """The same memory, with any strides of axes of size 1."""
    assert spec.strides is not None
    drawn = tuple(
        numbers.draw(st.integers(0, 99)) if size == 1 else stride
        for size, stride in zip(spec.shape, spec.strides, strict=True)
    )
    return spec._replace(strides=drawn)


@given(convolved(), st.booleans(), st.data())
def test_tensors_in_one_order_are_described_so_however_they_are_spelled(
    drawn: tuple[bool, list[TensorSpec]], default: bool, data: st.DataObject
) -> None:
    last, specs = drawn
    found = normalize_unit_strides(*(respelled(spec, data) for spec in specs), last=default)
    strides = channels_last_strides if last else packed_strides
    other = packed_strides if last else channels_last_strides
    decisive = any(not has_same_layout(spec, spec._replace(strides=other(spec.shape))) for spec in specs)
    wanted = strides if decisive else (channels_last_strides if default else packed_strides)
    assert [one.strides for one in found] == [wanted(spec.shape) for spec in specs]
    assert all(has_same_layout(one, spec) for one, spec in zip(found, specs, strict=True))
    assert normalize_unit_strides(*found, last=default) == found


@given(st.lists(tensors(ranks=(4, 4)), min_size=1, max_size=3), st.booleans())
def test_other_tensors_keep_their_memory(specs: list[TensorSpec], last: bool) -> None:
    """Gaps, other orders of the axes, and tensors of two orders."""
    for one, spec in zip(normalize_unit_strides(*specs, last=last), specs, strict=True):
        assert has_same_layout(one, spec)


@given(st.lists(tensors(ranks=(1, 5)), min_size=1, max_size=3), st.booleans(), st.data())
def test_what_is_described_depends_on_the_memory_alone(
    specs: list[TensorSpec], last: bool, data: st.DataObject
) -> None:
    """Of tensors of every rank, order and gap."""
    found = normalize_unit_strides(*specs, last=last)
    assert normalize_unit_strides(*(respelled(spec, data) for spec in specs), last=last) == found
    assert normalize_unit_strides(*found, last=last) == found
