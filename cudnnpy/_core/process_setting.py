"""A setting of the whole process, which a ``with`` block may change and then restore."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import count
from operator import attrgetter
from typing import Generic, TypeVar

from cudnnpy._process.module_state import fork_safe_lock

T = TypeVar("T")


class ProcessSetting(Generic[T]):
    """A setting for all threads. `apply` puts one into effect; if it raises, the previous setting remains."""

    def __init__(self, value: T, apply: Callable[[T], None]) -> None:
        self.value = self._initial = value
        self._apply = apply
        self._lock = fork_safe_lock()
        self._numbers = count()
        self._open: list[_Restoring[T]] = []  # the blocks that have begun and not ended, in the order of their settings

    def set(self, value: T) -> AbstractContextManager[None]:
        """Change the setting. Used as a context manager, the result restores the previous setting on exit."""
        with self._lock:
            return _Restoring(self, self._switch(value), next(self._numbers))

    def reset(self) -> None:
        """Restore the initial setting, and forget the open blocks."""
        with self._lock:
            self._open.clear()
            if self.value is not self._initial:
                self._switch(self._initial)

    def _switch(self, value: T) -> T:
        """Change the setting, and return the previous one."""
        self._apply(value)
        before, self.value = self.value, value
        return before


class _Restoring(AbstractContextManager[None], Generic[T]):
    """Context manager that restores the previous setting on exit.

    Blocks of two threads may overlap. If a block ends while later ones are open, the first of these restores in its place.
    """

    def __init__(self, setting: ProcessSetting[T], before: T, number: int) -> None:
        self._setting, self._before, self._number = setting, before, number

    def __enter__(self) -> None:
        with self._setting._lock:
            insort(self._setting._open, self, key=attrgetter("_number"))

    def __exit__(self, *_exception: object) -> None:
        with self._setting._lock:
            blocks = self._setting._open
            at = blocks.index(self)
            del blocks[at]
            if at < len(blocks):
                blocks[at]._before = self._before
            else:
                self._setting._switch(self._before)
