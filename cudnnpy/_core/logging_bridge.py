"""cuDNN's messages as records of Python's logging, by a callback, which Ctrl-C may interrupt."""

from __future__ import annotations

import atexit
import ctypes
import logging
import re
import threading
import time
from _thread import interrupt_main
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

from cudnnpy import raw
from cudnnpy._checks.option_values import check_integer, error_repr
from cudnnpy._core.caller_warning import depth_of_caller
from cudnnpy._core.process_setting import ProcessSetting
from cudnnpy._process.module_state import declare

_LEVELS: dict[int, int] = {
    raw.CUDNN_SEV_FATAL: logging.CRITICAL,
    raw.CUDNN_SEV_ERROR: logging.ERROR,
    raw.CUDNN_SEV_WARNING: logging.WARNING,
    raw.CUDNN_SEV_INFO: logging.DEBUG,  # every call of a function, with its arguments
}


def log_to(
    logger: logging.Logger | str | None = "cudnnpy", *, level: int | str | None = None
) -> AbstractContextManager[None]:
    """Send cuDNN's own messages to a logger of Python's `logging`, from every thread of the process.

    Used as a context manager, the result restores the previous setting on exit. Otherwise the messages go to this logger
    until the next call of `log_to`.

    Parameters
    ----------
    logger : logging.Logger or str, optional
        The logger, or its name. None turns the messages off. A callback of ``cudnnSetCallback`` and the destination of the
        environment variable ``CUDNN_LOGDEST_DBG`` get no messages any more.
    level : int or str, optional
        The level of the least severe messages that cuDNN composes: ``logging.DEBUG`` or "DEBUG", for example. By default
        the effective level of the logger at the time of the call.

    Returns
    -------
    context manager
        It restores the previous setting on exit.

    Raises
    ------
    TypeError, ValueError
        The logger is neither a logger nor a name, or the level is neither a number nor the name of a level.
    LibraryError
        libcudnn cannot be loaded. ``log_to(None)`` does not load it.

    Notes
    -----
    cuDNN's severities FATAL, ERROR and WARNING become CRITICAL, ERROR and WARNING. Its INFO becomes DEBUG: one message for
    each call of a function, with all arguments, which takes much longer than most calls. cuDNN composes only the messages
    of `level` and above, and errors, which it does not turn off once a callback has been set.

    A record is attributed to the line of the program that led to the call. It has these attributes beside the usual ones:

    - ``cudnn_function``, the C function, or "" if it is not known;
    - ``cudnn_status``, the number of the status of an error;
    - ``cudnn_handle`` and ``cudnn_stream``, their addresses, each None where cuDNN states none.

    An exception of a handler does not reach cuDNN: `logging` reports it, or else ``sys.unraisablehook``, and Ctrl-C
    interrupts the program after the call. The messages of calls that a handler makes are dropped. The messages end when
    the interpreter begins to exit. A forked child process continues to log as its parent did.

    Examples
    --------
    >>> import cudnnpy
    >>> with cudnnpy.log_to("cudnnpy"):
    ...     pass  # cuDNN's messages go to logging.getLogger("cudnnpy")
    """
    return _setting.set(_checked(logger, level))


class _LogSink(NamedTuple):
    """The destination of cuDNN's messages: a logger and the lowest level."""

    logger: logging.Logger
    level: int

    def mask(self) -> int:
        """Return the severity bits for cudnnSetCallback. cuDNN adds the bits of more severe messages."""
        return sum(1 << severity for severity, level in _LEVELS.items() if level >= self.level)


def _checked(logger: Any, level: Any) -> _LogSink | None:
    expected = "a number or the name of a level of logging"
    if isinstance(level, str):
        names = logging.getLevelNamesMapping()
        if level not in names:
            raise ValueError(f"level must be {expected} ({', '.join(names)}); got {error_repr(level)}")
        level = names[level]
    elif level is not None:
        level = check_integer("level", level, 0, expected=expected)
    if logger is None:
        return None
    if isinstance(logger, str):
        logger = logging.getLogger(logger)
    if not isinstance(logger, logging.Logger):
        raise TypeError(f"logger must be a logging.Logger, the name of one, or None; got {error_repr(logger)}")
    return _LogSink(logger, logger.getEffectiveLevel() if level is None else level)


