"""Find libcudnn, load it on first use, and bind its functions: the package's only way into cuDNN."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any, Never

from cudnnpy._process import module_state
from cudnnpy._process.installation import to_install
from cudnnpy._process.module_state import declare, fork_safe_lock, process_cache
from cudnnpy.errors import (
    CudnnError,
    FunctionNotAvailableError,
    LibraryNotFoundError,
    LibraryVersionError,
    status_error,
)
from cudnnpy.raw import _api
from cudnnpy.raw._argument_checks import refusing
from cudnnpy.raw._library_files import check_together, examine, findable, own_parts, version_text
from cudnnpy.raw._unknown_names import missing

_MAJOR = 9
VARIABLE = "CUDNNPY_LIBRARY"
# The files that cuda.pathfinder loads: libcudnn after the libraries that it needs.
_FILES = ("libcublasLt.so.13", "libcublasLt.so.12", "libnvrtc.so.13", "libnvrtc.so.12", f"libcudnn.so.{_MAJOR}")

# A fork waits for a thread that is loading, since the child would not have it: the dynamic linker has a lock of its own.
_lock = fork_safe_lock()
_loaded: tuple[ctypes.CDLL, str, int] | None = None

declare(__name__, "_loaded", resets=False)  # a process cannot unload it

_Text = type("_Text", (str,), {"__repr__": str.__str__})  # an annotation, which is printed without quotes

_SCALARS: dict[str, Any] = {
    "void": None,
    "char": ctypes.c_char,
    "bool": ctypes.c_bool,
    "int": ctypes.c_int,
    "unsigned int": ctypes.c_uint,
    "unsigned long long": ctypes.c_ulonglong,
    "size_t": ctypes.c_size_t,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    # Every Python library has CUDA handles as integers, so they are plain addresses here.
    "cudaStream_t": ctypes.c_void_p,
    "cudaGraph_t": ctypes.c_void_p,
}


def load() -> ctypes.CDLL:
    """Return libcudnn, which the first call loads.

    It is the file that the environment variable CUDNNPY_LIBRARY names, else the file that cuda.pathfinder finds.

    Raises
    ------
    LibraryNotFoundError
        If no file is found, or the file cannot be loaded.
    LibraryVersionError
        If it is not cuDNN 9, or its files are of different releases.

    Examples
    --------
    >>> from cudnnpy import raw
    >>> raw.load()._name == raw.path()
    True
    """
    return _load()[0]


def path() -> str:
    """Return the file that libcudnn was loaded from.

    Examples
    --------
    >>> from cudnnpy import raw
    >>> "libcudnn" in raw.path()
    True
    """
    return _load()[1]


def version() -> int:
    """Return the version of the loaded libcudnn, as cudnnGetVersion does: 92800 for 9.28.0.

    Examples
    --------
    >>> from cudnnpy import raw
    >>> raw.version() >= 90000
    True
    """
    return _load()[2]


def _load() -> tuple[ctypes.CDLL, str, int]:
    global _loaded
    if _loaded is None:
        with _lock:
            _loaded = _loaded or _find_and_load()
    return _loaded


def replaced(library: Any, number: int) -> AbstractContextManager[None]:
    """Call the functions of another object, `library[name]`, in place of libcudnn's: a seam for tests.

    It applies to call, checked, bound, unchecked and version. It costs no time, since functions are looked up once. Functions
    that were looked up before, such as raw.cudnnCreate after its first call, are not replaced.
    """
    return module_state.replaced(__name__, "_loaded", (library, "a stand-in for libcudnn", number))


def _find_and_load() -> tuple[ctypes.CDLL, str, int]:
    named = os.environ.get(VARIABLE)
    if named:
        if not os.path.isfile(named):
            raise LibraryNotFoundError(
                f"{VARIABLE} names {named!r}, which is not a file", "Name libcudnn.so.9 itself, or unset it."
            )
        files, advice = [os.path.abspath(named)], f"{VARIABLE} named this file; unset it to search the usual places."
    else:
        files = [file for name in _FILES if not _is_loaded(name) and (file := findable(name))]
        advice = "Reinstall cuDNN and the CUDA libraries it needs; `cudnnpy info` lists the libraries that were found."
    for file in files:
        if damage := examine("", file).damage:  # loading it would end the process
            raise LibraryNotFoundError(f"{file} {damage}", advice)
    file = files[0] if named else _find()
    check_together(file)
    try:
        library = ctypes.CDLL(file)
        for part in own_parts(file):
            with suppress(
                OSError, UnicodeError
            ):  # engines_runtime_compiled needs a driver; cuDNN reports that when it is called
                ctypes.CDLL(part)
        get_version = library.cudnnGetVersion
        if hasattr(library, "cudnnGraphVersionCheck"):
            _load_graph(file)
    except (OSError, AttributeError, UnicodeDecodeError) as error:
        raise LibraryNotFoundError(f"{file} could not be loaded as libcudnn: {_text_of(error)}", advice) from error
    get_version.restype = ctypes.c_size_t
    number = int(get_version())
    if number // (10000 if number >= 90000 else 1000) != _MAJOR:
        raise LibraryVersionError(
            f"{file} is cuDNN {version_text(number)}; this package needs cuDNN {_MAJOR}. "
            f"Install it: {to_install()}; or name another file in CUDNNPY_LIBRARY."
        )
    return library, file, number


def _text_of(error: Exception) -> str:
    """Return the text of an error of loading, which Python cannot decode if a damaged file has other bytes in a name."""
    return error.object.decode(errors="replace") if isinstance(error, UnicodeDecodeError) else str(error)


def _is_loaded(name: str) -> bool:
    try:
        return bool(ctypes.CDLL(name, mode=os.RTLD_NOLOAD))  # which maps no file
    except OSError:
        return False


def _load_graph(file: str) -> None:
    """Load libcudnn_graph, which implements libcudnn: without it, the first call of libcudnn ends the process."""
    name = f"libcudnn_graph.so.{_MAJOR}"
    beside = os.path.join(os.path.dirname(file), name)
    ctypes.CDLL(beside if os.path.exists(beside) else name)


def file_to_load() -> str | None:
    """Return the libcudnn that `load` would take if none is loaded; None if there is none."""
    named = os.environ.get(VARIABLE)
    if named:
        return os.path.abspath(named) if os.path.isfile(named) else None
    return findable(_FILES[-1])


def _find() -> str:
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

    try:
        return str(load_nvidia_dynamic_lib("cudnn").abs_path)
    except DynamicLibNotFoundError as error:
        raise LibraryNotFoundError(_not_found(str(error).strip())) from error
    except (OSError, RuntimeError, UnicodeDecodeError) as error:  # it, or a library that it needs, cannot be loaded
        raise LibraryNotFoundError(f"libcudnn could not be loaded: {_text_of(error)}") from error


def _not_found(text: str) -> str:
    """Return why libcudnn was not found, from cuda.pathfinder's text, which repeats a name for each searched folder."""
    named = re.search('Failure finding "(.+?)"', text)
    if named is not None and "cudnn" not in named[1]:
        return f"libcudnn needs {named[1]}, which was not found"
    first = text.splitlines()[0] if text else "no libcudnn.so.9"
    return f"libcudnn.so.9 was not found ({', '.join(dict.fromkeys(re.split(', |: (?=No such file)', first)))})"


