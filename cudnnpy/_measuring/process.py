"""Start a child process that measures or plans, send it requests, and end it at a time limit.

The child's standard input and output are one of two connected sockets, since calls of a socket have time limits. In both
directions a message is a line of JSON. Before each step that may crash or hang the child reports the step's time limit
in seconds. If no message follows within the limit, the parent ends the child. The child ends with its parent
(end_with_parent.py) and after a period without requests.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from cudnnpy._process_state import declare, in_forked_child
from cudnnpy._version import __version__
from cudnnpy.raw import _library

# The limit of a step for which the child has reported none. The first one is its start: Python, cuDNN and the CUDA context take
# some 1.5 s on an idle machine.
_STEP_SECONDS = 30.0
_END_SECONDS = 10.0  # to wait for a killed process, for which the GPU may still work
_MAX_SECONDS = 1e6  # that a call of a socket may take
_MAX_LINE_BYTES = 64 << 20
_MAX_LAST_WORDS_BYTES = 4096
# The libraries that cuDNN loads besides its own files, in an order in which they can be loaded.
_CUDA_LIBRARIES = ("libcublasLt.so", "libcublas.so", "libnvrtc.so")
_NOISE = "Could not load"  # lines of cuDNN about symbols that a stub driver lacks

Cause = Literal["ended", "limit", "deadline"]
Message = dict[str, Any]


class StartError(RuntimeError):
    """No process could be started, or it rejected its opening. `kind` is the class of the child's error, if it sent one."""

    def __init__(self, text: str, kind: str = "") -> None:
        super().__init__(text)
        self.kind = kind


class Ended(NamedTuple):
    """The end of a process before its answer."""

    #: "ended": by itself; "limit": a step took too long; "deadline": it was ended at the deadline of the request
    cause: Cause
    how: str  #: the reason of the end as text, such as the signal or the time limit
    begun: str = ""  #: the candidate of the last step; "" if the step had no single candidate
    step: Message = {}  #: the message that announced the last step


class WorkerProcess:
    """A child process that answers one request at a time (cudnnpy/_worker.py).

    `opening` is the first request: {"gpu": UUID} for a process that measures, {"profile": ...} for one that plans. `inherited`
    are file descriptors that the child inherits, and `command` is a program in place of cudnnpy._worker. Raises StartError.
    """

    def __init__(
        self, opening: Mapping[str, Any], *, inherited: Sequence[int] = (), command: Sequence[str] | None = None
    ) -> None:
        self._lines, self._received, self._closed = list[bytes](), b"", False
        with contextlib.ExitStack() as files:
            try:
                self._errors = files.enter_context(tempfile.TemporaryFile())
                self._socket, of_child = map(files.enter_context, socket.socketpair())
                self._process = subprocess.Popen(
                    _command() if command is None else list(command),
                    stdin=of_child.fileno(),
                    stdout=of_child.fileno(),
                    stderr=self._errors,
                    pass_fds=tuple(inherited),
                    env=_environment(opening.get("gpu")),
                    start_new_session=True,  # Ctrl-C in a terminal is for the caller, which ends the child
                )
            except (OSError, ValueError) as error:
                raise StartError(f"no process could be started: {' '.join(str(error).split())}") from None
            of_child.close()
            self._files = files.pop_all()
        _alive.add(self)
        answer = self.ask({"do": "open", "version": __version__, "libraries": _loaded_libraries(), **opening})
        if isinstance(answer, Ended):
            raise StartError(f"the process that measures and plans ended when it started: {answer.how}")
        if "error" in answer or answer["answer"] != __version__:
            self.end()
            version = f"it is of version {str(answer.get('answer'))[:40]!r}, not {__version__}"
            raise StartError(str(answer.get("error", version)), str(answer.get("kind", "")))

    @property
    def is_alive(self) -> bool:
        """Whether the process runs; an idle one ends by itself."""
        return not self._closed and self._process.poll() is None

    def ask(
        self, request: Mapping[str, Any], deadline: float = math.inf, note: Callable[[Message], object] | None = None
    ) -> Message | Ended:
        """Send a request, and return its answer, {"answer": ...} or {"error": text, "kind": class}.

        Return Ended if the process has ended, by itself, at a limit, or at the `deadline` (a time of time.monotonic()). It
        cannot be used again then. `note` is called with each message before the answer, except "begin".
        """
        if self._closed:
            return Ended("ended", "it had ended before")
        step: Message = {}
        until = time.monotonic() + _STEP_SECONDS
        try:
            self._limit(min(until, deadline))
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            while time.monotonic() < deadline:
                message = self._message(min(until, deadline))
                until = time.monotonic() + _STEP_SECONDS
                if "begin" in message:
                    step = message
                    until = time.monotonic() + float(message.get("seconds", _STEP_SECONDS))
                elif "answer" in message or "error" in message:
                    return message
                elif note is not None:
                    note(message)
            raise TimeoutError
        except TimeoutError:
            cause: Cause = "deadline" if deadline <= until else "limit"
            self.end(0.0 if cause == "deadline" else min(_END_SECONDS, deadline - time.monotonic()))
            return Ended(cause, f"it was ended at the {cause}", *_begun(step))
        except ConnectionError:
            return Ended("ended", self._last_words(), *_begun(step))
        except (ValueError, TypeError, KeyError) as error:
            self.end()
            return Ended("ended", f"it answered nonsense: {' '.join(str(error).split())[:200]}", *_begun(step))
        except BaseException:  # Ctrl-C: a late answer would be taken for the answer to another request
            self.end()
            raise

    def end(self, seconds: float = _END_SECONDS) -> None:
        """End the process, and wait some seconds for its end. Further calls do nothing."""
        if self._closed:
            return
        self._closed = True
        _alive.discard(self)
        self._process.kill()
        self._files.close()
        try:
            self._process.wait(max(seconds, 0.0))
        except subprocess.TimeoutExpired:  # another thread waits, so that no zombie stays
            with contextlib.suppress(RuntimeError):  # at the end of the interpreter
                threading.Thread(target=self._process.wait, daemon=True).start()

    def kill(self) -> None:
        """Kill the process. Any thread may do this; a request that waits for an answer then returns Ended."""
        self._process.kill()

    def forget(self) -> None:
        """Close the files of a process in a forked child, which is not its parent."""
        self._closed = True
        self._process.returncode = 0  # it is not waited for
        self._files.close()

    def _message(self, until: float) -> Message:
        """Return the next message. Raises TimeoutError, ConnectionError, and ValueError for an invalid message."""
        while not self._lines:
            self._limit(until)
            part = self._socket.recv(1 << 16)
            if not part:
                raise ConnectionError("the process has ended, or closed its output")
            *self._lines, self._received = (self._received + part).split(b"\n")
            if len(self._received) > _MAX_LINE_BYTES:
                raise ValueError(f"a line must have at most {_MAX_LINE_BYTES} bytes; got more")
        message = json.loads(self._lines.pop(0))
        if not isinstance(message, dict):
            raise ValueError(f"a message must be an object; got {type(message).__name__}")
        return message

    def _limit(self, until: float) -> None:
        """Set the time limit of the next call of the socket. A call that need not wait succeeds even after the limit."""
        self._socket.settimeout(min(max(until - time.monotonic(), 0.001), _MAX_SECONDS))

    def _last_words(self) -> str:
        """Wait for the end of a process; return its exit status with the last line of its standard error, as text."""
        try:
            status = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:  # it has closed its output and continues to run
            status = -signal.SIGKILL
        begin = max(self._errors.seek(0, os.SEEK_END) - _MAX_LAST_WORDS_BYTES, 0)
        self._errors.seek(begin)
        lines = self._errors.read().decode(errors="replace").splitlines()[begin > 0 :]  # the first may be a part of one
        said = [line.strip() for line in lines if line.strip() and _NOISE not in line]
        self.end()
        how = _signal_name(-status) if status < 0 else f"exit status {status}"
        return f"{how}, {said[-1][:200]}" if said else how


