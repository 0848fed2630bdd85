"""Collect the problems that a process plans within a ``with`` block: the base class of `Freeze` and `Recording`."""

from __future__ import annotations

from collections import defaultdict
from types import TracebackType
from typing import Self

from cudnnpy._options.public_dir import PublicDir
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem import Problem
from cudnnpy._planning.problem_notation import text_of
from cudnnpy._process_state import declare, fork_safe_lock

lock = fork_safe_lock()
_open: defaultdict[type[ProblemLog], list[ProblemLog]] = defaultdict(list)  # by subclass

declare(__name__, "_open")


class ProblemLog(PublicDir):
    """The problems of a period, each once, in the order of their first calls. The period ends with its ``with`` block.

    Every subclass has its own open periods.
    """

    def __init__(self) -> None:
        self._texts: dict[str, None] = {}
        with lock:
            self._open = _open[type(self)]
            self._open.append(self)

    @classmethod
    def is_open(cls) -> bool:
        """Return whether there is an open period."""
        return bool(_open[cls])

    @classmethod
    def note(cls, problem: Problem, options: PlanningOptions) -> bool:
        """Add a problem to every open period; return whether there is one."""
        if not _open[cls]:
            return False
        text = text_of(problem, options)
        with lock:
            for period in _open[cls]:
                period._texts[text] = None
            return bool(_open[cls])

    def end(self) -> None:
        """End the period. Further calls do nothing."""
        with lock:
            if self in self._open:
                self._open.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
