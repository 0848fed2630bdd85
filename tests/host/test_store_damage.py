"""Damaged files of a store: what can be read of them goes on, whatever the damage is, and the file is kept beside."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import warnings
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored import entry, key

from cudnnpy._store import rebuild, salvage
from cudnnpy._store.records import row_from_entry
from cudnnpy._store.rows import ENTRY, row_of
from cudnnpy.store import Entry, Store

COUNT = 60
PAGE = 4096


class Content(bytes):
    """A file's content, which is not printed when a test fails."""

    def __repr__(self) -> str:
        return f"{len(self)} bytes"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a store with 60 entries, some longer than a page, without a log."""
    path = tmp_path_factory.mktemp("whole") / "store.sqlite"
    store = Store(path)
    for number in range(COUNT):
        store.put(entry(number))
    assert not Path(f"{path}-wal").exists()
    return Content(path.read_bytes())


def number_of(one: Entry) -> int:
    return int(one.key.problem.removeprefix('{"number":').removesuffix("}"))


def opened(path: Path, content: bytes, log: bytes = b"") -> tuple[list[int], list[str]]:
    """The numbers of the entries that a store with this content has, all of them whole, and the warnings that it gave."""
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
    path.write_bytes(content)
    if log:
        Path(f"{path}-wal").write_bytes(log)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store = Store(path)
        first = [store.get(key(number)) for number in range(COUNT)]
        found = [*store]
        assert store.put(entry(COUNT)) == store.get(key(COUNT)) == entry(COUNT)
    found.sort(key=number_of)
    numbers = [number_of(one) for one in found]
    assert found == [entry(number) for number in numbers]
    assert all(one is None or one == entry(number) for number, one in enumerate(first))
    with closing(sqlite3.connect(path)) as connection:
        # Damage that no reading meets, as in a pointer after the last part of a row, is left until a change meets it.
        assert not caught or connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert {one.key for one in Store(path)} == {*(one.key for one in found), key(COUNT)}
    aside = [
        file.read_bytes()
        for file in path.parent.glob(f"{path.name}.damaged-*")
        if not file.name.endswith(("-wal", "-shm"))
    ]
    assert len(aside) == len(caught)
    assert log or all(content == one for one in aside[:1])  # a log is put into the file when the file is opened
    assert sorted(file.name for file in path.parent.glob("*.new*")) == []
    return numbers, [str(one.message) for one in caught]


def rows_by_page(content: bytes) -> dict[int, set[int]]:
    """The pages that each entry lies on, by its number: those without which it can still be read do not count."""
    pages = {at + 1: content[at * PAGE : (at + 1) * PAGE] for at in range(len(content) // PAGE)}
    found: dict[int, set[int]] = {}
    for lost in pages:
        rest = {number: page for number, page in pages.items() if number != lost}
        there = {row.number for row in salvage._whole(rest)}
        for number in range(COUNT):
            if row_number(number) not in there:
                found.setdefault(number, set()).add(lost)
    return found


def row_number(number: int) -> int:
    return row_from_entry(entry(number)).number


def test_every_row_is_found_page_by_page(tmp_path: Path, whole: bytes) -> None:
    """SQLite and what reads damaged files agree about a file that is whole."""
    path = tmp_path / "store.sqlite"
    path.write_bytes(whole)
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT * FROM cudnnpy_rows ORDER BY number").fetchall()
    assert [tuple(row) for row in salvage.rows_of(path)] == rows
    assert len(rows) == COUNT
    assert any(len(row[3]) > 2 * PAGE for row in rows)
    assert any(len(row[3]) < PAGE // 2 for row in rows)


@pytest.mark.parametrize("size", [512, 1024, 65536])
def test_rows_are_found_in_pages_of_any_size(tmp_path: Path, size: int) -> None:
    path = tmp_path / "store.sqlite"
    rows = sorted(row_of(number, ENTRY, "x" * number**3) for number in range(60))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA page_size = {size}")
        rebuild.create(connection)
        connection.executemany("INSERT INTO cudnnpy_rows VALUES (?, ?, ?, ?, ?)", rows)
    assert salvage.rows_of(path) == rows


# What is changed in the header, where, and by which bits
FLIPPED = {
    "magic": (3, 0x55),
    "page size": (16, 0x55),
    "version to write": (18, 0x55),
    "version to read": (19, 0x55),
    "application": (70, 0x55),
    "layout": (63, 0x55),
    "encoding": (59, 0x03),
    "schema": (100, 0x55),
    "format of the schema": (47, 0x55),
}
INNER = 0x05  # the first byte of a page above the leaves


@pytest.mark.parametrize("place", [*FLIPPED, "first page", "root", "everything but leaves"])
def test_a_damaged_header_or_inner_page_loses_nothing(tmp_path: Path, whole: bytes, place: str) -> None:
    content = bytearray(whole)
    if place == "everything but leaves":
        for start in range(0, len(content), PAGE):
            if content[start] == INNER:
                content[start : start + PAGE] = bytes(PAGE)
    if place in FLIPPED:
        at, value = FLIPPED[place]
        content[at] ^= value
    if place in ("first page", "root"):
        start = PAGE * (place == "root")
        content[start : start + PAGE] = bytes(PAGE)
    lost = {number for number, pages in rows_by_page(whole).items() if place == "root" and 2 in pages}
    numbers, messages = opened(tmp_path / "store.sqlite", bytes(content))
    assert {*numbers} == {*range(COUNT)} - lost
    assert len(messages) == 1
    assert f"its {COUNT - len(lost)} readable entries go on" in messages[0]


@pytest.mark.parametrize("size", [72, 100, 2000, PAGE - 1, PAGE, 3 * PAGE // 2])
def test_the_first_bytes_of_a_store_are_not_a_file_of_another_kind(tmp_path: Path, whole: bytes, size: int) -> None:
    """The number in the header tells whose file it is; what names its table stands at the end of the first page."""
    numbers, messages = opened(tmp_path / "store.sqlite", whole[:size])
    assert numbers == []
    assert len(messages) == 1
    assert "its 0 readable entries go on" in messages[0]


@pytest.mark.parametrize("place", [0, 16, 40])
def test_the_first_bytes_of_another_file_are_left_as_they_are(tmp_path: Path, whole: bytes, place: int) -> None:
    """Neither a text with that number where SQLite has it, nor a database of another application, is a store."""
    other = bytearray(whole[:100])
    other[place : place + 16] = bytes(range(65, 81))
    other[68:72] = other[68:72] if place == 0 else b"mine"
    path = tmp_path / "mine.sqlite"
    path.write_bytes(other)
    with pytest.raises(ValueError, match="a file of another kind"):
        Store(path)
    assert path.read_bytes() == other


damages = st.lists(
    st.tuples(
        st.sampled_from(["flip", "zero", "noise", "cut"]), st.floats(0, 1, exclude_max=True), st.integers(1, 255)
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60)
@given(damages=damages)
def test_whatever_is_damaged_the_rest_goes_on(
    tmp_path_factory: pytest.TempPathFactory, whole: bytes, damages: list[tuple[str, float, int]]
) -> None:
    """An entry is lost only if a page that it lies on is damaged."""
    content, touched, kept = bytearray(whole), set[int](), len(whole)
    for kind, place, value in damages:
        at = int(place * len(whole))
        page = at // PAGE * PAGE
        if kind == "cut":
            kept = min(kept, max(at, 1))
        elif kind == "flip":
            content[at] ^= value
        else:
            content[page : page + PAGE] = (
                bytes(PAGE) if kind == "zero" else bytes((value * n) % 251 for n in range(PAGE))
            )
        if kind != "cut":
            touched.add(page // PAGE + 1)
    touched |= {*range(kept // PAGE + 1, len(whole) // PAGE + 1)}
    path = tmp_path_factory.mktemp("damaged") / "store.sqlite"
    lost = {number for number, pages in lying_on(whole).items() if pages & touched}
    if len(lost) == COUNT and 1 in touched:
        return  # nothing tells whose file it is
    numbers, messages = opened(path, bytes(content[:kept]))
    assert {*numbers} >= {*range(COUNT)} - lost
    assert len(messages) <= 2


_pages: dict[bytes, dict[int, set[int]]] = {}


def lying_on(content: bytes) -> dict[int, set[int]]:
    if content not in _pages:
        _pages[content] = rows_by_page(content)
    return _pages[content]


# The log beside the file


@pytest.fixture(scope="module")
def with_log(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """A file of 20 entries and a log with 40 more, as a process that is killed leaves them."""
    path = tmp_path_factory.mktemp("log") / "store.sqlite"
    program = f"""
