"""cuDNN's messages as records of Python's logging."""

from __future__ import annotations

import atexit
import ctypes
import logging
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any, NamedTuple

from cudnnpy import raw
from cudnnpy._core.process_setting import ProcessSetting
from cudnnpy._options.checks import check_integer, error_repr
from cudnnpy._process_state import declare

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
        The logger, or its name. None turns the messages off, and restores the earlier destination: a callback that was set
        with ``cudnnSetCallback``, or the destination of the environment variable ``CUDNN_LOGDEST_DBG``.
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
    - ``cudnn_handle`` and ``cudnn_stream``, their addresses, and ``cudnn_device``, the ordinal, each None where cuDNN
      states none;
    - ``cudnn_thread``, the thread's number in the operating system.

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


_sink: _LogSink | None = None
_heard = False  # whether a message has come since _wait_for_callbacks set this
_inside: set[int] = set()  # the threads that are passing a message on; a forked child has none of them
_thread_state = threading.local()  # .deaf: whether messages of the thread are dropped

declare(__name__, "_inside", in_child=True)
declare(__name__, "_heard", "_thread_state")


@contextmanager
def _suppress_messages() -> Iterator[None]:
    """Drop the messages of this thread, since messages about a handler's own calls would never end."""
    before = _is_deaf()
    _thread_state.deaf = True
    try:
        yield
    finally:
        _thread_state.deaf = before


def _is_deaf() -> bool:
    return getattr(_thread_state, "deaf", False)


def _on_message(severity: int, _user_data: int | None, facts: Any, text: int | None) -> None:
    """Log a message. ctypes reports an exception to sys.unraisablehook."""
    global _heard
    _heard, hearer = True, _sink
    if hearer is None or _is_deaf():
        return
    level = _LEVELS.get(severity, logging.DEBUG)  # later releases may add severities with higher numbers
    if level < hearer.level or not hearer.logger.isEnabledFor(level):
        return
    thread = threading.get_ident()
    try:
        _inside.add(thread)
        with _suppress_messages():
            lines = _lines(text)
            hearer.logger.log(level, _message(lines), stacklevel=_frames_within(), extra=_attributes(facts, lines))
    except KeyboardInterrupt:  # ctypes would swallow it, so it comes again when the call has returned
        main = threading.main_thread().ident
        again = threading.Timer(0.01, signal.pthread_kill, (main, signal.SIGINT))
        again.daemon = True
        again.start()
    finally:
        _inside.discard(thread)


# raw.cudnnCallback_t takes the text as one string, but cuDNN passes several, and an empty one ends them.
_Callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(raw.cudnnDebugStruct), ctypes.c_void_p)
_callback = _Callback(_on_message)
# cuDNN holds the address of the callback, which must outlive this module: its names are deleted when the interpreter exits.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_callback))
_HEAR = ctypes.cast(_callback, raw.cudnnCallback_t)
# A C function that has no effect and needs no lock, even after the interpreter's end.
_SILENT = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, raw.cudnnCallback_t)


def _address(pointer: Any) -> int | None:
    return ctypes.cast(pointer, ctypes.c_void_p).value


def _lines(text: int | None) -> list[str]:
    """Return the strings of a message. Its last line names the process."""
    found: list[str] = []
    while text and (line := ctypes.string_at(text)):
        found.append(line.decode(errors="replace").rstrip())
        text += len(line) + 1
        if line.startswith(b"Process="):
            break
    return found


_FUNCTION = re.compile(r"function (\w+)\(\) called")
_DEVICE = re.compile(r"\bGPU=(\d+)")


def _message(lines: list[str]) -> str:
    """Return the text of a record: the function and cuDNN's text, without time and process, which every record has."""
    body = [line for line in lines if not line.startswith(("Time:", "Process="))]
    function = _function(lines)
    if function:
        body[0] = f"{function}():"
    if len(body) == 2:
        return f"{body[0]} {body[1].strip()}"
    return "\n".join(body)


def _function(lines: list[str]) -> str:
    found = _FUNCTION.search(lines[0]) if lines else None
    return found[1] if found else ""


def _attributes(facts: Any, lines: list[str]) -> dict[str, Any]:
    """Return the attributes of a record beside the usual ones."""
    debug = facts.contents if facts else raw.cudnnDebugStruct()
    device = _DEVICE.search(lines[-1]) if lines else None  # the number in the struct is not set if there is no device
    return {
        "cudnn_function": _function(lines),
        "cudnn_status": debug.cudnnStatus,
        "cudnn_handle": _address(debug.handle),
        "cudnn_stream": debug.stream,
        "cudnn_device": int(device[1]) if device else None,
        "cudnn_thread": debug.tid,
    }


def _frames_within() -> int:
    """Return the stack level of the program's line: the number of frames of this package above it."""
    count = 1
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in ("cudnnpy", "contextlib"):
        count, frame = count + 1, frame.f_back
    return count


# Setting the callback


class _Registered(NamedTuple):
    """The arguments of cudnnSetCallback."""

    mask: int
    data: int | None
    function: Any

    @property
    def address(self) -> int | None:
        return _address(self.function)

    def register(self) -> None:
        raw.call("cudnnSetCallback", self.mask, self.data, self.function)


_before = _Registered(0, None, raw.cudnnCallback_t())  # the callback from before log_to
# cuDNN does not go back to a mask of 0: with it and without a function, it would write errors to the standard error.
_OFF = _Registered(0, None, _SILENT)
_has_ended = False


def _current_callback() -> _Registered:
    """Return the registered callback, which may be another library's."""
    mask, data, function = ctypes.c_uint(), ctypes.c_void_p(), raw.cudnnCallback_t()
    raw.call("cudnnGetCallback", ctypes.byref(mask), ctypes.byref(data), ctypes.byref(function))
    return _Registered(mask.value, data.value, function)


def _apply(hearer: _LogSink | None) -> None:
    """Turn the messages on or off. A callback that the program has set in the meantime is not turned off."""
    global _sink, _before
    if _has_ended or (hearer is None and _sink is None):
        return
    with _suppress_messages():
        present = _current_callback()
        if hearer is None:
            if _is_ours(present):
                (_OFF if (_before.mask, _before.address) == (0, None) else _before).register()
        else:
            if not _is_ours(present) and present.address != _OFF.address:
                _before = present
            _Registered(hearer.mask(), None, _HEAR).register()
    _sink = hearer


def _is_ours(present: _Registered) -> bool:
    return present.address == _address(_HEAR)


_setting: ProcessSetting[_LogSink | None] = ProcessSetting(None, _apply)

declare(__name__, "_setting")
declare(__name__, "_sink", "_before", "_has_ended", resets=False)  # the setting sets them


@atexit.register
def _end() -> None:
    """Turn the messages off before the interpreter is torn down.

    The earlier callback is not restored: it may be a Python function, too, or a file, which cuDNN would truncate.
    """
    global _sink, _has_ended
    _has_ended = True
    if _sink is None:
        return
    with _suppress_messages():
        if _is_ours(_current_callback()):
            _OFF.register()
    _sink = None
    _wait_for_callbacks()


def _wait_for_callbacks() -> None:
    """Wait until no other thread is in the callback or about to enter it, for a second at most.

    Such a thread waits for the interpreter's lock. Python ends a thread that waits for it after the interpreter's end, and
    cuDNN's C++ code then ends the process. Each waiting thread gets the lock within a few switch intervals.
    """
    global _heard
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        _heard = False
        time.sleep(2 * sys.getswitchinterval() * threading.active_count())
        if not _heard and not _inside:
            return
