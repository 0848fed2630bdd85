"""The answers of the child process: it measures problems on its GPU, or plans them for a device profile.

A request is a dict that names what to do; the module's brief in DESIGN.md lists the messages. Candidates run nowhere else.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from cudnnpy import raw
from cudnnpy._measuring.search import ContextLostError, Search, Watch
from cudnnpy._memory import workspace
from cudnnpy._planning import notation, offline, profile, selection
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.engines import Target
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.plan import Plan
from cudnnpy._planning.problem import Problem
from cudnnpy._planning.profile import DeviceProfile
from cudnnpy._planning.remembered import candidate_of, entry_of, row_of_candidate
from cudnnpy._planning.usable import is_usable
from cudnnpy._store.entry import Entry, Measured
from cudnnpy._version import __version__
from cudnnpy.errors import CudnnError
from cudnnpy.handle import Handle, on_device

Say = Callable[[dict[str, Any]], object]


class Service:
    """Answers requests with dicts. `say` sends a message before the answer."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._profile: DeviceProfile | None = None
        self._actions: dict[str, Callable[[Mapping[str, Any]], Any]] = {
            "open": self._open,
            "measure": self._measure,
            "confirm": self._confirm,
            "plan": self._plan,
            "survey": self._survey,
        }

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return {"answer": ...}, or {"error": text, "kind": class} for an error that the caller may expect."""
        try:
            return {"answer": self._actions[request["do"]](request)}
        except (CudnnError, ValueError, TypeError, MemoryError, KeyError, RuntimeError, OSError) as error:
            return {"error": " ".join(str(error).split()), "kind": type(error).__name__}

    def _open(self, request: Mapping[str, Any]) -> str:
        if request["version"] != __version__:
            raise ValueError(f"the process that measures is of version {__version__}; got a request of {request['version']}")
        for file in request["libraries"]:
            with suppress(OSError):
                ctypes.CDLL(file)
        if "stub" in request:
            ctypes.CDLL(f"/proc/self/fd/{request['stub']}")
        if "profile" in request:
            self._profile = DeviceProfile(**request["profile"])
            profile.target_of(self._profile)
        else:
            with on_device(0):
                Handle.default(0)
        return __version__
