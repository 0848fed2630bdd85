"""The requests that a child process answers (_measuring/DESIGN.md)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from cudnnpy._planning import notation, offline, profile
from cudnnpy._planning.offline import Watch
from cudnnpy._planning.profile import DeviceProfile
from cudnnpy._version import __version__
from cudnnpy.errors import CudnnError

_PLANNING_SECONDS = 300.0  # for one candidate, of which some are compiled; the machine may be busy

Message = dict[str, Any]


class Service:
    """Answers requests. `say` sends the messages that come before an answer."""

    def __init__(self, say: Callable[[Message], object]) -> None:
        self._say = say
        self._profile: DeviceProfile

    def answer(self, request: Message) -> Message:
        """Return the answer, {"answer": ...}, or {"error": text, "kind": class}."""
        actions: dict[str, Callable[[Message], Any]] = {
            "open": self._open,
            "plan": self._plan,
            "survey": self._survey,
        }
        try:
            return {"answer": actions[request["do"]](request)}
        except (CudnnError, ValueError, TypeError, MemoryError) as error:
            return {"error": str(error), "kind": type(error).__name__}

    def _open(self, request: Message) -> str:
        if request.get("stub") is not None:
            ctypes.CDLL(f"/proc/self/fd/{request['stub']}")  # before cuDNN looks for a driver
        if "profile" in request:
            self._profile = DeviceProfile(**request["profile"])
            profile.target_of(self._profile)
        return __version__

    # Planning for the device profile

    def _watch(self, request: Message) -> Watch:
        def begin(name: str) -> None:
            self._say({"begin": name, "seconds": _PLANNING_SECONDS})

        return Watch(begin, request["left_out"])

    def _plan(self, request: Message) -> Message:
        return offline.plan_for_profile(request["text"], self._profile, self._watch(request)).plain()

    def _survey(self, request: Message) -> list[Message]:
        problem, options = notation.parse(request["text"])
        target = profile.target_of(self._profile)
        found = offline.survey(problem, options, target, self._profile.memory, self._watch(request))
        return [offline.row(candidate) for candidate in found]