def _begun(step: Message) -> tuple[str, Message]:
    return str(step.get("begin", "")), step


_alive: weakref.WeakSet[WorkerProcess] = weakref.WeakSet()


def _forget_all() -> None:
    for process in list(_alive):
        process.forget()
    _alive.clear()


declare(__name__, "_alive", resets=False)
in_forked_child(_forget_all)


def why_no_interpreter() -> str:
    """Return why no child process can be started; "" if one can: a frozen program has no interpreter to start."""
    if getattr(sys, "frozen", False):
        return "the program is frozen, so that there is no Python interpreter to start"
    if "python" not in os.path.basename(sys.executable or "").lower():
        return f"there is no Python interpreter to start: sys.executable is {sys.executable!r}"
    return ""


def _command() -> list[str]:
    why = why_no_interpreter()
    if why:
        raise StartError(why)
    return [sys.executable, "-P", "-m", "cudnnpy._worker"]


def _environment(gpu: str | None) -> dict[str, str]:
    """Return the environment of a child: the modules of this process, its libcudnn, one GPU and no store."""
    path = [place or os.getcwd() for place in sys.path if isinstance(place, str)]
    changed = {"PYTHONPATH": os.pathsep.join(dict.fromkeys(path)), "CUDNNPY_STORE": "", "CUDNNPY_STORE_LAYERS": ""}
    with contextlib.suppress(Exception):  # the child reports a missing library
        changed["CUDNNPY_LIBRARY"] = _library.path()
    if gpu is not None:
        changed["CUDA_VISIBLE_DEVICES"] = gpu
    return {**os.environ, **changed}


def _loaded_libraries() -> list[str]:
    """Return the files of CUDA's libraries that are loaded in this process, so that the child loads the same ones."""
    with contextlib.suppress(OSError), open("/proc/self/maps", errors="surrogateescape") as maps:
        files = {line.split(maxsplit=5)[-1].rstrip("\n") for line in maps if "/" in line}
        found = {name: file for file in files for name in _CUDA_LIBRARIES if os.path.basename(file).startswith(name)}
        return [found[name] for name in _CUDA_LIBRARIES if name in found]
    return []


def _signal_name(number: int) -> str:
    try:
        return f"signal {signal.Signals(number).name}"
    except ValueError:
        return f"signal {number}"
