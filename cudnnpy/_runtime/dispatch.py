"""From arrays to a launched plan: what every operation's call does. A known signature does no set-up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, overload

from cudnnpy._core.driver import capture_nearby
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.frozen import Identity
from cudnnpy._core.layouts import TensorSpec, packed_strides
from cudnnpy._memory import workspace as memory
from cudnnpy._memory.arrays import ArrayLibrary, _libraries, finish, library_of, read, spec_of
from cudnnpy._runtime.launcher import Launcher
from cudnnpy._runtime.plan_cache import find, identity_of_arguments, plan_cache
from cudnnpy.errors import CaptureError
from cudnnpy.handle import on_device, stream_address
from cudnnpy.typing import ArrayT, Stream


class Specs(dict[str, TensorSpec]):
    """The tensors of a call by name. `specs[name]` is a TypeError where none was given, `specs.get(name)` None."""

    def __missing__(self, name: str) -> TensorSpec:
        raise TypeError(f"{name} must be a device array; got None")


class Call(NamedTuple):
    """A call whose signature is new: its arrays by name (those that were given), the device and the stream."""

    specs: Specs
    addresses: dict[str, int]
    device: int
    stream: int
    arrays: dict[str, Any]


# Makes what runs a call (anything that a Launcher takes, with a workspace_size in bytes), and says what the results are:
# shapes and strides in the arrays' own axis order.
Prepare = Callable[..., tuple[Any, Sequence[TensorSpec]]]


class Ready:
    """One signature, planned: all that a call needs beside its addresses."""

    __slots__ = ("address", "finish", "launcher", "library", "makers", "workspace_size")

    def __init__(self, plan: Any, library: ArrayLibrary, results: Sequence[TensorSpec], device: int) -> None:
        self.launcher, self.library = plan.launcher() if hasattr(plan, "launcher") else Launcher(plan), library
        self.workspace_size: int = plan.workspace_size
        self.finish = library.name == "jax"
        # a result for JAX is a DeviceArray until it is complete
        self.address = _own_address if self.finish else library.address
        self.makers = tuple(
            library.maker(spec.shape, spec.strides or packed_strides(spec.shape), dtype_of(spec.dtype), device)
            for spec in results
        )


def _own_address(array: Any) -> int:
    return int(array.pointer)


class Owner(Protocol):
    """What an operation belongs to: its identity stands for all of its options in keys (see cudnnpy._core.frozen)."""

    _identity: Identity


# For type checkers: a result is of the first input's library; a call of as many results as a Graph has is not typed here.
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
    """Runs an operation on arrays, and returns its result, or a tuple of its results.

    `operation` is its name, for errors. `names` are the arrays', the inputs' first; an input that is None is not there,
    an out that is None is a new array of the first input's library. The addresses go to the launch in the same order.

    `prepare(owner, call, *arguments)`, or `prepare(call, *arguments)` without an owner, plans a new signature. The key of
    the plan is what it is given. Sizes and axes are given one by one: with a tuple among the arguments nothing is
    remembered.
    """
    first = inputs[0]
    known = _libraries.get
    library = known(type(first)) or library_of(first, names[0])
    bits, signature = library.read(first)
    pointers = [bits]
    try:
        what = identity_of_arguments(*arguments)
    except TypeError:  # one that cannot be hashed is none that an operation takes: it says so itself
        what = None
    # with the library's name: results are of that library
    key: list[Any] = [None if owner is None else owner._identity, prepare, what, library[0], signature]
    device = signature[3]
    for array in inputs[1:]:
        if array is None:
            key.append(None)
        else:
            pointer, signature = (known(type(array)) or library_of(array, names[len(key) - 4])).read(array)
            pointers.append(pointer)
            key.append(signature)
            bits |= pointer
    given, missing = len(pointers), False
    for array in outs:
        if array is None:
            key.append(None)
            pointers.append(0)
            missing = True
        else:
            pointer, signature = (known(type(array)) or library_of(array, names[len(key) - 4])).read(array)
            pointers.append(pointer)
            key.append(signature)
            bits |= pointer
    if bits & 15:  # rare: planned for by themselves
        key.append(tuple(min(pointer & -pointer, 16) for pointer in pointers))
    try:
        address = library.current_stream(device) if stream is None else stream_address(stream)
    except RuntimeError:  # a CUDA build of PyTorch without a driver has no stream, not even for a host array
        if device >= 0:
            raise
        address = 0  # _prepare refuses the array
    signatures = tuple(key)
    ready: Ready | None = find(signatures) if what is not None else None
    if ready is None:
        ready = _prepare(signatures, operation, owner, prepare, arguments, names, inputs, outs, address)
    results = outs
    if missing:
        if len(outs) == 1:
            result = ready.makers[0]()
            pointers[given] = ready.address(result)
            results = (result,)
        else:
            results = tuple([make() if out is None else out for make, out in zip(ready.makers, outs, strict=True)])
            pointers[given:] = _addresses(ready, results, outs)
    launcher, size = ready.launcher, ready.workspace_size
    try:
        pointers.append(memory.workspace(size, launcher.device, address) if size else 0)
    except MemoryError:  # another stream's first call, and less is left than there was: what fits now, if anything does
        if capture_nearby(address):  # nothing is planned then
            raise
        ready = _prepare(signatures, operation, owner, prepare, arguments, names, inputs, outs, address)
        launcher, size = ready.launcher, ready.workspace_size
        pointers.append(memory.workspace(size, launcher.device, address) if size else 0)
    launcher.run(tuple(pointers), address)
    if ready.finish:
        results = tuple(
            finish(ready.library, result, address) if out is None else out
            for result, out in zip(results, outs, strict=True)
        )
    return results[0] if len(results) == 1 else results


def _addresses(ready: Ready, results: tuple[Any, ...], outs: tuple[Any, ...]) -> list[int]:
    """Of results some of which were given, by arrays of any library."""
    return [
        ready.address(result) if out is None else library_of(out, "out").address(out)
        for result, out in zip(results, outs, strict=True)
    ]


def _prepare(
    key: tuple[Any, ...],
    operation: str,
    owner: Owner | None,
    prepare: Prepare,
    arguments: tuple[Any, ...],
    names: tuple[str, ...],
    inputs: tuple[Any, ...],
    outs: tuple[Any, ...],
    stream: int,
) -> Ready:
    """Plans a signature, and remembers it. Raises what the arrays or the operation's own checks deserve."""
    arrays = {name: array for name, array in zip(names, (*inputs, *outs), strict=True) if array is not None}
    found = {name: read(array, name) for name, array in arrays.items()}
    refuse_capture(operation, stream)
    device: int = found[names[0]][1][3]
    specs = Specs()
    for name, (pointer, signature) in found.items():
        if signature[3] != device:
            raise ValueError(f"{name} must be on device {device}, as {names[0]}; got an array on device {signature[3]}")
        spec = specs[name] = spec_of(signature, min(pointer & -pointer, 16) or 16)
        if spec.alignment % dtype_of(spec.dtype).itemsize:
            raise ValueError(f"{name} must be aligned to the size of a {spec.dtype}; got address {pointer:#x}")
    for name, out in zip(names[len(inputs) :], outs, strict=True):
        if out is not None:
            check_writable(name, out)
    addresses = {name: pointer for name, (pointer, _) in found.items()}
    with on_device(device):
        call = Call(specs, addresses, device, stream, arrays)
        plan, results = prepare(call, *arguments) if owner is None else prepare(owner, call, *arguments)
        ready = Ready(plan, library_of(inputs[0], names[0]), results, device)
    if key[2] is not None:
        plan_cache().store(key, ready)
    return ready


def refuse_capture(operation: str, stream: int, advice: str = "") -> None:
    """CaptureError where the stream, or PyTorch's current one, is being captured: nothing is planned then."""
    if not capture_nearby(stream):
        return
    why = "a stream is being captured into a CUDA graph"
    if not advice:
        why = f"this signature has not been planned yet, and {why}"
        advice = "Call it once with arrays of the same shapes before the capture (a warm-up)"
    raise CaptureError(f"{operation}: {why}. {advice}; the capture is intact")


def check_writable(name: str, out: Any) -> None:
    """ValueError for a result that cannot be written."""
    if not library_of(out, name).writable(out):
        raise ValueError(f"{name} must be a writable array; got a read-only one")
