"""When an operation sees its memory as rows, for a graph."""

from __future__ import annotations

from typing import Any

import pytest

from cudnnpy._core.layouts import TensorSpec, is_dense, packed_strides
from cudnnpy._launch import operands
from cudnnpy._launch.operands import LARGE_BYTES, as_rows, row_view_shape


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((1 << 18,), "float32", (8192, 32)),
        ((1 << 18,), "float16", None),  # not large: half a MiB
        ((1 << 19,), "bfloat16", (16384, 32)),
        ((1 << 19,), "float64", None),
        ((1024, 257), "float32", (8224, 32)),
        ((6, 43700), "float32", None),  # 8 divides it, 16 does not
        ((16, 16385), "float32", (16385, 16)),
        ((32, 16385), "float32", (16385, 32)),
    ],
)
def test_rows_of_known_tensors(shape: Any, dtype: str, expected: Any) -> None:
    spec = TensorSpec(shape, dtype, packed_strides(shape))
    found = row_view_shape(spec)
    assert found == expected
    if found:
        assert as_rows(spec, found) == ((*found, 1, 1), dtype, (found[1], 1, found[1], found[1]), 16)
        assert is_dense(as_rows(spec, found))


@pytest.mark.parametrize(("dtype", "tensors", "length"), [("float16", 2, 64), ("float16", 3, 32), ("float32", 2, 32)])
def test_copies_of_16_bits_have_longer_rows(dtype: Any, tensors: int, length: int) -> None:
    shape = row_view_shape(*[TensorSpec((1 << 20,), dtype, (1,))] * tensors)
    assert shape is not None
    assert shape[1] == length


def test_rows_want_tensors_that_lie_alike_and_fill_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (2, 64, 64, 64)
    first, last = (
        TensorSpec(shape, "float32", packed_strides(shape)),
        TensorSpec(shape, "float32", (64**3, 1, 64 * 64, 64)),
    )
    gaps = TensorSpec(shape, "float32", tuple(2 * stride for stride in packed_strides(shape)))
    assert row_view_shape(first, first) == row_view_shape(last, last, last) == (2 * 64 * 128, 32)
    assert row_view_shape(first, first._replace(dtype="float16")) is not None
    for others in ((last,), (first, last), (gaps,), (first._replace(dtype="float64"),)):
        assert row_view_shape(first, *others) is None
    assert row_view_shape(gaps, gaps) is None
    assert LARGE_BYTES == 1 << 20
    monkeypatch.setattr(operands, "LARGE_BYTES", 1 << 22)
    assert row_view_shape(first) is None
