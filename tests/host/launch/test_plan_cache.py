"""The plan cache: least recently used, bounded, one for each thread."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cudnnpy
from cudnnpy._launch import plan_cache
from cudnnpy._launch.plan_cache import cache_info, clear_cache, set_cache_limit


def test_the_least_recently_used_goes_first() -> None:
    set_cache_limit(3)
    cache = plan_cache.plan_cache()
    for key in "abc":
        cache.insert_planned(key, key.upper())
    assert plan_cache.lookup("a") == "A"  # so that b is now the oldest
    cache.insert_planned("d", "D")
    assert [plan_cache.lookup(key) for key in "abcd"] == ["A", None, "C", "D"]
    assert cache_info()[:4] == (3, 3, 4, 1)


def test_a_smaller_limit_holds_from_the_next_entry_on() -> None:
    cache = plan_cache.plan_cache()
    for key in range(10):
        cache.insert_planned(key, key)
    set_cache_limit(4)
    cache.insert_planned(10, 10)
    assert list(cache) == [7, 8, 9, 10]
    assert cache_info()[:4] == (4, 4, 11, 7)


@given(st.integers(1, 5), st.lists(st.tuples(st.booleans(), st.integers(0, 6)), min_size=10, max_size=40))
def test_the_recently_used_half_of_the_limit_is_never_dropped(limit: int, steps: list[tuple[bool, int]]) -> None:
    set_cache_limit(limit)
    clear_cache()
    cache, recent, stored, new = plan_cache.plan_cache(), list[int](), 0, 0
    for storing, key in steps:
        if storing:
            stored, new = stored + 1, new + (key not in cache)
            cache.insert_planned(key, str(key))
        found = plan_cache.lookup(key)
        assert found == (str(key) if key in cache else None)
        if found is not None:
            recent = [other for other in recent if other != key] + [key]
        assert set(recent[-((limit + 1) // 2) :]) <= cache.keys()
        assert len(cache) == min(limit, new)
    assert (cache.misses, cache.evictions) == (stored, new - len(cache))


def test_clearing_reaches_every_thread_when_it_next_looks() -> None:
    ready, cleared = threading.Barrier(2, timeout=10), threading.Barrier(2, timeout=10)
    found: list[Any] = []

    def other() -> None:
        cache = plan_cache.plan_cache()
        cache.insert_planned("a", 1)
        ready.wait()
        cleared.wait()
        found.append(cache["a"])  # a call in flight keeps what it holds
        found.append(plan_cache.lookup("a"))
        found.append(cache_info()[:4])

    thread = threading.Thread(target=other)
    thread.start()
    plan_cache.plan_cache().insert_planned("b", 2)
    ready.wait()
    clear_cache()
    cleared.wait()
    thread.join(10)
    assert plan_cache.lookup("b") is None
    assert found == [1, None, (0, cache_info().limit, 0, 0)]


@pytest.mark.parametrize("entries", [0, -1, 1.5, True, "16"])
def test_a_limit_is_a_number_of_plans(entries: Any) -> None:
    limit = cache_info().limit
    with pytest.raises(
        ValueError if type(entries) is int else TypeError,
        match=r"entries must be a number of plans, 1 or more.*; got .*",
    ):
        set_cache_limit(entries)
    assert cache_info().limit == limit


def test_the_old_switch_of_direct_launches_names_the_new_one() -> None:
    before, old = cache_info(), {"direct": True}
    with pytest.raises(TypeError, match=r"got 'direct'\. cudnnpy\.set_direct_launches sets it$"):
        cudnnpy.set_cache_limit(5, **old)
    assert cache_info() == before
