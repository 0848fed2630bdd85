"""choose_algorithm and workspace_size: cuDNN's descriptors are real, and its Get and Find functions are stand-ins."""

from __future__ import annotations

import contextlib
import copy
import pickle
import re
from collections.abc import Callable, Iterator
from ctypes import byref, c_void_p, cast
from typing import Any, NamedTuple

import pytest
from messages import says
from stand_in_device import Array
from stand_in_library import LibcudnnFixture

import cudnnpy
from cudnnpy import descriptors, raw
from cudnnpy._arrays import array_libraries
from cudnnpy._arrays.array_libraries import ArrayLibrary
from cudnnpy.descriptors import (
    AlgorithmChoice,
    ConvolutionDescriptor,
    FilterDescriptor,
    TensorDescriptor,
    choose_algorithm,
    workspace_size,
)
from cudnnpy.errors import CaptureError, NoAlgorithmError, StatusError
from cudnnpy.handle import Handle

X, W, Y = (2, 4, 8, 8), (6, 2, 3, 3), (2, 6, 6, 6)  # in two groups
SIZES = {"x": 2 * 4 * 64 * 4, "w": 6 * 2 * 9 * 4, "y": 2 * 6 * 36 * 4}
ORDER = {"forward": "xwy", "backward_data": "wyx", "backward_filter": "xyw"}
DEFAULT, TENSOR, FMA = raw.CUDNN_DEFAULT_MATH, raw.CUDNN_TENSOR_OP_MATH, raw.CUDNN_FMA_MATH
STREAM = 0x5000


class Result(NamedTuple):
    """What cuDNN reports of an algorithm; `math_type` None is that of the descriptor."""

    algorithm: int
    memory: int = 0
    math_type: int | None = None
    deterministic: bool = True
    status: int = 0
    time: float = -1.0


class Machine:
    """Stand-ins for the functions of C that need a GPU."""

    def __init__(self) -> None:
        self.listed = [Result(1, 4096), Result(0, 0)]
        self.found = [Result(1, 4096, time=0.25), Result(0, 0, time=0.5)]
        self.needed = 4096
        self.error: Exception | None = None
        self.calls: list[tuple[str, tuple[Any, ...], str]] = []  # with the math type of the descriptor
        self.memory = 1 << 30
        self.taken: list[tuple[int, int, int]] = []
        self.capturing = False

    def call(self, name: str, *arguments: Any) -> int | None:
        if name == "cudnnGetStream":
            arguments[-1]._obj.value = STREAM
        elif name.endswith("MaxCount"):
            arguments[-1]._obj.value = len(self.listed) + len(self.found)
        elif re.match("cudnn(Get|Find)Convolution.*(Algorithm_v7|AlgorithmEx|WorkspaceSize)$", name):
            math = next(one for one in arguments if is_convolution(one))
            kept = math.math_type if isinstance(math, ConvolutionDescriptor) else ""
            self.calls.append((name, arguments, kept))
            if self.error is not None:
                raise self.error
            if name.endswith("WorkspaceSize"):
                arguments[-1]._obj.value = self.needed
                return 0
            at = 6 if name.endswith("_v7") else 9
            self.fill(self.found if at == 9 else self.listed, *arguments[at : at + 2], kept)
            assert arguments[at - 1] == len(arguments[at + 1])
        else:
            return None  # the real function answers
        return 0

    def fill(self, results: list[Result], count: Any, structs: Any, kept: str) -> None:
        count._obj.value = len(results)
        for struct, result in zip(structs, results, strict=False):
            struct.algo, struct.memory, struct.status, struct.time = (
                result.algorithm,
                result.memory,
                result.status,
                result.time,
            )
            struct.determinism = int(result.deterministic)
            default = raw.cudnnMathType_t[f"CUDNN_{kept.upper()}"]
            struct.mathType = default if result.math_type is None else result.math_type

    def take(self, size: int, device: int, stream: int) -> tuple[int, int, Any]:
        if size > self.memory:
            raise MemoryError(f"no {size} bytes")
        self.taken.append((size, device, stream))
        return 1000 * len(self.taken), size, object()

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.calls]


