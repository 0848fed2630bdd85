"""Corrupt files of a store: a file is set aside, its readable rows are copied, and nothing that was removed comes back."""

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

from cudnnpy._store import contents, repair
from cudnnpy.store import Entry, Store

COUNT = 60
PAGE = 4096
FAILED = 7  # the number of the entry whose plan failed
LEAF = 0x0D  # the first byte of a page with rows


class Content(bytes):
    """A file's content, which is not printed when a test fails."""

    def __repr__(self) -> str:
        return f"{len(self)} bytes"


def made(path: Path) -> Store:
    """A store of 60 entries, some longer than a page, one of which was forgotten."""
    store = Store(path)
    other = Store("")
    for number in range(COUNT):
        other.put(entry(number))
    store.merge(other)
    store.forget(key(FAILED), "it failed")
    return store


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "store.sqlite"
    made(path)
    return Content(path.read_bytes())


ALL = {*range(COUNT)} - {FAILED}


def number_of(one: Entry) -> int:
    return int(one.key.problem.removeprefix('{"number":').removesuffix("}"))


def opened(path: Path, content: bytes) -> tuple[set[int], list[str]]:
    """The numbers of the entries that a store with this content has, all of them whole, and the warnings that it gave."""
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
    path.write_bytes(content)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store = Store(path)
        first = [store.get(key(number)) for number in range(COUNT)]
        found = [*store]
        assert store.put(entry(COUNT)) == store.get(key(COUNT)) == entry(COUNT)
    assert all(one is None or one == entry(number) for number, one in enumerate(first))
    numbers = {*map(number_of, found)}
    assert sorted(found) == sorted(map(entry, numbers))
    assert FAILED not in numbers
    if not store.info().memory_reason:
        assert {*map(number_of, Store(path))} == numbers | {COUNT}
    aside = [*path.parent.glob(f"{path.name}.damaged-*")]
    assert len(aside) == sum("was damaged" in str(one.message) for one in caught)
    assert all(content == file.read_bytes() for file in aside[:1])
    return numbers, [str(one.message) for one in caught]


# What is changed in the header, where, and by which bits
FLIPPED = {
    "magic": (3, 0x55),
    "page size": (16, 0x55),
    "version to read": (19, 0x55),
    "encoding": (59, 0x03),
    "schema": (100, 0x55),
    "format of the schema": (47, 0x55),
    "version to write": (18, 0x55),
}


@pytest.mark.parametrize("place", [*FLIPPED, "first page"])
def test_a_damaged_header_leaves_a_store_that_works(tmp_path: Path, whole: bytes, place: str) -> None:
    content = bytearray(whole)
    if place in FLIPPED:
        at, value = FLIPPED[place]
        content[at] ^= value
    else:
        content[:PAGE] = bytes(PAGE)
    numbers, messages = opened(tmp_path / "store.sqlite", bytes(content))
    assert len(messages) == 1
    assert f"its {len(numbers)} readable entries stay" in messages[0] or "cannot be used" in messages[0]


def test_a_damaged_number_of_the_application_loses_nothing(tmp_path: Path, whole: bytes) -> None:
    content = bytearray(whole)
    content[70] ^= 0x55
    assert opened(tmp_path / "store.sqlite", bytes(content)) == (ALL, [])


def test_what_lies_beside_a_damaged_page_goes_on(tmp_path: Path, whole: bytes) -> None:
    """Each page in turn. No entry that was removed comes back, and a page of rows costs those beside it at most."""
    for start in range(PAGE, len(whole), PAGE):
        content = whole[:start] + bytes(PAGE) + whole[start + PAGE :]
        numbers, _ = opened(tmp_path / "store.sqlite", content)
        if whole[start] == LEAF:
            cells = int.from_bytes(whole[start + 3 : start + 5], "big")
            assert len(ALL - numbers) <= cells + 2  # Python reads a row ahead of the one that it returns


@pytest.mark.parametrize("size", [72, 100, 2000, PAGE - 1, PAGE, 3 * PAGE // 2])
def test_the_first_bytes_of_a_store_are_not_a_file_of_another_kind(tmp_path: Path, whole: bytes, size: int) -> None:
    """The number in the header tells whose file it is; the text of its table stands at the end of the first page."""
    numbers, messages = opened(tmp_path / "store.sqlite", whole[:size])
    assert numbers == set()
    assert "its 0 readable entries stay" in messages[0]


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
def test_whatever_is_damaged_a_store_works(
    tmp_path_factory: pytest.TempPathFactory, whole: bytes, damages: list[tuple[str, float, int]]
) -> None:
    content, kept = bytearray(whole), len(whole)
    for kind, place, value in damages:
        at = int(place * len(whole))
        page = at // PAGE * PAGE
        if kind == "cut":
            kept = min(kept, max(at, 72))
        elif kind == "flip":
            content[at] ^= value
        else:
            content[page : page + PAGE] = (
                bytes(PAGE) if kind == "zero" else bytes((value * n) % 251 for n in range(PAGE))
            )
    path = tmp_path_factory.mktemp("damaged") / "store.sqlite"
    try:
        opened(path, bytes(content[:kept]))
    except ValueError:  # nothing in it tells that it was a store
        assert path.read_bytes() == content[:kept]
        assert content[:100] != whole[:100]


# What is done with a damaged file


def test_a_forgotten_plan_does_not_come_back_with_any_page_damaged(tmp_path: Path) -> None:
    """Nor when the process that forgot it has just ended, and another one has the file open."""
    for page in range(1, 100):
        path = tmp_path / str(page) / "store.sqlite"
        store = Store(path)
        other = Store("")
        for number in range(20):
            other.put(entry(number))
        store.merge(other)
        with closing(sqlite3.connect(path)) as reader:
            reader.execute("SELECT count(*) FROM cudnnpy_rows").fetchone()
            store.forget(key(FAILED), "it failed")
            content = bytearray(path.read_bytes())
            if page * PAGE >= len(content):
                break
            content[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)
            path.write_bytes(content)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                store = Store(path)
                assert [one for one in store if number_of(one) == FAILED] == []
                assert store.get(key(FAILED)) is None
    assert page > 5


def test_replaced_and_removed_plans_are_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    store = Store(path)
    first, second = ("the first plan" * 1000, "the second plan" * 1000)  # longer than a page
    store.put(entry(1, name=first))
    store.put(entry(1, name=second), replace=True)
    assert b"the first plan" not in path.read_bytes()
    store.forget(key(1), "it failed")
    assert b"the second plan" not in path.read_bytes()


def row_number(number: int) -> int:
    return contents.row_number(contents.ENTRY, key(number))


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ("SET content = replace(content, 'forward 1x', 'forward 7x')", [0, 2]),
        (f"SET number = {row_number(5)} WHERE number = {row_number(1)}", [0, 2]),
    ],
)
def test_a_row_that_was_changed_is_dropped(tmp_path: Path, change: str, kept: list[int]) -> None:
    """A plan that this package did not write as it stands never reaches cuDNN."""
    path = tmp_path / "store.sqlite"
    store = Store(path)
    for number in range(3):
        store.put(entry(number))
    store.forget(key(5), "it failed", plan="another")
    store.mark_checked(key(2), "here")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"UPDATE cudnnpy_rows {change}")
    with pytest.warns(RuntimeWarning, match="its 2 readable entries stay"):
        assert (store.get(key(1)), store.get(key(5)), len(store)) == (None, None, 2)
    assert [*store] == list(map(entry, kept))
    assert store.is_forgotten(key(5), "another")
    assert store.is_checked(key(2), "here")


