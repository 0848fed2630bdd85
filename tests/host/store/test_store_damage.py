"""Damaged files of a store: a file is set aside, a new store begins, and a file of anything else is never touched."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored import entry, key

from cudnnpy.store import Store
from cudnnpy.tuning.store import sqlite_file

COUNT = 60
PAGE = 4096
FAILED = 7  # the number of the entry whose plan failed
ALL = [entry(number) for number in range(COUNT) if number != FAILED]


class Content(bytes):
    """A file's content, which is not printed when a test fails."""

    def __repr__(self) -> str:
        return f"{len(self)} bytes"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of 60 entries, some longer than a page, one of which was forgotten."""
    store, source = Store(tmp_path_factory.mktemp("whole") / "store.sqlite"), Store("")
    for number in range(COUNT):
        source.put(entry(number))
    store.merge(source)
    store.forget(key(FAILED), "it failed")
    return Content(Path(store.path).read_bytes())


def check_use(path: Path, content: bytes) -> bool:
    """Use a store with this content: what it returns is right, or it is set aside whole, with one warning.

    Return whether it was set aside. A byte of the header may tell SQLite to only read the file; then new entries are in memory.
    """
    path.write_bytes(content)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store = Store(path)
        for number in range(COUNT):
            assert store.get(key(number)) in (None, entry(number))
        stored = [*store]
        assert store.put(entry(COUNT)) == store.get(key(COUNT)) == entry(COUNT)
    assert all(one in ALL for one in stored)
    if store.info().memory_reason:
        assert (path.read_bytes(), len(caught), store.info().set_aside) == (content, 1, ())
        return False
    copies = [*map(Path, store.info().set_aside)]
    assert sorted(Store(path)) == sorted([*([] if copies else stored), entry(COUNT)])
    assert [copy.read_bytes() for copy in copies] == [content] * len(caught)
    for copy, warning in zip(copies, caught, strict=True):
        assert f"it is damaged. It is set aside as {copy.name}, and a new store begins" in str(warning.message)
    return bool(copies)


# The size of a page, the versions to read and to write, the format of the schema, the encoding, the first table
@pytest.mark.parametrize(
    ("place", "bits", "is_set_aside"),
    [(16, 85, True), (19, 85, True), (18, 85, False), (47, 85, False), (59, 3, True), (100, 85, True)],
)
def test_a_store_with_a_damaged_header_is_set_aside_or_only_read(
    tmp_path: Path, whole: bytes, place: int, bits: int, is_set_aside: bool
) -> None:
    content = bytearray(whole)
    content[place] ^= bits
    assert check_use(tmp_path / "store.sqlite", bytes(content)) == is_set_aside


@pytest.mark.parametrize("place", [0, 16, 40])
def test_a_file_without_the_header_of_a_store_is_not_touched(tmp_path: Path, whole: bytes, place: int) -> None:
    """Neither a text with that number where SQLite has it, nor a database of another application, is a store."""
    other = bytearray(whole[:100])
    other[place : place + 16] = bytes(range(65, 81))
    other[68:72] = other[68:72] if place == 0 else b"mine"
    path = tmp_path / "mine.sqlite"
    path.write_bytes(other)
    with pytest.raises(ValueError, match="a file of another kind"):
        Store(path)
    assert path.read_bytes() == other
    assert [*tmp_path.iterdir()] == [path]


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
    content, size = bytearray(whole), len(whole)
    for damage, place, value in damages:
        at = int(place * len(whole))
        page = at // PAGE * PAGE
        if damage == "cut":
            size = min(size, max(at, 72))
        elif damage == "flip":
            content[at] ^= value
        else:
            content[page : page + PAGE] = bytes(value * n % 251 if damage == "noise" else 0 for n in range(PAGE))
    path = tmp_path_factory.mktemp("damaged") / "store.sqlite"
    try:
        check_use(path, bytes(content[:size]))
    except ValueError:  # nothing in it tells that it was a store
        assert path.read_bytes() == content[:size]
        assert content[:100] != whole[:100]


# Other processes, and files that cannot be replaced


def with_damaged_header(whole: bytes) -> bytes:
    return Content(whole[:16] + bytes(2) + whole[18:])


@pytest.mark.parametrize("size", [None, 0])
def test_a_file_that_another_process_replaces_meanwhile_stays(
    tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch, size: int | None
) -> None:
    """A process looks again once it has the lock."""
    path = tmp_path / "store.sqlite"
    path.write_bytes(with_damaged_header(whole))
    monkeypatch.setattr(sqlite_file.fcntl, "lockf", lambda *_: path.write_bytes(whole[:size]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sorted(Store(path)) == (sorted(ALL) if size is None else [])
    assert path.read_bytes() == whole[:size]
    assert [*tmp_path.iterdir()] == [path]


def test_a_damaged_file_that_cannot_be_set_aside_is_left_as_it_is(
    tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk. New entries are in memory."""
    path = tmp_path / "store.sqlite"
    content = with_damaged_header(whole)
    path.write_bytes(content)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(RuntimeWarning, match="cannot be used: it is damaged and cannot be replaced"):
        store = Store(path)
    assert len(store) == 0
    assert store.put(entry(100)) == store.get(key(100)) == entry(100)
    assert path.read_bytes() == content
    assert [*tmp_path.iterdir()] == [path]