def is_convolution(value: object) -> bool:
    return isinstance(value, ConvolutionDescriptor | raw.cudnnConvolutionDescriptor_t)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, libcudnn: LibcudnnFixture) -> Machine:
    machine = Machine()
    libcudnn(machine.call, real=True)
    monkeypatch.setattr(descriptors.memory, "allocate", machine.take)
    monkeypatch.setattr(descriptors.memory, "trim_pool_afterwards", lambda device, stream: contextlib.nullcontext())
    monkeypatch.setattr(descriptors, "is_stream_or_torch_capturing", lambda stream: machine.capturing)
    monkeypatch.setattr(
        descriptors, "on_device", lambda device: contextlib.nullcontext((0 if device is None else device, 1))
    )
    handle = Handle.__new__(Handle)
    handle._pointer = handle._as_parameter_ = pointer(raw.cudnnHandle_t, 0x10)
    handle._device, handle._address = 0, STREAM
    monkeypatch.setattr(Handle, "default", classmethod(lambda cls, device=None: handle))
    monkeypatch.setattr(Handle, "set_stream", lambda self, stream: None)
    library = ArrayLibrary(
        "made up",
        lambda array: (array.pointer, (array.shape, array.strides, array.dtype, array.device)),
        lambda device: 0,
        lambda *_: lambda: None,
        lambda array: array.writable,
        lambda array: array.pointer,
    )
    monkeypatch.setitem(array_libraries._libraries, Array, library)
    return machine


def pointer(kind: Any, number: int) -> Any:
    return cast(c_void_p(number), kind)


@pytest.fixture
def tensors() -> Iterator[tuple[Any, ...]]:
    with (
        TensorDescriptor(X) as x,
        FilterDescriptor(W) as w,
        ConvolutionDescriptor((0, 0), groups=2, math_type="fma_math") as convolution,
        TensorDescriptor(Y) as y,
    ):
        yield x, w, convolution, y


# The choice


@pytest.mark.parametrize("operation", ORDER)
def test_each_operation_calls_its_functions_with_its_operands(
    machine: Machine, tensors: tuple[Any, ...], operation: Any
) -> None:
    names = dict(zip(("x", "w", "convolution", "y"), tensors, strict=True))
    direction = {"forward": "Forward", "backward_data": "BackwardData", "backward_filter": "BackwardFilter"}[operation]
    first, second, last = (names[role] for role in ORDER[operation])
    choose_algorithm(operation, *tensors)
    name, arguments, _ = machine.calls[-1]
    assert name == f"cudnnGetConvolution{direction}Algorithm_v7"
    assert list(arguments[1:5]) == [first, second, tensors[2], last]
    choose_algorithm(operation, *tensors, prefer="autotune", arrays=(0x100, 0x200, 0x300), workspace=Array(64))
    name, arguments, _ = machine.calls[-1]
    assert name == f"cudnnFindConvolution{direction}AlgorithmEx"
    address = {"x": 0x100, "w": 0x200, "y": 0x300}
    a, b, c = (address[role] for role in ORDER[operation])
    assert list(arguments[1:8]) == [first, a, second, b, tensors[2], last, c]
    algorithm = descriptors.FUNCTIONS[operation].algorithms(1)
    assert workspace_size(operation, *tensors, algorithm) == machine.needed
    name, arguments, _ = machine.calls[-1]
    assert name == f"cudnnGetConvolution{direction}WorkspaceSize"
    assert list(arguments[1:6]) == [first, second, tensors[2], last, algorithm]


