"""Dispatch: from the arrays of a call to a launch, for every operation, and again with less memory if the device ran out of it.

A known call signature needs no set-up. `run` reads from top to bottom: the key of the call, its cache entry (looked up, or
planned now), the results and the workspace, the launch. Only `_retry_after_oom` handles allocation failures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from cudnnpy._arrays.array_libraries import (
    ArrayLibrary,
    ArrayMetadata,
    _libraries,
    check_writable,
    library_of,
    read,
    spec_of,
    to_jax,
)
from cudnnpy._arrays.workspace import (
    ask_for_memory,
    is_out_of_memory,
    max_allocatable,
    release_workspace,
    trim_pool_afterwards,
    workspace,
)
from cudnnpy._checks.options import Options
from cudnnpy._checks.public_dir import no_attribute
from cudnnpy._checks.suggestions import refuse_call, suggest_argument
from cudnnpy._core.cache_token import CacheToken, cache_token
from cudnnpy._core.driver import check_not_capturing, is_stream_or_torch_capturing
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import (
    TensorSpec,
    is_format_ambiguous,
    normalize_unit_strides,
    packed_strides,
    suggests_channels_last,
)
from cudnnpy._launch.launcher import Launchable, Launcher
from cudnnpy._launch.plan_cache import arguments_token, lookup, plan_cache
from cudnnpy._launch.steps import aligned_size
from cudnnpy.errors import NoAlgorithmError
from cudnnpy.handle import on_device, stream_address
from cudnnpy.typing import Stream


class Specs(dict[str, TensorSpec]):
    """The tensors of a call by name.

    `specs[name]` raises TypeError for an array that was not passed; `specs.get(name)` is None.
    """

    def __missing__(self, name: str) -> TensorSpec:
        raise TypeError(f"{name} must be a device array; got None")


class Call(NamedTuple):
    """A call with a new call signature: the arrays that were passed, by name, the device and the stream.

    The strides of axes of size 1 in `specs` are normalized to one memory format. `suggests_channels_last`: the memory format
    of all arrays is ambiguous, and the size-1 strides of one suggest channels last. New results with an unambiguous format
    are then channels last.

    `memory_limit` is None on the first attempt. If a result or the workspace cannot be allocated, the call is planned once
    more with the bytes of workspace that can be allocated, which the new plan must not exceed. An operation with only one
    plan may ignore it.
    """

    specs: Specs
    addresses: dict[str, int]
    device: int
    stream: int
    arrays: dict[str, Any]
    memory_limit: int | None = None
    suggests_channels_last: bool = False

    def allows(self, workspace_size: int) -> bool:
        """Return whether a plan may need a workspace of this size."""
        return self.memory_limit is None or workspace_size <= self.memory_limit

    def memory_limit_with_scratch(self, *scratch: int) -> int | None:
        """Return the memory limit of a plan that shares the workspace with scratch memory of these sizes in bytes."""
        return None if self.memory_limit is None else max(0, self.memory_limit - sum(map(aligned_size, scratch)))


# Plans a call. Returns the plan, and the results' shapes, strides and dtypes in the axis order of the arrays.
Prepare = Callable[..., tuple[Launchable, Sequence[TensorSpec]]]


class Owner(Protocol):
    """The object that an operation belongs to. Its cache token represents all of its options in keys.

    An owner whose plans depend on `Call.suggests_channels_last` has a true attribute `uses_suggested_format`.
    """

    _token: CacheToken


class Request(NamedTuple):
    """The arguments of `run` that planning needs."""

    operation: str
    owner: Owner | None
    prepare: Prepare
    arguments: tuple[Any, ...]
    names: tuple[str, ...]
    inputs: tuple[Any, ...]
    outs: tuple[Any, ...]


class CachedPlan:
    """A plan cache entry: the launcher and the output allocators of one call signature. Only addresses are added per call.

    `count` is the number of operands. `suggests_channels_last`: new results whose memory format is ambiguous get
    channels-last strides.
    """

    def __init__(
        self,
        launcher: Launcher,
        library: ArrayLibrary,
        results: Sequence[TensorSpec],
        inputs: int,
        suggests_channels_last: bool,
    ) -> None:
        self.launcher, self.library, self.count = launcher, library, inputs + len(results)
        self.suggests_channels_last = suggests_channels_last
        self.workspace_size = launcher.planned.workspace_size
        self.converts_outputs = library.name == "jax"
        self.address = library.address
        self.results = [spec._replace(strides=spec.strides or packed_strides(spec.shape)) for spec in results]
        outputs = [
            normalize_unit_strides(spec, last=True)[0] if suggests_channels_last and is_format_ambiguous(spec) else spec
            for spec in self.results
        ]
        wanted = [(spec.shape, spec.strides or (), dtype_of(spec.dtype)) for spec in outputs]
        self.allocators = [library.maker(*spec, launcher.device) for spec in wanted]
        self.sizes = [math.prod(shape) * dtype.itemsize for shape, _, dtype in wanted]

    def with_suggested_format(self, suggests_channels_last: bool) -> CachedPlan:
        """Return an entry with the same launcher whose new results have the suggested memory format."""
        if suggests_channels_last == self.suggests_channels_last:
            return self
        inputs = self.count - len(self.results)
        return CachedPlan(self.launcher, self.library, self.results, inputs, suggests_channels_last)

    def allocate_outputs(self, outs: tuple[Any, ...], addresses: list[int]) -> tuple[Any, ...]:
        """Allocate the results that were not passed, and complete the addresses. If it raises, nothing has changed."""
        if len(outs) == 1:
            result = self.allocators[0]()
            addresses.append(self.address(result))
            return (result,)
        results = tuple(
            [allocate() if out is None else out for allocate, out in zip(self.allocators, outs, strict=True)]
        )
        addresses[self.count - len(outs) :] = [
            self.address(result) if out is None else library_of(out, "out").address(out)
            for result, out in zip(results, outs, strict=True)
        ]
        return results


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
    absent; an out that is None becomes a new array of the first input's library. The launch takes the addresses in this
    order.

    `prepare(owner, call, *arguments)`, or `prepare(call, *arguments)` without an owner, plans a new call signature. The key
    holds everything that is passed to it. Sizes and axes are passed one by one: a call with a tuple among the arguments is
    not cached.
    """
    first = inputs[0]
    kind = type(first)
    library = _libraries.get(kind) or library_of(first, names[0])
    read_own = library.read
    bits, metadata = read_own(first)
    addresses, device = [bits], metadata[3]
    try:
        token = arguments_token(*arguments)
    except TypeError:  # no operation accepts an argument that cannot be hashed: planning rejects it
        token = None
    # the library's name is part of the key, since results are arrays of that library
    parts: list[Any] = [None if owner is None else owner._token, prepare, token, library[0], metadata]
    for array in inputs[1:] + outs:
        if array is None:
            parts.append(None)
        else:
            if type(array) is kind:
                address, metadata = read_own(array)
            else:
                address, metadata = library_of(array, names[len(parts) - 4]).read(array)
            addresses.append(address)
            parts.append(metadata)
            bits |= address
    if bits & 15:  # rare: misaligned arrays have plans of their own
        parts.append(tuple(min(address & -address, 16) for address in addresses))
    try:
        queue = library.current_stream(device) if stream is None else stream_address(stream)
    except RuntimeError:  # a CUDA build of PyTorch without a driver has no stream, not even for a host array
        if device >= 0:
            raise
        queue = 0  # planning rejects the array
    key = tuple(parts)
    entry: CachedPlan | None = lookup(key) if token is not None else None
    if entry is None:
        request = Request(operation, owner, prepare, arguments, names, inputs, outs)
        entry = _plan(key, request, queue)
    results = outs
    try:
        if len(addresses) < entry.count:
            results = entry.allocate_outputs(outs, addresses)
        size = entry.workspace_size
        addresses.append(workspace(size, device, queue) if size else 0)
    except Exception as error:
        request = Request(operation, owner, prepare, arguments, names, inputs, outs)
        entry, results = _retry_after_oom(error, key, request, queue, entry, results, addresses)
    entry.launcher.run(tuple(addresses), queue)
    if entry.converts_outputs:
        results = tuple(
            [to_jax(result, queue) if out is None else out for result, out in zip(results, outs, strict=True)]
        )
    return results[0] if len(results) == 1 else results


