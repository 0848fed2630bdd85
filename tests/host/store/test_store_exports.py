"""Exports of a store: lines of JSON, the same bytes for the same entries; and corrupt, newer or other files."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from messages import says
from stored import entry, fault, key

from cudnnpy import store as public
from cudnnpy.store import Store


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """An export of three entries."""
    store = Store("")
    for number in range(3):
        store.put(entry(number))
    assert store.export(tmp_path / "plans.jsonl") == 3
    return tmp_path / "plans.jsonl"


def test_an_export_is_loaded_again(tmp_path: Path, export: Path) -> None:
    store = Store(tmp_path / "store.sqlite")
    store.put(entry(1, text="first"))
    assert store.load(export) == 2
    assert [*store] == [entry(0), entry(1, text="first"), entry(2)]
    assert store.load(str(export)) == 0


def test_equal_entries_give_equal_exports(tmp_path: Path) -> None:
    """Whatever the order in which they were put, and the file that they are in."""
    stores = [Store(""), Store(tmp_path / "a.sqlite")]
    texts = []
    for store in stores:
        numbers = [*range(130)]  # more than one transaction takes
        random.shuffle(numbers)
        for number in numbers:
            store.put(entry(number, milliseconds=1 if number % 2 else 1.0))
        store.export(tmp_path / "plans.jsonl")
        texts.append((tmp_path / "plans.jsonl").read_bytes())
    assert len({*texts}) == 1
    assert texts[0].count(b"\n") == 131
    header = json.loads(texts[0].partition(b"\n")[0])
    assert header == {"kind": "cudnnpy store", "format": 3, "entries": 130, "faults": 0}
    copy = Store(tmp_path / "copy.sqlite")
    assert (copy.load(tmp_path / "plans.jsonl"), [*copy]) == (130, [*stores[0]])


def test_an_export_is_opened_for_reading_alone(export: Path) -> None:
    before = export.read_bytes()
    store = public.open(export)
    assert (store.read_only, len(store), store.get(key(2))) == (True, 3, entry(2))
    for change in (
        lambda: store.put(entry(1)),
        lambda: store.forget(key(1), "why"),
        lambda: store.load(export),
    ):
        with pytest.raises(
            ValueError, match=says("store must be open for writing to be changed; got <Store ...read only>")
        ):
            change()
    assert export.read_bytes() == before
    assert [*export.parent.iterdir()] == [export]


@pytest.mark.parametrize(
    ("change", "count"),
    [
        (lambda lines: [lines[0], lines[1].replace(b"forward", b"forwarD"), *lines[2:]], 1),
        (lambda lines: [*lines[:3], lines[3][:100]], 1),
        (lambda lines: lines[:2], 2),
        (lambda lines: [lines[0], b"\xff\xfe", b"[]", b"null", b"{}", *lines[1:]], 4),
        (lambda lines: [lines[0], b"[" * 100_000, *lines[1:]], 1),
    ],
)
def test_damaged_lines_are_left_out_with_one_warning(tmp_path: Path, export: Path, change: Any, count: int) -> None:
    lines = export.read_bytes().splitlines()
    export.write_bytes(b"\n".join(change(lines)) + b"\n")
    whole = [number for number in range(3) if lines[number + 1] in change(lines)]
    store = Store("")
    with pytest.warns(RuntimeWarning, match=f"has {count} damaged or missing lines") as caught:
        assert store.load(export) == len(whole)
    assert len(caught) == 1
    assert [*store] == [entry(number) for number in whole]


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"kind": "cudnnpy store", "format": "1"}, "path must be an export of format 3; got format '1' in ..."),
        (
            {"kind": "cudnnpy store", "format": 4},
            "...got format 4 in ...Tune again and export the choices...",
        ),
        ({"kind": "something"}, "path must be an export of a store...; got ..."),
        ([], "path must be an export of a store...; got ..."),
    ],
)
def test_a_file_that_is_no_export_of_this_format_is_refused(export: Path, header: Any, message: str) -> None:
    """Whole: nothing of it is taken."""
    _, *lines = export.read_text().splitlines()
    export.write_text("\n".join([json.dumps(header), *lines]) + "\n")
    store = Store("")
    for use in (store.load, store.merge) if "format" in header else (store.load,):
        with pytest.raises(ValueError, match=says(message)):
            use(export)
    assert len(store) == 0


def test_an_export_does_not_replace_the_store_itself(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.sqlite")
    store.put(entry())
    with pytest.raises(ValueError, match=says("path must be another file than the store's; got ...")):
        store.export(tmp_path / "." / "store.sqlite")
    assert [*store] == [entry()]


def test_a_file_that_is_missing_is_an_oserror(tmp_path: Path) -> None:
    for use in (lambda: Store("").load(tmp_path / "none"), lambda: Store("").merge(tmp_path / "none")):
        with pytest.raises(FileNotFoundError):
            use()
    with pytest.raises(FileNotFoundError):
        Store("").export(tmp_path / "none" / "plans.jsonl")


def test_faults_travel_with_exports_and_merges(tmp_path: Path) -> None:
    source, export = Store(tmp_path / "source.sqlite"), tmp_path / "choices.jsonl"
    source.put(entry(1))
    source.add_faults([fault(1), fault(2)])
    assert source.export(export) == 1
    header = json.loads(export.read_text().splitlines()[0])
    assert header == {"kind": "cudnnpy store", "format": 3, "entries": 1, "faults": 2}
    loaded, merged = Store(""), Store("")
    loaded.add_faults([fault(2)])
    assert (loaded.load(export), merged.merge(source)) == (1, 1)
    opened = public.open(export)
    assert loaded.faults() == merged.faults() == opened.faults() == [fault(1), fault(2)]
    assert (opened.read_only, opened.faults_of(key(2))) == (True, [fault(2)])
    with pytest.raises(ValueError, match="store must be open for writing"):
        opened.add_faults([fault(1)])


def test_an_export_of_format_1_is_read(tmp_path: Path) -> None:
    export, store = tmp_path / "choices.jsonl", Store("")
    store.put(entry(1))
    store.export(export)
    export.write_text(export.read_text().replace('"faults":0,"format":2', '"format":1'))
    assert [*public.open(export)] == [entry(1)]