@pytest.mark.parametrize(
    ("options", "algorithm"),
    [
        ({}, 1),
        ({"workspace_limit": 4096}, 1),
        ({"workspace_limit": 4095}, 0),
        ({"prefer": "limited_workspace"}, 1),
        ({"prefer": "limited_workspace", "workspace_limit": 100}, 0),
        ({"prefer": "no_workspace"}, 0),
        ({"prefer": "autotune"}, 1),
        ({"prefer": "autotune", "workspace_limit": 0}, 0),
    ],
)
def test_the_first_that_meets_the_preference_is_chosen(
    machine: Machine, tensors: tuple[Any, ...], options: dict[str, Any], algorithm: int
) -> None:
    choice = choose_algorithm("forward", *tensors, **options)
    assert choice.algorithm is raw.cudnnConvolutionFwdAlgo_t(algorithm)
    assert choice.workspace_size == (4096 if algorithm else 0)
    measured = options.get("prefer") == "autotune"
    assert choice.time == ((0.25 if algorithm else 0.5) if measured else None)
    assert [candidate.algorithm for candidate in choice.candidates] == [1, 0]
    assert [not candidate.rejection_reason for candidate in choice.candidates] == [algorithm == 1, True]
    assert machine.names.count("cudnnFindConvolutionForwardAlgorithmEx") == measured


def test_limited_workspace_means_1_gib(machine: Machine, tensors: tuple[Any, ...]) -> None:
    machine.listed = [Result(1, (1 << 30) + 1), Result(0, 1 << 30)]
    assert choose_algorithm("forward", *tensors).algorithm == 1
    choice = choose_algorithm("forward", *tensors, prefer="limited_workspace")
    assert choice.algorithm == 0
    assert choice.candidates[0].rejection_reason == "needs 1 GiB, the limit is 1 GiB"


@pytest.mark.parametrize("prefer", ["fastest", "autotune"])
@pytest.mark.parametrize(
    ("dtype", "tf32", "asked"),
    [
        ("float32", True, "default_math"),
        ("float32", False, "fma_math"),
        ("float16", True, "tensor_op_math"),
        ("bfloat16", False, "tensor_op_math"),
        ("float64", False, "default_math"),
    ],
)
def test_the_search_is_not_limited_by_the_math_type_of_before(
    machine: Machine, dtype: Any, tf32: bool, asked: str, prefer: Any
) -> None:
    """That of the choice is set."""
    machine.listed = machine.found = [Result(1, 64, math_type=FMA, time=1.0)]
    with (
        TensorDescriptor(X, dtype) as x,
        FilterDescriptor(W, dtype) as w,
        ConvolutionDescriptor((0, 0), groups=2, math_type="tensor_op_math_allow_conversion") as convolution,
        TensorDescriptor(Y, dtype) as y,
    ):
        choice = choose_algorithm("forward", x, w, convolution, y, prefer=prefer, tf32=tf32)
        assert {kept for _, _, kept in machine.calls} == {asked}
        assert choice.math_type is FMA
        assert convolution.math_type == "fma_math"


def test_tf32_is_rejected_where_it_is_not_allowed(machine: Machine, tensors: tuple[Any, ...]) -> None:
    machine.listed = [Result(1, 0, DEFAULT), Result(2, 0, TENSOR), Result(7, 0, FMA)]
    choice = choose_algorithm("forward", *tensors, tf32=False)
    assert (choice.algorithm, choice.math_type) == (7, FMA)
    assert [candidate.rejection_reason for candidate in choice.candidates] == ["uses tf32", "uses tf32", ""]
    choice = choose_algorithm("forward", *tensors)
    assert (choice.algorithm, choice.math_type) == (1, DEFAULT)
    machine.listed = [Result(7, 0, FMA)]
    assert choose_algorithm("forward", *tensors).math_type is FMA


def test_what_cudnn_does_not_support_and_what_is_not_deterministic(machine: Machine, tensors: tuple[Any, ...]) -> None:
    machine.listed = [Result(6, status=3000), Result(5, status=7777), Result(2, deterministic=False), Result(1, 64)]
    choice = choose_algorithm("forward", *tensors, deterministic=True)
    assert (choice.algorithm, choice.deterministic) == (1, True)
    reasons = [candidate.rejection_reason for candidate in choice.candidates]
    assert reasons == [
        "not supported here: CUDNN_STATUS_NOT_SUPPORTED (3000)",
        "not supported here: an unknown status (7777)",
        "not deterministic",
        "",
    ]
    assert [candidate.status for candidate in choice.candidates] == [3000, 7777, 0, 0]
    choice = choose_algorithm("forward", *tensors)
    assert (choice.algorithm, choice.deterministic) == (2, False)


