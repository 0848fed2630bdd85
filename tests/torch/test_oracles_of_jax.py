"""The oracles of the reference's tests (tests/shared/oracles.py) against JAX, in values and gradients."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import oracles
from reference_checks import normal_numbers

# The operation, its options, its arrays' shapes.
QUESTIONS: list[tuple[str, dict[str, Any], list[tuple[int, ...]]]] = [
    *[
        (
            "convolve",
            {"padding": padding, "stride": stride, "dilation": dilation, "groups": groups},
            [x_shape, w_shape],
        )
        for x_shape, w_shape, padding, stride, dilation, groups in [
            ((2, 3, 9), (4, 3, 3), [(0, 0)], (1,), (1,), 1),
            ((2, 6, 11), (4, 3, 4), [(3, 1)], (2,), (2,), 2),
            ((2, 4, 7, 8), (6, 2, 3, 2), [(1, 0), (0, 2)], (2, 3), (1, 2), 2),
            ((1, 3, 6, 5), (3, 1, 2, 2), [(1, 1), (2, 2)], (1, 2), (2, 1), 3),
            ((2, 2, 5, 6, 4), (2, 2, 2, 3, 2), [(0, 1), (2, 0), (1, 1)], (2, 1, 2), (1, 2, 2), 1),
        ]
    ],
    *[
        (
            "convolve_transposed",
            {
                "padding": padding,
                "stride": stride,
                "dilation": dilation,
                "groups": groups,
                "output_padding": output_padding,
            },
            [x_shape, w_shape],
        )
        for x_shape, w_shape, padding, stride, dilation, groups, output_padding in [
            ((2, 4, 5), (4, 3, 3), [(0, 0)], (1,), (1,), 1, (0,)),
            ((2, 6, 5), (6, 2, 4), [(3, 1)], (3,), (2,), 2, (2,)),
            ((1, 4, 4, 3), (4, 2, 3, 2), [(1, 0), (0, 2)], (2, 3), (1, 2), 2, (1, 0)),
            ((2, 2, 3, 2, 4), (2, 2, 2, 3, 2), [(0, 1), (2, 0), (1, 1)], (2, 1, 2), (1, 2, 2), 1, (1, 0, 1)),
        ]
    ],
    *[
        ("pool", {"mode": mode, "window": window, "padding": padding, "stride": stride}, [x_shape])
        for mode in ("max", "average_include_padding", "average_exclude_padding")
        for x_shape, window, padding, stride in [
            ((2, 3, 9), (3,), [(2, 1)], (2,)),
            ((2, 3, 6, 7), (2, 3), [(1, 1), (0, 2)], (3, 1)),
            ((1, 2, 5, 4, 6), (2, 1, 3), [(0, 0), (0, 0), (1, 2)], (1, 2, 2)),
        ]
    ],
    *[("activation", {"mode": mode, "c": c}, [(50,)]) for mode in oracles.ACTIVATIONS for c in (0.5, 1.7)],
    *[("softmax", {"axes": axes, "log": log}, [(2, 5, 3, 4)]) for axes in [(1,), (1, 2, 3)] for log in (False, True)],
    *[("standardize", {"axes": axes, "epsilon": 1e-3}, [(3, 4, 5, 2)]) for axes in [(0, 2, 3), (2, 3), (1, 2, 3)]],
]
ORACLES = {
    "convolve": oracles.convolve,
    "convolve_transposed": oracles.convolve_transposed,
    "pool": oracles.pool,
    "activation": lambda x, mode, c: oracles.ACTIVATIONS[mode](x, c),
    "softmax": oracles.softmax,
    "standardize": oracles.standardize,
}
Answer = tuple[np.ndarray, list[np.ndarray]]


def arrays_of(number: int) -> list[np.ndarray]:
    name, options, shapes = QUESTIONS[number]
    arrays = [normal_numbers(10 * number + at, shape) for at, shape in enumerate(shapes)]
    if name == "pool" and options["mode"] == "max":
        arrays = [np.rint(array) for array in arrays]  # many of a window are equal
    return arrays


@pytest.fixture(scope="module")
def answers() -> list[Answer]:
    """JAX's."""
    asked = [(name, options, arrays_of(number), number) for number, (name, options, _) in enumerate(QUESTIONS)]
    child = [sys.executable, str(Path(__file__).with_name("jax_child.py"))]
    done = subprocess.run(child, input=pickle.dumps(asked), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    found: list[Answer] = pickle.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", ORACLES)
def test_values_and_gradients_are_those_of_jax(answers: list[Answer], name: str) -> None:
    assert Counter(name for name, *_ in QUESTIONS).keys() == ORACLES.keys()
    assert len(answers) == len(QUESTIONS)
    for number, (asked, options, _) in enumerate(QUESTIONS):
        if asked != name:
            continue
        value, pull = oracles.value_and_pullback(
            lambda *arrays, options=options: ORACLES[name](*arrays, **options), *arrays_of(number)
        )
        expected, gradients = answers[number]
        said = f"{name} {options}"
        np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-12, strict=True, err_msg=said)
        dy = np.random.default_rng(number).standard_normal(value.shape)
        for ours, theirs in zip(pull(dy), gradients, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-11, strict=True, err_msg=said)
