"""The cuDNN C API under its C names: `raw.cudnnCreate(...)` takes C's arguments and returns C's status.

Importing this module loads no library; the first call of a function does. Every function of the cuDNN headers is here. One
that the loaded library lacks raises FunctionNotAvailableError when it is called. Enums are IntEnums, and each enumerator is
also a name of this module. Handles are distinct pointer types::

    handle = raw.cudnnHandle_t()
    raw.check(raw.cudnnCreate(byref(handle)))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudnnpy._checks.public_dir import complete_module
from cudnnpy.raw import _api
from cudnnpy.raw._library import (
    bound,
    call,
    check,
    ctype,
    error_of,
    function,
    function_info,
    last_error,
    load,
    path,
    prototype,
    unchecked,
    version,
)
from cudnnpy.raw._library_files import version_text
from cudnnpy.raw._unknown_names import missing

if TYPE_CHECKING:
    from cudnnpy.raw._api import *  # noqa: F403

HEADER_VERSION: str = _api.HEADER_VERSION
"""The release of cuDNN whose headers the names of this module come from, such as "9.28.0"."""

__all__ = [
    "HEADER_VERSION",
    "attribute_types",
    "bound",
    "call",
    "check",
    "ctype",
    "deprecated",
    "error_of",
    "functions",
    "last_error",
    "load",
    "parameters",
    "path",
    "prototype",
    "since",
    "unchecked",
    "version",
    "version_text",
]
__all__ += _api.__all__  # every name of C, in a form that type checkers understand

_C_NAMES = frozenset(_api.__all__)


def functions() -> tuple[str, ...]:
    """Return the name of every function in the headers that the package was generated from, in their order.

    Examples
    --------
    >>> from cudnnpy import raw
    >>> "cudnnConvolutionForward" in raw.functions()
    True
    """
    return tuple(_api.FUNCTIONS)


def parameters(name: str) -> tuple[tuple[str, str, str], ...]:
    """Return the parameters of a function as (name, C type, direction).

    The direction is "in", "out", "in-out", or "" if the headers do not say.

    Raises
    ------
    AttributeError
        If the headers do not have the function.

    Examples
    --------
    >>> from cudnnpy import raw
    >>> raw.parameters("cudnnSetStream")
    (('handle', 'cudnnHandle_t', 'in'), ('streamId', 'cudaStream_t', 'in'))
    """
    return function_info(name)[1]


def since(name: str) -> str | None:
    """Return the cuDNN 9 release that added a function or enumerator ("9.22.0"), or None if the header does not say.

    Raises
    ------
    AttributeError
        If the headers do not have the name.

    Examples
    --------
    >>> from cudnnpy import raw
    >>> raw.since("cudnnGetExecutionPlanWorkspaceSize")
    '9.23.0'
    """
    if name in _api.FUNCTIONS:
        return _api.FUNCTIONS[name][3] or None
    _enumerator(name)
    return _api.ENUMERATORS_SINCE.get(name, "9.0.0")


def deprecated(name: str) -> tuple[str, ...] | None:
    """Return the replacements of a deprecated function or enumerator, or None if it is not deprecated.

    Returns
    -------
    tuple of str or None
        The cuDNN names that the header recommends instead; empty if it names none.

    Raises
    ------
    AttributeError
        If the headers do not have the name.

    Examples
    --------
    >>> from cudnnpy import raw
    >>> raw.deprecated("cudnnRNNSetClip_v8"), raw.deprecated("cudnnCreate")
    (('cudnnRNNSetClip_v9',), None)
    """
    if name in _api.FUNCTIONS:
        return _api.FUNCTIONS[name][4]
    _enumerator(name)
    return _api.ENUMERATORS_DEPRECATED.get(name)


def attribute_types(attribute: int) -> tuple[int, ...]:
    """Return the cudnnBackendAttributeType_t values of a backend attribute, the usual one first.

    Examples
    --------
    >>> from cudnnpy import raw
    >>> [str(kind.name) for kind in raw.attribute_types(raw.CUDNN_ATTR_TENSOR_DIMENSIONS)]
    ['CUDNN_TYPE_INT64']
    """
    name = _api.cudnnBackendAttributeName_t(attribute)  # raises ValueError for a number of none
    return tuple(map(_api.cudnnBackendAttributeType_t, _api.ATTRIBUTE_TYPES[name]))


def _enumerator(name: str) -> None:
    if not (isinstance(name, str) and type(getattr(_api, name, None)) in _api.ENUMS):
        function_info(name)  # raises TypeError or AttributeError


if not TYPE_CHECKING:  # a type checker takes the names from _api.pyi

    def __getattr__(name):
        if name in _api.FUNCTIONS:
            value = function(name)
        elif name in _C_NAMES:
            value = getattr(_api, name)
        else:
            raise AttributeError(missing(name))
        return globals().setdefault(name, value)


complete_module(globals())
