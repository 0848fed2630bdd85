"""Choose a v7 convolution algorithm (cudnnConvolutionFwdAlgo_t ...) for descriptors, by the four preferences."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, c_int, c_size_t
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

from cudnnpy import raw
from cudnnpy._arrays import workspace as memory
from cudnnpy._arrays.array_libraries import library_of, read, spec_of
from cudnnpy._checks.byte_counts import bytes_text
from cudnnpy._checks.option_values import check_channels, check_integer, check_option, error_repr
from cudnnpy._checks.preferences import PreferenceOptions
from cudnnpy._checks.suggestions import explained
from cudnnpy._core.candidate_table import table
from cudnnpy._core.driver import is_stream_or_torch_capturing
from cudnnpy._core.layouts import byte_extent, packed_strides
from cudnnpy._core.owned import Owned
from cudnnpy._core.values import to_c
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


class ConvolutionFunctions(NamedTuple):
    """The C functions of a convolution operation."""

    direction: str  # in the names of the functions
    algorithms: type[Algorithm]
    operands: str  # x, w and y in the order of the functions; the last is written
    nondeterministic: str = ""  # the digits of nondeterministic algorithms

    def function(self, name: str) -> str:
        """Return the name of a function: cudnnConvolutionForward of "cudnnConvolution{}"."""
        return name.format(self.direction)


FUNCTIONS = {
    "forward": ConvolutionFunctions("Forward", raw.cudnnConvolutionFwdAlgo_t, "xwy"),
    "backward_data": ConvolutionFunctions("BackwardData", raw.cudnnConvolutionBwdDataAlgo_t, "wyx", "0"),
    "backward_filter": ConvolutionFunctions("BackwardFilter", raw.cudnnConvolutionBwdFilterAlgo_t, "xyw", "03"),
}


def permitted_math(dtype: str, *, tf32: bool) -> raw.cudnnMathType_t:
    """Return the least restrictive math type for the data type of x and `tf32`."""
    if dtype == "float32" and not tf32:
        return raw.CUDNN_FMA_MATH
    return raw.CUDNN_TENSOR_OP_MATH if dtype in ("float16", "bfloat16") else raw.CUDNN_DEFAULT_MATH


@dataclass(frozen=True)
class AlgorithmCandidate:
    """A v7 algorithm with a math type, and the reason if it is rejected. `cudnnpy.candidates_table` shows several.

    Examples
    --------
    >>> # on a GPU
    >>> from cudnnpy.descriptors import ConvolutionDescriptor, FilterDescriptor, TensorDescriptor, choose_algorithm
    >>> x, w, convolution = TensorDescriptor((8, 64, 28, 28)), FilterDescriptor((64, 64, 3, 3)), ConvolutionDescriptor((1, 1))
    >>> first, *_ = choose_algorithm("forward", x, w, convolution, x).candidates
    >>> first.workspace_size >= 0
    True
    """

    algorithm: Algorithm  #: cuDNN's enumerator
    math_type: raw.cudnnMathType_t  #: the math type that the algorithm requires
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
    """The algorithm that `choose_algorithm` chose. Its math type has been set on the convolution descriptor.

    Examples
    --------
    >>> # on a GPU
    >>> from cudnnpy.descriptors import ConvolutionDescriptor, FilterDescriptor, TensorDescriptor, choose_algorithm
    >>> x, w, convolution = TensorDescriptor((8, 64, 28, 28)), FilterDescriptor((64, 64, 3, 3)), ConvolutionDescriptor((1, 1))
    >>> choice = choose_algorithm("forward", x, w, convolution, x)
    >>> choice.algorithm in [candidate.algorithm for candidate in choice.candidates]
    True
    """

    algorithm: Algorithm  #: cuDNN's enumerator
    math_type: raw.cudnnMathType_t  #: the math type that the algorithm requires
    workspace_size: int  #: in bytes
    deterministic: bool  #: whether the result has the same bits every time
    time: float | None  #: the measured time in milliseconds; None if it was not measured
    candidates: tuple[AlgorithmCandidate, ...]  #: every algorithm with every math type, in cuDNN's order


@explained
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
        The image or dx, the filter or dw, the convolution, and the result of forward or dy. The math type of the convolution
        descriptor is ignored.
    prefer : {"fastest", "limited_workspace", "no_workspace", "autotune"}
        How to choose.
    workspace_limit : int or None
        The largest workspace in bytes. None is 1 GiB for "limited_workspace", and no limit for "fastest" and "autotune".
    deterministic, tf32 : bool
        Whether every result must have the same bits, and whether float32 may be rounded to tf32.
    handle : Handle, cudnnHandle_t or None
        "autotune" runs on its stream; the device of a cudnnHandle_t must be current. None is the calling thread's Handle for
        the current device, on the default stream.
    arrays : sequence of three device arrays or addresses, or None
        Memory of x, w and y for "autotune". The memory of the operation's result is overwritten. The size behind an address is
        not checked. None allocates the memory as workspace is allocated, and frees it.
    workspace : device array or None
        Memory for the workspace of "autotune", which is overwritten. None allocates and frees it.

    Raises
    ------
    cudnnpy.NoAlgorithmError
        If no candidate meets the options. After every error the descriptor has its previous math type.
    TypeError, ValueError
        If an argument is invalid, or the descriptors are inconsistent.
    MemoryError, CaptureError
        If "autotune" cannot allocate x, w and y, or a stream is being captured.

    Examples
    --------
    >>> # on a GPU
    >>> from cudnnpy.descriptors import ConvolutionDescriptor, FilterDescriptor, TensorDescriptor, choose_algorithm
    >>> x, w, convolution = TensorDescriptor((8, 64, 28, 28)), FilterDescriptor((64, 64, 3, 3)), ConvolutionDescriptor((1, 1))
    >>> choose_algorithm("forward", x, w, convolution, x, prefer="no_workspace").workspace_size
    0
    """
    functions = FUNCTIONS[check_option("operation", operation, tuple(FUNCTIONS))]
    options = dict[str, Any](prefer=prefer, workspace_limit=workspace_limit, deterministic=deterministic, tf32=tf32)
    limit = PreferenceOptions(**options)._permitted_workspace()
    for name, value in (("arrays", arrays), ("workspace", workspace)):
        if value is not None and prefer != "autotune":
            raise ValueError(f"{name} must be None unless prefer is 'autotune'; got {error_repr(value)}")
    tensors = _tensors(x, w, convolution, y)
    target, device = _handle(handle)
    previous = tensors.convolution.get("cudnnGetConvolutionMathType")["mathType"]
    permitted = permitted_math(tensors.x.dtype, tf32=tf32)
    with on_device(device) as (device, _):
        try:
            raw.call("cudnnSetConvolutionMathType", tensors.convolution, permitted)
            if prefer == "autotune":
                with memory.trim_pool_afterwards(device, target.stream):
                    results = _search(functions, target, tensors, device, limit, arrays, workspace)
            else:
                results = _heuristics(functions, target, tensors)
            candidates = tuple(_candidate(functions, result, permitted, deterministic, limit) for result in results)
            chosen = next((candidate for candidate in candidates if not candidate.rejection_reason), None)
            if chosen is None:
                requested = ", ".join(f"{name}={value!r}" for name, value in options.items())
                problem = f"{operation} of {tensors.x}, {tensors.w}, {tensors.convolution}, {tensors.y}"
                raise NoAlgorithmError(problem, requested, table(candidates), candidates)
            raw.call("cudnnSetConvolutionMathType", tensors.convolution, chosen.math_type)
        except BaseException:
            raw.call("cudnnSetConvolutionMathType", tensors.convolution, previous)
            raise
    return AlgorithmChoice(
        chosen.algorithm, chosen.math_type, chosen.workspace_size, chosen.deterministic, chosen.time, candidates
    )


