"""The file of a store: its path, its journal, and foreign contents."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from stored import entry, key

from cudnnpy._measuring.gpu_lock import gpu_lock
from cudnnpy.store import Store

NOT_UTF8 = os.fsdecode(b"caf\xe9")
ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n"


@pytest.mark.parametrize(
    "added",
    [
        "ANALYZE",
        "CREATE TABLE theirs (x)",
        "CREATE VIEW theirs AS SELECT 1",
        "CREATE INDEX theirs ON cudnnpy_rows (kind)",
    ],
)
def test_a_store_may_have_more_than_its_table(tmp_path: Path, added: str) -> None:
    path = tmp_path / "store.sqlite"
    store = Store(path)
    store.put(entry(1))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(added)
    for used in (store, Store(path)):
        assert used.get(key(1)) == entry(1)
        assert used.put(entry(2)) == entry(2)
    assert [*Store(path, read_only=True)] == [entry(1), entry(2)]


def test_a_store_with_a_trigger_is_refused(tmp_path: Path) -> None:
    """A trigger runs in the process that puts an entry."""
    path = tmp_path / "store.sqlite"
    Store(path).put(entry())
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"CREATE TRIGGER theirs AFTER INSERT ON cudnnpy_rows BEGIN {ENDLESS}; END")
    before = path.read_bytes()
    with pytest.raises(ValueError, match="a file of another kind"):
        Store(path)
    assert path.read_bytes() == before


def test_a_forgotten_plan_is_forgotten_through_a_link_too(tmp_path: Path) -> None:
    """SQLite's journal lies beside the file that the link names."""
    path, link = tmp_path / "folder" / "store.sqlite", tmp_path / "link"
    link.symlink_to(path)
    linked = Store(link)
    linked.put(entry(0))
    assert path.is_file()
    assert linked.path == str(link)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("SELECT count(*) FROM cudnnpy_rows").fetchone()
        Store(path).forget(key(0), "it failed")
        assert (linked.get(key(0)), [*linked]) == (None, [])
    assert linked.info().size == path.stat().st_size


def test_folders_are_made_for_their_user_alone(tmp_path: Path) -> None:
    """Nobody else can replace the store. Folders that exist stay as they are."""
    (tmp_path / "cache").mkdir(0o755)
    umask = os.umask(0)
    try:
        Store(tmp_path / "cache" / "more" / "cudnnpy" / "store.sqlite").put(entry())
    finally:
        os.umask(umask)
    places = ("cache", "cache/more", "cache/more/cudnnpy", "cache/more/cudnnpy/store.sqlite")
    assert [(tmp_path / place).stat().st_mode & 0o777 for place in places] == [0o755, 0o700, 0o700, 0o644]


def test_the_lock_of_a_gpu_makes_the_same_folder_in_the_same_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    umask = os.umask(0)
    try:
        with gpu_lock("GPU-1", 0.0) as is_held:
            assert is_held
    finally:
        os.umask(umask)
    assert (tmp_path / "cudnnpy").stat().st_mode & 0o777 == 0o700


def test_a_file_that_was_removed_is_made_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "folder" / "store.sqlite")
    store.put(entry(0))
    shutil.rmtree(tmp_path / "folder")
    assert store.get(key(0)) is None
    assert store.put(entry(1)) == entry(1)
    assert [*Store(tmp_path / "folder" / "store.sqlite")] == [entry(1)]


@pytest.mark.parametrize(
    "name", ["with space", "per%20cent", "question?mark=ro", "hash#mark", "Größe", "quote'\"", NOT_UTF8]
)
def test_a_path_may_have_any_name(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path / name)
    store.put(entry())
    assert [*Store(tmp_path / name, read_only=True)] == [entry()]
    assert (tmp_path / name).is_file()


def test_a_file_with_a_log_gets_a_journal(tmp_path: Path) -> None:
    """The log of a change may be lost without the file, and a network's file system does not share its memory."""
    store = Store(tmp_path / "store.sqlite")
    store.put(entry(0))
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    assert store.get(key(0)) == entry(0)
    store.put(entry(1))
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
