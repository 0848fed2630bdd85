"""Record the problems that a program plans, as a list for `cudnnpy tune`."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from os import PathLike
from threading import Lock
from types import TracebackType

from cudnnpy._launch.plan_cache import clear_cache
from cudnnpy._planning import problem_file
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem import Problem
from cudnnpy._planning.problem_notation import text_of


class Recording(AbstractContextManager["Recording"]):
    """The problems that are planned in a period, from `cudnnpy.record`. It ends with its ``with`` block, or by `end`."""

    def __init__(self) -> None:
        self._texts: dict[str, None] = {}
        with _lock:
            _open.append(self)
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
            The file, such as PROBLEMS.toml. An existing one is replaced.

        Raises
        ------
        OSError
            The file cannot be written.
        """
        problem_file.write(path, self.problems)

    def end(self) -> None:
        """Record no more. Further calls do nothing."""
        with _lock:
            if self in _open:
                _open.remove(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


_lock = Lock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_open: list[Recording] = []


def record() -> Recording:
    """Record every problem that is planned in the process, in any thread and with any preference.

    Returns
    -------
    Recording
        A context manager, whose block ends the recording. Its `problems` are texts, and its method `save` writes them to a file
        for ``cudnnpy tune``.

    Notes
    -----
    These are convolutions and their gradients, transposed and fused convolutions, and graphs, also those of PyTorch programs.
    Operations whose algorithm is forced are left out, and those that have one plan only, such as pooling, are not recorded. A
    recording starts with an empty plan cache (`cudnnpy.clear_cache`), since only operations that are planned are seen.

    Examples
    --------
    >>> with cudnnpy.record() as recording:  # doctest: +SKIP
    ...     train_step()
    >>> recording.save("PROBLEMS.toml")  # doctest: +SKIP
    """
    return Recording()


def note(problem: Problem, options: PlanningOptions) -> None:
    """Add a problem that was planned to every open recording."""
    if not _open or options.algorithm is not None:
        return
    text = text_of(problem, options)
    with _lock:
        for one in _open:
            one._texts[text] = None
