"""choose_algorithm on a GPU: the choice meets the options, and gives the reference's result on the raw API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from ctypes import byref, c_float
from typing import Any

import numpy as np
import pytest
import tolerance
from cuda.core import Device
from numpy.typing import NDArray

import cudnnpy
from cudnnpy import descriptors, raw, reference
from cudnnpy._checks.preferences import PREFERENCES
from cudnnpy.descriptors import (
    AlgorithmCandidate,
    ConvolutionDescriptor,
    FilterDescriptor,
    TensorDescriptor,
    choose_algorithm,
    workspace_size,
)
from cudnnpy.errors import NoAlgorithmError
from cudnnpy.names import short_name

OPERATIONS = ("forward", "backward_data", "backward_filter")
KINDS = {"strict": ("float32", False), "tf32": ("float32", True), "float16": ("float16", True)}
GEOMETRY: dict[str, Any] = {"padding": (1, 2), "stride": (1, 2), "dilation": 1, "groups": 2}
X, W = (4, 16, 20, 18), (24, 8, 3, 3)
Y = reference.Convolution(**GEOMETRY).output_shape(X, W)
LIMIT = 1 << 20


@pytest.fixture
def handle() -> Iterator[cudnnpy.Handle]:
    Device(0).set_current()
    with cudnnpy.Handle(0) as made:
        yield made


class Case:
    """One operation on random numbers: descriptors, arrays on the device, and the result with its bounds."""

    def __init__(self, operation: Any, dtype: str, owned: ExitStack, math_type: Any = "default_math") -> None:
        self.operation, self.dtype = operation, dtype
        self.functions = descriptors.FUNCTIONS[operation]
        self.descriptors = (
            owned.enter_context(TensorDescriptor(X, dtype)),  # type: ignore[arg-type]
            owned.enter_context(FilterDescriptor(W, dtype)),  # type: ignore[arg-type]
            owned.enter_context(ConvolutionDescriptor(**GEOMETRY, math_type=math_type)),
            owned.enter_context(TensorDescriptor(Y, dtype)),  # type: ignore[arg-type]
        )
        random = np.random.default_rng(5)
        shapes = {"x": X, "w": W, "y": Y}
        host = {role: random.uniform(-1, 1, shape).astype(dtype) for role, shape in shapes.items()}
        self.result = self.functions.operands[-1]
        self.expected, self.products = (self.on_the_cpu({role: f(host[role]) for role in host}) for f in (exact, sizes))
        host[self.result][...] = np.nan
        self.arrays = {role: cudnnpy.to_device(array) for role, array in host.items()}

    def on_the_cpu(self, a: dict[str, Any]) -> NDArray[np.float64]:
        convolution = reference.Convolution(**GEOMETRY)
        if self.operation == "forward":
            return np.asarray(convolution.forward(a["x"], a["w"]))
        if self.operation == "backward_data":
            return np.asarray(convolution.backward_data(a["y"], a["w"], X))
        return np.asarray(convolution.backward_filter(a["y"], a["x"], W))

    def run(self, handle: Any, candidate: AlgorithmCandidate, descriptors: Any = None) -> None:
        """Run an algorithm into a result full of NaN, with a workspace full of NaN, and compare."""
        x, w, convolution, y = descriptors or self.descriptors
        named = {"x": x, "w": w, "y": y}
        poison = np.full(candidate.workspace_size // 4 + 1, np.nan, np.float32)
        space = cudnnpy.to_device(poison)
        result = cudnnpy.to_device(np.full(self.expected.shape, np.nan, self.dtype))
        addresses = {role: array.pointer for role, array in self.arrays.items()} | {self.result: result.pointer}
        first, second, last = self.functions.operands
        raw.call(
            self.functions.function("cudnnConvolution{}"),
            *(handle, byref(c_float(1)), named[first], addresses[first], named[second], addresses[second]),
            *(convolution, candidate.algorithm, space.pointer, candidate.workspace_size, byref(c_float(0))),
            *(named[last], addresses[last]),
        )
        Device(0).sync()
        error = tolerance.allowed(
            self.expected,
            self.expected,
            self.products,
            0.0,
            inputs=self.dtype,
            stored=self.dtype,
            length={"forward": 72, "backward_data": 108, "backward_filter": 4 * Y[2] * Y[3]}[self.operation],
            tf32=self.dtype == "float32" and candidate.math_type != raw.CUDNN_FMA_MATH,
            approximate=tolerance.is_approximate(short_name(candidate.algorithm), ()),
            reduced=not candidate.deterministic,
        )
        assert tolerance.difference(cudnnpy.to_numpy(result), self.expected, error) == "", candidate


def exact(array: NDArray[Any]) -> NDArray[np.float64]:
    return array.astype(np.float64)


def sizes(array: NDArray[Any]) -> NDArray[np.float64]:
    return np.abs(array.astype(np.float64))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prefer", PREFERENCES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_choice_meets_the_options_and_is_right(
    handle: cudnnpy.Handle, operation: str, prefer: Any, kind: str
) -> None:
    dtype, tf32 = KINDS[kind]
    with ExitStack() as owned:
        case = Case(operation, dtype, owned)
        try:
            choice = choose_algorithm(
                case.operation, *case.descriptors, prefer=prefer, workspace_limit=LIMIT, tf32=tf32, handle=handle
            )
        except NoAlgorithmError:  # C has an algorithm without workspace for every forward, not every gradient
            assert (prefer, operation != "forward") == ("no_workspace", True)
            return
        print(choice.algorithm, choice.math_type, choice.workspace_size, choice.time)
        assert choice.workspace_size <= (0 if prefer == "no_workspace" else LIMIT)
        assert (choice.time is not None and choice.time > 0) is (prefer == "autotune")
        convolution = case.descriptors[2]
        assert convolution.math_type == short_name(choice.math_type)
        assert kind != "strict" or choice.math_type is raw.CUDNN_FMA_MATH
        needed = workspace_size(case.operation, *case.descriptors, choice.algorithm, handle=handle)
        assert needed <= choice.workspace_size
        case.run(handle, choice)


@pytest.mark.parametrize("prefer", ["fastest", "autotune"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_usable_candidate_is_right_with_its_math_type(
    handle: cudnnpy.Handle, operation: str, prefer: Any
) -> None:
    with ExitStack() as owned:
        case = Case(operation, "float32", owned)
        choice = choose_algorithm(case.operation, *case.descriptors, prefer=prefer, handle=handle)
        usable = [candidate for candidate in choice.candidates if not candidate.rejection_reason]
        assert len(usable) >= 2
        for candidate in usable:
            raw.call("cudnnSetConvolutionMathType", case.descriptors[2], candidate.math_type)
            case.run(handle, candidate)
        if prefer == "autotune":
            assert choice.time == min(candidate.time for candidate in usable if candidate.time is not None)


@pytest.mark.parametrize("as_addresses", [False, True])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_search_on_memory_that_is_passed(operation: str, as_addresses: bool) -> None:
    """On a stream of its own; only the operation's result and the workspace are written."""
    Device(0).set_current()
    stream = Device(0).create_stream()
    with ExitStack() as owned, cudnnpy.Handle(0, stream) as handle:
        case = Case(operation, "float32", owned)
        space = cudnnpy.empty((LIMIT,), "uint8")
        before = {role: cudnnpy.to_numpy(array) for role, array in case.arrays.items()}
        arrays: Any = tuple(case.arrays[role].pointer if as_addresses else case.arrays[role] for role in "xwy")
        choice = choose_algorithm(
            case.operation, *case.descriptors, prefer="autotune", handle=handle, arrays=arrays, workspace=space
        )
        assert choice.workspace_size <= LIMIT
        stream.sync()
        for role, array in case.arrays.items():
            now = cudnnpy.to_numpy(array)
            assert np.array_equal(now, before[role], equal_nan=True) is (role != case.result)
        case.run(handle, choice)