import os, sqlite3, sys
sys.path[:0] = {sys.path!r}
from stored import entry
from cudnnpy.store import Entry, Store
store = Store({str(path)!r})
for number in range(20):
    store.put(entry(number))
last = sqlite3.connect({str(path)!r})  # while it is open, the log stays
last.execute("SELECT count(*) FROM cudnnpy_rows").fetchone()
for number in range(20, {COUNT}):
    store.put(entry(number))
os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    return path.read_bytes(), Path(f"{path}-wal").read_bytes()


def test_the_log_of_a_killed_process_is_read(tmp_path: Path, with_log: tuple[bytes, bytes]) -> None:
    assert len(with_log[1]) > 40 * PAGE
    assert opened(tmp_path / "store.sqlite", *with_log) == ([*range(COUNT)], [])


def test_a_damaged_file_with_a_log_loses_nothing_that_the_log_has(
    tmp_path: Path, with_log: tuple[bytes, bytes]
) -> None:
    content, log = with_log
    damaged = bytearray(content)
    for start in range(PAGE, len(content), PAGE):
        damaged[start : start + PAGE] = bytes(PAGE)
    numbers, messages = opened(tmp_path / "store.sqlite", bytes(damaged), log)
    assert {*numbers} >= {*range(20, COUNT)}
    assert len(messages) == 1
    assert opened(tmp_path / "store.sqlite", bytes(100) + content[100:], log)[0] == [*range(COUNT)]


