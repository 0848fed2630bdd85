"""The GPU tests of the operations are tested: the reference passes them on the CPU, and planted faults do not.

What tests/gpu/test_operations.py does to cudnnpy is done here to cudnnpy.reference, dressed up for PyTorch's CPU tensors.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from cudnnpy import reference
from cudnnpy.errors import NoAlgorithmError

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))

import operations
import strategies
import test_operations
from drawing import check_each
from operation_kinds import KINDS
from operation_problem import Problem
from operation_problems import CHOSEN, problems
from strategies import Memory
from test_operations import Outcomes, check_call, lacking, size
from test_operations_errors import (  # noqa: F401  the reference raises the same errors, so these run unchanged
    no_c_calls,
    test_another_type_than_the_others_is_refused,
    test_bad_options_and_shapes,
    test_empty_arrays_beside_others_are_refused,
    test_factors_are_numbers,
    test_in_place_where_it_is_not_offered_is_refused,
    test_integers_are_refused,
    test_results_that_overlap_an_input_are_refused,
    test_results_that_write_one_element_twice_are_refused,
    test_shapes_that_do_not_fit_are_refused,
    test_what_is_no_array_is_a_type_error,
)

EXAMPLES = 25
Fault = Callable[[dict[str, torch.Tensor], list[torch.Tensor]], None]


def array_of(tensor: Any) -> Any:
    """A tensor's memory as NumPy's; anything else as it is."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def tensor_of(array: Any) -> Any:
    """The inverse; a gradient that is not there is None."""
    if array is None:
        return None
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


class Dressed:
    """cudnnpy.reference for PyTorch's CPU tensors, with a fault in every call if one is given."""

    def __init__(self, fault: Fault | None = None) -> None:
        self.fault = fault

    def __getattr__(self, name: str) -> Any:
        original = getattr(reference, name)
        return lambda **options: _Object(self, original(**options))

    def dress(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            bound = inspect.signature(function).bind(*arguments, **keywords)
            given = {name: value for name, value in bound.arguments.items() if isinstance(value, torch.Tensor)}
            arrays = {name: array_of(tensor) for name, tensor in given.items()}
            found = function(**{**bound.arguments, **arrays})
            if not arrays:  # output_shape
                return found
            results = []
            for result in found if isinstance(found, tuple) else (found,):
                same = [name for name, array in arrays.items() if array is result]
                results.append(given[same[-1]] if same else tensor_of(result))
            if self.fault is not None:
                self.fault(given, results)
            return tuple(results) if isinstance(found, tuple) else results[0]

        return call


class _Object:
    def __init__(self, package: Dressed, original: Any) -> None:
        self._package, self._original = package, original

    def __getattr__(self, name: str) -> Any:
        return self._package.dress(getattr(self._original, name))


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies, "DEVICE", "cpu")
    monkeypatch.setattr(operations, "nn", Dressed())


@pytest.mark.parametrize("call", KINDS)
def test_the_reference_passes(call: str) -> None:
    """So the bounds are no smaller than rounding, for every type, layout and special value that is drawn."""
    outcomes = Outcomes()
    check_each(EXAMPLES, problems(call), lambda p: check_call(p, outcomes), size)
    check_call(CHOSEN[call], outcomes)
    assert sum(outcomes.ran.values()) > EXAMPLES / 2
    assert not outcomes.refused


def test_the_other_properties_hold_for_the_reference() -> None:
    for layout in ("NCHW", "NHWC"):
        test_operations.test_output_shapes_without_running(layout)
    for mode in ("max", "max_deterministic"):
        test_operations.test_padding_never_is_the_maximum(mode)


def one_wrong(given: dict[str, torch.Tensor], results: list[torch.Tensor]) -> None:
    """The last element of the last result is off by a tenth."""
    last = results[-1][(-1,) * results[-1].ndim]
    last.copy_(last * 1.1 + 0.1)


def one_not_a_number(given: dict[str, torch.Tensor], results: list[torch.Tensor]) -> None:
    results[0][(0,) * results[0].ndim] = torch.nan


def one_outside(given: dict[str, torch.Tensor], results: list[torch.Tensor]) -> None:
    """The element before out's first."""
    out = given["out"]
    out.as_strided((1,), (1,), out.storage_offset() - 1).fill_(1.0)


def one_input(given: dict[str, torch.Tensor], results: list[torch.Tensor]) -> None:
    """An input's last element is written."""
    name = next(name for name in given if not name.startswith(("out", "running")))
    given[name][(-1,) * given[name].ndim] = 7.0


def another_array(given: dict[str, torch.Tensor], results: list[torch.Tensor]) -> None:
    """The result is right, but not in out."""
    results[0] = results[0].clone()


def shorter(given: dict[str, torch.Tensor], results: list[torch.Tensor]) -> None:
    results[0] = results[0][:-1]


def wider(given: dict[str, torch.Tensor], results: list[torch.Tensor]) -> None:
    results[0] = results[0].double() if results[0].dtype != torch.float64 else results[0].float()


