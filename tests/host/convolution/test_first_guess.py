"""Which of the heuristics' proposals comes first, for the kinds of convolutions for which the first one is known to be slow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cudnnpy._core.layouts import TensorSpec, channels_last_strides
from cudnnpy._options.convolution import ConvolutionOptions
from cudnnpy._planning.candidates import Engine
from cudnnpy.convolution import heuristic_overrides
from cudnnpy.convolution.lowering import lowerings
from cudnnpy.convolution.problem import Problem, make_problem


def problem(
    operation: str,
    x: tuple[int, ...],
    filters: int,
    taps: tuple[int, ...],
    *,
    dtype: Any = "float16",
    last: bool = False,
    bias: bool = False,
    **options: Any,
) -> Problem:
    """A convolution of x; `taps` is the size of the filter."""
    given = ConvolutionOptions(**options)
    step = options.get("stride", 1)
    groups = options.get("groups", 1)
    padding = options.get("padding", 0)
    reach = [options.get("dilation", 1) * (k - 1) + 1 for k in taps]
    y = (x[0], filters, *((n + 2 * padding - k) // step + 1 for n, k in zip(x[2:], reach, strict=True)))
    shapes = x, (filters, x[1] // groups, *taps), y
    specs = [TensorSpec(shape, dtype, channels_last_strides(shape) if last else None) for shape in shapes]
    return make_problem(given, operation, *specs, bias=TensorSpec((filters,), dtype) if bias else None)


def proposal(index: int | None, knobs: Any = None, rejection_reason: str = "", tf32: bool = False) -> Any:
    engine = None if index is None else Engine(index, knobs)
    return SimpleNamespace(engine=engine, rejection_reason=rejection_reason, uses_tf32=tf32)


def order(of: Problem, strict: bool, *proposals: Any) -> list[int]:
    """The places of proposals after they were put in order: each of them once."""
    found = list(heuristic_overrides.apply_overrides(of, strict, iter(proposals)))
    assert len(found) == len(proposals)
    return [next(place for place, one in enumerate(proposals) if one is other) for other in found]


# Matrix products

PRODUCT, OTHER_PRODUCT = {25: 0}, {25: 1}  # only cuBLASLt's engines have the workspace as their only knob
TILES = {2: 5, 25: 0}
PROPOSED = proposal(63, PRODUCT), proposal(63, OTHER_PRODUCT), proposal(67, TILES), proposal(67), proposal(63)

SLOW: dict[str, Any] = {"operation": "backward_data", "x": (32, 728, 19, 19), "filters": 728, "taps": (1, 1)}


@pytest.mark.parametrize(
    ("change", "is_slow"),
    [
        ({}, True),
        ({"operation": "forward"}, True),
        ({"operation": "backward_filter"}, True),
        ({"dtype": "float32"}, True),
        ({"dtype": "bfloat16"}, True),
        ({"x": (32, 728, 361), "taps": (1,)}, True),
        ({"x": (32, 728, 20, 20)}, False),  # 800 bytes
        ({"x": (32, 728, 18, 18)}, True),  # 648 bytes
        ({"x": (32, 728, 18, 18), "dtype": "float32"}, False),  # 1,296 bytes
        ({"last": True}, False),
        ({"x": (1, 728, 19, 19)}, False),  # too little to compute
        ({"filters": 255, "x": (256, 728, 19, 19)}, False),
        ({"taps": (3, 3), "padding": 1}, False),
        ({"stride": 2}, False),
        ({"groups": 2}, False),
        ({"padding": 1}, False),
    ],
)
def test_large_products_of_misaligned_rows_come_after_another_engine(change: dict[str, Any], is_slow: bool) -> None:
    asked = problem(**{**SLOW, **change})
    assert order(asked, False, *PROPOSED) == ([2, 0, 1, 3, 4] if is_slow else [0, 1, 2, 3, 4])


def test_a_product_comes_before_a_proposal_that_cannot_be_used_or_if_there_is_no_other() -> None:
    asked = problem(**SLOW)
    assert order(asked, False, PROPOSED[0], proposal(67, TILES, rejection_reason="no"), proposal(71, TILES)) == [
        1,
        2,
        0,
    ]
    assert order(asked, False, PROPOSED[0], proposal(None)) == [1, 0]  # a v7 algorithm
    assert order(asked, False, *PROPOSED[:2]) == [0, 1]
    assert order(asked, False, PROPOSED[2], *PROPOSED[:2]) == [0, 1, 2]
    assert order(asked, False) == []


def test_products_stay_where_float32_is_multiplied_as_it_is() -> None:
    assert order(problem(**{**SLOW, "dtype": "float32"}), True, *PROPOSED) == [0, 1, 2, 3, 4]


# Strict float32

SMALL_TILES, DEFAULT = proposal(20, {2: 6, 3: 0}), proposal(20)
FILTER: dict[str, Any] = {"operation": "backward_filter", "x": (32, 480, 28, 28), "filters": 128, "taps": (1, 1)}


@pytest.mark.parametrize(
    ("change", "is_large"),
    [
        ({}, True),
        ({"filters": 96}, False),
        ({"last": True}, False),
        ({"x": (16, 480, 28, 28)}, False),  # 0.77e9 multiplications
        ({"x": (1, 480, 28, 28)}, False),
        ({"taps": (3, 3), "padding": 1, "x": (4, 480, 28, 28)}, True),
        ({"groups": 2, "x": (64, 480, 28, 28)}, False),
        ({"operation": "forward"}, False),
    ],
)
def test_a_large_gradient_with_respect_to_filters_is_computed_with_default_tiles(
    change: dict[str, Any], is_large: bool
) -> None:
    asked = problem(**{**FILTER, **change}, dtype="float32")
    given = proposal(62, PRODUCT, tf32=True), proposal(67, rejection_reason="no"), SMALL_TILES, proposal(1), DEFAULT
    assert order(asked, True, *given) == ([4, 0, 1, 2, 3] if is_large else [0, 1, 2, 3, 4])
    assert order(asked, False, *given) == [0, 1, 2, 3, 4]


def test_default_tiles_come_first_only_if_the_engine_is_proposed_first_and_so() -> None:
    asked = problem(**FILTER, dtype="float32")
    assert order(asked, True, proposal(67, TILES), SMALL_TILES, DEFAULT) == [0, 1, 2]
    assert order(asked, True, SMALL_TILES, proposal(1)) == [0, 1]
    assert order(asked, True, SMALL_TILES, proposal(20, rejection_reason="no")) == [0, 1]
    assert order(asked, True) == []


DATA: dict[str, Any] = {"operation": "backward_data", "x": (1, 128, 128, 128), "filters": 64, "taps": (3, 3)}


@pytest.mark.parametrize(
    ("change", "are_few"),
    [
        ({}, True),
        ({"x": (1, 32, 64, 64, 64), "taps": (3, 3, 3)}, True),
        ({"filters": 65}, False),
        ({"last": True}, False),
        ({"x": (4, 31, 128, 128)}, False),
        ({"x": (1, 128, 32, 32)}, False),  # too little to compute
        ({"stride": 2, "x": (8, 128, 128, 128)}, False),
        ({"groups": 2, "x": (8, 128, 128, 128)}, False),
        ({"operation": "forward"}, False),
    ],
)
def test_a_large_gradient_with_respect_to_x_of_few_filters_takes_the_narrower_engine(
    change: dict[str, Any], are_few: bool
) -> None:
    asked = problem(**{**DATA, **change}, dtype="float32")
    given = proposal(25, {2: 2}), proposal(1), proposal(74, {2: 12}), proposal(74)
    assert order(asked, True, *given) == ([2, 0, 1, 3] if are_few else [0, 1, 2, 3])
    assert order(asked, True, given[1], given[0], given[2]) == [0, 1, 2]
    assert order(asked, False, *given) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("change", "is_moved"),
    [
        ({}, True),
        ({"filters": 512, "x": (32, 64, 16, 56, 56)}, True),
        ({"x": (1, 64, 56, 56), "taps": (1, 1)}, False),
        ({"last": True}, False),
        ({"groups": 2}, False),
        ({"operation": "backward_data"}, False),
    ],
)
def test_a_gradient_with_respect_to_filters_of_three_axes_takes_engine_1(
    change: dict[str, Any], is_moved: bool
) -> None:
    volumes = {"operation": "backward_filter", "x": (1, 64, 16, 56, 56), "filters": 64, "taps": (1, 1, 1)}
    asked = problem(**{**volumes, **change}, dtype="float32")  # type: ignore[arg-type]
    given = proposal(62, tf32=True), proposal(0), proposal(67, TILES), proposal(1)
    assert order(asked, True, *given) == ([3, 0, 1, 2] if is_moved else [0, 1, 2, 3])
    assert order(asked, True, given[2], given[1], given[3]) == [0, 1, 2]
    assert order(asked, False, *given) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("change", "is_moved"),
    [
        ({}, True),
        ({"x": (4, 64, 16, 56, 56)}, True),
        ({"x": (3, 64, 16, 56, 56)}, False),  # 150,528 positions
        ({"filters": 129}, False),
        ({"last": True}, False),
        ({"operation": "forward"}, False),
        ({"x": (64, 64, 56, 56), "taps": (3, 3)}, False),
    ],
)
def test_a_gradient_with_respect_to_filters_of_large_volumes_takes_engine_1_in_place_of_67(
    change: dict[str, Any], is_moved: bool
) -> None:
    volumes = {"operation": "backward_filter", "x": (8, 64, 16, 56, 56), "filters": 128, "taps": (3, 3, 3)}
    asked = problem(**{**volumes, **change}, dtype="float32")  # type: ignore[arg-type]
    given = proposal(67, TILES), proposal(67), proposal(1)
    assert order(asked, True, *given) == ([2, 0, 1] if is_moved else [0, 1, 2])
    assert order(asked, False, *given) == [0, 1, 2]


# Depthwise


@pytest.mark.parametrize(
    ("x", "groups", "expected"),
    [
        ((2, 8, 4, 9, 9), 8, True),
        ((2, 8, 9, 9), 8, False),
        ((2, 8, 4, 9, 9), 4, False),
        ((2, 8, 4, 9, 9), 1, False),
        ((2, 1, 4, 9, 9), 1, False),
    ],
)
@pytest.mark.parametrize("operation", ["forward", "backward_data", "backward_filter"])
def test_the_plain_engine_is_for_depthwise_convolutions_with_three_axes(
    operation: str, x: tuple[int, ...], groups: int, expected: bool
) -> None:
    asked = problem(operation, x, 8, (3,) * (len(x) - 2), groups=groups)
    assert heuristic_overrides.is_for_plain_engine(asked) == expected


IMAGES: dict[str, Any] = {"x": (64, 96, 32, 32), "filters": 96, "groups": 96, "dtype": "float32"}
WIDE, NARROW = {"taps": (5, 5), "padding": 2}, {"taps": (3, 3), "padding": 1}
COPIED, FLIPPED = " + channels last", " + forward"


@pytest.mark.parametrize(
    ("operation", "change", "expected"),
    [
        ("forward", WIDE, [COPIED]),
        ("forward", {**WIDE, "bias": True}, [COPIED + " + epilogue"]),
        ("forward", NARROW, []),
        ("forward", {**WIDE, "stride": 2}, []),
        ("forward", {**WIDE, "x": (16, 96, 32, 32)}, []),  # 1.6 million
        ("forward", {**WIDE, "dtype": "float16"}, []),
        ("forward", {**WIDE, "last": True}, []),
        ("forward", {**WIDE, "groups": 48}, []),
        ("forward", {**WIDE, "filters": 192}, []),
        ("forward", {**WIDE, "dilation": 2, "padding": 4}, []),
        ("forward", {"taps": (31,), "padding": 15, "x": (64, 96, 1024)}, [COPIED]),
        ("forward", {"taps": (3, 3, 3), "padding": 1, "x": (64, 96, 8, 16, 16)}, []),
        ("backward_data", WIDE, [COPIED, FLIPPED]),
        ("backward_data", NARROW, [FLIPPED]),
        ("backward_data", {**NARROW, "stride": 2}, [COPIED]),
        ("backward_data", {**NARROW, "stride": 2, "x": (16, 96, 32, 32)}, []),
        ("backward_data", {**WIDE, "dtype": "float16"}, [FLIPPED]),
        ("backward_filter", WIDE, []),
        ("backward_filter", {**NARROW, "stride": 2}, []),
    ],
)
def test_what_comes_before_engine_0(operation: str, change: dict[str, Any], expected: list[str]) -> None:
    asked = problem(operation, **{**IMAGES, **change})
    assert [
        lowering.suffix for lowering in heuristic_overrides.instead_of_plain(asked, list(lowerings(asked)))
    ] == expected


@pytest.mark.parametrize(
    ("x", "given", "apart"),
    [
        ((32, 64, 28, 28), {}, True),
        ((1, 64, 28, 28), {}, False),
        ((1, 64, 28, 28), {"last": True}, True),
        ((32, 64, 28, 28), {"dtype": "float16"}, False),
        ((32, 64, 28, 28), {"groups": 1}, False),
        ((32, 64, 28, 28), {"bias": False}, False),
        ((256, 64, 64), {}, True),
        ((255, 64, 64), {}, False),
        ((32, 64, 8, 28, 28), {}, False),
    ],
)
def test_a_large_bias_of_a_depthwise_convolution_in_float32_is_added_apart(
    x: tuple[int, ...], given: dict[str, Any], apart: bool
) -> None:
    taps = (3,) * (len(x) - 2)
    asked = problem("forward", x, 64, taps, **{"dtype": "float32", "groups": 64, "bias": True, "padding": 1, **given})
    assert next(lowerings(asked)).suffix == (" + epilogue" if apart else "")
