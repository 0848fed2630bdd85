"""Rows that are read while nobody changes the file, and rows that are read while somebody does."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from stored import entry, key

from cudnnpy._store import file
from cudnnpy.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "store.sqlite")
    for number in (1, 2):
        made.put(entry(number))
    return made


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each use of the file with SQLite's locks."""
    found: list[int] = []
    run = file.File._run
    monkeypatch.setattr(file.File, "_run", lambda *given, **named: found.append(1) or run(*given, **named))
    return found


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last change of every file is long ago."""
    monkeypatch.setattr(file, "_COARSE", -1)


def opened(store: Store) -> int:
    """How many files of a store this process has open."""
    names = []
    for number in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:  # the listing's own
            continue
    return sum(name.startswith(store.path) for name in names)


def change(store: Store, number: int, plan: str) -> None:
    """Replace an entry as another process would, at a later time of the file system."""
    time.sleep(0.05)
    Store(store.path).put(entry(number, plan=plan), replace=True)


def test_a_file_that_nobody_changes_is_read_without_locks(store: Store, runs: list[int]) -> None:
    assert [store.get(key(number)) for number in (1, 2)] == [entry(1), entry(2)]
    assert runs == []
    assert store.get(key(3)) is None
    assert len(runs) == 1  # what was not found is looked for with them


def test_what_is_in_the_log_alone_is_read(store: Store) -> None:
    with closing(sqlite3.connect(store.path)) as other:
        other.execute("SELECT count(*) FROM cudnnpy_rows").fetchone()  # keeps the log from being merged
        store.put(entry(1, plan="another"), replace=True)
        assert os.path.getsize(f"{store.path}-wal")
        assert store.get(key(1)) == entry(1, plan="another")


def test_a_file_with_a_journal_is_read_with_locks(store: Store, runs: list[int]) -> None:
    Path(f"{store.path}-journal").write_bytes(b"not one that SQLite takes back")
    assert store.get(key(1)) == entry(1)
    assert len(runs) == 1


def test_a_row_that_is_changed_meanwhile_is_read_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    selected, changes = file._selected, [lambda: change(store, 1, "another")]

    def meanwhile(*given: Any) -> Any:
        rows = selected(*given)
        while changes:
            changes.pop()()
        return rows

    monkeypatch.setattr(file, "_selected", meanwhile)
    assert store.get(key(1)) == entry(1, plan="another")


def test_a_connection_is_kept_until_the_file_changes(store: Store, settled: None, runs: list[int]) -> None:
    store.get(key(1))
    kept = store._rows._file._kept  # type: ignore[union-attr]
    assert store.get(key(2)) == entry(2)
    assert store._rows._file._kept is kept is not None  # type: ignore[union-attr]
    assert runs == []
    change(store, 2, "another")
    assert store.get(key(2)) == entry(2, plan="another")
    assert opened(store) == 1


def test_no_connection_is_kept_to_a_file_that_was_changed_just_now(store: Store) -> None:
    assert store.get(key(1)) == entry(1)
    assert opened(store) == 0


def test_a_file_that_replaces_another_is_read(store: Store, settled: None, tmp_path: Path) -> None:
    other = Store(tmp_path / "other.sqlite")
    other.put(entry(1, plan="another"))
    assert store.get(key(1)) == entry(1)
    os.replace(other.path, store.path)
    assert store.get(key(1)) == entry(1, plan="another")


def test_the_end_of_a_store_closes_its_connection(store: Store, settled: None) -> None:
    store.get(key(1))
    assert opened(store) == 1
    store.close()
    assert opened(store) == 0


def test_a_child_does_not_use_the_connection_of_its_parent(store: Store) -> None:
    program = f"""
import os, sys
sys.path[:0] = {sys.path!r}
from stored import entry, key
from cudnnpy._store import file
from cudnnpy.store import Store
file._COARSE = -1
store = Store({store.path!r})
assert store.get(key(1)) == entry(1)
kept = store._rows._file._kept
child = os.fork()
assert store.get(key(2)) == entry(2)
assert (store._rows._file._kept is kept) == bool(child)
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=60)


def test_a_fork_waits_until_sqlite_has_ended_in_other_threads(store: Store) -> None:
    """SQLite's own locks would stay locked in the child."""
    program = f"""
import os, threading, time
from cudnnpy.store import Store
inside, ended = threading.Event(), []
def work(connection):
    inside.set()
    time.sleep(0.3)
    ended.append(True)
thread = threading.Thread(target=Store({store.path!r})._rows._file._run, args=[work])
thread.start()
inside.wait()
child = os.fork()
if not child:
    os._exit(not ended)
assert os.waitpid(child, 0)[1] == 0
thread.join()
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env=environment)