def test_where_nothing_fits_each_candidate_is_listed(machine: Machine, tensors: tuple[Any, ...]) -> None:
    machine.listed = [Result(1, 4096), Result(6, status=3000)]
    with pytest.raises(NoAlgorithmError, match=r"(?s)no algorithm for forward .*prefer='no_workspace'") as caught:
        choose_algorithm("forward", *tensors, prefer="no_workspace")
    error = caught.value
    assert tensors[2].math_type == "fma_math"
    assert [candidate.name for candidate in error.candidates] == ["implicit_precomp_gemm", "winograd"]
    assert "needs 4 KiB, the limit is 0 bytes" in error.candidates[0].rejection_reason
    assert cudnnpy.candidates_table(error.candidates) in str(error)
    assert re.search("implicit_precomp_gemm +legacy +4 KiB .* default_math +needs 4 KiB", str(error))
    for same in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (str(same), list(same.candidates)) == (str(error), list(error.candidates))


def test_a_choice_can_be_copied(machine: Machine, tensors: tuple[Any, ...]) -> None:
    choice = choose_algorithm("forward", *tensors)
    assert pickle.loads(pickle.dumps(choice)) == choice
    assert isinstance(choice, AlgorithmChoice)


@pytest.mark.parametrize("prefer", ["fastest", "autotune"])
def test_an_error_leaves_the_math_type(machine: Machine, tensors: tuple[Any, ...], prefer: Any) -> None:
    machine.error = StatusError("f", 3000, "CUDNN_STATUS_NOT_SUPPORTED")
    with pytest.raises(StatusError):
        choose_algorithm("forward", *tensors, prefer=prefer)
    machine.error = KeyboardInterrupt()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        choose_algorithm("forward", *tensors, prefer=prefer)
    assert tensors[2].math_type == "fma_math"


# Raw handles


def test_raw_handles_and_descriptors_can_be_mixed(machine: Machine, tensors: tuple[Any, ...]) -> None:
    x, w, convolution, y = tensors
    handle = pointer(raw.cudnnHandle_t, 0x20)
    choice = choose_algorithm("forward", x.pointer, w, convolution.pointer, y.pointer, handle=handle)
    assert choice.algorithm == 1
    assert machine.calls[-1][1][0].pointer is handle
    assert convolution.math_type == "default_math"
    assert (x.shape, y.shape) == (X, Y)  # they were not destroyed
    assert workspace_size("forward", *(one.pointer for one in tensors), "gemm", handle=handle) == 4096


# Memory of the search


def test_memory_is_taken_for_each_operand_and_the_largest_workspace(machine: Machine, tensors: tuple[Any, ...]) -> None:
    machine.listed = [Result(1, 4096), Result(7, 1 << 20), Result(5, 1 << 40, status=3000)]
    choose_algorithm("forward", *tensors, prefer="autotune")
    assert machine.taken == [(size, 0, STREAM) for size in (*SIZES.values(), 1 << 20)]
    assert machine.calls[-1][1][-2:] == (4000, 1 << 20)
    machine.taken.clear()
    choose_algorithm("forward", *tensors, prefer="autotune", workspace_limit=4096)
    assert machine.taken[-1] == (4096, 0, STREAM)
    machine.taken.clear()
    machine.memory = 5000  # the workspace is what can be had
    choose_algorithm("forward", *tensors, prefer="autotune")
    assert machine.taken[-1] == (4096, 0, STREAM)
    machine.memory = 1000
    with pytest.raises(MemoryError, match="no 2048 bytes"):
        choose_algorithm("forward", *tensors, prefer="autotune")
    assert machine.names[-1].startswith("cudnnFind")  # of the call before