# The callback


_thread_state = threading.local()  # .is_muted: whether messages of the thread are dropped

declare(__name__, "_thread_state")


@contextmanager
def _muted() -> Iterator[None]:
    """Drop the messages of this thread, since messages about a handler's own calls would never end."""
    before = getattr(_thread_state, "is_muted", False)
    _thread_state.is_muted = True
    try:
        yield
    finally:
        _thread_state.is_muted = before


def _on_message(severity: int, _user_data: int | None, facts: Any, text: int | None) -> None:
    """Log a message. ctypes reports an exception to sys.unraisablehook."""
    sink = _setting.value
    level = _LEVELS.get(severity, logging.DEBUG)  # later releases may add severities with higher numbers
    if sink is None or level < sink.level or getattr(_thread_state, "is_muted", False):
        return
    try:
        with _muted():
            message, attributes = _record(_lines(text), facts.contents if facts else raw.cudnnDebugStruct())
            sink.logger.log(level, message, stacklevel=depth_of_caller(), extra=attributes)
    except KeyboardInterrupt:  # ctypes would swallow it, so it comes again when the call has returned
        threading.Timer(0.01, interrupt_main).start()


# raw.cudnnCallback_t takes the text as one string, but cuDNN passes several, and an empty one ends them.
_Callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(raw.cudnnDebugStruct), ctypes.c_void_p)
_callback = _Callback(_on_message)
# cuDNN holds the address of the callback, which must outlive this module: its names are deleted when the interpreter exits.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_callback))
_OURS = ctypes.cast(_callback, raw.cudnnCallback_t)
# A C function that has no effect and needs no lock, even after the interpreter's end.
_SILENT = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, raw.cudnnCallback_t)


def _lines(text: int | None) -> list[str]:
    """Return the strings of a message. Its last line names the process."""
    found: list[str] = []
    while text and (line := ctypes.string_at(text)):
        found.append(line.decode(errors="replace").rstrip())
        text += len(line) + 1
        if line.startswith(b"Process="):
            break
    return found


def _record(lines: list[str], debug: Any) -> tuple[str, dict[str, Any]]:
    """Return the text of a record, without time and process, which every record has, and the attributes of its own."""
    body = [line for line in lines if not line.startswith(("Time:", "Process="))]
    function = re.search(r"function (\w+)\(\) called", lines[0]) if lines else None
    if function:
        body[0] = f"{function[1]}():"
    attributes = {
        "cudnn_function": function[1] if function else "",
        "cudnn_status": debug.cudnnStatus,
        "cudnn_handle": ctypes.cast(debug.handle, ctypes.c_void_p).value,
        "cudnn_stream": debug.stream,
    }
    return f"{body[0]} {body[1].strip()}" if len(body) == 2 else "\n".join(body), attributes


# Setting the callback

_has_ended = False


def _apply(sink: _LogSink | None) -> None:
    """Turn the messages on or off."""
    if _has_ended or (sink is None and _setting.value is None):
        return
    # With a mask of 0 and without a function, cuDNN would write errors to the standard error.
    mask, function = (0, _SILENT) if sink is None else (sink.mask(), _OURS)
    with _muted():
        raw.call("cudnnSetCallback", mask, None, function)


_setting: ProcessSetting[_LogSink | None] = ProcessSetting(None, _apply)

declare(__name__, "_setting")
declare(__name__, "_has_ended", resets=False)


@atexit.register
def _end() -> None:
    """Turn the messages off before the interpreter is torn down."""
    global _has_ended
    _setting.set(None)
    _has_ended = True
    if threading.active_count() > 1:
        # Another thread may wait for the interpreter's lock to enter the callback. Python ends such a thread after the
        # interpreter's end, and cuDNN's C++ code then ends the process.
        time.sleep(0.1)
