"""The oracles of the reference's tests (oracles.py) against SciPy (and in tests/torch against JAX)."""

from __future__ import annotations

import numpy as np
import oracles
import pytest
import scipy.signal
import scipy.special
from reference_checks import normal_numbers


@pytest.mark.parametrize(
    ("mode", "expected"), [("max", [2, 4]), ("average_include_padding", [1, 3]), ("average_exclude_padding", [1.5, 3])]
)
def test_a_window_in_the_padding(mode: str, expected: list[float]) -> None:
    """0 1 2 | 2 3 4, and a 4 0 that is no window."""
    x = np.array([[[1.0, 2.0, 3.0, 4.0]]])
    np.testing.assert_array_equal(oracles.pool(x, mode, (3,), [(1, 1)], (2,)), [[expected]])


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_convolution_is_scipys_of_each_channel(rank: int) -> None:
    x, w = normal_numbers(0, (2, 3, 7, 6, 5)[: rank + 2]), normal_numbers(1, (4, 3, 3, 2, 4)[: rank + 2])
    ones = (1,) * rank
    y = oracles.convolve(x, w, [(0, 0)] * rank, ones, ones, 1)
    for n, k in np.ndindex(y.shape[:2]):
        each = [scipy.signal.correlate(x[n, c], w[k, c], "valid", method="direct") for c in range(3)]
        np.testing.assert_allclose(y[n, k], sum(each), rtol=1e-12, atol=1e-12)


def test_arrays_without_elements() -> None:
    x = np.zeros((2, 0, 3))
    assert oracles.pool(np.zeros((0, 2, 4)), "max", (2,), [(0, 0)], (2,)).shape == (0, 2, 2)
    value, pull = oracles.value_and_pullback(
        lambda x, w: oracles.convolve(x, w, [(0, 0)], (1,), (1,), 1), np.zeros((0, 2, 4)), np.ones((3, 2, 2))
    )
    assert value.shape == (0, 3, 3)
    np.testing.assert_array_equal(pull(value)[1], np.zeros((3, 2, 2)), strict=True)
    np.testing.assert_array_equal(oracles.moments(x, (1,)), [np.zeros((2, 1, 3)), np.full((2, 1, 3), np.nan)])
