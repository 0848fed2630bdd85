"""Choosing an algorithm of the v7 functions on descriptors, by preference."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, c_int, c_size_t
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

from cudnnpy import raw
from cudnnpy._core.candidate_table import table
from cudnnpy._core.driver import capture_nearby
from cudnnpy._core.layouts import extent, packed_strides
from cudnnpy._core.owned import Owned
from cudnnpy._core.values import to_c
from cudnnpy._memory import workspace as memory
from cudnnpy._memory.arrays import library_of, read, spec_of
from cudnnpy._options.byte_counts import bytes_text
from cudnnpy._options.checks import check_channels, check_integer, check_option, shown
from cudnnpy._options.convolution import canonical, limit_of_preference
from cudnnpy.descriptors.convolution import ConvolutionDescriptor
from cudnnpy.descriptors.tensors import FilterDescriptor, TensorDescriptor
from cudnnpy.errors import CaptureError, NoAlgorithmError
from cudnnpy.handle import Handle, on_device
from cudnnpy.names import enumerator, short_name
from cudnnpy.typing import Array, ConvolutionOperation, Preference

Algorithm: TypeAlias = (
    raw.cudnnConvolutionFwdAlgo_t | raw.cudnnConvolutionBwdDataAlgo_t | raw.cudnnConvolutionBwdFilterAlgo_t
)
Tensor: TypeAlias = TensorDescriptor | raw.cudnnTensorDescriptor_t
Filter: TypeAlias = FilterDescriptor | raw.cudnnFilterDescriptor_t
Convolution: TypeAlias = ConvolutionDescriptor | raw.cudnnConvolutionDescriptor_t
_OwnedT = TypeVar("_OwnedT", bound=Owned[Any])
_FLOATS = ("float16", "bfloat16", "float32", "float64")


class Operation(NamedTuple):
    """An operation of a convolution in C."""

    direction: str  # in the names of its functions
    algorithms: type[Algorithm]
    order: str  # x, w and y in the order of the functions; the last is written
    nondeterministic: str = ""  # the digits of algorithms

    def function(self, name: str) -> str:
        """Return the name of a function: cudnnConvolutionForward of "cudnnConvolution{}"."""
        return name.format(self.direction)


OPERATIONS = {
    "forward": Operation("Forward", raw.cudnnConvolutionFwdAlgo_t, "xwy"),
    "backward_data": Operation("BackwardData", raw.cudnnConvolutionBwdDataAlgo_t, "wyx", "0"),
    "backward_filter": Operation("BackwardFilter", raw.cudnnConvolutionBwdFilterAlgo_t, "xyw", "03"),
}


def permitted_math(dtype: str, *, tf32: bool) -> raw.cudnnMathType_t:
    """Return the math type that permits every instruction that the element type of x, and `tf32`, permit."""
    if dtype == "float32" and not tf32:
        return raw.CUDNN_FMA_MATH
    return raw.CUDNN_TENSOR_OP_MATH if dtype in ("float16", "bfloat16") else raw.CUDNN_DEFAULT_MATH


@dataclass(frozen=True)
class AlgorithmCandidate:
    """A v7 algorithm with a math type, and whether it can be used. `cudnnpy.candidates_table` shows several."""

    algorithm: Algorithm  #: cuDNN's enumerator
    math_type: raw.cudnnMathType_t  #: the math type that the algorithm has to run with
    workspace_size: int  #: in bytes
    deterministic: bool  #: whether the result has the same bits every time
    time: float | None  #: the measured time in milliseconds; None if it was not measured
    status: int  #: raw.CUDNN_STATUS_SUCCESS if cuDNN supports the algorithm here
    rejection_reason: str  #: "" if the algorithm can be used
    name: str  #: the short name of the algorithm
    notes: tuple[str]  #: the short name of the math type
    source: str  #: "legacy", as of v7 algorithms in `cudnnpy.Candidate`

    @property
    def milliseconds(self) -> float | None:
        """`time`, as `cudnnpy.Candidate` calls it."""
        return self.time


@dataclass(frozen=True)
class AlgorithmChoice:
    """The algorithm that `choose_algorithm` chose. Its math type has been set on the convolution descriptor."""

    algorithm: Algorithm  #: cuDNN's enumerator
    math_type: raw.cudnnMathType_t  #: the math type that the algorithm has to run with
    workspace_size: int  #: in bytes
    deterministic: bool  #: whether the result has the same bits every time
    time: float | None  #: the measured time in milliseconds; None if it was not measured
    candidates: tuple[AlgorithmCandidate, ...]  #: every algorithm with every math type, in cuDNN's order


def choose_algorithm(
    operation: ConvolutionOperation,
    x: Tensor,
    w: Filter,
    convolution: Convolution,
    y: Tensor,
    *,
    prefer: Preference = "fastest",
    workspace_limit: int | None = None,
    deterministic: bool = False,
    tf32: bool = True,
    handle: Handle | raw.cudnnHandle_t | None = None,
    arrays: Sequence[Array | int] | None = None,
    workspace: Array | None = None,
) -> AlgorithmChoice:
    """Choose an algorithm of cudnnConvolutionForward, -BackwardData or -BackwardFilter, and set its math type.

    The first candidate that meets the options is chosen, in the order of cudnnGetConvolution...Algorithm_v7, or for "autotune"
    of cudnnFindConvolution...AlgorithmEx, which runs every algorithm in the process of the caller.

    Parameters
    ----------
    operation : {"forward", "backward_data", "backward_filter"}
        The operation.
    x, w, convolution, y : descriptors or raw handles
        The image or dx, the filter or dw, the convolution, and the result of forward or dy. The math type that the convolution
        descriptor has is not regarded.
    prefer : {"fastest", "limited_workspace", "no_workspace", "autotune"}
        How to choose.
    workspace_limit : int or None
        The largest workspace in bytes. None is 1 GiB for "limited_workspace", and no limit for "fastest" and "autotune".
    deterministic, tf32 : bool
        Whether every result must have the same bits, and whether float32 may be rounded to tf32.
    handle : Handle, cudnnHandle_t or None
        Its stream is that of "autotune"; the device of a cudnnHandle_t must be current. None is the calling thread's Handle for
        the current device, on the default stream.
    arrays : sequence of three device arrays or addresses, or None
        Memory of x, w and y for "autotune", of which the operation's result is overwritten. The size behind an address is not
        checked. None allocates the memory as workspace is allocated, and frees it.
    workspace : device array or None
        Memory for the workspace of "autotune", which is overwritten. None allocates and frees it.

    Raises
    ------
    cudnnpy.NoAlgorithmError
        If no candidate meets the options. After every error the descriptor has the math type that it had.
    TypeError, ValueError
        If an argument is invalid, or the descriptors do not fit together.
    MemoryError, CaptureError
        If "autotune" cannot allocate x, w and y, or a stream is being captured.
    """
    functions = OPERATIONS[check_option("operation", operation, tuple(OPERATIONS))]
    options = {"prefer": prefer, "workspace_limit": workspace_limit, "deterministic": deterministic, "tf32": tf32}
    limit = limit_of_preference(prefer, canonical(options)["workspace_limit"])
    for name, value in (("arrays", arrays), ("workspace", workspace)):
        if value is not None and prefer != "autotune":
            raise ValueError(f"{name} must be None unless prefer is 'autotune'; got {shown(value)}")
    tensors = _tensors(x, w, convolution, y)
    target, device = _handle(handle)
    before = tensors.convolution.get("cudnnGetConvolutionMathType")["mathType"]
    permitted = permitted_math(tensors.x.dtype, tf32=tf32)
    with on_device(device) as (device, _):
        try:
            raw.call("cudnnSetConvolutionMathType", tensors.convolution, permitted)
            if prefer == "autotune":
                with memory.temporary(device, target.stream):
                    results = _search(functions, target, tensors, device, limit, arrays, workspace)
            else:
                results = _heuristics(functions, target, tensors)
            candidates = tuple(_candidate(functions, result, permitted, deterministic, limit) for result in results)
            chosen = next((candidate for candidate in candidates if not candidate.rejection_reason), None)
            if chosen is None:
                wanted = ", ".join(f"{name}={value!r}" for name, value in options.items())
                problem = f"{operation} of {tensors.x}, {tensors.w}, {tensors.convolution}, {tensors.y}"
                raise NoAlgorithmError(problem, wanted, table(candidates), candidates)
            raw.call("cudnnSetConvolutionMathType", tensors.convolution, chosen.math_type)
        except BaseException:
            raw.call("cudnnSetConvolutionMathType", tensors.convolution, before)
            raise
    return AlgorithmChoice(
        chosen.algorithm, chosen.math_type, chosen.workspace_size, chosen.deterministic, chosen.time, candidates
    )


def workspace_size(
    operation: ConvolutionOperation,
    x: Tensor,
    w: Filter,
    convolution: Convolution,
    y: Tensor,
    algorithm: Algorithm | str,
    *,
    handle: Handle | raw.cudnnHandle_t | None = None,
) -> int:
    """Return the workspace in bytes of an algorithm with the math type of the convolution descriptor.

    C functions: cudnnGetConvolution...WorkspaceSize. `algorithm` is cuDNN's enumerator or its short name; the other arguments
    and their errors are those of `choose_algorithm`. Raises StatusError if cuDNN does not support the algorithm.
    """
    functions = OPERATIONS[check_option("operation", operation, tuple(OPERATIONS))]
    number = enumerator(functions.algorithms, algorithm, "algorithm")
    tensors = _tensors(x, w, convolution, y)
    (target, device), size = _handle(handle), c_size_t()
    with on_device(device):
        name = functions.function("cudnnGetConvolution{}WorkspaceSize")
        raw.call(name, target, *tensors.ordered(functions), number, byref(size))
    return size.value


class _Tensors(NamedTuple):
    x: TensorDescriptor
    w: FilterDescriptor
    convolution: ConvolutionDescriptor
    y: TensorDescriptor

    def ordered(self, functions: Operation) -> tuple[Any, Any, ConvolutionDescriptor, Any]:
        """Return the descriptors in the order of C."""
        first, second, last = (getattr(self, role) for role in functions.order)
        return first, second, self.convolution, last


def _tensors(x: object, w: object, convolution: object, y: object) -> _Tensors:
    """Return the descriptors. Raises TypeError or ValueError if they do not fit together."""
    kinds = (TensorDescriptor, FilterDescriptor, ConvolutionDescriptor, TensorDescriptor)
    named = zip(kinds, (x, w, convolution, y), _Tensors._fields, strict=True)
    found = _Tensors(*(_borrowed(kind, given, name) for kind, given, name in named))
    x_shape, w_shape, y_shape = found.x.shape, found.w.shape, found.y.shape
    ranks = {"w": len(w_shape), "convolution": len(found.convolution.padding) + 2, "y": len(y_shape)}
    for name, rank in ranks.items():
        if rank != len(x_shape):
            raise ValueError(f"{name} must have N, C and the spatial dimensions of x, {x_shape}; got {rank} dimensions")
    for name, dtype in (("w", found.w.dtype), ("y", found.y.dtype)):
        if dtype != found.x.dtype and found.x.dtype in _FLOATS:  # C combines integers with several types
            raise TypeError(f"{name} must be {found.x.dtype}, as x; got {dtype}")
    check_channels(x_shape, w_shape, found.convolution.groups)
    expected = found.convolution.output_shape(found.x, found.w)
    if y_shape != expected:
        raise ValueError(f"y must have shape {expected}, the result of the convolution; got shape {y_shape}")
    return found


def _borrowed(owner: type[_OwnedT], given: object, argument: str) -> _OwnedT:
    """Return an owner of a C object; for a raw handle, one that does not destroy it. Raises ClosedError, too."""
    name = raw.parameters(owner._create)[0][1].removesuffix(" *")
    pointer = to_c(name, given, argument)
    if not pointer:
        raise (TypeError if given is None else ValueError)(
            f"{argument} must be a {name} that is not NULL; got {given!r}"
        )
    if isinstance(given, owner):
        return given
    found = owner.__new__(owner)
    found._pointer = found._as_parameter_ = pointer
    return found


def _handle(given: object) -> tuple[Handle, int | None]:
    """Return the handle and its device; None is the current device."""
    if given is None:
        given = Handle.default()
        given.set_stream(None)
    found = _borrowed(Handle, given, "handle")
    return found, getattr(found, "_device", None)


def _ask(name: str, functions: Operation, handle: Handle, *arguments: Any, memory: tuple[Any, ...] = ()) -> list[Any]:
    """Return the structs that a Get or Find function fills in."""
    count = c_int()
    raw.call(functions.function("cudnnGetConvolution{}AlgorithmMaxCount"), handle, byref(count))
    results = (getattr(raw, functions.algorithms.__name__.replace("Algo_t", "AlgoPerf_t")) * count.value)()
    raw.call(functions.function(name), handle, *arguments, len(results), byref(count), results, *memory)
    found: list[Any] = results[: count.value]
    return found


def _heuristics(functions: Operation, handle: Handle, tensors: _Tensors) -> list[Any]:
    return _ask("cudnnGetConvolution{}Algorithm_v7", functions, handle, *tensors.ordered(functions))


def _search(
    functions: Operation, handle: Handle, tensors: _Tensors, device: int, limit: int | None, arrays: Any, workspace: Any
) -> list[Any]:
    """Return what cuDNN measured. Memory that is allocated is freed when its owner is, on return."""
    stream = handle.stream
    if capture_nearby(stream):  # which the search would invalidate
        raise CaptureError("choose_algorithm: a stream is being captured; choose before the capture, which is intact")
    if not (arrays is None or (isinstance(arrays, tuple | list) and len(arrays) == 3)):
        raise ValueError(f"arrays must be three device arrays or addresses, of x, w and y; got {shown(arrays)}")
    found, space = {}, None if workspace is None else _given(workspace, "workspace", device)
    for at, role in enumerate("xwy"):
        size, name = getattr(tensors, role).nbytes, f"arrays[{at}]"
        found[role] = memory.take(size, device, stream) if arrays is None else _given(arrays[at], name, device, size)
    result = functions.order[-1]
    if arrays is not None and not isinstance(array := found[result][2], int) and not library_of(array).writable(array):
        raise ValueError(f"arrays[{'xwy'.index(result)}] must be a writable array; got a read-only one")
    if space is None:
        listed = {each.memory for each in _heuristics(functions, handle, tensors) if not each.status}
        for size in sorted((size for size in listed if limit is None or size <= limit), reverse=True):
            try:
                space = memory.take(size, device, stream) if size else None
            except MemoryError:
                continue
            break
    address, size, _ = space or (None, 0, None)
    size = size if limit is None else min(size, limit)
    first, second, convolution, last = tensors.ordered(functions)
    a, b, c = (found[role][0] for role in functions.order)
    operands = (first, a, second, b, convolution, last, c)
    return _ask("cudnnFindConvolution{}AlgorithmEx", functions, handle, *operands, memory=(address, size))


def _given(array: Any, argument: str, device: int, needed: int = 0) -> tuple[int, int, Any]:
    """Return the address, the bytes and the owner of an array, or of an address. Raises TypeError or ValueError."""
    if needed and isinstance(array, int):
        expected = "a device array, or an address other than 0"
        return check_integer(argument, array, 1, (1 << 64) - 1, expected=expected), needed, array
    address, signature = read(array, argument)
    if signature[3] != device:
        raise ValueError(f"{argument} must be on device {device}, as the handle; got device {signature[3]}")
    spec = spec_of(signature)
    size = extent(spec if spec.strides is not None else spec._replace(strides=packed_strides(spec.shape)))
    if size < needed:
        raise ValueError(f"{argument} must have {needed} bytes, as its descriptor; got {size}")
    return address, size, array


def _candidate(
    functions: Operation, result: Any, permitted: raw.cudnnMathType_t, deterministic: bool, limit: int | None
) -> AlgorithmCandidate:
    """Return a result of Get or Find with the reason to reject it."""
    reason, algorithm, math_type = "", functions.algorithms(result.algo), raw.cudnnMathType_t(result.mathType)
    if result.status:
        known = (status.name for status in raw.cudnnStatus_t if status == result.status)
        reason = f"not supported here: {next(known, 'an unknown status')} ({int(result.status)})"
    elif deterministic and result.determinism != raw.CUDNN_DETERMINISTIC:
        reason = "not deterministic"
    elif permitted == raw.CUDNN_FMA_MATH and math_type != raw.CUDNN_FMA_MATH:
        reason = "uses tf32"
    elif limit is not None and result.memory > limit:
        reason = f"needs {bytes_text(result.memory)}, the limit is {bytes_text(limit)}"
    return AlgorithmCandidate(
        algorithm,
        math_type,
        result.memory,
        result.determinism == raw.CUDNN_DETERMINISTIC,
        result.time if result.time >= 0 and not result.status else None,
        int(result.status),
        reason,
        short_name(algorithm),
        (short_name(math_type),),
        "legacy",
    )
