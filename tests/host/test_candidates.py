"""Which engines are refused though cuDNN offers them, by the problem; numbers for people."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cudnnpy._core.layouts import TensorSpec, channels_last_strides
from cudnnpy._planning.candidates import TANH_OVERFLOWS, _known_wrong, _ranges
from cudnnpy.convolution.problem import Options, Problem, checked, make_problem

X, W, Y = (2, 8, 5, 5), (6, 8, 3, 3), (2, 6, 3, 3)
ONE = (2, 8, 3, 3), W, (2, 6, 1, 1)
GAPS = tuple(2 * stride for stride in (200, 25, 5, 1))


def problem(
    operation: str = "forward", shapes: Any = (X, W, Y), dtype: str = "float32", result: str | None = None, **more: Any
) -> Problem:
    strides = more.pop("strides", None)
    x, w, y = (TensorSpec(shape, dtype, alignment=more.get("alignment", 16)) for shape in shapes)
    more.pop("alignment", None)
    if more.pop("last", False):
        x, w, y = (t._replace(strides=channels_last_strides(t.shape)) for t in (x, w, y))
    x, y = x._replace(strides=strides or x.strides), y._replace(dtype=result or dtype)
    return make_problem(checked(Options()), operation, x, w, y, **more)


@pytest.mark.parametrize(
    ("asked", "engine", "notes", "reason"),
    [
        (problem("backward_filter"), 70, ("tensor_core",), "gives NaN for some problems"),
        (problem("backward_filter"), 71, ("tensor_core",), ""),
        (problem("backward_filter", alignment=4), 67, (), "faults on addresses that are no multiples of 16"),
        (problem("backward_filter"), 67, (), ""),
        (problem("forward", alignment=4), 67, (), ""),
        (problem("forward"), 70, (), ""),
        (problem("backward_data"), 78, (), "leaves some results unwritten"),
        (problem("backward_filter"), 78, (), ""),
        (problem(strides=GAPS), 71, (), "misreads an x with gaps that is not channels last"),
        (problem(), 71, (), ""),
        (problem(shapes=ONE, alpha=0.5), 71, (), "loses alpha for results of one position"),
        (problem(shapes=ONE, alpha=0.5), 67, (), ""),
        (problem(shapes=ONE), 71, (), ""),
        (problem(alpha=0.5), 71, (), ""),
        (problem(activation="tanh"), 0, (), TANH_OVERFLOWS),
        (problem(activation="relu"), 0, (), ""),
        (problem(activation="tanh"), 1, (), ""),
        (problem(dtype="int8", result="int32", last=True), 1, (), "gives wrong int32 results"),
        (problem(dtype="int8", result="int32", last=True), 1, ("tensor_core",), ""),
        (problem(dtype="int8", result="float32"), 1, ("tensor_core",), "gives wrong float32 results channels first"),
        (problem(dtype="int8", result="float32", last=True), 1, ("tensor_core",), ""),
    ],
)
def test_engines_found_wrong_are_refused_where_they_are(
    asked: Problem, engine: int, notes: tuple[str, ...], reason: str
) -> None:
    """By their numbers, whatever the release: which of them were repaired has not been measured."""
    found: Any = SimpleNamespace(engine=engine, numerical_notes=notes)
    assert _known_wrong(asked, found) == reason


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([3], "3"), ([3, 4], "3-4"), ([1, 2, 3, 7], "1-3, 7"), ([0, 2, 4, 5], "0, 2, 4-5"), ([], "")],
)
def test_numbers_for_people(numbers: list[int], text: str) -> None:
    assert _ranges(numbers) == text
