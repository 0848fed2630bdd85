"""Planning for a device profile in a child process, so that neither a stand-in for the driver nor a crash reaches this one.

cuDNN prints on standard error what a stand-in lacks, and some configurations end the process. A candidate that does is
left out with that reason, and a new process goes on.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import IO, Any, Self

from cudnnpy._planning.profile import DeviceProfile, ProfileError
from cudnnpy._store.entry import Entry
from cudnnpy.cli import stub_driver

_MOST_CRASHES = 20  # for one problem
_NOISE = "Could not load"  # lines of cuDNN about symbols that the stand-in lacks
_PROGRAM = "import sys; sys.path[:] = {path!r}; from cudnnpy.cli.planner_child import main; main({stub})"


class NoDriverError(RuntimeError):
    """There is no driver to plan with. The message is one line that says what to do."""


class PlanningError(RuntimeError):
    """A problem cannot be planned. The message has cuDNN's reason, or the table of candidates."""


class Planner:
    """A context manager that plans for one profile.

    Parameters
    ----------
    profile : DeviceProfile
        The GPU.
    stub : bool
        Whether a stand-in for the driver is built if there is none.

    Raises
    ------
    NoDriverError
        There is no driver, and `stub` is false.
    StubDriverError
        The stand-in cannot be built.
    ProfileError
        The loaded cuDNN does not accept the profile.
    """

    def __init__(self, profile: DeviceProfile, *, stub: bool = False) -> None:
        self._profile = profile
        self._process: subprocess.Popen[str] | None = None
        self._stack = ExitStack()
        with ExitStack() as stack:
            self._stub: IO[bytes] | None = None
            if not stub_driver.has_driver():
                if not stub:
                    raise NoDriverError(
                        f"a CUDA driver ({stub_driver.LIBRARY}) must be installed for cuDNN's engines to load; got none: "
                        "install NVIDIA's driver, or add --stub-driver, which builds a stand-in with the system's C "
                        "compiler and plans in a child process"
                    )
                self._stub = stack.enter_context(stub_driver.library())
            self._errors: IO[str] = stack.enter_context(tempfile.TemporaryFile("w+", errors="replace"))
            stack.callback(self._stop)
            self._start()
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def plan(self, text: str) -> Entry:
        """Return the choice for a problem in the notation. Raises PlanningError if it cannot be planned."""
        return Entry.of(self._ask({"do": "plan", "text": text}))

    def survey(self, text: str) -> list[dict[str, Any]]:
        """Return every candidate for a problem, as explanation.Row has it. Raises PlanningError if cuDNN fails."""
        rows: list[dict[str, Any]] = self._ask({"do": "survey", "text": text})
        return rows

    def _ask(self, request: dict[str, Any]) -> Any:
        """Return the answer to a request; candidates that end the process are left out."""
        left_out: dict[str, str] = {}
        while True:
            if self._process is None:
                self._start()
            answer, begun = self._exchange({**request, "left_out": left_out})
            if answer is not None:
                if "error" in answer:
                    raise PlanningError(answer["error"])
                return answer["answer"]
            how = self._ended()
            if not begun or begun in left_out or len(left_out) == _MOST_CRASHES:
                raise PlanningError(f"the process that plans ended: {how}")
            left_out[begun] = f"the process that planned it ended: {how}"

    def _exchange(self, request: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
        """Send a request; return the answer, None if the process ended, and the candidate that was planned last."""
        process, begun = self._process, ""
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                answer: dict[str, Any] = json.loads(line)
                if "begin" not in answer:
                    return answer, begun
                begun = answer["begin"]
        except (OSError, ValueError):  # it ended before it read, or within a line
            pass
        return None, begun

    def _start(self) -> None:
        self._errors.seek(0)  # what an earlier process said
        self._errors.truncate()
        stub = None if self._stub is None else self._stub.fileno()
        path = [place for place in sys.path if isinstance(place, str)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM.format(path=path, stub=stub)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            pass_fds=() if stub is None else (stub,),
            text=True,
        )
        answer, _ = self._exchange({"do": "open", **self._profile._asdict()})
        if answer is None:
            raise PlanningError(f"the process that plans ended: {self._ended()}")
        if "error" in answer:
            self._stop()
            raise (ProfileError if answer["kind"] == "ProfileError" else PlanningError)(answer["error"])

    def _ended(self) -> str:
        """Wait for the process that ended, and return how, in words."""
        process, self._process = self._process, None
        assert process is not None
        status = _closed(process)
        self._errors.seek(0)
        said = [line.strip() for line in self._errors if line.strip() and _NOISE not in line]
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        return f"{how}, {said[-1][:200]}" if said else how

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            _closed(process)


def _closed(process: subprocess.Popen[str]) -> int:
    """Close the pipes of a process that ends, and return its status."""
    with suppress(OSError), process:  # of what was written to a process that ended
        pass
    return process.wait()