def _plan(key: tuple[Any, ...], request: Request, stream: int, memory_limit: int | None = None) -> CachedPlan:
    """Plan a call signature, and insert the plan into the cache. Raises the errors of the arrays and of the operation.

    Arrays whose strides differ from a cached plan's only on axes of size 1 take that plan.
    """
    names, inputs, outs = request.names, request.inputs, request.outs
    arrays = {name: array for name, array in zip(names, (*inputs, *outs), strict=True) if array is not None}
    contents = {name: read(array, name) for name, array in arrays.items()}
    device: int = contents[names[0]][1][3]
    given = specs_of(contents, device, names[0])
    # None if the memory format of an array is unambiguous
    suggestion = suggests_channels_last(*given.values()) if is_format_ambiguous(*given.values()) else None
    specs = Specs(zip(given, normalize_unit_strides(*given.values()), strict=True))
    for name, out in zip(names[len(inputs) :], outs, strict=True):
        if out is not None:
            check_writable(name, out)
    cache, canonical_key = plan_cache(), (*key[:4], device, *specs.items())
    is_cacheable = key[2] is not None
    if is_cacheable and memory_limit is None:
        known: CachedPlan | None = cache.by_canonical_key.get(canonical_key)
        known = known or cache.by_canonical_key.get((canonical_key, suggestion))
        if known is not None:
            cache.insert(key, known := known.with_suggested_format(bool(suggestion)))
            return known
    check_not_capturing(request.operation, stream)
    addresses = {name: address for name, (address, _) in contents.items()}
    with on_device(device):
        call = Call(specs, addresses, device, stream, arrays, memory_limit, bool(suggestion))
        owner = () if request.owner is None else (request.owner,)
        planned, results = request.prepare(*owner, call, *request.arguments)
        count = sum(array is not None for array in inputs)
        entry = CachedPlan(Launcher(planned), library_of(inputs[0], names[0]), results, count, bool(suggestion))
    if is_cacheable:
        depends = suggestion is not None and getattr(request.owner, "uses_suggested_format", False)
        is_shared = not depends or is_format_ambiguous(*entry.results)
        cache.insert_planned(key, entry, canonical_key if is_shared else (canonical_key, suggestion))
    return entry