def test_a_file_is_replaced_with_what_its_log_has_and_without_the_log(
    tmp_path: Path, with_log: tuple[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if SQLite cannot open it, and so does not put the log into the file itself."""
    path = tmp_path / "store.sqlite"
    content, log = with_log
    path.write_bytes(bytes(100) + content[100:])
    Path(f"{path}-wal").write_bytes(log)
    monkeypatch.setattr(rebuild, "is_damaged", lambda path: True)
    done = rebuild.rebuild(path)
    assert done is not None
    assert done.kept == COUNT
    assert not Path(f"{path}-wal").exists()
    assert Path(f"{done.aside}-wal").read_bytes() == log
    assert {number_of(one) for one in Store(path)} == {*range(COUNT)}


@pytest.mark.parametrize("damage", ["noise", "cut", "zeros", "header"])
def test_a_damaged_log_loses_at_most_what_is_in_it(tmp_path: Path, with_log: tuple[bytes, bytes], damage: str) -> None:
    """SQLite takes a log to its first damaged page, as after a loss of power."""
    content, log = with_log
    bad = {
        "noise": os.urandom(len(log)),
        "cut": log[: len(log) // 2 + 100],
        "zeros": bytes(len(log)),
        "header": os.urandom(32) + log[32:],
    }[damage]
    numbers, messages = opened(tmp_path / "store.sqlite", content, bad)
    assert {*numbers} >= {*range(20)}
    assert messages == []
    if damage == "cut":
        assert len(numbers) > 25


# What is done with a damaged file


def test_a_file_of_zeros_is_set_aside(tmp_path: Path) -> None:
    """A loss of power may leave one; it holds nothing of anybody."""
    assert opened(tmp_path / "store.sqlite", bytes(3 * PAGE))[0] == []


def test_a_plan_that_failed_stays_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    store = Store(path)
    for number in range(5):
        store.put(entry(number))
    store.forget(key(2), "it failed")
    store.mark_checked(key(3), "here")
    content = path.read_bytes()
    path.write_bytes(bytes(100) + content[100:])
    with pytest.warns(RuntimeWarning, match="its 4 readable entries go on"):
        assert store.get(key(2)) is None
    assert store.is_forgotten(key(2), entry(2).plan)
    assert store.is_checked(key(3), "here")
    assert [*store] == [entry(number) for number in (0, 1, 3, 4)]


def test_what_was_replaced_or_removed_does_not_come_back(tmp_path: Path) -> None:
    """It is overwritten in the file."""
    path = tmp_path / "store.sqlite"
    store = Store(path)
    for number in range(20):
        store.put(entry(number))
    for number in range(0, 20, 2):
        store.put(entry(number, plan="new"), replace=True)
    store.forget(key(1), "it failed")
    before = [*store]
    content = path.read_bytes()
    path.write_bytes(bytes(100) + content[100:])
    with pytest.warns(RuntimeWarning, match="readable entries go on"):
        assert [*store] == before


def test_a_row_that_was_changed_is_dropped(tmp_path: Path) -> None:
    """A plan that this package did not write as it stands never reaches cuDNN."""
    path = tmp_path / "store.sqlite"
    store = Store(path)
    for number in range(3):
        store.put(entry(number))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE cudnnpy_rows SET content = replace(content, 'plan 1', 'plan X')")
    with pytest.warns(RuntimeWarning, match="its 2 readable entries go on"):
        assert store.get(key(1)) is None
    assert [*store] == [entry(0), entry(2)]


def test_a_row_that_was_put_in_another_place_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    store = Store(path)
    store.put(entry(1))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"UPDATE cudnnpy_rows SET number = {row_number(2)}")
    with pytest.warns(RuntimeWarning, match="its 0 readable entries go on"):
        assert store.get(key(2)) is None


def test_processes_that_find_a_damaged_file_at_once_lose_nothing(tmp_path: Path, whole: bytes) -> None:
    """One of them replaces it; what all of them put stands."""
    path = tmp_path / "store.sqlite"
    path.write_bytes(bytes(100) + whole[100:])
    program = f"""
import sys, warnings
sys.path[:0] = {sys.path!r}
from stored import entry, key
from cudnnpy.store import Entry, Store
warnings.simplefilter("always")
number = int(sys.argv[1])
store = Store({str(path)!r})
for more in range(10):
    store.put(entry(number + more))
assert store.get(key(5)) == entry(5)
assert not store.info().in_memory
"""
    starts = range(100, 260, 20)
    children = [
        subprocess.Popen([sys.executable, "-c", program, str(start)], stderr=subprocess.PIPE, text=True)
        for start in starts
    ]
    errors = [child.communicate(timeout=60)[1] for child in children]
    assert [child.returncode for child in children] == [0] * len(children), errors
    assert sum("was damaged" in error for error in errors) == 1
    assert {one.key for one in Store(path)} >= {key(start + more) for start in starts for more in range(10)}
    assert len(Store(path)) == COUNT + 10 * len(children)
    assert len([*tmp_path.glob("store.sqlite.damaged-*")]) == 1


def test_a_file_that_cannot_be_replaced_is_read(tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk. It stays as it is, and new entries are in memory."""
    path = tmp_path / "store.sqlite"
    path.write_bytes(bytes(100) + whole[100:])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rebuild.shutil, "copy", full)
    with pytest.warns(
        RuntimeWarning, match=rf"is damaged and cannot be replaced. Its {COUNT} readable entries are used"
    ):
        store = Store(path)
    assert store.get(key(5)) == entry(5)
    assert store.put(entry(100)) == store.get(key(100)) == entry(100)
    assert len(store) == COUNT + 1
    assert path.read_bytes() == bytes(100) + whole[100:]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["store.sqlite", "store.sqlite.lock"]


def test_a_process_that_is_killed_while_it_replaces_a_file_loses_nothing(
    tmp_path: Path, with_log: tuple[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is removed before the file is replaced; what it has is in the file that was to take the place."""
    path = tmp_path / "store.sqlite"
    content, log = with_log
    path.write_bytes(content[:PAGE] + bytes(len(content) - PAGE))
    Path(f"{path}-wal").write_bytes(log)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rebuild.os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            _ = [*Store(path)]
    assert not Path(f"{path}-wal").exists()
    with pytest.warns(RuntimeWarning, match="readable entries go on"):
        found = [*Store(path)]
    assert {number_of(one) for one in found} >= {*range(20, COUNT)}
    assert not path.with_name("store.sqlite.new").exists()