@explained
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
    and their errors are the same as in `choose_algorithm`. Raises StatusError if cuDNN does not support the algorithm.

    Examples
    --------
    >>> # on a GPU
    >>> from cudnnpy.descriptors import ConvolutionDescriptor, FilterDescriptor, TensorDescriptor, workspace_size
    >>> x, w, convolution = TensorDescriptor((8, 64, 28, 28)), FilterDescriptor((64, 64, 3, 3)), ConvolutionDescriptor((1, 1))
    >>> workspace_size("forward", x, w, convolution, x, "implicit_gemm") >= 0
    True
    """
    functions = FUNCTIONS[check_option("operation", operation, tuple(FUNCTIONS))]
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

    def ordered(self, functions: ConvolutionFunctions) -> tuple[Any, Any, ConvolutionDescriptor, Any]:
        """Return the descriptors in the order of C."""
        first, second, last = (getattr(self, role) for role in functions.operands)
        return first, second, self.convolution, last


def _tensors(x: object, w: object, convolution: object, y: object) -> _Tensors:
    """Return the descriptors. Raises TypeError or ValueError if they are inconsistent."""
    owners: tuple[type[Any], ...] = (TensorDescriptor, FilterDescriptor, ConvolutionDescriptor, TensorDescriptor)
    arguments = zip(owners, (x, w, convolution, y), _Tensors._fields, strict=True)
    tensors = _Tensors(*(_borrowed(owner, value, name) for owner, value, name in arguments))
    x_shape, w_shape, y_shape = tensors.x.shape, tensors.w.shape, tensors.y.shape
    ranks = {"w": len(w_shape), "convolution": len(tensors.convolution.padding) + 2, "y": len(y_shape)}
    for name, rank in ranks.items():
        if rank != len(x_shape):
            raise ValueError(f"{name} must have N, C and the spatial dimensions of x, {x_shape}; got {rank} dimensions")
    for name, dtype in (("w", tensors.w.dtype), ("y", tensors.y.dtype)):
        if dtype != tensors.x.dtype and tensors.x.dtype in _FLOATS:  # C combines integers with several types
            raise TypeError(f"{name} must be {tensors.x.dtype}, as x; got {dtype}")
    check_channels(x_shape, w_shape, tensors.convolution.groups)
    expected = tensors.convolution.output_shape(tensors.x, tensors.w)
    if y_shape != expected:
        raise ValueError(f"y must have shape {expected}, the result of the convolution; got shape {y_shape}")
    return tensors


def _borrowed(owner: type[_OwnedT], value: object, argument: str) -> _OwnedT:
    """Return an owner of a C object. The owner of a raw handle does not destroy it. Raises ClosedError, too."""
    name = raw.parameters(owner._create)[0][1].removesuffix(" *")
    pointer = to_c(name, value, argument)
    if not pointer:
        raise (TypeError if value is None else ValueError)(
            f"{argument} must be a {name} that is not NULL; got {error_repr(value)}"
        )
    if isinstance(value, owner):
        return value
    borrowed = owner.__new__(owner)
    borrowed._pointer = borrowed._as_parameter_ = pointer
    return borrowed


def _handle(value: object) -> tuple[Handle, int | None]:
    """Return the handle and its device; None is the current device."""
    if value is None:
        value = Handle.default()
        value.set_stream(None)
    handle = _borrowed(Handle, value, "handle")
    return handle, getattr(handle, "_device", None)


def _results(
    name: str, functions: ConvolutionFunctions, handle: Handle, *arguments: Any, memory: tuple[Any, ...] = ()
) -> list[Any]:
    """Return the structs that a Get or Find function fills in."""
    count = c_int()
    raw.call(functions.function("cudnnGetConvolution{}AlgorithmMaxCount"), handle, byref(count))
    results = (getattr(raw, functions.algorithms.__name__.replace("Algo_t", "AlgoPerf_t")) * count.value)()
    raw.call(functions.function(name), handle, *arguments, len(results), byref(count), results, *memory)
    filled: list[Any] = results[: count.value]
    return filled


def _heuristics(functions: ConvolutionFunctions, handle: Handle, tensors: _Tensors) -> list[Any]:
    return _results("cudnnGetConvolution{}Algorithm_v7", functions, handle, *tensors.ordered(functions))


def _search(
    functions: ConvolutionFunctions,
    handle: Handle,
    tensors: _Tensors,
    device: int,
    limit: int | None,
    arrays: Any,
    workspace: Any,
) -> list[Any]:
    """Return cuDNN's measurements of all algorithms. Allocated memory is freed with its owner, on return."""
    stream = handle.stream
    if is_stream_or_torch_capturing(stream):  # the search would invalidate the capture
        raise CaptureError("choose_algorithm: a stream is being captured; choose before the capture, which is intact")
    if not (arrays is None or (isinstance(arrays, tuple | list) and len(arrays) == 3)):
        raise ValueError(f"arrays must be three device arrays or addresses, of x, w and y; got {error_repr(arrays)}")
    operand_memory, space = {}, None if workspace is None else _array_memory(workspace, "workspace", device)
    for index, role in enumerate("xwy"):
        size, name = getattr(tensors, role).nbytes, f"arrays[{index}]"
        operand_memory[role] = (
            memory.allocate(size, device, stream)
            if arrays is None
            else _array_memory(arrays[index], name, device, size)
        )
    result = functions.operands[-1]
    array = operand_memory[result][2]
    if arrays is not None and not isinstance(array, int) and not library_of(array).writable(array):
        raise ValueError(f"arrays[{'xwy'.index(result)}] must be a writable array; got a read-only one")
    if space is None:
        sizes = {result.memory for result in _heuristics(functions, handle, tensors) if not result.status}
        for size in sorted((size for size in sizes if limit is None or size <= limit), reverse=True):
            try:
                space = memory.allocate(size, device, stream) if size else None
            except MemoryError:
                continue
            break
    address, size, _ = space or (None, 0, None)
    size = size if limit is None else min(size, limit)
    first, second, convolution, last = tensors.ordered(functions)
    a, b, c = (operand_memory[role][0] for role in functions.operands)
    operands = (first, a, second, b, convolution, last, c)
    return _results("cudnnFindConvolution{}AlgorithmEx", functions, handle, *operands, memory=(address, size))


def _array_memory(array: Any, argument: str, device: int, min_size: int = 0) -> tuple[int, int, Any]:
    """Return the address, the bytes and the owner of an array, or of an address. Raises TypeError or ValueError."""
    if min_size and isinstance(array, int):
        expected = "a device array, or an address other than 0"
        return check_integer(argument, array, 1, (1 << 64) - 1, expected=expected), min_size, array
    address, signature = read(array, argument)
    if signature[3] != device:
        raise ValueError(f"{argument} must be on device {device}, as the handle; got device {signature[3]}")
    spec = spec_of(signature)
    size = byte_extent(spec if spec.strides is not None else spec._replace(strides=packed_strides(spec.shape)))
    if size < min_size:
        raise ValueError(f"{argument} must have {min_size} bytes, as its descriptor; got {size}")
    return address, size, array


def _candidate(
    functions: ConvolutionFunctions, result: Any, permitted: raw.cudnnMathType_t, deterministic: bool, limit: int | None
) -> AlgorithmCandidate:
    """Return a result of Get or Find as a candidate, with its rejection reason."""
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
