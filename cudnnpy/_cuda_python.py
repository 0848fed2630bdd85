"""Import modules of cuda-python (cuda.core, cuda.bindings), which the extras install and a bare installation lacks."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from cudnnpy._installation import to_install
from cudnnpy._process_state import fork_safe_lock, process_cache
from cudnnpy.errors import LibraryNotFoundError

# Its modules import one another. Where two threads begin with different ones, Python breaks the deadlock by giving one of
# them a module that is not complete yet.
_importing = fork_safe_lock()


@process_cache
def cuda_python(name: str) -> Any:
    """Return the module cuda.NAME: cuda_python("bindings.driver"). Raises LibraryNotFoundError if it is not installed."""
    try:
        with _importing:
            return import_module(f"cuda.{name}")
    except ImportError as error:
        raise LibraryNotFoundError(
            f"cuda.{name}, which speaks to the driver, is not installed ({error})", f"Install it: {to_install()}"
        ) from error
