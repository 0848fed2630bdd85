"""Forbid measuring: prefer="autotune" takes what is in the store, and the first guess for the problems that are not."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from threading import Lock
from types import TracebackType

from cudnnpy._launch.plan_cache import clear_cache
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem import Problem
from cudnnpy._planning.problem_notation import text_of


class Freeze(AbstractContextManager["Freeze"]):
    """A period in which nothing is measured, from `cudnnpy.freeze`. It ends with its ``with`` block, or by `end`."""

    def __init__(self) -> None:
        self._unknown: dict[str, None] = {}
        with _lock:
            _open.append(self)

    @property
    def unknown(self) -> tuple[str, ...]:
        """The problems that were not in the store, each once, as texts in the order of their first calls."""
        return tuple(self._unknown)

    def end(self) -> None:
        """Allow measuring again, unless another freeze is open. Further calls do nothing.

        If a problem was not in the store, the plan cache is cleared (`cudnnpy.clear_cache`) when the last freeze ends: the
        problem is measured at its next call.
        """
        global _has_guesses
        with _lock:
            if self not in _open:
                return
            _open.remove(self)
            is_last, had_guesses = not _open, _has_guesses
            if is_last:
                _has_guesses = False
        if is_last and had_guesses:
            clear_cache()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


_lock = Lock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_open: list[Freeze] = []
_has_guesses = False  # whether a plan that stands in for a measured one may be in the cache


def freeze() -> Freeze:
    """Forbid measuring in the whole process, so that all processes with one store choose alike.

    A problem that the store knows gets its plan from there. For any other, ``prefer="autotune"`` takes what
    ``prefer="fastest"`` would within the same limits, and the problem is listed in `unknown` of the result.

    Returns
    -------
    Freeze
        A context manager, whose block ends the freeze. Without a ``with`` statement it lasts until its method `end` is called.

    Notes
    -----
    The freeze holds for all threads. Freezes may overlap: measuring is allowed again when all of them have ended, and each
    lists the problems that were unknown while it was open. Plans that were measured before stay in use. A stored choice that
    has not been confirmed on this machine is still run once and checked.

    Examples
    --------
    >>> with cudnnpy.freeze() as frozen:  # doctest: +SKIP
    ...     train()
    >>> frozen.unknown  # doctest: +SKIP
    ('forward 128x64x56x56 64x64x3x3 pad=1 float16 channels_last prefer=autotune',)
    """
    return Freeze()


def is_frozen() -> bool:
    """Return whether measuring is forbidden."""
    return bool(_open)


def note_unknown(problem: Problem, options: PlanningOptions) -> bool:
    """List a problem in every open freeze; return False, and do nothing, if there is none."""
    global _has_guesses
    if not _open:
        return False
    text = text_of(problem, options)
    with _lock:
        for one in _open:
            one._unknown[text] = None
        _has_guesses = bool(_open)
        return _has_guesses
