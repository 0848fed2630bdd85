"""The operations beside the convolutions on the arrays of every library: results of that library, and the same values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from operation_kinds import KINDS
from operation_problem import Problem, run
from operation_problems import CHOSEN
from operations import Case, differs
from test_arrays_gpu import LIBRARIES, Library, float64, numbers

import cudnnpy

# Other libraries' own warnings are no failures here.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(params=list(LIBRARIES))
def library(request: pytest.FixtureRequest) -> Library:
    return LIBRARIES[request.param]()


def everywhere(call: str, dtype: str) -> Problem:
    """The chosen problem of a call for arrays in C order, which is all that some libraries have."""
    problem = replace(CHOSEN[call], dtype=dtype, memory=())
    if problem.operation == "FusedConvolution":  # for whose engines the channels are last
        return replace(problem, options={**problem.options, "layout": "NHWC"})
    return problem


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("call", KINDS)
def test_every_operation_in_every_library(call: str, dtype: str, library: Library) -> None:
    """Results are of the library of the arrays given, and the same results as anywhere."""
    if dtype == "bfloat16" and not library.has_bfloat16:
        pytest.skip("this library has no bfloat16")
    problem = everywhere(call, dtype)
    if call == "BatchNormalization.forward_training" and not library.writes:
        problem = replace(problem, given=())  # running statistics are written
    for with_out in [False, True] if library.writes else [False]:
        in_library(Case(replace(problem, with_out=with_out)), library)


def in_library(case: Case, library: Library) -> None:
    """The call on a library's copies of the arrays."""
    problem, kind = case.problem, case.kind

    def make(values: np.ndarray, name: str) -> Any:
        dtype = numbers(1, dtype=kind.dtype_of(problem, name)).dtype
        return library.make(np.ascontiguousarray(values.astype(np.float32).astype(dtype)))  # all that Numba copies

    arrays = {name: make(placed.numpy(), name) for name, placed in case.inputs.items()}
    outs = {name: make(placed.numpy(), name) for name, placed in case.outs.items()}
    keywords = {name: value for name, value in case.keywords.items() if not name.startswith("out")}
    keywords |= {keyword: outs[name] for name, keyword in kind.outs(problem).items()}
    found = dict(zip(kind.results_of(problem), run(cudnnpy, problem, arrays, keywords), strict=True))
    for name, result in found.items():
        assert result is outs[name] if name in outs else isinstance(result, library.result)
    for name, result in (found | {name: arrays[name] for name in kind.updated(problem)}).items():
        assert cudnnpy.to_numpy(result).dtype.name == kind.dtype_of(problem, name)
        said = differs(float64(result), case.expected[name], case.allowed[name])
        assert not said, f"{name}: {said}"
