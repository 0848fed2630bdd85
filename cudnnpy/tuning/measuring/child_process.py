"""Start a child process that measures or plans, send it requests, and end it at a time limit.

The child's standard input and output are one of two connected sockets, since calls of a socket have time limits. In both
directions a message is a line of JSON. Before each step that may crash or hang the child reports the step's time limit
in seconds. If no message follows within the limit, the parent ends the child. The parent gives the child's warnings. Of the
child's standard error, the end alone is in memory. The child ends with its parent (end_with_parent.py) and after a period
without requests.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from cudnnpy._core.caller_warning import warn
from cudnnpy._core.untrusted_json import parse_json
from cudnnpy._process.module_state import declare, in_forked_child
from cudnnpy._version import __version__
from cudnnpy.raw import _library

# The limit of a step for which the child has reported none. The first one is its start: Python, cuDNN and the CUDA context take
# some 1.5 s on an idle machine.
_STEP_SECONDS = 30.0
_END_SECONDS = 10.0  # to wait for a killed process, for which the GPU may still work
_MAX_SECONDS = 1e6  # that a call of a socket may take
_MAX_ENDS = 20  # of processes for one request
_MAX_LINE_BYTES = 16 << 20
_MAX_LAST_WORDS_BYTES = 4096
_DRAIN_SECONDS = 1.0  # to wait for the end of the standard error, which other processes may hold open
# The libraries that cuDNN loads besides its own files, in an order in which they can be loaded.
_CUDA_LIBRARIES = ("libcublasLt.so", "libcublas.so", "libnvrtc.so")
_PACKAGE_PARENT = str(Path(__file__).parents[3])
_SIGNALS = {int(number): number.name for number in signal.Signals}
_NOISE = "Could not load"  # lines of cuDNN about symbols that a stub driver lacks

# The exceptions of reading a message that is not as expected
_NONSENSE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

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
    step: Message = {}  #: the message that announced the last step

    @property
    def begun(self) -> str:
        """The candidate of the last step; "" if the step had no single candidate."""
        return str(self.step.get("begin", ""))


class WorkerProcess:
    """A child process that answers one request at a time (child.py).

    `opening` is the first request: {"gpu": UUID} for a process that measures, {"profile": ...} for one that plans. `inherited`
    are file descriptors that the child inherits, and `command` is a program in place of child.py. The process is not
    waited for (see `open`). Raises StartError.
    """

    def __init__(
        self, opening: Mapping[str, Any], *, inherited: Sequence[int] = (), command: Sequence[str] | None = None
    ) -> None:
        self._received, self._closed, self._is_open = bytearray(), False, False
        self._open_until, self._errors = time.monotonic() + _STEP_SECONDS, bytearray()
        opening = {"do": "open", "version": __version__, "libraries": _loaded_libraries(), **opening}
        with contextlib.ExitStack() as files:
            try:
                self._socket, of_child = map(files.enter_context, socket.socketpair())
                self._process = subprocess.Popen(
                    _command() if command is None else list(command),
                    bufsize=0,
                    stdin=of_child.fileno(),
                    stdout=of_child.fileno(),
                    stderr=subprocess.PIPE,
                    pass_fds=tuple(inherited),
                    env=_environment(opening.get("gpu")),
                    start_new_session=True,  # Ctrl-C in a terminal is for the caller, which ends the child
                )
            except (OSError, ValueError) as error:
                raise StartError(f"no process could be started: {' '.join(str(error).split())}") from None
            of_child.close()
            self._files = files.pop_all()
        _alive.add(self)
        self._drain = threading.Thread(target=_keep_end, args=(self._process.stderr, self._errors), daemon=True)
        self._drain.start()
        with contextlib.suppress(ConnectionError):  # it has ended, which `open` reports
            self._socket.sendall(json.dumps(opening).encode() + b"\n")

    def open(self, deadline: float = math.inf) -> bool:
        """Wait for the process to start, and return whether it has before a deadline. If not, it goes on starting.

        Raises StartError if it ended or rejected its opening.
        """
        if self._is_open or (deadline < self._open_until and self._input(deadline - time.monotonic()) is None):
            return self._is_open
        self._is_open = True  # before the answer is taken, since Ctrl-C may come behind it
        answer = self.ask(None)
        if isinstance(answer, Ended):
            raise StartError(f"the process that measures and plans ended when it started: {answer.how}")
        if answer.get("answer") != __version__:
            self.end()
            version = f"it is of version {str(answer.get('answer'))[:40]!r}, not {__version__}"
            raise StartError(answer.get("error", version), answer.get("kind", ""))
        return True

    @property
    def is_alive(self) -> bool:
        """Whether the process runs; an idle one ends by itself."""
        return not self._closed and self._process.poll() is None

    def ask(
        self,
        request: Mapping[str, Any] | None,
        deadline: float = math.inf,
        note: Callable[[Message], object] | None = None,
        parse: Callable[[Any], Any] | None = None,
    ) -> Message | Ended:
        """Send a request, and return its answer, {"answer": ...} or {"error": text, "kind": class}.

        Return Ended if the process has ended, by itself, at a limit, or at the `deadline` (a time of time.monotonic()). It
        cannot be used again then. `note` is called with each message before the answer, except "begin" and "warning". `parse`
        converts the value of an answer, and raises ValueError for an invalid one. Without a request, it is the answer to the
        opening. Raises StartError as `open` does.
        """
        if self._closed:
            return Ended("ended", "it had ended before")
        if request is not None:
            self.open()
        step: Message = {}
        until = self._open_until if request is None else time.monotonic() + _STEP_SECONDS
        try:
            if request is not None:
                if self._received or self._input(0.0):
                    raise ValueError("a request must have one answer; got more")
                self._limit(min(until, deadline))
                self._socket.sendall(json.dumps(request).encode() + b"\n")
            while time.monotonic() < deadline:
                message = self._message(min(until, deadline))
                until = time.monotonic() + _STEP_SECONDS
                if "begin" in message:
                    step = message
                    until = time.monotonic() + float(message.get("seconds", _STEP_SECONDS))
                elif "warning" in message:
                    warn_once(str(message["warning"]))
                elif "answer" in message or "error" in message:
                    if self._received or ("answer" in message) is ("error" in message):
                        raise ValueError("a request must have one answer; got more")
                    if "error" in message:
                        return {"error": str(message["error"]), "kind": str(message.get("kind", ""))}
                    return {"answer": message["answer"] if parse is None else parse(message["answer"])}
                elif note is not None:
                    note(message)
            raise TimeoutError
        except TimeoutError:
            cause: Cause = "deadline" if deadline <= until else "limit"
            self.end(0.0 if cause == "deadline" else min(_END_SECONDS, deadline - time.monotonic()))
            return Ended(cause, f"it was ended at the {cause}", step)
        except ConnectionError:
            return Ended("ended", self._last_words(), step)
        except _NONSENSE as error:
            self.end()
            return Ended("ended", f"it answered nonsense: {' '.join(str(error).split())[:200]}", step)
        except BaseException:  # Ctrl-C: a late answer would be taken for the answer to another request
            self.end()
            raise

    def end(self, seconds: float = _END_SECONDS) -> None:
        """End the process, and wait some seconds for its end. Further calls do nothing."""
        if self._closed:
            return
        self._process.kill()
        self._closed = True  # behind that, since Ctrl-C may come before it
        _alive.discard(self)
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
        assert self._process.stderr is not None
        self._process.stderr.close()

    def _message(self, until: float) -> Message:
        """Return the next message. Raises TimeoutError, ConnectionError, and ValueError for an invalid message.

        Input that is there is read even after the limit, since this process may have been stopped, but only once.
        """
        searched, is_late = 0, False
        while (end := self._received.find(b"\n", searched)) < 0:
            searched = len(self._received)
            if searched > _MAX_LINE_BYTES:
                raise ValueError(f"a line must have at most {_MAX_LINE_BYTES} bytes; got more")
            if is_late:
                raise TimeoutError
            is_late = time.monotonic() >= until
            self._limit(until)
            part = self._socket.recv(1 << 20)
            if not part:
                raise ConnectionError("the process has ended, or closed its output")
            self._received += part
        message = parse_json(self._received[:end].decode())
        del self._received[: end + 1]
        if not isinstance(message, dict):
            raise ValueError(f"a message must be an object; got {type(message).__name__}")
        return message

    def _limit(self, until: float) -> None:
        """Set the time limit of the next call of the socket. A call that need not wait succeeds even after the limit."""
        self._socket.settimeout(min(max(until - time.monotonic(), 0.001), _MAX_SECONDS))

    def _input(self, seconds: float) -> bytes | None:
        """Return a byte of the input without taking it: b"" at its end, and None if none came in some seconds."""
        try:
            self._socket.settimeout(min(max(seconds, 0.0), _MAX_SECONDS))
            return self._socket.recv(1, socket.MSG_PEEK)
        except (TimeoutError, BlockingIOError):
            return None
        except ConnectionError:
            return b""

    def _last_words(self) -> str:
        """Wait for the end of a process; return its exit status with the last line of its standard error, as text."""
        try:
            status = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:  # it has closed its output and continues to run
            status = -signal.SIGKILL
        self.end()
        self._drain.join(_DRAIN_SECONDS)
        is_cut = len(self._errors) == _MAX_LAST_WORDS_BYTES
        lines = self._errors.decode(errors="replace").splitlines()[is_cut:]  # the first may be a part of one
        said = [line.strip() for line in lines if line.strip() and _NOISE not in line]
        how = f"signal {_SIGNALS.get(-status, -status)}" if status < 0 else f"exit status {status}"
        return f"{how}, {said[-1][:200]}" if said else how


def _keep_end(stream: IO[bytes], end: bytearray) -> None:
    """Read a stream to its end, and hold its last bytes in `end`."""
    with stream:
        while part := stream.read(1 << 16):
            end += part
            del end[:-_MAX_LAST_WORDS_BYTES]


def warn_once(text: str) -> None:
    """Give a warning once in this process, since each new child finds the same."""
    if text not in _warned:
        _warned.add(text)
        warn(text)


class Worker:
    """Answers requests by a child process, which `start` starts. Another one takes its place when it has ended.

    `reason_of` returns the rejection reason of a candidate at which a process ended. One thread at a time may use the worker,
    except for `stop`.
    """

    def __init__(self, start: Callable[[], WorkerProcess], reason_of: Callable[[Ended], str]) -> None:
        self._start, self._reason_of = start, reason_of
        self._process: WorkerProcess | None = None
        self.is_stopped = False

    def ask(self, request: Mapping[str, Any], deadline: float = math.inf, **how: Any) -> Message | Ended:
        """Send a request to the process, and return its answer or its end, as WorkerProcess.ask does. Raises StartError.

        A process that has not started before the deadline serves the next request. `how` are `note` and `parse`.
        """
        is_new = self._process is None or not self._process.is_alive
        if self._process is None or is_new:
            self.close()
            self._process = self._start()
        if self.is_stopped:
            self.close()
            raise StartError("stopped")
        if not self._process.open(deadline):
            return Ended("deadline", "it had not started in time")
        answer = self._process.ask(request, deadline, **how)
        if isinstance(answer, Ended) and answer.cause == "ended" and not (is_new or answer.step):  # since it was idle
            return self.ask(request, deadline, **how)
        return answer

    def ask_on(
        self, request: Callable[[], Message], left_out: dict[str, str], deadline: float = math.inf, **how: Any
    ) -> tuple[Message | Ended, list[Ended]]:
        """Send a request; each time the process ends at a candidate, again to a new process without this candidate.

        `left_out` has the rejection reasons of candidates by name, and gets these. Return the last answer or end, and the
        ends of the processes before. Raises StartError if no process starts.
        """
        ends: list[Ended] = []
        while True:
            try:
                answer = self.ask({**request(), "left_out": left_out}, deadline, **how)
            except StartError as error:
                if not ends:
                    raise
                return Ended("ended", str(error)), ends
            is_late = isinstance(answer, Ended) and (answer.cause == "deadline" or len(ends) == _MAX_ENDS)
            if not isinstance(answer, Ended) or is_late or answer.begun in ("", *left_out):
                return answer, ends
            ends.append(answer)
            left_out[answer.begun] = self._reason_of(answer)
            if time.monotonic() > deadline:
                return answer, ends

    def close(self) -> None:
        """End the process, even if it is not ready yet. The next request starts another one."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def stop(self) -> None:
        """End the process for good. Any thread may do this, which ends another thread's request."""
        self.is_stopped = True
        process = self._process
        if process is not None:
            process.kill()