@process_cache
def ctype(spelling: str) -> Any:
    """Return the ctypes type of a C type: POINTER(c_int) for `const int[]`, c_void_p for `void *`.

    Examples
    --------
    >>> from cudnnpy import raw
    >>> raw.ctype("size_t").__name__
    'c_ulong'
    """
    name = str(spelling).replace("const ", "").replace("[]", "*").replace("struct ", "").strip()
    depth = name.count("*")
    name = name.replace("*", "").replace("const", "").strip()
    kind: Any
    if name in ("void", "char") and depth:
        kind, depth = (ctypes.c_void_p if name == "void" else ctypes.c_char_p), depth - 1
    elif name in _SCALARS:
        kind = _SCALARS[name]
    else:
        kind = getattr(_api, name, None)
        if not isinstance(kind, type):
            raise ValueError(
                f"spelling must be a C type of cuDNN, such as 'cudnnHandle_t' or 'int[]'; got {spelling!r:.200}"
            )
        if isinstance(kind, type) and issubclass(kind, int):  # an enum
            kind = ctypes.c_int
    for _ in range(depth):
        kind = ctypes.POINTER(kind)
    return kind


def function_info(name: str) -> tuple[str, tuple[tuple[str, str, str], ...], str, str, tuple[str, ...] | None]:
    """Return the generated table's row for a function.

    Raises AttributeError, with advice, for a name that the headers do not have.
    """
    if not isinstance(name, str):
        raise TypeError(f"name must be the C name of a function, such as 'cudnnCreate'; got {name!r:.200}")
    found = _api.FUNCTIONS.get(name)
    if found is None:
        raise AttributeError(missing(name))
    return found


