"""The checks that the operations beside the convolutions share: arrays, results, layouts, and their errors."""

from __future__ import annotations

from typing import Any

import pytest

from cudnnpy import TensorSpec
from cudnnpy._core.layouts import packed_strides
from cudnnpy._launch import operands
from cudnnpy._launch.dispatch import Call, Specs
from cudnnpy._launch.operands import check_like, logical, logical_like, logical_result, resolve_output

SHAPE = (2, 3, 4, 5)
FIRST, LAST = packed_strides(SHAPE), (60, 1, 15, 3)


def call(**specs: TensorSpec) -> Call:
    return Call(Specs(specs), dict.fromkeys(specs, 4096), 0, 0, {})


def of(*shape: int, dtype: str = "float32", strides: tuple[int, ...] | None = None) -> TensorSpec:
    return TensorSpec(shape, dtype, strides)


# Arrays


@pytest.mark.parametrize(
    ("spec", "strides"),
    [
        (of(*SHAPE), FIRST),
        (of(*SHAPE, strides=LAST), LAST),
        (of(5), (1,)),
        (of(5, strides=(3,)), (3,)),
        (of(1, strides=(0,)), (1,)),  # strides of axes of size 1 mean nothing
        (of(2, 1, 4, 5, strides=(20, 77, 5, 1)), (20, 20, 5, 1)),
    ],
)
def test_strides_are_spelled_out(spec: TensorSpec, strides: tuple[int, ...]) -> None:
    assert operands.check_input(call(x=spec), "x") == spec._replace(strides=strides)


@pytest.mark.parametrize(
    ("spec", "kind", "text"),
    [
        (of(4, dtype="int32"), TypeError, r"x must be float16 or bfloat16 or float32 or float64.*; got int32"),
        (of(), ValueError, r"x must have 1 to 5 axes.*; got shape \(\)"),
        (of(*(1,) * 6), ValueError, r"x must have 1 to 5 axes.*; got shape \(1, 1, 1, 1, 1, 1\)"),
        (of(2, 0, 3), ValueError, r"x must have sizes of 1 or more; got shape \(2, 0, 3\)"),
        (of(0), ValueError, r"x must have sizes of 1 or more; got shape \(0,\)"),
        (of(4, strides=(0,)), ValueError, r"x must have strides of 1 or more; got strides \(0,\)"),
        (of(4, strides=(-1,)), ValueError, r"x must have strides of 1 or more; got strides \(-1,\)"),
        (of(2, 3, strides=(3, 0)), ValueError, r"x must have strides of 1 or more; got strides \(3, 0\)"),
        (
            of(2, 3, strides=(2, 1)),
            ValueError,
            r"x must not overlap itself in memory; got shape \(2, 3\), strides \(2, 1\)",
        ),
    ],
)
def test_other_arrays_are_refused(spec: TensorSpec, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=f"^{text}"):
        operands.check_input(call(x=spec), "x")
    if len(spec.shape) in (3, 4, 5):  # layouts look at the same things
        with pytest.raises(kind, match=r"^x must have "):
            logical(call(x=spec), "x", "NHWC")


@pytest.mark.parametrize(
    ("spec", "strides"),
    [
        (of(0), (1,)),
        (of(2, 0, 3), (3, 3, 1)),
        (of(0, 3, 4, 5, strides=(60, 1, 15, 3)), (60, 1, 15, 3)),
        (of(0, 3, 4, 5, strides=(0, 0, 0, 0)), (60, 20, 5, 1)),
    ],
)
def test_empty_arrays_are_taken_where_an_operation_says_so(spec: TensorSpec, strides: tuple[int, ...]) -> None:
    assert operands.check_input(call(x=spec), "x", empty=True) == spec._replace(strides=strides)
    assert operands.check_like(call(x=spec), "x", spec.shape, "float32") == spec._replace(strides=strides)
    with pytest.raises(ValueError, match=r"^x must have sizes of 1 or more"):
        operands.check_like(call(x=spec), "x", [size or 1 for size in spec.shape], "float32")


def test_ranks_and_types_may_be_fewer() -> None:
    with pytest.raises(ValueError, match=r"^x must have 2 to 5 axes.*; got shape \(2,\)$"):
        operands.check_input(call(x=of(2)), "x", range(2, 6))
    with pytest.raises(TypeError, match=r"^x must be float16 or float32.*; got float64$"):
        operands.check_input(call(x=of(2, dtype="float64")), "x", dtypes=("float16", "float32"))
    with pytest.raises(TypeError, match=r"^y must be a device array; got None$"):
        operands.check_input(call(x=of(2)), "y")


