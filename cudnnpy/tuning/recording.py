"""Periods of a program: `record` lists the problems that it plans, for `cudnnpy tune`, and `freeze` forbids measuring."""

from __future__ import annotations

import os
import warnings
from collections import defaultdict
from os import PathLike
from typing import Self

from cudnnpy._checks.public_dir import PublicDir
from cudnnpy._launch.plan_cache import clear_cache
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem import Problem
from cudnnpy._planning.problem_notation import text_of
from cudnnpy._process.module_state import declare, fork_safe_lock
from cudnnpy.tuning import problem_file

# `cudnnpy tune --record` sets it for a program: the file to which every process adds its problems. Nothing is measured there.
VARIABLE = "CUDNNPY_RECORD"

_lock = fork_safe_lock()
_open: defaultdict[type[ProblemLog], list[ProblemLog]] = defaultdict(list)  # by subclass
_saved: set[str] = set()  # the texts that this process has added to the file

declare(__name__, "_open", "_saved")


class ProblemLog(PublicDir):
    """The problems of a period, each once, in the order of their first calls. The period ends with its ``with`` block.

    Every subclass has its own open periods.
    """

    def __init__(self) -> None:
        self._texts: dict[str, None] = {}
        with _lock:
            self._open = _open[type(self)]
            self._open.append(self)

    @classmethod
    def is_open(cls) -> bool:
        """Return whether there is an open period, of this process or of `cudnnpy tune --record`."""
        return bool(_open[cls] or os.environ.get(VARIABLE))

    @classmethod
    def note(cls, problem: Problem, options: PlanningOptions) -> bool:
        """Add a problem to every open period; return whether there is one."""
        if not cls.is_open():
            return False
        text = text_of(problem, options)
        with _lock:
            for period in _open[cls]:
                period._texts[text] = None
            return cls.is_open()

    def end(self) -> None:
        """End the period. Further calls do nothing."""
        with _lock:
            if self in self._open:
                self._open.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.end()


class Recording(ProblemLog):
    """The problems that are planned in a period, from `cudnnpy.record`. It ends with its ``with`` block, or by `end`."""

    def __init__(self) -> None:
        super().__init__()
        clear_cache()

    @property
    def problems(self) -> tuple[str, ...]:
        """The problems with their options, each once, as texts in the order of their first calls."""
        return tuple(self._texts)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the problems to a file that ``cudnnpy tune`` reads.

        Parameters
        ----------
        path : str or path
            The file, such as PROBLEMS.txt. An existing one is replaced.

        Raises
        ------
        OSError
            The file cannot be written.
        """
        problem_file.write(path, self.problems)


def record() -> Recording:
    """Record every problem that is planned in the process, in any thread and with any preference.

    Returns
    -------
    Recording
        A context manager, whose block ends the recording. Its `problems` are texts, and its method `save` writes them to a file
        for ``cudnnpy tune``.

    Notes
    -----
    These are convolutions and their gradients, transposed and fused convolutions, and graphs, also from PyTorch programs.
    Operations whose algorithm is forced, and operations that have only one plan, such as pooling, are not recorded. A recording
    starts with an empty plan cache (`cudnnpy.clear_cache`), since only operations that are planned are recorded.

    Examples
    --------
    >>> import cudnnpy
    >>> with cudnnpy.record() as recording:
    ...     pass  # a training step; recording.save("problems.txt") writes what it planned
    >>> recording.problems
    ()
    """
    return Recording()


def note(problem: Problem, options: PlanningOptions) -> None:
    """Add a problem that was planned to every open recording."""
    if options.algorithm is None and Recording.note(problem, options) and (path := os.environ.get(VARIABLE)):
        _add_to_file(path, text_of(problem, options))


def _add_to_file(path: str, text: str) -> None:
    """Add a problem to the file of `cudnnpy tune --record`, once, in one write, since other processes add theirs."""
    with _lock:
        if text in _saved:
            return
        _saved.add(text)
    try:
        with open(path, "ab", buffering=0) as file:
            file.write(f"{text}\n".encode())
    except OSError as error:
        how = f"the process {os.getpid()} is not recorded: {path}: {error.strerror}. Run it while the command waits"
        warnings.warn(
            f"cudnnpy tune --record: {how}, or record in it with cudnnpy.record()", RuntimeWarning, stacklevel=2
        )


# prefer="autotune" within a freeze takes stored choices, and the default choice of a problem without one


class Freeze(ProblemLog):
    """A period in which nothing is measured, from `cudnnpy.freeze`. It ends with its ``with`` block, or by `end`."""

    @property
    def unknown(self) -> tuple[str, ...]:
        """The problems that were not in the store, each once, as texts in the order of their first calls."""
        return tuple(self._texts)

    def end(self) -> None:
        """Allow measuring again, unless another freeze is open. Further calls do nothing.

        If a problem was not in the store, the plan cache is cleared (`cudnnpy.clear_cache`): the problem is measured at its
        next call outside of a freeze.
        """
        is_first_end = self in self._open
        super().end()
        if is_first_end and self._texts:
            clear_cache()


def freeze() -> Freeze:
    """Forbid measuring in the whole process, so that all processes with one store choose alike.

    A problem with a stored choice gets its plan from the store. For any other, ``prefer="autotune"`` chooses as
    ``prefer="fastest"`` does within the same limits, and the problem is listed in `unknown` of the result.

    Returns
    -------
    Freeze
        A context manager, whose block ends the freeze. Without a ``with`` statement it lasts until its method `end` is called.

    Notes
    -----
    The freeze applies to all threads. Freezes may overlap: measuring is allowed again when all of them have ended, and each
    lists the problems that were unknown while it was open. Plans that were measured before stay in use. A stored choice that
    has not been confirmed on this machine is still run once and checked.

    Examples
    --------
    >>> import cudnnpy
    >>> with cudnnpy.freeze() as frozen:
    ...     pass  # a training step, which measures nothing
    >>> frozen.unknown
    ()
    """
    return Freeze()