def prototype(name: str) -> str:
    """Return the C prototype of a function.

    Raises
    ------
    AttributeError
        If the headers do not have the function.

    Examples
    --------
    >>> from cudnnpy import raw
    >>> raw.prototype("cudnnDestroy")
    'cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)'
    """
    returns, parameters, *_ = function_info(name)
    listed = []
    for parameter, kind, _direction in parameters:
        base, bracket = (kind[:-2], "[]") if kind.endswith("[]") else (kind, "")
        listed.append(f"{base}{'' if base.endswith('*') else ' '}{parameter}{bracket}")
    return f"{returns} {name}({', '.join(listed) or 'void'})"


@process_cache
def bound(name: str) -> Callable[..., Any]:
    """Return a C function with its argument types set, which does not check for NULL and ignores keywords, as ctypes does.

    Raises
    ------
    AttributeError
        If the headers do not have the function.
    FunctionNotAvailableError
        If the loaded libcudnn lacks it.

    Examples
    --------
    >>> from cudnnpy import raw
    >>> raw.bound("cudnnGetVersion")() == raw.version()
    True
    """
    returns, parameters, _header, since, _deprecated = function_info(name)
    library, file, number = _load()
    try:
        function = library[name]  # indexing makes a new object, so that other users' argtypes are not changed
    except AttributeError:
        needs = (
            f"it needs cuDNN {since}"
            if since and since != "9.0.0"
            else f"the header of cuDNN {_api.HEADER_VERSION} has it"
        )
        raise FunctionNotAvailableError(
            f"{name} is not in the loaded cuDNN {version_text(number)} ({file}); {needs}. "
            "Install a newer nvidia-cudnn-cu12 or nvidia-cudnn-cu13."
        ) from None
    function.restype = ctype(returns)
    function.argtypes = [ctype(kind) for _name, kind, _direction in parameters]
    function.__doc__ = prototype(name)
    return function


def check(status: int, function: str = "") -> None:
    """Raise the matching exception of `cudnnpy.errors` unless a status is CUDNN_STATUS_SUCCESS.

    Parameters
    ----------
    status : int
        The status that a function returned.
    function : str
        The C name of the function, for the message. A status that `raw.cudnnXxx(...)` returned has its function, which is the
        default. The text of cudnnGetLastErrorString is added to the message.

    Raises
    ------
    StatusError
        The subclass for this status.

    Examples
    --------
    >>> from cudnnpy import raw
    >>> raw.check(raw.CUDNN_STATUS_SUCCESS)
    >>> raw.check(raw.CUDNN_STATUS_BAD_PARAM, "cudnnCreate")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    cudnnpy.errors.BadParameterError: ...
    """
    if status or not isinstance(status, int):
        raise error_of(status, function)


def error_of(status: int, function: str = "") -> CudnnError:
    """Return the exception for a status, with cuDNN's text for the calling thread's last error.

    Examples
    --------
    >>> from cudnnpy import raw
    >>> raw.error_of(raw.CUDNN_STATUS_BAD_PARAM, "cudnnCreate").name
    'CUDNN_STATUS_BAD_PARAM'
    """
    if not isinstance(status, int):
        raise TypeError(f"status must be a status that a function returned; got {status!r:.200}")
    number, function = int(status), function or getattr(status, "function", "")
    try:
        name = _api.cudnnStatus_t(number).name
    except ValueError:
        name = "an unknown status"
    return status_error(function, number, name, last_error())


