"""Trace calls, one line for each: `cudnnpy.trace`, and the environment variable CUDNNPY_VERBOSE.

Calls that are not traced cost nothing: nothing tests whether they are. While calls are traced, the functions here replace
Launcher.run, which every launch enters, and dispatch.run, where calls on arrays begin.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from ctypes import byref, c_float, c_void_p
from typing import Any, NamedTuple, TextIO
from weakref import WeakKeyDictionary

from cudnnpy._checks.byte_counts import bytes_text
from cudnnpy._checks.option_values import check_integer, error_repr
from cudnnpy._core.cuda_python import driver_library
from cudnnpy._core.driver import is_stream_or_torch_capturing, relaxed_capture
from cudnnpy._core.process_setting import ProcessSetting
from cudnnpy._launch import dispatch
from cudnnpy._launch.address_validation import Addresses
from cudnnpy._launch.dispatch import ArrayOperation
from cudnnpy._launch.launcher import Launcher
from cudnnpy._process.module_state import declare
from cudnnpy.handle import on_device

_VARIABLE = "CUDNNPY_VERBOSE"

# The stream waits for this long before the first event, so that the kernels are queued when it is recorded. Otherwise the
# GPU would wait for the host between the events. The driver calls usleep itself, which needs no lock of the interpreter.
_DELAY_US = 100
_SLEEP = ctypes.cast(ctypes.pythonapi.usleep, c_void_p)


def trace(level: int = 1, *, file: TextIO | None = None) -> AbstractContextManager[None]:
    """Write one line for each call, from every thread of the process.

    Used as a context manager, the result restores the previous setting on exit. Otherwise lines are written until the next
    call of `trace`: ``trace(0)`` ends them. The environment variable ``CUDNNPY_VERBOSE`` sets the level for a whole program.

    Parameters
    ----------
    level : {0, 1, 2}
        0 writes nothing. 1 writes the problem, the choice and the host time. 2 also measures the GPU time, for which the
        host waits for the work of each call.
    file : text file, optional
        The destination. By default the standard error, ``sys.stderr``.

    Returns
    -------
    context manager
        It restores the previous setting at the end of a ``with`` block.

    Raises
    ------
    TypeError, ValueError
        The level is not 0, 1 or 2, the file has no methods ``write`` and ``flush``, or it is a binary file.

    Notes
    -----
    A line has these parts, separated by semicolons:

    - the problem in the notation, with its options, then ``#`` and the engine with its knobs, or the C function. An operation
      without a choice, such as pooling, begins with ``#``, and has its operands and its C functions;
    - the source of the choice: ``ranking``, ``heuristics``, ``engines``, ``knobs``, ``legacy``, ``from the store (...)``,
      ``autotune (...)``, or ``algorithm=``;
    - the workspace;
    - ``planned in ... ms`` in the first line of a plan;
    - the host time in microseconds: of a call on arrays from its beginning, with planning, until the work is queued; of
      `Plan.execute` and of PyTorch's convolutions the launch alone;
    - the launch: ``direct``, or ``by cuDNN`` with the reason (see `set_direct_launches`);
    - the GPU time in microseconds at level 2, after ``<`` if it includes waiting for the host; or ``captured``: a call that a
      CUDA graph captures does not run, and is not timed.

    ``cudnnpy tune``, ``cudnnpy plan`` and ``cudnnpy explain`` accept a line or a file of lines as it is. Level 2 delays the
    work of each call by about 0.1 ms, so that the kernels are queued when the first one starts. Replays of CUDA graphs, and
    calls of `cudnnpy.raw` and `cudnnpy.descriptors`, have no lines; `log_to` passes on the messages of C functions.

    Examples
    --------
    >>> with cudnnpy.trace():  # doctest: +SKIP
    ...     conv.forward(x, w)
    forward 8x3x64x64 16x3x3x3 pad=1 # engine 28; heuristics; workspace 0 bytes; host 8.9 us; direct
    """
    level = check_integer("level", level, 0, 2)
    if file is not None and not (hasattr(file, "write") and hasattr(file, "flush")):
        raise TypeError(f"file must be a text file, with write and flush, or None; got {error_repr(file)}")
    if file is not None:
        try:
            _write(_Trace(level, file), "")
        except TypeError:
            raise TypeError(f"file must be a text file, not a binary one; got {error_repr(file)}") from None
    return _setting.set(_Trace(level, file) if level else None)


def trace_by_environment() -> None:
    """Trace the calls of the process at the level of the environment variable."""
    value = os.environ.get(_VARIABLE, "")
    if value in ("1", "2"):
        trace(int(value))
    elif value not in ("", "0"):
        warnings.warn(f"{_VARIABLE} must be 0, 1 or 2; got {value[:60]!r}", RuntimeWarning, stacklevel=2)


class _Trace(NamedTuple):
    level: int
    file: TextIO | None  # None for sys.stderr at each line


class _CallOfThread(threading.local):
    """The call in progress in a thread."""

    begin_ns = 0  # when the call on arrays began; 0 outside of one
    is_launching = False


_active: _Trace | None = None
_call = _CallOfThread()
# The beginning of the lines of each launcher. A launcher without one has not launched since the first call of trace.
_texts: WeakKeyDictionary[Launcher, str] = WeakKeyDictionary()


def _traced_run(*arguments: Any) -> Any:
    """Run an operation on arrays as dispatch.run does."""
    before, _call.begin_ns = _call.begin_ns, time.perf_counter_ns()
    try:
        return _untraced[dispatch](*arguments)
    finally:
        _call.begin_ns = before


def _traced_launch(launcher: Launcher, addresses: Addresses, stream: int, are_valid: object = False) -> None:
    """Launch as Launcher.run does, and write the line."""
    trace, launch = _active, _untraced[Launcher]
    if trace is None or _call.is_launching:  # the trace has just ended, or the launcher has made its device current
        launch(launcher, addresses, stream, are_valid)
        return
    begin_ns = time.perf_counter_ns()
    before_us = (begin_ns - (_call.begin_ns or begin_ns)) / 1e3
    launch_us, is_captured, gpu = 0.0, is_stream_or_torch_capturing(stream), ""
    by = launcher.launch_text()  # before the launch, after which a direct one may follow

    def timed() -> None:
        nonlocal launch_us
        begin_ns = time.perf_counter_ns()
        launch(launcher, addresses, stream, are_valid)
        launch_us = (time.perf_counter_ns() - begin_ns) / 1e3

    _call.is_launching = True
    try:
        if trace.level < 2 or is_captured:
            timed()
        else:
            with on_device(launcher.device):
                gpu_us = _gpu_microseconds(timed, stream)
            bound = "<" if launch_us > _DELAY_US else ""
            gpu = "; GPU time unknown" if gpu_us is None else f"; GPU {bound}{gpu_us:.1f} us"
    finally:
        _call.is_launching = False
    host = f"host {before_us + launch_us:.1f} us; {by}"
    _write(trace, f"{_beginning(launcher)}; {host}{'; captured' if is_captured else gpu}\n")


def _gpu_microseconds(launch: Callable[[], object], stream: int) -> float | None:
    """Call `launch`, wait until the GPU has done the work that it queues, and return the time of this work on the GPU.

    If `launch` takes longer than _DELAY_US, the time includes the GPU's waiting for it, and is only an upper bound. None if the
    driver reports an error. The stream must not be captured, and its device must be current.
    """
    driver, address, milliseconds = driver_library(), c_void_p(stream), c_float()
    begin, end = c_void_p(), c_void_p()
    try:
        with relaxed_capture():  # another thread may capture
            driver.cuEventCreate(byref(begin), 0)
            driver.cuEventCreate(byref(end), 0)
            driver.cuLaunchHostFunc(address, _SLEEP, c_void_p(_DELAY_US))
            driver.cuEventRecord(begin, address)
        launch()
        with relaxed_capture():
            failed = (
                driver.cuEventRecord(end, address)
                or driver.cuEventSynchronize(end)
                or driver.cuEventElapsedTime(byref(milliseconds), begin, end)
            )
    finally:
        driver.cuEventDestroy_v2(begin)
        driver.cuEventDestroy_v2(end)
    return None if failed else milliseconds.value * 1e3


def _beginning(launcher: Launcher) -> str:
    """Return the line up to the times. Only the first one of a launcher has the time of planning."""
    planned = launcher.planned
    if text := _texts.get(launcher):
        return text
    text = _texts[launcher] = f"{planned._trace_text()}; workspace {bytes_text(planned.workspace_size)}"
    return f"{text}; planned in {planned._planning_ms:.1f} ms" if planned._planning_ms else text


def _write(trace: _Trace, line: str) -> None:
    """Write a line. A destination that is closed or full does not end the program."""
    file = sys.stderr if trace.file is None else trace.file
    try:
        if file is not None:
            file.write(line)
            file.flush()
    except (OSError, ValueError):
        return


# The functions that are replaced, by their owners, and those that replace them.
_TRACED: dict[Any, tuple[str, Callable[..., Any]]] = {
    Launcher: ("run", _traced_launch),
    dispatch: ("run", _traced_run),
    ArrayOperation: ("_run", staticmethod(_traced_run)),
}
_untraced: dict[Any, Callable[..., Any]] = {}


def _apply(trace: _Trace | None) -> None:
    """Put a setting into effect. A call that has begun may still be traced as before."""
    global _active
    before, _active = _active, trace
    for owner, (name, traced) in _TRACED.items():
        if before is None and trace is not None:
            _untraced[owner] = vars(owner)[name]
            setattr(owner, name, traced)
        elif before is not None and trace is None:
            setattr(owner, name, _untraced[owner])


_setting: ProcessSetting[_Trace | None] = ProcessSetting(None, _apply)
declare(__name__, "_setting", "_call", "_texts")
declare(__name__, "_active", "_untraced", resets=False)  # _setting sets them
