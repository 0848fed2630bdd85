"""Turn the kernels on and off."""

from __future__ import annotations

import os
import warnings
from bisect import insort
from contextlib import AbstractContextManager
from itertools import count
from operator import attrgetter
from threading import RLock
from types import TracebackType
from typing import Any

from cudnnpy._options.convolution import TUNE_SECONDS
from cudnnpy.errors import LibraryNotFoundError
from cudnnpy.torch.settings import ACTIVE, Settings
from cudnnpy.typing import Preference

DISPATCH_KEY = "CUDA"

_lock = RLock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_library: Any = None  # holds the registrations


def enable(
    *,
    prefer: Preference | None = None,
    workspace_limit: int | None = None,
    deterministic: bool | None = None,
    tf32: bool | None = None,
    tune_seconds: float = TUNE_SECONDS,
) -> AbstractContextManager[None]:
    """Run the convolutions of PyTorch programs on cudnnpy, in every thread of the process.

    The result may be used in a ``with`` statement: at the end of the block, what held before the call holds again, be it
    PyTorch's own kernels or other options. Otherwise the options hold until the next call of `enable` or `disable`.

    Parameters
    ----------
    prefer : {"fastest", "limited_workspace", "no_workspace", "autotune"}, optional
        How algorithms are chosen, as for `cudnnpy.Convolution`. By default "autotune" for calls while
        ``torch.backends.cudnn.benchmark`` is True, and "fastest" for others.
    workspace_limit : int, optional
        The most bytes of workspace, as for `cudnnpy.Convolution`.
    deterministic : bool, optional
        Whether only algorithms are taken that give the same bits every time. By default as PyTorch's flags say at each
        call: ``torch.backends.cudnn.deterministic`` or ``torch.use_deterministic_algorithms``.
    tf32 : bool, optional
        Whether float32 may be rounded to tf32 for the tensor cores. By default as PyTorch's flags say at each call:
        ``torch.backends.cudnn.allow_tf32``, or ``torch.backends.cudnn.conv.fp32_precision``.
    tune_seconds : float
        The most seconds that "autotune" takes for one problem.

    Returns
    -------
    context manager
        It restores the previous state at the end of a ``with`` block.

    Raises
    ------
    TypeError, ValueError
        An option is of another type, or out of range.
    LibraryNotFoundError
        PyTorch is not installed.

    Notes
    -----
    A call with a new signature is planned, as by `cudnnpy.Convolution`. Results have PyTorch's shapes, element types and
    memory formats, and their memory comes from PyTorch's allocator, as the workspace does. `stats` tells what was left to
    PyTorch's own kernels: tensors without elements, element types that cudnnpy does not take, calls that would have to be
    planned while a CUDA graph is being captured, and calls that no algorithm meets the options of, or that memory ran out
    for.

    PyTorch does not lock its table of kernels for calls: no other thread may compute a convolution while `enable` or
    `disable` turns them on or off.
    """
    settings = Settings(
        prefer=prefer,
        workspace_limit=workspace_limit,
        deterministic=deterministic,
        tf32=tf32,
        tune_seconds=tune_seconds,
    )
    return _Restoring(settings)


def disable() -> AbstractContextManager[None]:
    """Run all convolutions on PyTorch's own kernels again, which are registered as they were before.

    Returns
    -------
    context manager
        It restores the previous state at the end of a ``with`` block.
    """
    return _Restoring(None)


def is_enabled() -> bool:
    """Return whether convolutions run on cudnnpy."""
    return ACTIVE.settings is not None


class _Restoring(AbstractContextManager[None]):
    """Sets settings, and at the end of a block restores those that held before.

    Blocks of two threads may overlap. One that ends while later ones are open changes nothing: the first of these restores
    in its place.
    """

    def __init__(self, settings: Settings | None) -> None:
        with _lock:
            self._before, self._number = _switch(settings), next(_numbers)

    def __enter__(self) -> None:
        with _lock:
            insort(_open, self, key=attrgetter("_number"))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _lock:
            at = _open.index(self)
            del _open[at]
            if at < len(_open):
                _open[at]._before = self._before
            else:
                _switch(self._before)


_numbers = count()
_open: list[_Restoring] = []  # the blocks that have begun and not ended, in the order of their settings


def _switch(settings: Settings | None) -> Settings | None:
    """Set the settings that hold, register or remove the kernels, and return the settings that held before."""
    global _library
    with _lock:
        before = ACTIVE.settings
        if settings is not None and _library is None:
            _library = _registered()
        ACTIVE.set(settings)
        if settings is None and _library is not None:
            _library._destroy()
            _library = None
    return before


def _registered() -> Any:
    """Register the kernels, and return the torch.library.Library that owns the registrations."""
    try:
        from torch.library import Library
    except ModuleNotFoundError as error:
        raise LibraryNotFoundError(
            f"cudnnpy.torch needs PyTorch, which is not installed ({error})", "Install it: pip install torch"
        ) from error
    from cudnnpy.torch import kernels

    library = Library("aten", "IMPL")
    with warnings.catch_warnings():
        # PyTorch warns once for each process that a kernel is replaced, which is what was asked for.
        warnings.filterwarnings("ignore", "(?s).*overrid", UserWarning)
        library.impl("_convolution", kernels.convolution, DISPATCH_KEY)
        library.impl("convolution_backward", kernels.convolution_backward, DISPATCH_KEY)
    return library
