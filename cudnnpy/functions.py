"""What an operation launches: calls of C functions and planned graphs in turn, on operands and parts of the workspace.

And what the operations that are no convolution share: the checks of their arrays, how these are described to C, and
when a graph is worth compiling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from ctypes import byref, c_double, c_float
from functools import partial
from typing import Any, NamedTuple, Protocol

from cudnnpy import raw
from cudnnpy.calling import Call, Specs
from cudnnpy.convolution.epilogue import in_turn, rounded
from cudnnpy.convolution.legacy import tensor_descriptor
from cudnnpy.convolution.problem import check_scales
from cudnnpy.descriptors import TensorDescriptor
from cudnnpy.dtypes import dtype_of
from cudnnpy.handle import Handle
from cudnnpy.layouts import (
    CHANNELS_FIRST,
    CHANNELS_LAST,
    TensorSpec,
    at_least_4d,
    canonical,
    extent,
    is_dense,
    packed_as,
    packed_strides,
    same_memory,
    to_logical,
)

FLOATS = ("float16", "bfloat16", "float32", "float64")
LAYOUTS = (*CHANNELS_FIRST.values(), *CHANNELS_LAST.values())

# Bytes below which a slow function is over before a graph is worth compiling (0.1 to 0.6 s, once for each signature).
LARGE = 1 << 20

_ROWS = (64, 128, 32, 256, 512, 1024, 16)  # row lengths for elementwise graphs, the fastest first (docs/benchmarks)


class Executable(Protocol):
    """One launch: a C function's, or a planned graph's."""

    workspace_size: int

    def bind(self, handle: Handle, pointers: tuple[int, ...], workspace: int) -> Callable[[], int]:
        """A call without arguments that launches the work and returns a status."""


class At(NamedTuple):
    """In a Function's arguments: the address of the operand with this number."""

    place: int


WORKSPACE = At(-1)


class Function:
    """A call of a C function: the handle goes first, At(n) is the n-th address, numbers of ctypes go by reference."""

    def __init__(self, name: str, *arguments: Any, workspace_size: int = 0) -> None:
        self.name, self.arguments, self.workspace_size = name, arguments, workspace_size

    def bind(self, handle: Handle, pointers: tuple[int, ...], workspace: int) -> Callable[[], int]:
        """The call on these addresses."""

        def of(argument: Any) -> Any:
            if isinstance(argument, At):
                return (workspace if argument is WORKSPACE else pointers[argument.place]) or None
            if isinstance(argument, c_float | c_double):
                return byref(argument)
            return getattr(argument, "pointer", argument)

        launch = partial(raw.bound(self.name), handle.pointer, *map(of, self.arguments))
        launch.owners = (self, handle)  # type: ignore[attr-defined]  # alive as long as the call
        return launch


class Either:
    """One launch where two operands are the same memory, another where they are not."""

    def __init__(self, first: int, second: int, same: Executable, different: Executable) -> None:
        self.first, self.second, self.same, self.different = first, second, same, different
        self.workspace_size = max(same.workspace_size, different.workspace_size)

    def bind(self, handle: Handle, pointers: tuple[int, ...], workspace: int) -> Callable[[], int]:
        """The call on these addresses."""
        chosen = self.same if pointers[self.first] == pointers[self.second] else self.different
        return chosen.bind(handle, pointers, workspace)


class Step(NamedTuple):
    """A launch and its operands: the program's by number, then the parts of its scratch memory."""

    executable: Executable
    places: tuple[int, ...]


class Operand(NamedTuple):
    """An operand of a program: `in_place` names those that a result may be, `is_read` says that it is read as well."""

    name: str
    spec: TensorSpec
    is_result: bool = False
    in_place: tuple[str, ...] = ()
    is_read: bool = False


class Program:
    """Launches in turn, for a Launcher: the addresses are the operands', then the workspace's.

    `scratch` are the sizes in bytes of parts of the workspace, which follow the operands in the steps' places.
    """

    replayable = True

    def __init__(
        self, name: str, device: int, operands: Sequence[Operand], steps: Sequence[Step], scratch: Sequence[int] = ()
    ) -> None:
        self.name, self.device, self.operands, self.steps, self.scratch = name, device, operands, steps, scratch
        self._own = sum(map(rounded, scratch))
        self.workspace_size = self._own + max(step.executable.workspace_size for step in steps)

    def bind(self, handle: Handle, pointers: tuple[int, ...]) -> Callable[[], int]:
        """The launch, once the addresses are checked. Raises ValueError for a result that overlaps another operand."""
        *operands, workspace = pointers
        _check_overlaps(self.operands, operands)
        places = list(operands)
        address = workspace
        for size in self.scratch:
            places.append(address)
            address += rounded(size)
        launches = [
            step.executable.bind(handle, tuple(places[at] for at in step.places), address) for step in self.steps
        ]
        return launches[0] if len(launches) == 1 else in_turn(launches, (self, handle))


