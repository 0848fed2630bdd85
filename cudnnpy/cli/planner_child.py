"""The process that plans for a device profile (planner.py): a request is a line of JSON, and so is its answer.

Before cuDNN plans a candidate, a line {"begin": name} says so.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

import cudnnpy.convolution.plans  # noqa: F401 - the kinds of problems register what reads them
from cudnnpy._measuring import parent_process
from cudnnpy._planning import notation, offline, profile
from cudnnpy._planning.offline import Watch
from cudnnpy._planning.profile import DeviceProfile
from cudnnpy.cli import explanation
from cudnnpy.errors import CudnnError


class _Child:
    def __init__(self, answers: TextIO) -> None:
        self._answers = answers
        self._profile: DeviceProfile

    def say(self, line: dict[str, Any]) -> None:
        self._answers.write(json.dumps(line) + "\n")
        self._answers.flush()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        actions: dict[str, Callable[[dict[str, Any]], Any]] = {
            "open": self._open,
            "plan": self._plan,
            "survey": self._survey,
        }
        try:
            return {"answer": actions[request["do"]](request)}
        except (CudnnError, ValueError, TypeError, MemoryError) as error:
            return {"error": str(error), "kind": type(error).__name__}

    def _open(self, request: dict[str, Any]) -> None:
        self._profile = DeviceProfile(request["text"], request["cudnn"], request["source"])
        profile.target_of(self._profile)

    def _watch(self, request: dict[str, Any]) -> Watch:
        return Watch(lambda name: self.say({"begin": name}), request["left_out"])

    def _plan(self, request: dict[str, Any]) -> Any:
        return offline.plan_for_profile(request["text"], self._profile, self._watch(request)).plain()

    def _survey(self, request: dict[str, Any]) -> Any:
        problem, options = notation.parse(request["text"])
        target = profile.target_of(self._profile)
        found = offline.survey(problem, options, target, self._profile.memory, self._watch(request))
        return [explanation.row_of(candidate).plain() for candidate in found]


def main(stub: int | None) -> None:
    """Answer the requests on standard input until it ends. `stub` is the file descriptor of the stub driver to load, if any."""
    parent_process.end_with(0)
    if stub is not None:
        ctypes.CDLL(f"/proc/self/fd/{stub}")
    child = _Child(os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)  # cuDNN may print
    for line in sys.stdin:
        child.say(child.answer(json.loads(line)))