def test_an_array_like_another_has_its_shape_and_type() -> None:
    x = of(*SHAPE, strides=LAST)
    assert check_like(call(x=x), "x", SHAPE, "float32") == x
    assert check_like(call(x=x), "x", list(SHAPE), "float32") == x
    with pytest.raises(TypeError, match=r"^x must be float16.*; got float32$"):
        check_like(call(x=x), "x", SHAPE, "float16")
    with pytest.raises(ValueError, match=r"^x must have shape \(2, 3, 4, 6\).*; got shape \(2, 3, 4, 5\)$"):
        check_like(call(x=x), "x", (2, 3, 4, 6), "float32")


# Results


@pytest.mark.parametrize(
    ("shape", "order", "strides"),
    [
        (SHAPE, None, FIRST),
        (SHAPE, of(*SHAPE, strides=FIRST), FIRST),
        (SHAPE, of(*SHAPE, strides=LAST), LAST),
        (SHAPE, of(*SHAPE, strides=(120, 2, 30, 6)), LAST),  # gaps are not kept
        ((2, 6, 2, 2), of(*SHAPE, strides=LAST), (24, 1, 12, 6)),
        ((7,), of(*SHAPE, strides=LAST), (1,)),
        ((2, 3), of(2, 3, strides=(1, 2)), (1, 2)),
    ],
)
def test_new_results_lie_packed_in_the_order_of_another(shape: Any, order: TensorSpec | None, strides: Any) -> None:
    assert resolve_output(call(), "out", shape, "float16", order) == TensorSpec(shape, "float16", strides)


def test_results_that_are_given_are_checked_and_beta_wants_one() -> None:
    out = of(*SHAPE, strides=LAST)
    assert resolve_output(call(out=out), "out", SHAPE, "float32", None, 2.0) == out
    with pytest.raises(ValueError, match=r"^out must have shape \(2, 3\).*; got shape \(2, 3, 4, 5\)$"):
        resolve_output(call(out=out), "out", (2, 3), "float32")
    with pytest.raises(TypeError, match=r"^out must be float16.*; got float32$"):
        resolve_output(call(out=out), "out", SHAPE, "float16")
    with pytest.raises(
        ValueError, match=r"^beta must be 0 where dx is None; got 0\.5\. Pass dx, which beta \* dx reads$"
    ):
        resolve_output(call(), "dx", SHAPE, "float32", None, 0.5)


# Layouts


@pytest.mark.parametrize(
    ("layout", "shape", "turned"),
    [
        ("NCHW", (2, 3, 4, 5), (2, 3, 4, 5)),
        ("NHWC", (2, 4, 5, 3), (2, 3, 4, 5)),
        ("NHWC", (2, 4, 3), (2, 3, 4)),
        ("NWC", (2, 4, 3), (2, 3, 4)),
        ("NCW", (2, 3, 4), (2, 3, 4)),
        ("NDHWC", (2, 4, 5, 6, 3), (2, 3, 4, 5, 6)),
        ("NHWC", (2, 3), (2, 3)),
    ],
)
def test_axes_are_turned_to_n_c_and_space(layout: str, shape: Any, turned: Any) -> None:
    found = logical(call(x=of(*shape)), "x", layout, range(1, 6))
    assert found.shape == turned
    last = layout.endswith("C") and len(shape) > 2
    order = [0, *range(2, len(shape)), 1] if last else None
    assert found.strides == packed_strides(turned, order)
    assert logical_like(call(y=of(*shape)), "y", layout, turned, "float32") == found
    assert logical_result(call(), "out", turned, found, layout) == found
    assert logical_result(call(out=of(*shape)), "out", turned, found, layout) == found


@pytest.mark.parametrize(("layout", "rank"), [("NCW", 4), ("NWC", 4), ("NCDHW", 4), ("NDHWC", 3), ("NCW", 2)])
def test_a_layout_that_is_spelled_out_has_the_arrays_axes(layout: str, rank: int) -> None:
    with pytest.raises(ValueError, match=f"^layout must have {rank} axes, as x; got '{layout}'$"):
        logical(call(x=of(*(2,) * rank)), "x", layout, range(1, 6))
