"""Module-level state that a module declares is reset on request, and in a forked child where that is asked for."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from cudnnpy._process import module_state


@pytest.fixture
def planted() -> Iterator[ModuleType]:
    """A module whose state a test declares."""
    module = sys.modules["planted"] = ModuleType("planted")
    before = dict(module_state._resets), list(module_state._callbacks)
    module_state._callbacks.clear()
    yield module
    del sys.modules["planted"]
    module_state._resets.clear()
    module_state._resets.update(before[0])
    module_state._callbacks[:] = before[1]


@pytest.mark.parametrize(
    ("value", "change"),
    [
        (None, None),
        (7, None),
        ({}, lambda value: value.update(a=1)),
        ({"a": 1}, lambda value: value.update(a=2, b=1)),
        ([], lambda value: value.append(1)),
        ([1, 2], lambda value: value.pop()),
        (set(), lambda value: value.add(1)),
        ({1}, lambda value: value.clear()),
    ],
)
def test_reset_restores_a_value(planted: ModuleType, value: Any, change: Any) -> None:
    planted.a, expected = value, value if change is None else value.copy()
    module_state.declare("planted", "a")
    if change is None:
        planted.a = 8
    else:
        change(planted.a)
    module_state.reset("other")
    assert planted.a != expected
    module_state.reset("planted")
    assert planted.a == expected
    assert (planted.a is value) == (change is not None or planted.a == value)  # modules may have imported a container


def test_reset_forgets_the_state_of_threads_and_caches(planted: ModuleType) -> None:
    calls: list[int] = []
    planted.a, planted.b, planted.c = threading.local(), object(), functools.cache(lambda: calls.append(1))
    planted.a.x, before = 1, planted.b
    module_state.declare("planted", "a", "c")
    module_state.declare("planted", "b", resets=False)
    planted.c()
    module_state.reset("planted")
    planted.c()
    assert not hasattr(planted.a, "x")
    assert planted.b is before
    assert len(calls) == 2


def test_a_fork_restores_what_asks_for_it_in_the_child_alone(planted: ModuleType) -> None:
    planted.a, planted.b, planted.c = {}, {}, object()
    module_state.declare("planted", "a", in_child=True)
    module_state.declare("planted", "b")
    module_state.declare("planted", "c", in_child=True, resets=False)
    before = planted.c
    planted.a[1] = planted.b[1] = 2
    module_state._before()
    module_state._release()
    assert (planted.a, planted.b, planted.c) == ({1: 2}, {1: 2}, before)
    module_state._before()
    module_state._in_child()
    assert (planted.a, planted.b) == ({}, {1: 2})
    assert planted.c is not before
