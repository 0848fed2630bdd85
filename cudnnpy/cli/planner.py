"""Planning for a device profile in a child process, so that neither a stand-in for the driver nor a crash reaches this one.

Some configurations end the process. Such a candidate is left out with that reason, and a new process goes on.
"""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import IO, Any, Self

from cudnnpy._measuring.process import Ended, StartError, WorkerProcess
from cudnnpy._planning.device_profile import DeviceProfile, ProfileError
from cudnnpy._store.entry import Entry
from cudnnpy.cli import stub_driver

_MAX_CRASHES = 20  # for one problem


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
    PlanningError
        No process could be started.
    """

    def __init__(self, profile: DeviceProfile, *, stub: bool = False) -> None:
        self._profile = profile
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
            self._process = self._started()
            stack.callback(lambda: self._process.end())
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
            if not self._process.is_alive:
                self._process.end()
                self._process = self._started()
            answer = self._process.ask({**request, "left_out": left_out})
            if not isinstance(answer, Ended):
                if "error" in answer:
                    raise PlanningError(answer["error"])
                return answer["answer"]
            if not answer.begun or answer.begun in left_out or len(left_out) == _MAX_CRASHES:
                raise PlanningError(f"the process that plans ended: {answer.how}")
            left_out[answer.begun] = f"the process that planned it ended: {answer.how}"

    def _started(self) -> WorkerProcess:
        stub = {} if self._stub is None else {"stub": self._stub.fileno()}
        try:
            return WorkerProcess({"profile": self._profile._asdict(), **stub}, inherited=tuple(stub.values()))
        except StartError as error:
            raise (ProfileError if error.kind == "ProfileError" else PlanningError)(str(error)) from None
