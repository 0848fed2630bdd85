"""The NumPy twins take what the GPU's classes take: the same names, kinds and defaults."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import cudnnpy
from cudnnpy import reference

CLASSES = ("Convolution", "ConvolutionTranspose")
METHODS = ("forward", "backward_data", "backward_filter", "backward_bias", "output_shape")


def shape(function: Any) -> list[tuple[str, Any, Any]]:
    """Name, kind and default of each parameter; keyword-only ones by name, since their order means nothing."""
    found = [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]
    by_keyword = [p for p in found if p[1] is inspect.Parameter.KEYWORD_ONLY]
    return [p for p in found if p not in by_keyword] + sorted(by_keyword, key=lambda p: p[0])


@pytest.mark.parametrize("name", CLASSES)
def test_twins_are_made_with_the_same_options(name: str) -> None:
    ours, twins = shape(getattr(cudnnpy, name)), shape(getattr(reference, name))
    assert ours == twins
    assert len(ours) >= 14
    assert all(kind is inspect.Parameter.KEYWORD_ONLY for _, kind, _ in ours)


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("method", METHODS)
def test_twins_are_called_with_the_same_arguments(name: str, method: str) -> None:
    ours, twin = getattr(getattr(cudnnpy, name), method), getattr(getattr(reference, name), method)
    assert shape(ours) == shape(twin)
    assert len(shape(ours)) >= 3


@pytest.mark.parametrize("name", CLASSES)
def test_the_twin_leaves_out_only_what_needs_a_gpu(name: str) -> None:
    public = [
        {member for member in dir(kind) if not member.startswith("_") and callable(getattr(kind, member))}
        for kind in (getattr(cudnnpy, name), getattr(reference, name))
    ]
    assert set(METHODS) <= public[1]
    assert public[0] - public[1] <= {"plan", "candidates"}
    assert public[1] - public[0] == set()


@pytest.mark.parametrize("name", CLASSES)
def test_options_read_the_same_on_both(name: str) -> None:
    given = {"padding": 1, "stride": (2, 1), "mode": "convolution", "prefer": "no_workspace", "tf32": False}
    ours, twin = getattr(cudnnpy, name)(**given), getattr(reference, name)(**given)
    for option in inspect.signature(type(ours)).parameters:
        got = getattr(ours.options, option)
        assert getattr(twin, option) == got, option


@pytest.mark.parametrize("name", CLASSES)
def test_out_may_stand_for_the_shape_of_a_gradient(name: str) -> None:
    kind = getattr(reference, name)(stride=2)
    rng = np.random.default_rng(0)
    x, w = rng.random((2, 4, 7, 7)), rng.random((4, 4, 3, 3))
    dy = rng.random(kind.output_shape(x.shape, w.shape))
    for method, first, second, like in (("backward_data", dy, w, x), ("backward_filter", dy, x, w)):
        gradient = getattr(kind, method)
        out = np.empty_like(like)
        assert gradient(first, second, out=out) is out
        np.testing.assert_array_equal(out, gradient(first, second, like.shape))
        with pytest.raises(TypeError, match="_shape is missing: expected the shape of the result, or out"):
            gradient(first, second)
