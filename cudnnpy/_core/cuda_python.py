"""The only way to the CUDA driver: libcuda, and the modules of cuda-python, which a bare installation lacks."""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

from cudnnpy._process import module_state
from cudnnpy._process.cuda_state import NO_DRIVER, cuda_problem, has_driver
from cudnnpy._process.installation import to_install
from cudnnpy._process.module_state import declare, fork_safe_lock, process_cache
from cudnnpy.errors import LibraryNotFoundError, NotInitializedError

# Its modules import one another. Where two threads begin with different ones, Python breaks the deadlock by giving one of
# them a module that is not complete yet.
_importing = fork_safe_lock()
_replacements: dict[str, Any] = {}

declare(__name__, "_replacements", resets=False)


@process_cache
def driver_library() -> Any:
    """Return libcuda as a ctypes library, which is called faster than cuda-python's functions."""
    if "libcuda" in _replacements:
        return _replacements["libcuda"]
    library = ctypes.CDLL("libcuda.so.1")
    library.cuStreamIsCapturing.argtypes = (ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
    return library


def can_load_driver() -> bool:
    """Return whether there is a libcuda, or a replacement of it."""
    return "libcuda" in _replacements or has_driver()


@process_cache
def cuda_python(name: str) -> Any:
    """Return the module cuda.NAME: cuda_python("bindings.driver"). Raises LibraryNotFoundError if it is not installed."""
    if name in _replacements:
        return _replacements[name]
    try:
        with _importing:
            return import_module(f"cuda.{name}")
    except ImportError as error:
        raise not_installed(
            f"cuda.{name}, which speaks to the driver, is not installed", error, to_install()
        ) from error


@process_cache
def gpu_facts(device: int) -> tuple[str, str, int]:
    """Return the name of a GPU, its compute capability ("9.0"), and the number of its multiprocessors."""
    gpu = cuda_python("core").Device(device)
    major, minor = gpu.compute_capability
    return str(gpu.name), f"{major}.{minor}", int(gpu.properties.multiprocessor_count)


def replaced(**replacements: Any) -> AbstractContextManager[None]:
    """Use other objects in place of "libcuda" and of modules such as "bindings.driver" and "core": a seam for tests.

    It costs no time, since the results of both functions are cached. Launches that were prepared before are not changed.
    """
    return module_state.replaced(__name__, "_replacements", {**_replacements, **replacements})


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
