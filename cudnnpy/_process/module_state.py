"""The one registry of module-level state: locks, variables and caches, with one fork hook and one reset for tests.

A module declares its state where it defines it. State of a thread is a module-level threading.local, which is declared, too.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import cache
from typing import Any, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])

_locks: list[threading.RLock] = []
_callbacks: list[Callable[[], object]] = []
_held: list[list[threading.RLock]] = []  # the locks of a fork in progress, during which more may be made
# By the full name of each declared variable and function. None: it is not reset.
_resets: dict[str, Callable[[], object] | None] = {}


def fork_safe_lock() -> threading.RLock:
    """Return a lock that no other thread holds while the process forks, since nobody would release it in the child.

    The forking thread may hold it itself, so it is reentrant.
    """
    lock = threading.RLock()
    _locks.append(lock)
    return lock


def in_forked_child(callback: Callable[[], object]) -> None:
    """Call a function in each forked child, after the functions of the modules that this one imports. It must not raise."""
    _callbacks.append(callback)


def declare(module: str, *names: str, in_child: bool = False, resets: bool = True) -> None:
    """Declare variables of a module (its ``__name__``), which have their initial values at this moment.

    `reset` restores these values, and a fork restores them in the child if `in_child`. `resets` is false for lists of
    living objects and of registrations, and for variables that another one's reset sets.
    """
    for name in names:
        restore = _restoring(vars(sys.modules[module]), name)
        _resets[f"{module}.{name}"] = restore if resets else None
        if in_child:
            in_forked_child(restore)


def process_cache(function: _Function) -> _Function:
    """Return functools.cache of a function whose results depend on the process, not on its arguments alone.

    It is typed with the function's own signature. `reset` clears it.
    """
    cached = cache(function)
    _resets[f"{function.__module__}.{function.__qualname__}"] = cached.cache_clear
    return cast("_Function", cached)


def reset(package: str = "cudnnpy") -> None:
    """Restore the initial state of a module, or of the modules of a package: for tests."""
    for name, restore in _resets.items():
        if restore is not None and name.startswith(f"{package}."):
            restore()


@contextmanager
def replaced(module: str, name: str, value: object) -> Iterator[None]:
    """Give a variable of a module another value within the block, and clear the module's caches before and after it."""
    variables = vars(sys.modules[module])
    before, variables[name] = variables[name], value
    try:
        reset(module)
        yield
    finally:
        variables[name] = before
        reset(module)


def _restoring(variables: dict[str, Any], name: str) -> Callable[[], object]:
    """Return the function that restores the present value of a variable."""
    value = variables[name]
    if hasattr(value, "cache_clear"):
        return cast("Callable[[], object]", value.cache_clear)
    if hasattr(value, "reset"):
        return cast("Callable[[], object]", value.reset)
    if isinstance(value, threading.local) or type(value) is object:  # a new one, for all threads
        return lambda: variables.update({name: type(value)()})
    if not hasattr(value, "clear"):
        return lambda: variables.update({name: value})
    contents = copy(value)
    if not contents:
        return cast("Callable[[], object]", value.clear)

    def refill() -> None:  # in place, since other modules may have imported the object
        value.clear()
        (value.update if hasattr(value, "update") else value.extend)(contents)

    return refill


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
