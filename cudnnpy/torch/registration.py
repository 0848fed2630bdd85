"""Register and remove the kernels: `enable` and `disable`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from cudnnpy._checks.option_values import check_flag
from cudnnpy._checks.preferences import TUNE_SECONDS, PreferenceOptions
from cudnnpy._core.caller_warning import warn
from cudnnpy._core.cuda_python import not_installed
from cudnnpy._core.process_setting import ProcessSetting
from cudnnpy._process.cuda_state import NO_DRIVER, has_driver
from cudnnpy._process.module_state import declare
from cudnnpy.torch.settings import ACTIVE, Settings
from cudnnpy.tuning.recording import Recording
from cudnnpy.typing import Preference

DISPATCH_KEY = "CUDA"

_libraries: dict[Callable[[Any], None], Any] = {}  # which hold the registrations, by the function that adds them


def enable(
    *,
    prefer: Preference | None = None,
    workspace_limit: int | None = None,
    deterministic: bool | None = None,
    tf32: bool | None = None,
    tune_seconds: float = TUNE_SECONDS,
    attention: bool = False,
) -> AbstractContextManager[None]:
    """Run the convolutions of PyTorch programs on cudnnpy, in every thread of the process.

    Used as a context manager, the result restores the previous setting on exit: PyTorch's own kernels, or other options.
    Otherwise the options are in effect until the next call of `enable` or `disable`.

    Parameters
    ----------
    prefer : {"fastest", "limited_workspace", "no_workspace", "autotune"}, optional
        How algorithms are chosen, as for `cudnnpy.Convolution`. By default "autotune" for calls while
        ``torch.backends.cudnn.benchmark`` is True, and "fastest" for others.
    workspace_limit : int, optional
        The largest workspace in bytes, as for `cudnnpy.Convolution`.
    deterministic : bool, optional
        Whether every result must have the same bits every time. By default as PyTorch's flags say at each
        call: ``torch.backends.cudnn.deterministic`` or ``torch.use_deterministic_algorithms``.
    tf32 : bool, optional
        Whether float32 may be rounded to tf32 for the tensor cores. By default as PyTorch's flags say at each call:
        ``torch.backends.cudnn.allow_tf32``, or ``torch.backends.cudnn.conv.fp32_precision``.
    tune_seconds : float
        The time limit of "autotune" for one problem.
    attention : bool
        Whether ``torch.nn.functional.scaled_dot_product_attention`` runs on cudnnpy, too. It needs PyTorch 2.9 or newer.

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
    A call with a new signature is planned, as by `cudnnpy.Convolution`. Results have PyTorch's shapes, data types and
    memory formats. Results and workspace are allocated by PyTorch's allocator.

    These calls fall back to PyTorch's own kernels, and `stats` counts them:

    - tensors on the CPU, with one RuntimeWarning. Without a driver, `enable` itself warns and says why cuDNN is unavailable
    - empty tensors, and unsupported data types
    - a new signature during a stream capture
    - no algorithm for the options, or out of memory
    - depthwise convolutions for which a kernel of PyTorch's own is faster: large ones with three spatial axes, and with two if
      the filter is large. With "autotune", unless results must be deterministic, PyTorch's kernel and the plan are timed on the
      tensors of the first call
    - attention with dropout, with float32, with head sizes that are no multiples of 8, and the gradient of a bias

    If a recording is open (`cudnnpy.record`, ``cudnnpy tune --record``), the convolutions of tensors on the CPU and on the
    meta device are recorded, too, as if they were on a GPU. PyTorch's own kernels compute them.

    PyTorch does not lock its table of kernels for calls: no other thread may compute a convolution while `enable` or
    `disable` turns them on or off.

    Examples
    --------
    >>> # on a GPU, with torch
    >>> import torch
    >>> import cudnnpy.torch
    >>> x, layer = torch.ones(1, 3, 8, 8, device="cuda"), torch.nn.Conv2d(3, 4, 3, device="cuda")
    >>> with cudnnpy.torch.enable():
    ...     layer(x).shape
    torch.Size([1, 4, 6, 6])
    """
    flags: dict[str, Any] = {"prefer": prefer, "deterministic": deterministic, "tf32": tf32}
    given = {name: value for name, value in flags.items() if value is not None}
    planning = PreferenceOptions(workspace_limit=workspace_limit, tune_seconds=tune_seconds, **given)
    following = frozenset(flags.keys() - given.keys())
    return _setting.set(Settings(planning, following, check_flag("attention", attention)))


def disable() -> AbstractContextManager[None]:
    """Run all convolutions on PyTorch's own kernels again, which are registered as they were before.

    Returns
    -------
    context manager
        It restores the previous state at the end of a ``with`` block.

    Examples
    --------
    >>> # on a GPU, with torch
    >>> import torch
    >>> import cudnnpy.torch
    >>> with cudnnpy.torch.enable(), cudnnpy.torch.disable():
    ...     cudnnpy.torch.is_enabled()
    False
    """
    return _setting.set(None)


def is_enabled() -> bool:
    """Return whether convolutions run on cudnnpy.

    Examples
    --------
    >>> # on a GPU, with torch
    >>> import torch
    >>> import cudnnpy.torch
    >>> with cudnnpy.torch.enable():
    ...     cudnnpy.torch.is_enabled()
    True
    """
    return ACTIVE.settings is not None


def _register(settings: Settings | None) -> None:
    """Make settings active: register or remove the kernels."""
    wanted: list[Callable[[Any], None]] = [] if settings is None else [_add_convolutions]
    if settings is not None and settings.attention:
        wanted.insert(0, _add_attention)  # first, since PyTorch may be too old
    for add in wanted:
        if add not in _libraries:
            _libraries[add] = _registered(add)
    ACTIVE.settings, ACTIVE.identity = settings, None if settings is None else settings.token
    for add in _libraries.keys() - wanted:
        _libraries.pop(add)._destroy()


_setting: ProcessSetting[Settings | None] = ProcessSetting(None, _register)

declare(__name__, "_setting")
declare(__name__, "_libraries", resets=False)  # the setting sets them


def _registered(add: Callable[[Any], None]) -> Any:
    """Register kernels, and return the torch.library.Library that owns the registrations."""
    try:
        from torch.library import Library
    except ModuleNotFoundError as error:
        raise not_installed(
            "cudnnpy.torch needs PyTorch, which is not installed", error, "pip install torch"
        ) from error
    library = Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            # PyTorch warns once for each process that a kernel is replaced, which is intended here.
            warnings.filterwarnings("ignore", "(?s).*overrid", UserWarning)
            add(library)
    except BaseException:
        library._destroy()  # the traceback may keep the library alive, and with it the kernels registered so far
        raise
    return library


def _add_convolutions(library: Any) -> None:
    from cudnnpy.torch import host_recording, kernels

    # Only a missing driver is looked for: other reasons cannot be known without the use of CUDA, which no child could then use
    if not has_driver() and not Recording.is_open():
        warn(f"PyTorch's own kernels compute all convolutions, without cudnnpy.torch: {NO_DRIVER}")
    library.impl("_convolution", kernels.convolution, DISPATCH_KEY)
    library.impl("convolution_backward", kernels.convolution_backward, DISPATCH_KEY)
    for key in host_recording.KEYS if Recording.is_open() else {"CPU"} - {DISPATCH_KEY}:
        # Library.impl may reject the key Meta, for which PyTorch has kernels in Python. The table of kernels takes
        # another one, and has PyTorch's again when the library is destroyed.
        library.m.impl("convolution", key, host_recording.convolution)
        library.m.impl("convolution_backward", key, host_recording.convolution_backward)


def _add_attention(library: Any) -> None:
    from cudnnpy.torch import attention

    attention.register(library, DISPATCH_KEY)
