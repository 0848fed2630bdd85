"""The space-to-depth lowering of convolutions: the algebra against the reference, and which problems have it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_machine import to_depth, to_space

from cudnnpy import reference
from cudnnpy._convolution import specification
from cudnnpy._convolution.options import ConvolutionOptions
from cudnnpy._convolution.sizes import Geometry, output_shape
from cudnnpy._core.layouts import TensorSpec, channels_last_strides
from cudnnpy._layers.lowerings import convolution_lowerings
from cudnnpy._layers.lowerings.convolution_lowerings import SpaceToDepth, with_space_to_depth


@st.composite
def problems(draw: st.DrawFn) -> tuple[dict[str, Any], tuple[int, ...], tuple[int, ...]]:
    rank = draw(st.integers(1, 3))
    stride = draw(st.tuples(*[st.integers(1, 4)] * rank).filter(lambda steps: max(steps) > 1))
    taps = tuple(draw(st.integers(step, 2 * step + 3)) for step in stride)
    pads = st.tuples(st.integers(0, 3), st.integers(0, 3))
    padding = draw(st.tuples(*[pads] * rank))
    sizes = tuple(
        draw(st.integers(max(size - sum(pair), 1), size + 9)) for size, pair in zip(taps, padding, strict=True)
    )
    channels, filters = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    options = {"stride": stride, "padding": padding}
    return options, (draw(st.integers(1, 2)), channels, *sizes), (filters, channels, *taps)


def asked(
    options: dict[str, Any], x: TensorSpec, w: TensorSpec, operation: str = "forward"
) -> specification.ConvolutionSpec:
    """A ConvolutionSpec, whose result is in x's memory order."""
    given_options = ConvolutionOptions(**options)
    shape = output_shape(given_options, x.shape, w.shape)
    return specification.make_problem(given_options, operation, x, w, TensorSpec(shape, x.dtype))


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_lowerings, "_MIN_BYTES", 0)


FOLDED = {"yes": 0, "no": 0}


@settings(max_examples=150, deadline=None)
@given(problems(), st.integers(0, 2**32 - 1))
def test_blocks_give_the_same_results(drawn: Any, seed: int) -> None:
    options, x_shape, w_shape = drawn
    whole = asked(options, TensorSpec(x_shape), TensorSpec(w_shape))
    found = with_space_to_depth(whole)
    g, sizes = whole.geometry, zip(x_shape[2:], w_shape[2:], whole.y.shape[2:], strict=True)
    needed = [step * (out - 1) + r for step, (_, r, out) in zip(g.stride, sizes, strict=True)]
    FOLDED["yes" if found else "no"] += 1
    if found is None:  # only where some of x is of no use
        assert any(
            -(-end // step) * step - pad < size
            for end, step, pad, size in zip(needed, g.stride, g.pre_padding, x_shape[2:], strict=True)
        )
        return
    part, of_x, of_w = found
    random = np.random.default_rng(seed)
    x, w = random.standard_normal(x_shape), random.standard_normal(w_shape)
    dy = random.standard_normal(whole.y.shape)
    plain, blocks = reference.Convolution(**options), reference.Convolution()
    x_blocks, w_blocks = to_depth(x, of_x), to_depth(w, of_w)
    assert (x_blocks.shape, w_blocks.shape) == (part.x.shape, part.w.shape)
    np.testing.assert_allclose(blocks.forward(x_blocks, w_blocks), plain.forward(x, w), rtol=1e-9, atol=1e-12)
    dx = to_space(blocks.backward_data(dy, w_blocks, part.x.shape), of_x, x_shape)
    np.testing.assert_allclose(dx, plain.backward_data(dy, w, x_shape), rtol=1e-9, atol=1e-12)
    dw = to_space(blocks.backward_filter(dy, x_blocks, part.w.shape), of_w, w_shape)
    np.testing.assert_allclose(dw, plain.backward_filter(dy, x, w_shape), rtol=1e-9, atol=1e-12)


def test_most_of_the_drawn_problems_had_blocks() -> None:
    assert FOLDED["yes"] > FOLDED["no"]


X, W = TensorSpec((2, 3, 16, 16)), TensorSpec((8, 3, 7, 7))
STEM: dict[str, Any] = {"stride": 2, "padding": 3}


def test_the_first_convolution_of_a_resnet() -> None:
    part, of_x, of_w = with_space_to_depth(asked(STEM, TensorSpec((128, 3, 224, 224)), W)) or pytest.fail("not lowered")
    assert part.x.shape == (128, 12, 115, 115)
    assert part.w.shape == (8, 12, 4, 4)
    assert part.y.shape == (128, 8, 112, 112)
    assert part.geometry == Geometry((0, 0), (0, 0), (1, 1), (1, 1))
    assert of_x == SpaceToDepth((3, 3), (3, 3), (2, 2))
    assert of_w == SpaceToDepth((0, 0), (1, 1), (2, 2))


@pytest.mark.parametrize(
    ("options", "x", "w"),
    [
        ({"stride": 1, "padding": 3}, X, W),
        ({**STEM, "mode": "convolution"}, X, W),
        ({**STEM, "dilation": 2}, X, W),
        ({**STEM, "groups": 3}, X, W._replace(shape=(9, 1, 7, 7))),
        (STEM, X._replace(shape=(2, 5, 16, 16)), W._replace(shape=(8, 5, 7, 7))),
        ({"stride": 2}, X, W._replace(shape=(8, 3, 1, 1))),
        (STEM, X._replace(alignment=8), W),
        (STEM, X, W._replace(alignment=4)),
        (STEM, X._replace(strides=(3 * 16 * 17, 16 * 17, 17, 1)), W),
        (STEM, X._replace(strides=channels_last_strides(X.shape)), W),
    ],
    ids=["stride", "mode", "dilation", "groups", "channels", "filter", "x-address", "w-address", "gaps", "orders"],
)
def test_what_has_no_blocks(options: dict[str, Any], x: TensorSpec, w: TensorSpec) -> None:
    assert with_space_to_depth(asked(options, x, w)) is None


def test_small_tensors_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_space_to_depth(asked(STEM, X, W)) is not None
    monkeypatch.undo()
    assert with_space_to_depth(asked(STEM, X, W)) is None
