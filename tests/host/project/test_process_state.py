"""Module-level state: all of it is declared in the one registry, which resets it."""

from __future__ import annotations

import ast
import functools
import importlib
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

import pytest

from cudnnpy import _process_state
from cudnnpy._core.process_setting import ProcessSetting

PACKAGE = Path(__file__).resolve().parents[3] / "cudnnpy"

# Caches of functions of their arguments alone, and of files that do not change.
MEMOS = {
    "_core.descriptor._place",
    "_core.owned.created_type",
    "_core.values.enum_of",
    "_launch.address_validation._maker",
    "_launch.direct.relocation_writer._maker",
    "_measuring.random_operands.numbers",
    "_planning.engines.knob_name",
    "_planning.gpu_kind._of_profile",
    "_planning.known_issues._issues_of",
    "_planning.ranking._has_any",
    "_planning.ranking._read",
    "backend._known",
    "names._short_name",
    "names._short_names",
}
LOCKS = {
    "cli.tune.dask_cluster._tune_lock": "a worker of a cluster forks no process that tunes",
}
CHANGING = {"add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update"}
LOCK_TYPES = (type(threading.Lock()), type(threading.RLock()))
CONTAINERS = (deque, WeakKeyDictionary, WeakSet, WeakValueDictionary)
STATE_TYPES = (*LOCK_TYPES, *CONTAINERS, threading.local, functools._lru_cache_wrapper, ProcessSetting)


def sources() -> dict[str, str]:
    """The source of each module by its name below the package."""
    files = (file for file in PACKAGE.rglob("*.py") if file.name != "_process_state.py")
    names = {".".join(file.relative_to(PACKAGE).with_suffix("").parts): file.read_text() for file in files}
    return {name.removesuffix(".__init__"): source for name, source in names.items()}


def changed(sources: Mapping[str, str]) -> Iterator[str]:
    """The module-level variables, and the attributes of classes, that a function assigns or changes in place."""
    for module, source in sources.items():
        tree = ast.parse(source)
        level = {name.id for node in tree.body for name in ast.walk(node) if isinstance(name, ast.Name)} & {
            name.id
            for node in tree.body
            for target in getattr(node, "targets", [getattr(node, "target", None)])
            for name in ast.walk(target or ast.Pass())
            if isinstance(name, ast.Name)
        }
        homes = dict.fromkeys(level, module)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cudnnpy."):
                home = str(node.module).removeprefix("cudnnpy.")
                homes |= {one.asname or one.name: home for one in node.names if f"{home}.{one.name}" not in sources}
        classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)} | {"cls"}
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef):
                continue
            own = {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
            own |= {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            for node in ast.walk(function):
                names: list[Any] = []
                if isinstance(node, ast.Global):
                    yield from (f"{module}.{name}" for name in node.names)
                elif isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load):
                    names = [node.value]
                    if isinstance(node, ast.Attribute):
                        if isinstance(node.value, ast.Name) and node.value.id in classes:
                            yield f"{module}.{node.value.id}.{node.attr}"
                        continue
                elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGING:
                    names = [node.func.value]
                for name in names:
                    if isinstance(name, ast.Name) and name.id in homes.keys() - own:
                        yield f"{homes[name.id]}.{name.id}"


def held(modules: Mapping[str, ModuleType]) -> Iterator[str]:
    """The module-level variables and functions of a type that is state by itself."""
    for module, loaded in modules.items():
        for name, value in vars(loaded).items():
            is_own = getattr(value, "__module__", None) in (None, type(value).__module__, loaded.__name__)
            if isinstance(value, STATE_TYPES) and is_own and value not in _process_state._locks:
                yield f"{module}.{name}"


def loaded() -> dict[str, ModuleType]:
    """Each module that can be imported here, by its name below the package."""
    found = {}
    for name in sources():
        if name.split(".")[-1] not in ("__init__", "__main__", "_worker"):
            try:
                found[name] = importlib.import_module(f"cudnnpy.{name}")
            except ModuleNotFoundError as error:
                if error.name not in ("torch", "distributed"):
                    raise
    return found


def declared() -> set[str]:
    return {name.removeprefix("cudnnpy.") for name in _process_state._resets if name.startswith("cudnnpy.")}


def undeclared(found: Iterator[str]) -> list[str]:
    return sorted(set(found) - declared() - MEMOS - LOCKS.keys())


def test_every_variable_that_changes_is_declared() -> None:
    loaded()
    assert undeclared(changed(sources())) == []


def test_every_cache_lock_and_thread_local_is_declared() -> None:
    modules = loaded()
    assert undeclared(held(modules)) == []


def test_a_declared_name_exists() -> None:
    loaded()
    for name in declared():
        module, _, variable = name.rpartition(".")
        assert hasattr(sys.modules[f"cudnnpy.{module}"], variable), name
    here = {name for name in MEMOS | LOCKS.keys() if name.rpartition(".")[0] in loaded()}
    assert here <= set(held(loaded()))


@pytest.fixture
def planted() -> Iterator[ModuleType]:
    """A module whose state a test declares."""
    module = sys.modules["planted"] = ModuleType("planted")
    before = dict(_process_state._resets), list(_process_state._callbacks)
    _process_state._callbacks.clear()
    yield module
    del sys.modules["planted"]
    _process_state._resets.clear()
    _process_state._resets.update(before[0])
    _process_state._callbacks[:] = before[1]


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
    _process_state.declare("planted", "a")
    if change is None:
        planted.a = 8
    else:
        change(planted.a)
    _process_state.reset("other")
    assert planted.a != expected
    _process_state.reset("planted")
    assert planted.a == expected
    assert (planted.a is value) == (change is not None or planted.a == value)  # modules may have imported a container


def test_reset_forgets_the_state_of_threads_and_caches(planted: ModuleType) -> None:
    calls: list[int] = []
    planted.a, planted.b, planted.c = threading.local(), object(), functools.cache(lambda: calls.append(1))
    planted.a.x, before = 1, planted.b
    _process_state.declare("planted", "a", "c")
    _process_state.declare("planted", "b", resets=False)
    planted.c()
    _process_state.reset("planted")
    planted.c()
    assert not hasattr(planted.a, "x")
    assert planted.b is before
    assert len(calls) == 2


def test_a_fork_restores_what_asks_for_it_in_the_child_alone(planted: ModuleType) -> None:
    planted.a, planted.b, planted.c = {}, {}, object()
    _process_state.declare("planted", "a", in_child=True)
    _process_state.declare("planted", "b")
    _process_state.declare("planted", "c", in_child=True, resets=False)
    before = planted.c
    planted.a[1] = planted.b[1] = 2
    _process_state._before()
    _process_state._release()
    assert (planted.a, planted.b, planted.c) == ({1: 2}, {1: 2}, before)
    _process_state._before()
    _process_state._in_child()
    assert (planted.a, planted.b) == ({}, {1: 2})
    assert planted.c is not before
