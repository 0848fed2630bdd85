"""tests/gpu/test_convolution_against_reference.py without a GPU: NumPy computes in place of cuDNN, rightly or with a fault.

The test passes what is right, finds each fault, and shrinks it to a problem of few elements.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis.errors import FailedHealthCheck, Unsatisfiable

import cudnnpy
from cudnnpy import reference

FILE = Path(__file__).resolve().parents[2] / "gpu" / "test_convolution_against_reference.py"
Options = dict[str, Any]  # of Convolution, or of a call of its operations
Fault = Callable[[Options], Options]


class StandIn:
    """The reference, with a fault in the options that it is given."""

    fault: Fault
    operands: list[np.ndarray]  # of the last call: hypothesis ends with the smallest problem that fails

    def __init__(self, **options: Any) -> None:
        self.convolution = reference.Convolution(**type(self).fault(options))

    def __getattr__(self, operation: str) -> Callable[..., np.ndarray]:
        def call(*inputs: np.ndarray, **options: Any) -> np.ndarray:
            type(self).operands = [*inputs, options["out"]]
            result: np.ndarray = getattr(self.convolution, operation)(*inputs, **type(self).fault(options))
            return result

        return call


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Fault], None]:
    """Run the GPU test of an operation on the stand-in."""
    spec = importlib.util.spec_from_file_location("against_reference", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(cudnnpy, "Convolution", StandIn)
    monkeypatch.setattr(cudnnpy, "to_device", lambda array: array.copy(order="K"))
    monkeypatch.setattr(cudnnpy, "to_numpy", lambda array: array)

    def run_with(operation: str, fault: Fault) -> None:
        monkeypatch.setattr(StandIn, "fault", staticmethod(fault), raising=False)
        module.test_convolution_against_reference(operation=operation, prefer="fastest")

    return run_with


@pytest.mark.parametrize("operation", ["forward", "backward_data", "backward_filter", "backward_bias"])
def test_what_is_right_passes(run: Callable[[str, Fault], None], operation: str) -> None:
    run(operation, lambda options: options)


def no_algorithm(options: Options) -> Options:
    if "out" in options:
        raise cudnnpy.NoAlgorithmError("a problem", "prefer='fastest'", "no candidates", [])
    return options


def test_rejecting_every_problem_fails(run: Callable[[str, Fault], None]) -> None:
    with pytest.raises((FailedHealthCheck, Unsatisfiable)):
        run("forward", no_algorithm)


@pytest.mark.parametrize(
    ("operation", "option", "faulty", "elements"),
    [
        ("forward", "padding", lambda pairs: tuple(pair[::-1] for pair in pairs), 4),  # 1 of x, 1 of w, 2 of y
        ("backward_data", "padding", lambda pairs: tuple(pair[::-1] for pair in pairs), 4),
        ("backward_filter", "dilation", lambda dilation: 1, 8),
        ("backward_filter", "stride", lambda stride: 1, 4),
        ("backward_bias", "beta", lambda beta: 0.0, 2),
        ("backward_data", "beta", lambda beta: beta or 1e-300, 3),  # NaN in out reaches the result
        ("forward", "alpha", lambda alpha: alpha * (1 + 2.0**-11), 3),  # an error of the size of tf32's
    ],
)
def test_a_fault_is_found_and_shrunk(
    run: Callable[[str, Fault], None], operation: str, option: str, faulty: Callable[[Any], Any], elements: int
) -> None:
    with pytest.raises((AssertionError, ValueError, ExceptionGroup)):
        run(operation, lambda options: options | ({option: faulty(options[option])} if option in options else {}))
    assert sum(array.size for array in StandIn.operands) <= elements