def specs_of(contents: dict[str, tuple[int, ArrayMetadata]], device: int, first: str) -> Specs:
    """Return the tensors of a call by name, from the addresses and metadata of arrays.

    Raises ValueError for another device, or an address that is not aligned.
    """
    specs = Specs()
    for name, (address, metadata) in contents.items():
        if metadata[3] != device:
            raise ValueError(f"{name} must be on device {device}, as {first}; got an array on device {metadata[3]}")
        spec = spec_of(metadata, min(address & -address, 16) or 16)
        if spec.alignment % dtype_of(spec.dtype).itemsize:
            raise ValueError(f"{name} must be aligned to the size of a {spec.dtype}; got address {address:#x}")
        specs[name] = spec._replace(strides=spec.strides or packed_strides(spec.shape))
    return specs


def _retry_after_oom(
    error: Exception,
    key: tuple[Any, ...],
    request: Request,
    stream: int,
    entry: CachedPlan,
    results: tuple[Any, ...],
    addresses: list[int],
) -> tuple[CachedPlan, tuple[Any, ...]]:
    """Retry after running out of memory, for every operation alike.

    First release cached workspace and allocate the results; if the workspace still fails, plan again within the bytes that
    can be allocated (`Call.memory_limit`), and replace the old plan. Nothing is released or planned during a stream capture,
    and the error is raised as it is.

    Raises MemoryError with the sizes and what to do if this does not help.
    """
    if not is_out_of_memory(error) or is_stream_or_torch_capturing(stream):
        raise error
    device, size = entry.launcher.device, entry.workspace_size
    new = sum(count for count, out in zip(entry.sizes, request.outs, strict=True) if out is None)
    needed = f"{request.operation}: out of memory on device {device}: "
    needed += f"needs {new} bytes for results and {size} bytes of workspace"
    try:
        ask_for_memory()
        if len(addresses) < entry.count:
            release_workspace()
            results = entry.allocate_outputs(request.outs, addresses)
        with trim_pool_afterwards(device, stream):
            memory_limit = max_allocatable(size, device, stream) if size else 0
            if memory_limit < size:
                needed += f"; at most {memory_limit} bytes of workspace can be allocated"
                entry = _plan(key, request, stream, memory_limit)
            size = entry.workspace_size
            addresses.append(workspace(size, device, stream) if size else 0)
    except NoAlgorithmError as none:
        raise MemoryError(f"{needed}, and no candidate fits: {none}\n{MEMORY_ADVICE}") from error
    except Exception as again:
        if not is_out_of_memory(again):
            raise
        raise MemoryError(f"{needed}: {again}. {MEMORY_ADVICE}") from again
    return entry, results


MEMORY_ADVICE = (
    "Free device memory (cudnnpy.release_workspace() gives back the cached workspace), pass arrays for the results, "
    "or ask for less workspace (workspace_limit, prefer='no_workspace')"
)


class ArrayOperation(Options):
    """An operation with options, whose public methods compute on arrays.

    A subclass has the options, the public methods with their signatures and docstrings, and the implementations: `_forward`,
    `_backward` and others. A method passes its arrays to `_run` with an implementation. An implementation plans a call: it
    takes a Call and the arguments of the method, and returns a Program or Plan and the specs of the results. The
    classes of cudnnpy.reference are subclasses, which replace `_run` and the implementations.

    Objects of one class with equal options share a cache token, and so they share plans.
    """

    _suggest = staticmethod(suggest_argument)
    _token: CacheToken
    # _run(name, operation, implementation, names, inputs, outs, stream, *arguments) returns the result, or a tuple of the
    # results. `names` are the names of the inputs and of the results. A result that is None in `outs` becomes a new array.
    _run: ClassVar[Callable[..., Any]] = staticmethod(run)

    def _derived(self) -> dict[str, Any]:
        return {"_token": cache_token(type(self), *self._fields().values())}

    if not TYPE_CHECKING:  # type checkers report the call and the attribute
        __call__ = refuse_call

        def __getattr__(self, name):
            is_size = "workspace" in name and hasattr(type(self), "plan")
            text = (
                f"{type(self).__name__!r} object has no attribute {name!r}: type plan('forward', x, w).workspace_size"
            )
            raise AttributeError(text if is_size else no_attribute(self, name), name=name, obj=self)