def test_memory_that_is_passed_is_used(machine: Machine, tensors: tuple[Any, ...]) -> None:
    given = [Array(*X), Array(*W), Array(*Y)]
    space = Array(1 << 10, dtype="uint8")
    choose_algorithm("forward", *tensors, prefer="autotune", arrays=given, workspace=space)
    assert machine.taken == []
    _, arguments, _ = machine.calls[-1]
    assert [arguments[at] for at in (2, 4, 7)] == [array.pointer for array in given]
    assert arguments[-2:] == (space.pointer, 1 << 10)
    choose_algorithm(
        "forward", *tensors, prefer="autotune", arrays=(1, given[1], 3), workspace=space, workspace_limit=4
    )
    assert machine.calls[-1][1][-1] == 4


def test_nothing_is_searched_during_a_capture(machine: Machine, tensors: tuple[Any, ...]) -> None:
    machine.capturing = True
    with pytest.raises(CaptureError, match="choose before the capture"):
        choose_algorithm("forward", *tensors, prefer="autotune")
    assert machine.calls == []
    assert choose_algorithm("forward", *tensors).algorithm == 1


# Bad input


def test_the_names_of_options_and_their_values_are_checked(machine: Machine, tensors: tuple[Any, ...]) -> None:
    for operation, options, message in (
        ("foward", {}, "operation must be one of 'forward', 'backward_data', 'backward_filter'; got 'foward'"),
        ("forward", {"prefer": "fast"}, "prefer must be one of 'fastest', ...; got 'fast'"),
        ("forward", {"workspace_limit": -1}, "workspace_limit must be a number of bytes, 0 or more, or None; got -1"),
        ("forward", {"arrays": (1, 2, 3)}, "arrays must be None unless prefer is 'autotune'; got (1, 2, 3)"),
        ("forward", {"workspace": Array(4)}, "workspace must be None unless prefer is 'autotune'; got ..."),
    ):
        with pytest.raises(ValueError, match=says(message)):
            choose_algorithm(operation, *tensors, **options)
    for options, message in (
        ({"deterministic": 1}, "deterministic must be a bool; got 1"),
        ({"tf32": None}, "tf32 must be a bool; got None"),
        ({"workspace_limit": "1GiB"}, "workspace_limit must be ...; got '1GiB'"),
        ({"handle": 5}, "handle must be a cudnnHandle_t object; got 5 (int)"),
    ):
        with pytest.raises(TypeError, match=says(message)):
            choose_algorithm("forward", *tensors, **options)
    for algorithm, kind in (("gem", ValueError), (raw.CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, TypeError), (1, TypeError)):
        with pytest.raises(kind, match="algorithm must be "):
            workspace_size("forward", *tensors, algorithm)
    with pytest.raises(ValueError, match="operation must be one of"):
        workspace_size("backwards", *tensors, "0")  # type: ignore[arg-type]
    assert machine.calls == []


NOT_TOGETHER: list[tuple[dict[str, Callable[[], Any]], type[Exception], str]] = [
    ({"w": lambda: FilterDescriptor((6, 2, 3))}, ValueError, "w must have N, C and the spatial ...; got 3 dimensions"),
    ({"y": lambda: TensorDescriptor((2, 6, 6))}, ValueError, "y must have N, C and ...; got 3 dimensions"),
    ({"x": lambda: TensorDescriptor((2, 4, 8, 8, 8))}, ValueError, "w must have N, C and ...; got 4 dimensions"),
    ({"convolution": lambda: ConvolutionDescriptor((0, 0, 0))}, ValueError, "convolution must have ...; got 5 dim..."),
    ({"w": lambda: FilterDescriptor(W, "float16")}, TypeError, "w must be float32, as x; got float16"),
    ({"y": lambda: TensorDescriptor(Y, "float64")}, TypeError, "y must be float32, as x; got float64"),
    ({"w": lambda: FilterDescriptor((6, 4, 3, 3))}, ValueError, "x must have 8 channels, 4 in each of 2 ...; got 4 ..."),
    ({"w": lambda: FilterDescriptor((5, 2, 3, 3))}, ValueError, "groups must divide the 5 output ...; got 2"),
    ({"y": lambda: TensorDescriptor((2, 6, 6, 7))}, ValueError, "y must have shape (2, 6, 6, 6), ...; got shape (2, 6, 6, 7)"),
    ({"x": lambda: None}, TypeError, "x must be a cudnnTensorDescriptor_t that is not NULL; got None"),
    ({"x": raw.cudnnTensorDescriptor_t}, ValueError, "x must be a cudnnTensorDescriptor_t that is not NULL; got ..."),
    ({"w": lambda: TensorDescriptor(W)}, TypeError, "w must be a cudnnFilterDescriptor_t object; got ..."),
    ({"convolution": lambda: "same"}, TypeError, "convolution must be a cudnnConvolutionDescriptor_t object; got 'same' ..."),
]  # fmt: skip


