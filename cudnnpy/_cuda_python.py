"""Import modules of cuda-python (cuda.core, cuda.bindings), which the extras install and a bare installation lacks."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from cudnnpy._cuda_state import NO_DRIVER, cuda_problem, has_driver
from cudnnpy._fork import fork_safe_lock
from cudnnpy._installation import to_install
from cudnnpy.errors import LibraryNotFoundError, NotInitializedError

# Its modules import one another. Where two threads begin with different ones, Python breaks the deadlock by giving one of
# them a module that is not complete yet.
_importing = fork_safe_lock()


@cache
def cuda_python(name: str) -> Any:
    """Return the module cuda.NAME: cuda_python("bindings.driver"). Raises LibraryNotFoundError if it is not installed."""
    try:
        with _importing:
            return import_module(f"cuda.{name}")
    except ImportError as error:
        raise not_installed(
            f"cuda.{name}, which speaks to the driver, is not installed", error, to_install()
        ) from error


def not_installed(reason: str, error: ImportError, command: str) -> LibraryNotFoundError:
    """Return the error for a missing package. Without a driver it says so first, and advises no installation."""
    if not has_driver():
        return LibraryNotFoundError(NO_DRIVER, f"{reason} either")
    return LibraryNotFoundError(f"{reason} ({error})", f"Install it: {command}")


def without_cuda(error: Exception) -> Exception:
    """Return NotInitializedError, as cudnnCreate would raise it, if a call of cuda-python failed because there is no driver or
    no GPU; otherwise the error itself.
    """
    if cuda_problem() is None:
        return error
    return NotInitializedError("", 1001, "CUDNN_STATUS_NOT_INITIALIZED", str(error))