def test_processes_that_find_a_damaged_file_at_once_lose_nothing(tmp_path: Path, whole: bytes) -> None:
    """One of them replaces it; what all of them put stands."""
    for name, content in (("header", bytes(100) + whole[100:]), ("page", damaged_page(whole))):
        path = tmp_path / name / "store.sqlite"
        path.parent.mkdir()
        path.write_bytes(content)
        program = f"""
import sys, warnings
sys.path[:0] = {sys.path!r}
from stored import entry, key
from cudnnpy.store import Store
warnings.simplefilter("always")
number = int(sys.argv[1])
store = Store({str(path)!r})
for more in range(5):
    store.put(entry(number + more))
assert not store.info().memory_reason
"""
        starts = range(100, 260, 20)
        children = [
            subprocess.Popen([sys.executable, "-c", program, str(start)], stderr=subprocess.PIPE, text=True)
            for start in starts
        ]
        errors = [child.communicate(timeout=60)[1] for child in children]
        assert [child.returncode for child in children] == [0] * len(children), errors
        with warnings.catch_warnings(record=True) as later:
            warnings.simplefilter("always")
            found = {one.key for one in Store(path)}
        assert found >= {key(start + more) for start in starts for more in range(5)}
        assert sum("was damaged" in error for error in errors) + len(later) == 1
        assert len([*path.parent.glob("store.sqlite.damaged-*")]) == 1


def damaged_page(whole: bytes) -> bytes:
    """A store with the last page of rows overwritten."""
    start = max(start for start in range(PAGE, len(whole), PAGE) if whole[start] == LEAF)
    return Content(whole[:start] + bytes(PAGE) + whole[start + PAGE :])


@pytest.mark.parametrize("size", [None, 0])
def test_a_file_that_another_process_replaced_is_not_replaced_again(
    tmp_path: Path, whole: bytes, size: int | None
) -> None:
    path = tmp_path / "store.sqlite"
    path.write_bytes(whole[:size])
    assert repair.set_aside(str(path)) == ""
    assert path.read_bytes() == whole[:size]
    assert [*tmp_path.iterdir()] == [path]


def test_a_file_that_another_process_repairs_meanwhile_is_not_replaced(
    tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process looks again once it has the lock."""
    path = tmp_path / "store.sqlite"
    path.write_bytes(bytes(100) + whole[100:])
    monkeypatch.setattr(repair.fcntl, "lockf", lambda *_: path.write_bytes(whole))
    assert repair.set_aside(str(path)) == ""
    assert path.read_bytes() == whole
    assert [*tmp_path.iterdir()] == [path]


def test_a_file_that_cannot_be_replaced_is_read(tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk. It stays as it is, and new entries are in memory."""
    path = tmp_path / "store.sqlite"
    content = damaged_page(whole)
    path.write_bytes(content)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(repair.shutil, "copyfileobj", full)
    with pytest.warns(RuntimeWarning, match="cannot be used: it is damaged and cannot be replaced"):
        found = [*(store := Store(path))]
    assert len(found) > COUNT // 2
    assert store.put(entry(100)) == store.get(key(100)) == entry(100)
    assert len(store) == len(found) + 1
    assert path.read_bytes() == content
    assert sorted(file.name for file in tmp_path.iterdir()) == ["store.sqlite"]


@pytest.mark.parametrize("ending", ["-journal", "-wal"])
def test_what_lies_beside_a_damaged_file_is_not_applied_to_the_new_one(
    tmp_path: Path, whole: bytes, ending: str
) -> None:
    path = tmp_path / "store.sqlite"
    path.write_bytes(bytes(100) + whole[100:])
    Path(f"{path}{ending}").write_bytes(os.urandom(3 * PAGE))
    with pytest.warns(RuntimeWarning, match="readable entries stay"):
        store = Store(path)
    store.put(entry(1))
    assert not Path(f"{path}{ending}").exists()
    assert [*Store(path)] == [entry(1)]