FAULTS: dict[Fault, str] = {
    one_wrong: "of .* elements wrong",
    one_not_a_number: "1 NaN|special values wrong",
    one_outside: "1 elements around out",
    one_input: "the input .* was changed|elements wrong",
    another_array: "is another array than the one given",
    shorter: "shape|another array",
    wider: "expected torch",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("call", KINDS)
def test_planted_faults_are_found(call: str, fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "nn", Dressed(fault))
    problem = replace(CHOSEN[call], with_out=True)
    with pytest.raises(AssertionError, match=FAULTS[fault]):
        check_call(problem, Outcomes())


@pytest.mark.parametrize("call", ["Pooling.forward", "BatchNormalization.forward_training"])
def test_a_write_into_a_gap_is_found(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_gap(given: dict[str, torch.Tensor], results: list[torch.Tensor]) -> None:
        out = given["out"]
        out.as_strided((1,), (1,), out.storage_offset() + 1).fill_(1.0)

    monkeypatch.setattr(operations, "nn", Dressed(in_gap))
    memory = (Memory(), Memory(step=(1, 1, 1, 2), extra=(0, 0, 0, 1)))
    problem = replace(CHOSEN[call], with_out=True, memory=memory)
    with pytest.raises(AssertionError, match="1 elements around out"):
        check_call(problem, Outcomes())


def test_other_bits_in_a_later_call_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def fifth(given: dict[str, torch.Tensor], results: list[torch.Tensor]) -> None:
        calls.append(1)
        if len(calls) == 5:
            results[0].mul_(1 + 2.0**-23)  # within the bound

    monkeypatch.setattr(operations, "nn", Dressed(fifth))
    with pytest.raises(AssertionError, match="other bits in call 5"):
        check_call(replace(CHOSEN["Softmax.backward"], repeats=6), Outcomes())


class Refusing(Dressed):
    """Has no engine for anything; and writes nothing, unless it is told to."""

    def dress(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            if self.fault is not None:
                self.fault(keywords, [])
            raise NoAlgorithmError("this", "nothing", "", [])

        return call


def test_refusals_are_counted_and_plain_ones_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "nn", Refusing())
    outcomes, plain = Outcomes(), CHOSEN["Softmax.forward"]
    check_call(replace(plain, memory=(Memory(offset=1),)), outcomes)
    assert outcomes.refused[f"Softmax.forward {plain.dtype}"] == 1
    assert not outcomes.unexpected
    check_call(plain, outcomes)
    assert outcomes.unexpected == {"Softmax.forward": [plain]}
    with pytest.raises(AssertionError, match=r"LACKING does not say so:\s*Softmax.forward .*float"):
        test_operations.test_drawn_problems("Softmax.forward", Outcomes())
    with pytest.raises(AssertionError, match=r"refused: .*no algorithm for this"):
        test_operations.test_smoke_chosen_problems("Softmax.forward", 1, outcomes)
    known = len(outcomes.unexpected["Softmax.forward"])
    row = "Softmax.forward", {"dtype": ("float16", "float32"), "rank": 4}, "planted"
    monkeypatch.setattr(test_operations, "LACKING", [row])
    check_call(plain, outcomes)
    assert len(outcomes.unexpected["Softmax.forward"]) == known
    assert lacking(plain) == "planted"
    assert not lacking(replace(plain, dtype="float64"))
    monkeypatch.setattr(operations, "nn", Refusing(one_outside))
    with pytest.raises(AssertionError, match="refused, but out was changed, or what is around it"):
        check_call(replace(plain, with_out=True), outcomes)


def test_failures_are_collected_the_smallest_first() -> None:
    def fail(problem: Problem) -> None:
        assert len(problem.shape) == 0, "planted"

    with pytest.raises(AssertionError, match=r"^10 problems failed:\nProblem") as caught:
        check_each(40, problems("Activation.forward"), fail, size)
    shown = [line for line in str(caught.value).splitlines() if line.startswith("Problem(")]
    names = {"Problem": Problem, "Memory": Memory}
    sizes = [int(np.prod(eval(line, names).shape)) for line in shown]  # what is printed can be pasted
    assert sizes == sorted(sizes)
    assert len(sizes) == 10


def test_the_seed_is_printed_before_anything_is_drawn(tmp_path):
    """A run that is killed can be repeated: by then its seed has been printed."""
    gpu = Path(__file__).parents[1] / "gpu"
    stopped = """
import os, sys
sys.path.insert(0, {gpu!r})
import pytest
from drawing import print_outcomes

@pytest.fixture(scope="module")
def outcomes(request):
    return print_outcomes(request, object())

def test_it_is_killed(outcomes):
    os._exit(9)
"""
    (tmp_path / "test_stopped.py").write_text(stopped.format(gpu=str(gpu)))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    seed = {"CUDNNPY_PROPERTY_SEED": "123", "CUDNNPY_PROPERTY_EXAMPLES": "45"}
    run = subprocess.run(command, env={**os.environ, **seed}, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 9
    assert "CUDNNPY_PROPERTY_SEED=123 CUDNNPY_PROPERTY_EXAMPLES=45" in run.stdout
