"""Dispatch: from the arrays of a call to a launch, for every operation. A known signature needs no set-up.

`run` reads from top to bottom: the key of the call, its plan (found, or planned now), the results and the workspace,
the launch. Only `_within_what_is_free` handles memory that runs out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, overload

from cudnnpy._core.driver import capture_nearby
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.identity import Identity
from cudnnpy._core.layouts import TensorSpec, has_both_orders, in_one_order, is_described_last, packed_strides
from cudnnpy._launch.launcher import Launcher, Planned
from cudnnpy._launch.plan_cache import arguments_token, lookup, plan_cache
from cudnnpy._launch.steps import aligned_size
from cudnnpy._memory.arrays import ArrayLibrary, Signature, _libraries, finish, library_of, read, spec_of
from cudnnpy._memory.workspace import (
    ask_for_memory,
    is_out_of_memory,
    obtainable,
    release_workspace,
    temporary,
    workspace,
)
from cudnnpy.errors import CaptureError, NoAlgorithmError
from cudnnpy.handle import on_device, stream_address
from cudnnpy.typing import ArrayT, Stream


class Specs(dict[str, TensorSpec]):
    """The tensors of a call by name.

    `specs[name]` raises TypeError for an array that was not passed; `specs.get(name)` is None.
    """

    def __missing__(self, name: str) -> TensorSpec:
        raise TypeError(f"{name} must be a device array; got None")


class Call(NamedTuple):
    """A call with a new signature: the arrays that were passed, by name, the device and the stream.

    The strides of axes of size 1 in `specs` are in one memory order. If all arrays have both memory orders, they are
    described as channels first, and `last` says whether one of them was passed with channels-last strides: then
    results that have only one order are channels last.

    `cap` is None on the first attempt. If a result or the workspace cannot be allocated, the call is planned once more
    with `cap`, the bytes of workspace that can be allocated: the new plan must not need more. An operation with only
    one plan may ignore it.
    """

    specs: Specs
    addresses: dict[str, int]
    device: int
    stream: int
    arrays: dict[str, Any]
    cap: int | None = None
    last: bool = False

    def allows(self, workspace_size: int) -> bool:
        """Return whether a plan may need a workspace of this size."""
        return self.cap is None or workspace_size <= self.cap

    def cap_beside(self, *scratch: int) -> int | None:
        """Return the cap of a plan that shares the workspace with scratch memory of these sizes in bytes."""
        return None if self.cap is None else max(0, self.cap - sum(map(aligned_size, scratch)))


# Plans a call. Returns the plan, and the results' shapes, strides and dtypes in the axis order of the arrays.
Prepare = Callable[..., tuple[Planned, Sequence[TensorSpec]]]


class Owner(Protocol):
    """The object that an operation belongs to. In keys its identity stands for all of its options.

    An owner whose plans depend on `Call.last` has a true attribute `uses_suggested_format`.
    """

    _identity: Identity


class Request(NamedTuple):
    """The arguments of `run` that planning needs."""

    operation: str
    owner: Owner | None
    prepare: Prepare
    arguments: tuple[Any, ...]
    names: tuple[str, ...]
    inputs: tuple[Any, ...]
    outs: tuple[Any, ...]


class Ready:
    """The plan of one signature: all that a call needs except its addresses. `count` is the number of operands.

    `last`: new results that have both memory orders are described as channels last.
    """

    __slots__ = (
        "__weakref__",
        "address",
        "count",
        "finishes",
        "last",
        "launcher",
        "library",
        "makers",
        "results",
        "sizes",
        "workspace_size",
    )

    def __init__(
        self, launcher: Launcher, library: ArrayLibrary, results: Sequence[TensorSpec], given: int, last: bool
    ) -> None:
        self.launcher, self.library, self.count, self.last = launcher, library, given + len(results), last
        self.workspace_size = launcher.planned.workspace_size
        self.finishes = library.name == "jax"
        # a result for JAX is a DeviceArray until it is complete
        self.address = _own_address if self.finishes else library.address
        self.results = [spec._replace(strides=spec.strides or packed_strides(spec.shape)) for spec in results]
        made = [in_one_order(s, last=True)[0] if last and has_both_orders(s) else s for s in self.results]
        wanted = [(spec.shape, spec.strides or (), dtype_of(spec.dtype)) for spec in made]
        self.makers = [library.maker(*spec, launcher.device) for spec in wanted]
        self.sizes = [math.prod(shape) * dtype.itemsize for shape, _, dtype in wanted]

    def described(self, last: bool) -> Ready:
        """Return this plan, and its launcher, with other descriptions of new results."""
        if last == self.last:
            return self
        return Ready(self.launcher, self.library, self.results, self.count - len(self.results), last)

    def make(self, outs: tuple[Any, ...], pointers: list[int]) -> tuple[Any, ...]:
        """Make the results that were not passed, and complete the addresses. If it raises, nothing has changed."""
        if len(outs) == 1:
            result = self.makers[0]()
            pointers.append(self.address(result))
            return (result,)
        results = tuple([make() if out is None else out for make, out in zip(self.makers, outs, strict=True)])
        pointers[self.count - len(outs) :] = [
            self.address(result) if out is None else library_of(out, "out").address(out)
            for result, out in zip(results, outs, strict=True)
        ]
        return results


def _own_address(array: Any) -> int:
    return int(array.pointer)


# For type checkers: a result has the type of the first input. A Graph may have more results than are typed here.
@overload
def run(
    operation: str,
    owner: Owner | None,
    prepare: Prepare,
    names: tuple[str, ...],
    inputs: tuple[ArrayT, *tuple[Any, ...]],
    outs: tuple[Any],
    stream: Stream | None,
    *arguments: Any,
) -> ArrayT: ...
@overload
def run(
    operation: str,
    owner: Owner | None,
    prepare: Prepare,
    names: tuple[str, ...],
    inputs: tuple[ArrayT, *tuple[Any, ...]],
    outs: tuple[Any, Any],
    stream: Stream | None,
    *arguments: Any,
) -> tuple[ArrayT, ArrayT]: ...
@overload
def run(
    operation: str,
    owner: Owner | None,
    prepare: Prepare,
    names: tuple[str, ...],
    inputs: tuple[ArrayT, *tuple[Any, ...]],
    outs: tuple[Any, Any, Any],
    stream: Stream | None,
    *arguments: Any,
) -> tuple[ArrayT, ArrayT, ArrayT]: ...
@overload
def run(
    operation: str,
    owner: Owner | None,
    prepare: Prepare,
    names: tuple[str, ...],
    inputs: tuple[Any, ...],
    outs: tuple[Any, ...],
    stream: Stream | None,
    *arguments: Any,
) -> Any: ...
def run(
    operation: str,
    owner: Owner | None,
    prepare: Prepare,
    names: tuple[str, ...],
    inputs: tuple[Any, ...],
    outs: tuple[Any, ...],
    stream: Stream | None,
    *arguments: Any,
) -> Any:
    """Run an operation on arrays, and return its result, or a tuple of its results.

    `operation` is the name in errors. `names` are the names of the arrays, the inputs first. An input that is None is
    left out; an out that is None becomes a new array of the first input's library. The launch takes the addresses in
    this order.

    `prepare(owner, call, *arguments)`, or `prepare(call, *arguments)` without an owner, plans a new signature. The key
    of the plan holds everything that it is passed. Sizes and axes are passed one by one: a call with a tuple among the
    arguments is not remembered.
    """
    first = inputs[0]
    known = _libraries.get
    library = known(type(first)) or library_of(first, names[0])
    bits, signature = library.read(first)
    pointers, device = [bits], signature[3]
    try:
        what = arguments_token(*arguments)
    except TypeError:  # no operation accepts an argument that cannot be hashed: planning rejects it
        what = None
    # the library's name is part of the key, since results are arrays of that library
    key: list[Any] = [None if owner is None else owner._identity, prepare, what, library[0], signature]
    for array in inputs[1:] + outs:
        if array is None:
            key.append(None)
        else:
            pointer, signature = (known(type(array)) or library_of(array, names[len(key) - 4])).read(array)
            pointers.append(pointer)
            key.append(signature)
            bits |= pointer
    if bits & 15:  # rare: misaligned arrays have plans of their own
        key.append(tuple(min(pointer & -pointer, 16) for pointer in pointers))
    try:
        address = library.current_stream(device) if stream is None else stream_address(stream)
    except RuntimeError:  # a CUDA build of PyTorch without a driver has no stream, not even for a host array
        if device >= 0:
            raise
        address = 0  # planning rejects the array
    signatures = tuple(key)
    ready: Ready | None = lookup(signatures) if what is not None else None
    if ready is None:
        request = Request(operation, owner, prepare, arguments, names, inputs, outs)
        ready = _plan(signatures, request, address)
    results = outs
    try:
        if len(pointers) < ready.count:
            results = ready.make(outs, pointers)
        size = ready.workspace_size
        pointers.append(workspace(size, device, address) if size else 0)
    except Exception as error:
        request = Request(operation, owner, prepare, arguments, names, inputs, outs)
        ready, results = _within_what_is_free(error, signatures, request, address, ready, results, pointers)
    ready.launcher.run(tuple(pointers), address)
    if ready.finishes:
        results = _finished(ready.library, results, outs, address)
    return results[0] if len(results) == 1 else results


def _finished(library: ArrayLibrary, results: tuple[Any, ...], outs: tuple[Any, ...], stream: int) -> tuple[Any, ...]:
    """Return the results, with those that were made converted to arrays of the library."""
    return tuple(
        finish(library, result, stream) if out is None else out for result, out in zip(results, outs, strict=True)
    )


def _plan(key: tuple[Any, ...], request: Request, stream: int, cap: int | None = None) -> Ready:
    """Plan a signature, and remember the plan. Raises the errors of the arrays and of the operation.

    Arrays that differ from those of another plan only in the strides of axes of size 1 take that plan.
    """
    names, inputs, outs = request.names, request.inputs, request.outs
    arrays = {name: array for name, array in zip(names, (*inputs, *outs), strict=True) if array is not None}
    found = {name: read(array, name) for name, array in arrays.items()}
    device: int = found[names[0]][1][3]
    specs, last = _in_agreement(specs_of(found, device, names[0]))
    for name, out in zip(names[len(inputs) :], outs, strict=True):
        if out is not None:
            check_writable(name, out)
    cache, memory = plan_cache(), (*key[:4], device, *specs.items())
    if key[2] is not None and cap is None:
        known: Ready | None = cache.of_memory(memory) or cache.of_memory((memory, last))
        if known is not None:
            cache.add(key, known := known.described(bool(last)))
            return known
    refuse_capture(request.operation, stream)
    addresses = {name: pointer for name, (pointer, _) in found.items()}
    with on_device(device):
        call = Call(specs, addresses, device, stream, arrays, cap, bool(last))
        owner = () if request.owner is None else (request.owner,)
        planned, results = request.prepare(*owner, call, *request.arguments)
        given = sum(array is not None for array in inputs)
        ready = Ready(Launcher(planned), library_of(inputs[0], names[0]), results, given, bool(last))
    if key[2] is not None:
        follows = last is not None and getattr(request.owner, "uses_suggested_format", False)
        cache.store(key, ready, (memory, last) if follows and not has_both_orders(*ready.results) else memory)
    return ready


def specs_of(found: dict[str, tuple[int, Signature]], device: int, first: str) -> Specs:
    """Return the tensors of a call by name, from the addresses and signatures of arrays.

    Raises ValueError for another device, or an address that is not aligned.
    """
    specs = Specs()
    for name, (pointer, signature) in found.items():
        if signature[3] != device:
            raise ValueError(f"{name} must be on device {device}, as {first}; got an array on device {signature[3]}")
        spec = spec_of(signature, min(pointer & -pointer, 16) or 16)
        if spec.alignment % dtype_of(spec.dtype).itemsize:
            raise ValueError(f"{name} must be aligned to the size of a {spec.dtype}; got address {pointer:#x}")
        specs[name] = spec._replace(strides=spec.strides or packed_strides(spec.shape))
    return specs


def _in_agreement(specs: Specs) -> tuple[Specs, bool | None]:
    """Return the tensors of a call in one memory order, and `Call.last`; None if an array has only one memory order."""
    given = tuple(specs.values())
    last = is_described_last(*given) if has_both_orders(*given) else None
    return Specs(zip(specs, in_one_order(*given), strict=True)), last


def _within_what_is_free(
    error: Exception,
    key: tuple[Any, ...],
    request: Request,
    stream: int,
    ready: Ready,
    results: tuple[Any, ...],
    pointers: list[int],
) -> tuple[Ready, tuple[Any, ...]]:
    """Allocate once more after a result or the workspace could not be allocated. Every operation does this alike.

    If a result could not be allocated, the workspace that is kept is released first. If the workspace of the plan
    cannot be allocated, the operation is planned anew within what can be (`Call.cap`), and the new plan replaces the
    old one. While a stream is being captured, nothing is released or planned, and the error is raised as it is.

    Raises MemoryError with the sizes and what to do if this does not help.
    """
    if not is_out_of_memory(error) or capture_nearby(stream):
        raise error
    device, size = ready.launcher.device, ready.workspace_size
    made = sum(count for count, out in zip(ready.sizes, request.outs, strict=True) if out is None)
    needed = f"{request.operation}: device {device} has no room for new results of {made} bytes and workspace of {size} bytes"
    try:
        ask_for_memory()
        if len(pointers) < ready.count:
            release_workspace()
            results = ready.make(request.outs, pointers)
        with temporary(device, stream):
            cap = obtainable(size, device, stream) if size else 0
            if cap < size:
                needed += f", nor for more workspace than {cap} bytes"
                ready = _plan(key, request, stream, cap)
            size = ready.workspace_size
            pointers.append(workspace(size, device, stream) if size else 0)
    except NoAlgorithmError as none:
        raise MemoryError(f"{needed}; within these there is {none}\n{_ADVICE}") from error
    except Exception as again:
        if not is_out_of_memory(again):
            raise
        raise MemoryError(f"{needed}: {again}. {_ADVICE}") from again
    return ready, results


_ADVICE = (
    "Free device memory (cudnnpy.release_workspace() gives back the workspace that is kept), pass arrays for the results, "
    "or ask for less workspace (workspace_limit, prefer='no_workspace')"
)


def refuse_capture(operation: str, stream: int, advice: str = "") -> None:
    """Raise CaptureError if the stream, or PyTorch's current stream, is being captured: nothing is planned then."""
    if not capture_nearby(stream):
        return
    why = "a stream is being captured into a CUDA graph"
    if not advice:
        why = f"this signature has not been planned yet, and {why}"
        advice = "Call it once with arrays of the same shapes before the capture (a warm-up)"
    raise CaptureError(f"{operation}: {why}. {advice}; the capture is intact")


def check_writable(name: str, out: Any) -> None:
    """Raise ValueError if a result cannot be written."""
    if not library_of(out, name).writable(out):
        raise ValueError(f"{name} must be a writable array; got a read-only one")