def arranged(
    name: str,
    device: int,
    operands: Sequence[Operand],
    executable: Executable,
    wanted: Sequence[TensorSpec],
    beta: float = 0.0,
) -> Program:
    """One launch that wants its operands in the memory order and dtype of `wanted`: with copies of those that are not.

    With a beta a result is copied in, too.
    """
    before: list[Step] = []
    after: list[Step] = []
    places: list[int] = []
    scratch: list[int] = []
    for at, (operand, want) in enumerate(zip(operands, wanted, strict=True)):
        spec = operand.spec
        if spec.dtype == want.dtype and same_memory(spec, want) and spec.alignment >= want.alignment:
            places.append(at)
            continue
        places.append(len(operands) + len(scratch))
        scratch.append(extent(want))
        if operand.is_result:
            after.append(Step(copy(want, spec), (places[-1], at)))
        if not operand.is_result or operand.is_read or beta:
            before.append(Step(copy(spec, want), (at, places[-1])))
    return Program(name, device, operands, [*before, Step(executable, tuple(places)), *after], scratch)


def no_overlaps(call: Call, operands: Sequence[Operand]) -> Sequence[Operand]:
    """The operands, once those that were given are known not to overlap. Raises ValueError."""
    there = [operand for operand in operands if operand.name in call.addresses]
    _check_overlaps(there, [call.addresses[operand.name] for operand in there])
    return operands


def _check_overlaps(operands: Sequence[Operand], pointers: Sequence[int]) -> None:
    for operand, start in zip(operands, pointers, strict=True):
        if not operand.is_result:
            continue
        end = start + extent(operand.spec)
        for other, pointer in zip(operands, pointers, strict=True):
            if other is operand or not (pointer < end and start < pointer + extent(other.spec)):
                continue
            same = pointer == start and other.spec.shape == operand.spec.shape and same_memory(other.spec, operand.spec)
            if not (same and other.name in operand.in_place):
                raise ValueError(f"{operand.name} overlaps {other.name} in memory; give a result of its own")


# Arrays


def given(call: Call, name: str, ranks: range = range(1, 6), dtypes: Sequence[str] = FLOATS) -> TensorSpec:
    """An array of a call, checked: its dtype, its rank, that it is not empty and that no stride is 0 or less."""
    spec = call.specs[name]
    if spec.dtype not in dtypes:
        raise TypeError(f"{name}: {spec.dtype} given; expected {' or '.join(dtypes)}")
    if len(spec.shape) not in ranks:
        raise ValueError(f"{name}: shape {spec.shape} given; expected {ranks[0]} to {ranks[-1]} axes")
    if any(size < 1 for size in spec.shape):
        raise ValueError(f"{name}: shape {spec.shape} is empty; expected sizes of 1 or more")
    if len(spec.shape) == 1:
        strides = (1,) if spec.strides is None or spec.shape == (1,) else spec.strides
        if strides[0] < 1:
            raise ValueError(f"{name}: strides {strides} are not all above 0; make the array contiguous first")
        return spec._replace(strides=strides)
    return canonical(spec, name)


def like(call: Call, name: str, shape: Sequence[int], dtype: str) -> TensorSpec:
    """An array of a call that has to have a shape and dtype."""
    spec = given(call, name, dtypes=FLOATS)
    if spec.dtype != dtype:
        raise TypeError(f"{name}: {spec.dtype} given; expected {dtype}")
    if spec.shape != tuple(shape):
        raise ValueError(f"{name}: shape {spec.shape} given; expected {tuple(shape)}")
    return spec


def result(
    call: Call, name: str, shape: Sequence[int], dtype: str, order: TensorSpec | None = None, beta: float = 0.0
) -> TensorSpec:
    """A result: the array given for it, checked, or a new one in the memory order of another tensor."""
    if name in call.specs:
        return like(call, name, shape, dtype)
    if beta:
        raise ValueError(f"beta: {beta} given without {name}; beta * {name} needs the array that it reads")
    strides = packed_strides(shape) if order is None or len(order.shape) != len(shape) else packed_as(order, shape)
    return TensorSpec(tuple(shape), dtype, strides)


def logical(
    call: Call, name: str, layout: str, ranks: range = range(3, 6), dtypes: Sequence[str] = FLOATS
) -> TensorSpec:
    """An array of a call with its axes as (N, C, spatial...), checked as `given` does; its layout's name, too."""
    spec = call.specs[name]
    rank, last = len(spec.shape), layout.endswith("C")
    if layout not in ("NCHW", "NHWC") and len(layout) != rank:
        raise ValueError(f"layout: {layout!r} has {len(layout)} axes; {name} has {rank}")
    strides = packed_strides(spec.shape) if spec.strides is None else spec.strides
    turned = spec._replace(shape=to_logical(spec.shape, last), strides=to_logical(strides, last))
    return given(call._replace(specs=Specs({name: turned})), name, ranks, dtypes)


