"""The private formulas of normalizations and dropout against the textbook's with autograd (oracles.py)."""

from __future__ import annotations

import numpy as np
import pytest
from oracles import local_response, moments, root_mean_square, standardize, value_and_pullback
from reference_checks import NAN, normal_numbers

from cudnnpy.reference import _normalizations as formulas

SHAPE = (2, 3, 4, 5)


def close(found: tuple[np.ndarray, ...], expected: tuple[np.ndarray, ...]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12, strict=True)


@pytest.mark.parametrize(
    ("axes", "parameters"),
    [((3,), (1, 1, 1, 5)), ((1, 2, 3), (1, 3, 4, 5)), ((2, 3), (1, 3, 1, 1))],
    ids=["last axis", "last axes", "instances"],
)
def test_layer_and_rms_normalization(axes: tuple[int, ...], parameters: tuple[int, ...]) -> None:
    x, dy = (1 + 2 * normal_numbers(seed, SHAPE) for seed in (0, 1))
    scale, bias = (normal_numbers(seed, parameters) for seed in (2, 3))
    y, pull = value_and_pullback(lambda x, s, b: s * standardize(x, axes, 1e-3) + b, x, scale, bias)
    found, mean, inverse = formulas.layer_norm(x, scale, bias, 1e-3, axes)
    expected_mean, variance = moments(x, axes)
    close((found, mean, inverse), (y, expected_mean, (variance + 1e-3) ** -0.5))
    close(formulas.layer_norm_gradient(dy, x, scale, mean, inverse, axes), pull(dy))

    y, pull = value_and_pullback(lambda x, s: s * root_mean_square(x, axes, 1e-3), x, scale)
    found, inverse = formulas.rms_norm(x, scale, 1e-3, axes)
    close((found, inverse), (y, (np.square(x).mean(axes, keepdims=True) + 1e-3) ** -0.5))
    close(formulas.rms_norm_gradient(dy, x, scale, inverse, axes), pull(dy))


@pytest.mark.parametrize("size", [1, 4, 5, 16])
def test_local_response_normalization(size: int) -> None:
    x, dy = (normal_numbers(seed, (2, 7, 3)) for seed in (0, 1))
    y, pull = value_and_pullback(lambda x: local_response(x, size, 0.5, 0.75, 1.5), x)
    close((formulas.local_response(x, size, 0.5, 0.75, 1.5),), (y,))
    close((formulas.local_response_gradient(dy, x, size, 0.5, 0.75, 1.5),), pull(dy))


def test_dropout_ignores_the_dropped_elements() -> None:
    x, mask = np.array([1.0, NAN, -3.0]), np.array([True, False, True])
    np.testing.assert_array_equal(formulas.dropout(x, mask, 0.25), [1 / 0.75, 0.0, -4.0])
