"""Tensors in memory: strides against NumPy's, and where elements lie against counting them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cudnnpy
from cudnnpy._core.layouts import (
    TensorSpec,
    are_channels_last,
    at_least_4d,
    byte_extent,
    canonical_spec,
    channels_last_strides,
    from_logical,
    has_same_layout,
    have_same_memory_format,
    is_dense,
    is_format_ambiguous,
    is_only_channels_last,
    is_packed,
    normalize_unit_strides,
    packed_strides,
    packed_strides_like,
    result_strides,
    suggests_channels_last,
    to_logical,
    to_packed,
    with_channels_last_strides,
    with_strides_of,
)
from cudnnpy._launch.steps import tensor_descriptor


def of(*shape: int, strides: tuple[int, ...] | None = None) -> TensorSpec:
    return TensorSpec(shape, "float32", strides)


def memory_of(spec: TensorSpec) -> np.ndarray:
    """Where each element is."""
    strides = np.array(spec.strides or packed_strides(spec.shape))
    return np.tensordot(strides, np.indices(spec.shape), 1)


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
    st.lists(st.integers(1, 5), min_size=1, max_size=5).flatmap(
        lambda s: st.tuples(st.just(s), st.permutations(range(len(s))))
    )
)
def test_packed_strides_in_any_order_of_the_axes(drawn: Any) -> None:
    shape, order = drawn
    strides = packed_strides(shape, order)
    inner = np.empty([shape[axis] for axis in order], np.int8).transpose(np.argsort(order))
    assert inner.shape == tuple(shape)
    assert all(a == b for a, b, size in zip(strides, inner.strides, shape, strict=True) if size > 1)


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


# Where elements lie


@given(tensors())
def test_at_least_4d_is_the_same_memory_in_the_same_order(spec: TensorSpec) -> None:
    wide = at_least_4d(spec)
    assert len(wide.shape) == max(len(spec.shape), 4)
    np.testing.assert_array_equal(memory_of(wide).ravel(), memory_of(spec).ravel())
    assert wide.strides is not None
    assert min(wide.strides) >= 1
    if len(spec.shape) > 1:
        assert wide.shape[:2] == spec.shape[:2]
    assert byte_extent(wide) == byte_extent(spec)
    assert (tensor_descriptor(spec).shape, tensor_descriptor(spec).strides) == (wide.shape, wide.strides)


@pytest.mark.parametrize(
    ("shape", "wide", "strides"),
    [
        ((7,), (1, 1, 1, 7), (7, 7, 7, 1)),
        ((2, 3), (2, 3, 1, 1), (3, 1, 1, 1)),
        ((2, 3, 5), (2, 3, 1, 5), (15, 5, 5, 1)),
        ((2, 3, 4, 5), (2, 3, 4, 5), (60, 20, 5, 1)),
        ((2, 3, 4, 5, 6), (2, 3, 4, 5, 6), (360, 120, 30, 6, 1)),
    ],
)
def test_known_tensors_as_c_wants_them(shape: Any, wide: Any, strides: Any) -> None:
    assert at_least_4d(TensorSpec(shape, "float16", packed_strides(shape), 2)) == (wide, "float16", strides, 2)


@given(tensors(), tensors())
def test_memory_is_the_same_where_every_element_is(one: TensorSpec, two: TensorSpec) -> None:
    two = two._replace(shape=one.shape, strides=(two.strides or ()) * 5)
    two = two._replace(strides=(two.strides or ())[: len(one.shape)])
    expected = bool(np.array_equal(memory_of(one), memory_of(two)))
    assert has_same_layout(one, two) == expected
    assert has_same_layout(one, one)
    assert with_strides_of(one, two).strides == two.strides
    assert np.array_equal(memory_of(with_strides_of(one, two)), memory_of(two))
    assert not has_same_layout(one, one._replace(shape=(*one.shape, 2), strides=(*(one.strides or ()), 1)))


@given(tensors())
def test_dense_tensors_fill_their_memory(spec: TensorSpec) -> None:
    places = memory_of(spec).ravel()
    assert is_dense(spec) == (sorted(places) == list(range(places.size)))
    assert is_dense(to_packed(spec))
    assert to_packed(spec, "float64") == (spec.shape, "float64", packed_strides(spec.shape), 16)
    assert is_dense(spec._replace(strides=packed_strides_like(spec, spec.shape)))


@pytest.mark.parametrize(
    ("shape", "strides", "packed_in_one", "last"),
    [
        ((2, 3, 4, 5), (60, 20, 5, 1), True, False),
        ((2, 3, 4, 5), (60, 1, 15, 3), True, True),
        ((2, 3, 4, 5), (60, 5, 15, 1), False, False),  # dense, in an order that has no name
        ((2, 3, 4, 5), (120, 40, 10, 2), False, False),
        ((2, 3), (3, 1), True, False),  # both at once
    ],
)
def test_the_two_orders_that_have_names(shape: Any, strides: Any, packed_in_one: bool, last: bool) -> None:
    spec = TensorSpec(shape, "float32", strides)
    assert (is_packed(spec), is_only_channels_last(spec)) == (packed_in_one, last)


# The tensors of one convolution


def lying(shape: tuple[int, ...], order: str) -> TensorSpec:
    return of(*shape, strides=channels_last_strides(shape) if order == "last" else packed_strides(shape))


SIDE, ONE = (2, 8, 5, 4), (2, 8, 1, 1)


@pytest.mark.parametrize(
    ("x", "w", "y", "one_order", "last"),
    [
        (lying(SIDE, "last"), lying((6, 8, 3, 3), "last"), lying((2, 6, 3, 2), "last"), True, True),
        (lying(SIDE, "first"), lying((6, 8, 3, 3), "first"), lying((2, 6, 3, 2), "first"), True, False),
        (lying(SIDE, "first"), lying((6, 8, 1, 1), "first"), lying((2, 6, 5, 4), "first"), True, False),
        (lying(SIDE, "last"), lying((6, 8, 3, 3), "first"), lying((2, 6, 3, 2), "last"), False, False),
        (lying(SIDE, "first"), lying((6, 8, 3, 3), "last"), lying((2, 6, 3, 2), "first"), False, False),
        # one position lies in both orders
        (lying(SIDE, "last"), lying((6, 8, 5, 4), "last"), lying((2, 6, 1, 1), "first"), True, True),
        (lying(SIDE, "first"), lying((6, 8, 5, 4), "first"), lying((2, 6, 1, 1), "first"), False, False),
        (lying(ONE, "first"), lying((6, 8, 1, 1), "first"), lying((2, 6, 1, 1), "first"), True, True),
        (lying(ONE, "first"), lying((6, 8, 3, 3), "first"), lying((2, 6, 1, 1), "first"), False, False),
        # so does one channel, whose strides are channels first
        (lying((2, 1, 5, 4), "first"), lying((6, 1, 3, 3), "first"), lying((2, 6, 3, 2), "first"), True, False),
        (lying((2, 1, 5, 4), "first"), lying((6, 1, 3, 3), "first"), lying((2, 6, 3, 2), "last"), True, True),
    ],
)
def test_whether_tensors_have_one_order(x: Any, w: Any, y: Any, one_order: bool, last: bool) -> None:
    assert have_same_memory_format(x, w, y) == one_order
    assert are_channels_last(x, w, y) == last
    spelled = with_channels_last_strides(x, w, y)
    assert [spec.strides == channels_last_strides(spec.shape) for spec in spelled] == [True] * 3 or not last
    assert all(has_same_layout(a, b) for a, b in zip(spelled, (x, w, y), strict=True))
    assert last or spelled == (x, w, y)


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


@pytest.mark.parametrize(
    ("shape", "strides", "both", "last"),
    [
        ((2, 1, 4, 4), (16, 16, 4, 1), True, False),
        ((2, 1, 4, 4), (16, 1, 4, 1), True, True),
        ((2, 1, 4, 4), (48, 1, 12, 3), True, True),  # one channel of three
        ((2, 1, 4, 4), (48, 16, 4, 1), True, False),
        ((2, 8, 1, 1), (8, 1, 8, 8), True, True),
        ((2, 8, 1, 1), (8, 1, 1, 1), True, False),
        ((2, 8, 1, 1), (8, 1, 3, 5), True, False),  # numbers that are in neither order
        ((1, 1, 1, 1), (1, 1, 1, 1), True, False),
        ((2, 8, 4, 4), (128, 1, 32, 8), False, False),
        ((2, 8, 4, 4), (128, 16, 1, 4), False, False),
    ],
)
def test_tensors_of_both_orders_and_how_they_are_described(shape: Any, strides: Any, both: bool, last: bool) -> None:
    spec = TensorSpec(shape, "float32", strides)
    assert (is_format_ambiguous(spec), suggests_channels_last(spec)) == (both, last)
    assert is_format_ambiguous()
    assert is_format_ambiguous(spec, spec) == both


def test_what_lies_in_either_order_follows_the_first_that_does_not() -> None:
    last, either = of(2, 3, 4, 4, strides=channels_last_strides((2, 3, 4, 4))), of(3, 1, 2, 2, strides=(4, 4, 2, 1))
    first = of(2, 3, 4, 4, strides=packed_strides((2, 3, 4, 4)))
    assert normalize_unit_strides(either, last, first, last=False) == (
        either._replace(strides=(4, 1, 2, 1)),
        last,
        first,
    )
    assert normalize_unit_strides(either, first, last, last=True) == (either, first, last)


@pytest.mark.parametrize(
    ("like", "last"),
    [
        ([((2, 3, 4, 4), (48, 1, 12, 3))], True),
        ([((2, 3, 4, 4), (48, 16, 4, 1))], False),
        ([((2, 1, 4, 4), (16, 16, 4, 1)), ((8, 1, 3, 3), (9, 9, 3, 1))], False),  # nothing tells
        ([((2, 1, 4, 4), (16, 1, 4, 1)), ((8, 1, 3, 3), (9, 9, 3, 1))], True),  # but how one of them is described
        ([((2, 1, 4, 4), (16, 16, 4, 1)), ((8, 2, 3, 3), (18, 1, 6, 2))], True),  # the second lies in one order alone
        ([((2, 3, 4, 4), (48, 16, 4, 1)), ((8, 3, 3, 3), (27, 1, 9, 3))], False),  # the first counts
        ([((2, 3, 4, 4), (96, 1, 24, 6))], True),  # gaps
        ([((2, 3, 4, 4), (48, 1, 3, 12))], True),  # in neither order: its channels are the fastest axis
    ],
)
def test_results_follow_the_first_tensor_that_lies_in_one_order(like: Any, last: bool) -> None:
    wanted = channels_last_strides if last else packed_strides
    specs = [TensorSpec(shape, "float32", strides) for shape, strides in like]
    assert result_strides((5, 6, 7, 8), *specs) == wanted((5, 6, 7, 8))
