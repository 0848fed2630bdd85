"""Tensors in memory: strides against NumPy's, and where elements lie against counting them."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

import cudnnpy
from cudnnpy._core.layouts import (
    TensorSpec,
    canonical_spec,
    has_same_layout,
    normalize_unit_strides,
    packed_strides,
)


@st.composite
def tensors(draw: st.DrawFn, dtype: str = "float32", ranks: tuple[int, int] = (1, 5)) -> TensorSpec:
    """Of any memory order, sometimes with gaps."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=ranks[0], max_size=ranks[1])))
    order, gap = draw(st.permutations(range(len(shape)))), draw(st.integers(1, 2))
    return TensorSpec(shape, dtype, tuple(gap * stride for stride in packed_strides(shape, order)))


def test_a_spec_needs_a_shape_and_has_the_rest_by_default() -> None:
    assert TensorSpec((2, 3)) == ((2, 3), "float32", None, 16)
    assert cudnnpy.TensorSpec is TensorSpec
    assert len({TensorSpec((2, 3)), TensorSpec((2, 3), "float16"), TensorSpec((2, 3), strides=(3, 1))}) == 3


# Strides


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


# Axes of size 1, whose strides mean nothing


def respelled(spec: TensorSpec, numbers: st.DataObject) -> TensorSpec:
    """The same memory, with any strides of axes of size 1."""
    assert spec.strides is not None
    drawn = tuple(
        numbers.draw(st.integers(0, 99)) if size == 1 else stride
        for size, stride in zip(spec.shape, spec.strides, strict=True)
    )
    return spec._replace(strides=drawn)


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