_alive: weakref.WeakSet[WorkerProcess] = weakref.WeakSet()
_warned: set[str] = set()


def _forget_all() -> None:
    for process in list(_alive):
        process.forget()
    _alive.clear()


def _end_all() -> None:
    for process in list(_alive):
        process.end()


declare(__name__, "_alive", resets=False)
declare(__name__, "_warned")
in_forked_child(_forget_all)
atexit.register(_end_all)


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
    return [sys.executable, "-P", "-m", "cudnnpy.tuning.measuring.child"]


def _environment(gpu: str | None) -> dict[str, str]:
    """Return the environment of a child: the path of this process without its current folder, libcudnn, one GPU, no store."""
    path = [place for place in sys.path if isinstance(place, str) and not _is_current_folder(place)]
    if _PACKAGE_PARENT not in path:
        path.insert(0, _PACKAGE_PARENT)
    changed = dict.fromkeys(("CUDNNPY_STORE", "CUDNNPY_STORE_LAYERS", "CUDNNPY_RECORD"), "")
    changed["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path))
    with contextlib.suppress(Exception):  # the child reports a missing library
        changed["CUDNNPY_LIBRARY"] = _library.path()
    if gpu is not None:
        changed["CUDA_VISIBLE_DEVICES"] = gpu
    return {**os.environ, **changed}


def _is_current_folder(place: str) -> bool:
    """Return whether an entry of sys.path is the current folder, whose files are not of this program."""
    with contextlib.suppress(OSError, ValueError):
        return os.path.samefile(place or ".", ".")
    return False


def _loaded_libraries() -> list[str]:
    """Return the files of CUDA's libraries that are loaded in this process, so that the child loads the same ones."""
    with contextlib.suppress(OSError), open("/proc/self/maps", errors="surrogateescape") as maps:
        files = {line.split(maxsplit=5)[-1].rstrip("\n") for line in maps if "/" in line}
        found = {name: file for file in files for name in _CUDA_LIBRARIES if os.path.basename(file).startswith(name)}
        return [found[name] for name in _CUDA_LIBRARIES if name in found]
    return []
