"""Files of a store that cannot be written or read: read-only folders, full disks, locks, a newer release."""

from __future__ import annotations

import os
import re
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from stored import entry, fault, key

from cudnnpy.store import Store
from cudnnpy.tuning.measuring.gpu_worker import gpu_lock
from cudnnpy.tuning.store import sqlite, sqlite_file
from cudnnpy.tuning.store.sqlite import FileUnavailableError

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n"


@contextmanager
def connected(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


@contextmanager
def one_warning(text: str) -> Iterator[None]:
    """There is one RuntimeWarning with this text in the block, and no other."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    assert [one.category for one in caught] == [RuntimeWarning]
    assert re.search(text, str(caught[0].message))
    assert caught[0].filename == __file__


AS_NOBODY = """
import os, sqlite3, sys, warnings
sys.path[:0] = {path!r}
from stored import entry, key
from cudnnpy.store import Store
Store("").put(entry(1))
warnings.simplefilter("always")
if os.geteuid() == 0:  # once everything is imported, perhaps from a folder of root's alone
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
{program}
"""


def as_nobody(program: str) -> str:
    """Run a program as a user who may not write where this one may; return its warnings."""
    text = AS_NOBODY.format(path=sys.path, program=program)
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, cwd="/", check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.fixture
def readable() -> Iterator[Path]:
    """A folder that every user can read, outside of those that pytest closes to others."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        for found in (folder, *folder.iterdir()):
            found.chmod(0o755)


def frozen(folder: Path) -> None:
    """Take the permission to write from a folder and all that is in it."""
    for found in (*folder.iterdir(), folder):
        found.chmod(0o555 if found.is_dir() else 0o444)


USES = """
store = Store({path!r})
assert store.get(key(1)) == {stored}, store.get(key(1))
assert store.put(entry(2)) == store.get(key(2)) == entry(2)
assert store.put(entry(1, name="another")) == ({stored} or entry(1, name="another"))
assert store.info().memory_reason
"""
READS = """
assert [*Store({path!r}, read_only=True)] == [entry(1)]
"""


@pytest.mark.parametrize("place", ["store.sqlite", "new/store.sqlite"])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_store_in_a_folder_that_is_read_only_is_read(readable: Path, place: str, is_there: bool) -> None:
    """One warning, then memory alone. A store that is opened for reading gives none."""
    path = readable / place
    if is_there:
        Store(path).put(entry(1))
        path.parent.chmod(0o755)
        frozen(path.parent)
        assert as_nobody(READS.format(path=str(path))) == ""
    frozen(readable)
    before = {file: file.is_file() and file.read_bytes() for file in readable.rglob("*")}
    errors = as_nobody(USES.format(path=str(path), stored="entry(1)" if is_there else None))
    assert errors.count("RuntimeWarning") == 1
    assert "store.sqlite cannot be used" in errors
    assert {file: file.is_file() and file.read_bytes() for file in readable.rglob("*")} == before


def test_a_path_that_may_not_be_read_gives_one_warning(readable: Path) -> None:
    path = readable / "private" / "store.sqlite"
    Store(path).put(entry(1))
    path.parent.chmod(0o700 if os.geteuid() == 0 else 0)
    errors = as_nobody(USES.format(path=str(path), stored=None))
    assert errors.count("RuntimeWarning") == 1


def test_a_disk_that_is_full_leaves_memory(tmp_path: Path) -> None:
    """No file of this process can be longer than those that it has, so that writing fails as on a full disk."""
    path, stored = tmp_path / "store.sqlite", [entry(number) for number in range(3)]
    store = Store(path)
    for one in stored:
        store.put(one)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    try:
        with one_warning("cannot be used: .*(disk|full)"):
            assert store.put(entry(100)) == store.get(key(100)) == entry(100)
            assert store.add_faults([fault(100)]) == 1
            store.mark_checked(key(0), "here")
            store.forget(key(1), "it failed")
            assert store.put(entry(2, name="another")) == entry(2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [*store] == sorted([entry(0), entry(2), entry(100)])
    assert (store.faults(), store.is_checked(key(0), "here")) == ([fault(100)], True)
    assert store.put(entry(1)) == entry(1)
    assert store.get(key(1)) is None
    assert "disk" in store.info().memory_reason
    assert [*Store(path)] == stored
    with connected(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_threads_that_meet_a_full_disk_at_once_share_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, both = Store(tmp_path / "store.sqlite"), threading.Barrier(2)
    run_once = sqlite_file.SqliteFile._run_once

    def full(self: sqlite_file.SqliteFile, *work: Any) -> Any:
        if not self.memory_reason:
            both.wait(60)
            raise FileUnavailableError("the disk is full")
        return run_once(self, *work)

    def put(number: int) -> None:
        store.put(entry(number))

    monkeypatch.setattr(sqlite_file.SqliteFile, "_run_once", full)
    with one_warning("the disk is full"), ThreadPoolExecutor(2) as pool:
        list(pool.map(put, range(2)))
    assert [*store] == [entry(0), entry(1)]


# Locks


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with connected(path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield


def test_a_look_up_goes_on_without_a_file_that_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "store.sqlite")
    store.put(entry(0))
    store.add_faults([fault(0)])
    monkeypatch.setattr(sqlite_file, "PATIENCE_SECONDS", 0.1)
    with connected(tmp_path / "store.sqlite") as connection, one_warning("it stays locked"):
        connection.execute("BEGIN EXCLUSIVE")
        assert (store.faults_of(key(0)), store.get(key(0))) == ([], None)


def test_a_warning_that_is_made_an_error_leaves_a_store_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "store.sqlite")
    store.put(entry(0))
    monkeypatch.setattr(sqlite_file, "PATIENCE_SECONDS", 0.1)
    with locked(tmp_path / "store.sqlite"), pytest.raises(RuntimeWarning):
        store.put(entry(1))
    assert store.put(entry(2)) == store.get(key(2)) == entry(2)


# Files


def test_a_store_with_a_trigger_and_a_database_of_another_program_are_refused(tmp_path: Path) -> None:
    """A trigger runs in the process that puts an entry."""
    path, other = tmp_path / "store.sqlite", tmp_path / "other.sqlite"
    Store(path).put(entry())
    with connected(path) as connection:
        connection.execute(f"CREATE TRIGGER theirs AFTER INSERT ON cudnnpy_rows BEGIN {ENDLESS}; END")
    with connected(other) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    for file in (path, other):
        with pytest.raises(ValueError, match="a file of another kind"):
            Store(file)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_folders_are_made_for_their_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else can replace the store, or the lock of a GPU. Folders that exist stay as they are."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    (tmp_path / "cache").mkdir(0o755)
    umask = os.umask(0)
    try:
        Store(tmp_path / "cache" / "more" / "cudnnpy" / "store.sqlite").put(entry())
        with gpu_lock("GPU-1", 0.0) as is_held:
            assert is_held
    finally:
        os.umask(umask)
    places = ("cache", "cache/more", "cache/more/cudnnpy", "cache/more/cudnnpy/store.sqlite", "home/cudnnpy")
    assert [(tmp_path / place).stat().st_mode & 0o777 for place in places] == [0o755, 0o700, 0o700, 0o644, 0o700]


def test_a_file_that_was_removed_is_made_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "folder" / "store.sqlite")
    store.put(entry(0))
    shutil.rmtree(tmp_path / "folder")
    assert store.get(key(0)) is None
    assert store.put(entry(1)) == entry(1)
    assert [*Store(tmp_path / "folder" / "store.sqlite")] == [entry(1)]


@pytest.mark.parametrize("definition", ["CREATE TABLE of_a_newer_release (x)", sqlite.DEFINITION])
def test_a_file_of_a_newer_release_is_left_as_it_is(tmp_path: Path, definition: str) -> None:
    path = tmp_path / "store.sqlite"
    with connected(path) as connection:
        connection.execute(f"PRAGMA application_id = {sqlite.APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {sqlite.TABLE_VERSION + 1}")
        connection.execute(definition)
    before = path.read_bytes()
    with one_warning("it was made by a newer release of cudnnpy"):
        store = Store(path)
        assert store.put(entry()) == store.get(key()) == entry()
    assert path.read_bytes() == before
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("definition", ["CREATE TABLE of_an_older_release (x)", sqlite.DEFINITION])
def test_a_file_of_an_older_release_is_set_aside(tmp_path: Path, definition: str) -> None:
    path = tmp_path / "store.sqlite"
    with connected(path) as connection:
        connection.execute(f"PRAGMA application_id = {sqlite.APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 1")
        connection.execute(definition)
    before = path.read_bytes()
    with one_warning("store.sqlite cannot be used: it was made by an older release of cudnnpy"):
        assert len(Store(path, read_only=True)) == 0
    assert path.read_bytes() == before
    with one_warning(
        "made by an older release of cudnnpy. It is set aside as store.sqlite.aside-.*, and a new store begins"
    ):
        store = Store(path)
        assert store.put(entry()) == entry()
    assert [*Store(path)] == [entry()]
    (aside,) = store.info().set_aside
    assert Path(aside).read_bytes() == before