def logical_like(call: Call, name: str, layout: str, shape: Sequence[int], dtype: str) -> TensorSpec:
    """An array of a call with its axes as (N, C, spatial...), which has to have a shape and dtype."""
    spec = logical(call, name, layout, range(1, 6))
    return like(call._replace(specs=Specs({name: spec})), name, shape, dtype)


def logical_result(
    call: Call, name: str, shape: Sequence[int], order: TensorSpec, layout: str, beta: float = 0.0
) -> TensorSpec:
    """A result with its axes as (N, C, spatial...): the array given for it, checked, or a new one like `order`."""
    if name not in call.specs:
        return result(call, name, shape, order.dtype, order, beta)
    return logical_like(call, name, layout, shape, order.dtype)


def scales(alpha: float, beta: float, dtype: str) -> tuple[Any, Any]:
    """alpha and beta as C takes them: double for float64, else float. Raises TypeError for what is no number."""
    check_scales(alpha, beta)
    kind = c_double if dtype == "float64" else c_float
    return kind(alpha), kind(beta)


def is_large(spec: TensorSpec) -> bool:
    """Whether a tensor is large enough for a compiled graph."""
    return math.prod(spec.shape) * dtype_of(spec.dtype).itemsize >= LARGE


def rows(spec: TensorSpec, *others: TensorSpec) -> tuple[int, int] | None:
    """(rows, length) in which an elementwise graph sees dense tensors that lie alike; None where it cannot or should not.

    No engine takes an elementwise graph whose dimension 1 is not the one of stride 1: the axes' names mean nothing to
    such an operation, so it sees the memory as rows.
    """
    count = math.prod(spec.shape)
    if not (spec.dtype != "float64" and is_large(spec) and is_dense(spec)):
        return None
    if any(tensor.alignment < 16 for tensor in (spec, *others)):  # compiled engines misread other addresses
        return None
    if not all(other.dtype != "float64" and same_memory(spec, other) for other in others):
        return None
    return next(((count // length, length) for length in _ROWS if count % length == 0), None)


def in_rows(spec: TensorSpec, shape: tuple[int, int]) -> TensorSpec:
    """A dense tensor as rows."""
    return TensorSpec((*shape, 1, 1), spec.dtype, (shape[1], 1, shape[1], shape[1]), spec.alignment)


def described(spec: TensorSpec) -> TensorDescriptor:
    """A tensor's descriptor, of four axes at least."""
    return tensor_descriptor(at_least_4d(spec))


def copy(x: TensorSpec, y: TensorSpec, alpha: float = 1.0, beta: float = 0.0) -> Function:
    """y = alpha * x + beta * y, for tensors of one shape, in whatever memory order and dtype: cudnnTransformTensor."""
    a, b = scales(alpha, beta, x.dtype)
    return Function("cudnnTransformTensor", a, described(x), At(0), b, described(y), At(1))


def check_layout(layout: object) -> str:
    """ValueError for an unknown layout."""
    if layout not in LAYOUTS:
        raise ValueError(f"layout: {layout!r} given; expected one of {', '.join(LAYOUTS)}")
    return str(layout)


def check_option(name: str, value: object, allowed: Sequence[str]) -> str:
    """ValueError for an option that is none of those allowed, TypeError for what is no name."""
    if not isinstance(value, str):
        raise TypeError(f"{name}: {value!r} given; expected one of {', '.join(allowed)}")
    if value not in allowed:
        raise ValueError(f"{name}: {value!r} given; expected one of {', '.join(allowed)}")
    return value


def check_integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    """An option as an int, within bounds that belong to it."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}: {value!r} given; expected an integer")
    number = int(value.__index__())
    if number < low or (high is not None and number > high):
        raise ValueError(f"{name}: {value!r} given; expected {low} or more" + (f", at most {high}" if high else ""))
    return number


def check_number(name: str, value: object, low: float = -math.inf, high: float = math.inf) -> float:
    """An option as a float, within bounds that belong to it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}: {value!r} given; expected a number")
    if math.isnan(value) and (low, high) == (-math.inf, math.inf):
        raise ValueError(f"{name}: nan given; expected a number")
    if not low <= value <= high:
        raise ValueError(
            f"{name}: {value!r} given; expected {low:g} or more" + (f", at most {high:g}" if high < math.inf else "")
        )
    return float(value)


_numbers: dict[Any, int] = {}


def number_of(options: Any) -> int:
    """A small number that stands for an operation's options in keys: what is hashed on every call stays small."""
    return _numbers.setdefault((type(options), options), len(_numbers))