@pytest.mark.parametrize(("other", "kind", "message"), NOT_TOGETHER)
def test_descriptors_that_do_not_fit_together(
    machine: Machine, tensors: tuple[Any, ...], other: dict[str, Any], kind: type[Exception], message: str
) -> None:
    named = dict(zip(("x", "w", "convolution", "y"), tensors, strict=True))
    named |= {name: make() for name, make in other.items()}
    for operation in ORDER:
        with pytest.raises(kind, match=says(message)):
            choose_algorithm(operation, **named)  # type: ignore[arg-type]
        with pytest.raises(kind, match=says(message)):
            workspace_size(operation, **named, algorithm="1" if operation != "forward" else "gemm")  # type: ignore[arg-type]
    assert machine.calls == []
    assert tensors[2].math_type == "fma_math"


def test_a_raw_descriptor_that_was_never_set(machine: Machine, tensors: tuple[Any, ...]) -> None:
    x = raw.cudnnTensorDescriptor_t()
    raw.call("cudnnCreateTensorDescriptor", byref(x))
    with pytest.raises(ValueError, match=r"w must have N, C and the spatial dimensions of x, \(\); got 4 dimensions"):
        choose_algorithm("forward", x, *tensors[1:])
    raw.call("cudnnDestroyTensorDescriptor", x)


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"arrays": (1, 2)}, ValueError, "arrays must be three device arrays or addresses, ...; got (1, 2)"),
        ({"arrays": Array(3)}, ValueError, "arrays must be three device arrays or addresses, ...; got ..."),
        ({"arrays": (1, 2, 0)}, ValueError, "arrays[2] must be a device array, or an address other than 0; got 0"),
        ({"arrays": (1, 2, 1 << 64)}, ValueError, "arrays[2] must be a device array, ...; got ..."),
        ({"arrays": (True, 2, 3)}, TypeError, "arrays[0] must be a device array, or ...; got True"),
        ({"arrays": (1, "w", 3)}, TypeError, "arrays[1] must be a device array ...; got 'w'"),
        ({"arrays": (Array(511), 2, 3)}, ValueError, "arrays[0] must have 2048 bytes, as its descriptor; got 2044"),
        ({"arrays": (Array(512, device=1), 2, 3)}, ValueError, "arrays[0] must be on device 0, ...; got device 1"),
        ({"arrays": (1, 2, Array(432, writable=False))}, ValueError, "arrays[2] must be a writable array; got ..."),
        ({"workspace": 0x1000}, TypeError, "workspace must be a device array ...; got 4096"),
        ({"workspace": Array(4, device=1)}, ValueError, "workspace must be on device 0, as the handle; got device 1"),
    ],
)
def test_memory_that_the_search_cannot_use(
    machine: Machine, tensors: tuple[Any, ...], given: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=says(message)):
        choose_algorithm("forward", *tensors, prefer="autotune", **given)
    assert machine.calls == []
    assert tensors[2].math_type == "fma_math"


def test_only_the_result_has_to_be_writable(machine: Machine, tensors: tuple[Any, ...]) -> None:
    locked = Array(512, writable=False)
    choose_algorithm("forward", *tensors, prefer="autotune", arrays=(locked, 2, 3))
    with pytest.raises(ValueError, match=says("arrays[0] must be a writable array; got a read-only one")):
        choose_algorithm("backward_data", *tensors, prefer="autotune", arrays=(locked, 2, 3))
