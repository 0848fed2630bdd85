"""The one fork hook of the package: locks that are free in a forked child, and callbacks that drop the state of the parent."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import RLock

_locks: list[RLock] = []
_callbacks: list[Callable[[], object]] = []
_held: list[list[RLock]] = []  # the locks of a fork in progress, during which more may be made


def fork_safe_lock() -> RLock:
    """Return a lock that no other thread holds while the process forks, since nobody would release it in the child.

    The forking thread may hold it itself, so it is reentrant.
    """
    lock = RLock()
    _locks.append(lock)
    return lock


def in_forked_child(callback: Callable[[], object]) -> None:
    """Call a function in each forked child, after the functions of the modules that this one imports. It must not raise."""
    _callbacks.append(callback)


def _before() -> None:
    locks = _locks[::-1]  # in the order in which threads take them: locks of upper modules first
    for lock in locks:
        lock.acquire()
    _held.append(locks)


def _release() -> None:
    for lock in reversed(_held.pop()):
        lock.release()


def _in_child() -> None:
    _release()
    for callback in _callbacks:
        callback()


os.register_at_fork(before=_before, after_in_parent=_release, after_in_child=_in_child)
