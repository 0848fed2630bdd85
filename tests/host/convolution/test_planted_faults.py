"""The property tests that users copy, without a GPU: NumPy computes in place of cuDNN, rightly or with a fault.

tests/gpu/test_convolution_against_reference.py passes what is right, finds each fault, and shrinks it to a problem of few
elements. The test of docs/test-your-convolution.md finds faults of padding, columns, groups and data types.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, settings
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


# docs/test-your-convolution.md

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "test-your-convolution.md").read_text()
Compute = Callable[..., np.ndarray]  # my_convolution of the page


def on_result(change: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """A fault that changes the result in place, as its shape and the problem demand."""

    def faulty(right: Compute, x: np.ndarray, w: np.ndarray, *rest: Any) -> np.ndarray:
        y = right(x, w, *rest)
        change(y, x, w, *rest)
        return y

    return faulty


def in_groups(w: np.ndarray, groups: int) -> np.ndarray:
    return w.reshape(groups, len(w) // groups, *w.shape[1:]).copy()


def last_group_by_first(
    right: Compute, x: np.ndarray, w: np.ndarray, padding: Any, stride: Any, groups: int
) -> np.ndarray:
    by_group = in_groups(w, groups)
    by_group[-1] = by_group[0]
    return right(x, by_group.reshape(w.shape), padding, stride, groups)


def summed_in_float16(
    right: Compute, x: np.ndarray, w: np.ndarray, padding: Any, stride: Any, groups: int
) -> np.ndarray:
    """Of float16 alone, channel by channel."""
    if x.dtype != np.float16:
        return right(x, w, padding, stride, groups)
    count = w.shape[1]
    parts = x.reshape(len(x), groups, count, *x.shape[2:])
    total: Any = np.float16(0)
    for channel in range(count):
        total = total + right(parts[:, :, channel], w[:, channel : channel + 1], padding, stride, groups)
    return np.asarray(total)


def rounded_to_tf32(right: Compute, x: np.ndarray, w: np.ndarray, *rest: Any) -> np.ndarray:
    if w.dtype == np.float32:
        w = ((w.view(np.uint32) + 0x1000) & 0xFFFFE000).view(np.float32)
    return right(x, w, *rest)


DOCS_FAULTS: dict[str, Callable[..., np.ndarray]] = {
    "padding on the wrong sides": lambda right, x, w, padding, *rest: right(x, w, [pair[::-1] for pair in padding], *rest),
    "columns from 16": on_result(lambda y, *_: y[..., 16:].fill(0)),
    "one group": last_group_by_first,
    "the last row of a 3x3 filter": lambda right, x, w, *rest: right(
        x, w * (np.arange(w.shape[2]) < 2)[:, None].astype(w.dtype) if w.shape[2:] == (3, 3) else w, *rest
    ),
    "float16 sums": summed_in_float16,
    "tf32": rounded_to_tf32,
}  # fmt: skip


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The names of the page's first two programs, without its calls of the test."""
    repeatable = settings(derandomize=True, database=None, deadline=None, phases=(Phase.generate,))
    names: dict[str, Any] = {"repeatable": repeatable}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[:2]:
        without_call = block.replace("test_my_convolution()  # pytest calls it, too", "")
        exec(without_call.replace("@settings(deadline=None)", "@repeatable"), names)
    names["right"] = names["my_convolution"]
    return names


def run_page(page: dict[str, Any], fault: Callable[..., np.ndarray]) -> None:
    page["my_convolution"] = lambda *given: fault(page["right"], *given)
    page["test_my_convolution"]()


def test_the_page_passes_what_is_right(page: dict[str, Any]) -> None:
    run_page(page, lambda right, *given: right(*given))


@pytest.mark.parametrize("fault", DOCS_FAULTS.values(), ids=DOCS_FAULTS)
def test_the_page_finds_a_fault(page: dict[str, Any], fault: Callable[..., np.ndarray]) -> None:
    with pytest.raises((AssertionError, ExceptionGroup)):
        run_page(page, fault)