def last_error() -> str:
    """Return cuDNN's text for the last failed call of this thread, or "" if there is none: cudnnGetLastErrorString.

    Examples
    --------
    >>> from cudnnpy import raw
    >>> isinstance(raw.last_error(), str)
    True
    """
    buffer = ctypes.create_string_buffer(4096)
    try:
        bound("cudnnGetLastErrorString")(buffer, len(buffer))
    except CudnnError:
        return ""
    return buffer.value.decode(errors="replace").strip()


@process_cache
def unchecked(name: str) -> Callable[..., int]:
    """Return a function that returns a status, without argument types.

    It is for hot paths that pass ctypes objects, since ctypes neither converts nor checks the arguments. Keywords are ignored.

    Raises
    ------
    AttributeError
        If the headers do not have the function.
    FunctionNotAvailableError
        If the loaded libcudnn lacks it.

    Examples
    --------
    >>> from cudnnpy import raw
    >>> raw.unchecked("cudnnCreate").restype.__name__
    'c_int'
    """
    bound(name)  # raises if the headers or the loaded library lack it
    function: Callable[..., int] = load()[name]
    function.restype = ctypes.c_int  # type: ignore[attr-defined]
    return function


def function(name: str) -> Callable[..., Any]:
    """Return the function of a C name. It loads no library before it is called."""
    from inspect import Parameter, Signature  # importing cudnnpy.raw would take a tenth longer

    returns, parameters, _header, since, replacements = function_info(name)
    made: Any = refusing(name, bound)
    made.__name__ = made.__qualname__ = name
    made.__module__ = "cudnnpy.raw"  # where help and pickle find it
    notes = [f"Since cuDNN {since}."] * bool(since)
    if replacements is not None:
        notes.append(f"Deprecated{': use ' if replacements else ''}{' or '.join(replacements)}.")
    made.__doc__ = f"{prototype(name)}\n\n{' '.join(notes)}".strip()
    made.argtypes, made.restype = [ctype(kind) for _name, kind, _direction in parameters], ctype(returns)
    made.__signature__ = Signature(
        [Parameter(n, Parameter.POSITIONAL_ONLY, annotation=_Text(f"{d} {t}".lstrip())) for n, t, d in parameters],
        return_annotation=_Text(returns),
    )
    return made  # type: ignore[no-any-return]


@process_cache
def checked(name: str) -> Callable[..., Any]:
    """Return the function with checks that reject arguments that would end the process."""
    function_info(name)  # raises for a name that the headers do not have
    return refusing(name, bound)


def call(name: str, *arguments: object, **named: Never) -> None:
    """Call a function that returns a status, and raise the matching exception: call("cudnnCreate", byref(handle)).

    Parameters
    ----------
    name : str
        The C name of the function.
    *arguments
        The arguments of the C function.

    Raises
    ------
    StatusError
        If the function returns another status than CUDNN_STATUS_SUCCESS.
    TypeError
        If an argument has the wrong type, is None where C would follow a NULL pointer, or has a keyword, or their number is
        wrong.
    ValueError
        If a pointer is NULL where C would follow it.
    ClosedError
        If an object is closed.
    AttributeError
        If the headers do not have the function.

    Examples
    --------
    >>> from cudnnpy import raw
    >>> from ctypes import byref
    >>> tensor = raw.cudnnTensorDescriptor_t()
    >>> raw.call("cudnnCreateTensorDescriptor", byref(tensor))
    >>> raw.call("cudnnDestroyTensorDescriptor", tensor)
    """
    try:
        status = checked(name)(*arguments, **named)
    except ctypes.ArgumentError as error:
        for argument in arguments:
            getattr(argument, "_as_parameter_", None)  # raises the exception of a closed object, which ctypes dropped
        raise TypeError(str(error)) from None
    if status:
        raise error_of(status, name)
