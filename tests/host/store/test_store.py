"""A store: keys, entries, faults, the precedence of two entries, exports, and rejected values."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from messages import says
from stored import CUDNN, entry, fault, key

from cudnnpy import store as public
from cudnnpy.errors import ClosedError
from cudnnpy.store import Entry, Key, Store
from cudnnpy.tuning.store import line_file

# Keys and entries


@pytest.mark.parametrize("field", Key._fields)
def test_everything_in_a_key_tells_it_from_others(store: Store, field: str) -> None:
    store.put(entry())
    value = getattr(key(), field)
    other = key(**{field: value + 1 if isinstance(value, int) else f"{value} "})
    assert other.digest != key().digest
    assert store.get(other) is None
    assert store.get(key(**{field: value})) == entry()


def test_an_entry_comes_back_from_its_json() -> None:
    bare = entry(7, milliseconds=None, spread=None, error=0.5, candidates=(), made_with={}, name="ü")
    for made in (entry(), bare):
        assert Entry.of(json.loads(json.dumps(made.plain()))) == made


HUGE = 10**400  # beyond float64
WRONG: dict[str, list[Any]] = {
    "key": [None],
    "key.cudnn": ["91900", -1],
    "key.multiprocessors": [True],
    "key.more": [1],
    "text": [None],
    "choice": [None],
    "choice.name": ["two\nlines"],
    "choice.engine": [38],
    "choice.engine.index": [-1, True],
    "choice.engine.knobs": [{"2": 5}, [[2, 5, 1]], [[2, 5]] * 101],
    "choice.engine.space_to_depth": [1],
    "choice.lowering": [None],
    "choice.milliseconds": ["0.1", math.nan, -0.1, HUGE],
    "choice.spread": [math.inf],
    "choice.error": [True],
    "choice.workspace_size": [1.5, 1 << 63],
    "complete": [1],
    "made_at": ["yesterday", "2026-01-31T12:00:00", "2026-01-31T12:00:00+01:00", "2026-01-31\n12:00:00+00:00"],
    "made_with": [{"python": 3.11}, []],
    "candidates": [{}],
    "candidates.0": [[]],
    "candidates.0.milliseconds": [HUGE],
    "candidates.0.workspace_size": [-1, HUGE],
    "candidates.1.notes": ["tensor_core", [1]],
    "candidates.1.deterministic": [None],
    "more": [1],
}


@pytest.mark.parametrize("path", WRONG)
def test_a_field_that_is_not_valid_is_named(path: str) -> None:
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for value in WRONG[path]:
        plain: Any = json.loads(json.dumps(entry().plain()))
        parent = plain
        for part in parents:
            parent = parent[part]
        parent[last] = value
        with pytest.raises(ValueError, match=says("entry...must be...; got...")) as caught:
            Entry.of(plain)
        named = re.sub(r"\.(\d)", r"[\1]", f"entry.{path}").removesuffix(".more")
        assert str(caught.value).startswith(named)


@pytest.mark.parametrize("field", Entry._fields)
def test_a_field_that_is_missing_is_refused(field: str) -> None:
    plain = dict(entry().plain())
    del plain[field]
    with pytest.raises(ValueError, match=says("entry must be an object of key, text...; got...")):
        Entry.of(plain)


# Which entry stands


def test_a_store_has_what_was_put(store: Store) -> None:
    assert (store.get(key(1)), len(store), [*store]) == (None, 0, [])
    assert store.put(entry(2)) == entry(2)
    assert store.put(entry(1)) == entry(1)
    assert (store.get(key(1)), store.get(key(2)), store.get(key(3))) == (entry(1), entry(2), None)
    assert [*store] == [entry(1), entry(2)]
    assert key(1) in store
    assert key(3) not in store


def test_the_first_that_was_measured_stands(store: Store) -> None:
    """So that processes which tune at once make one choice."""
    planned, first, faster = (entry(milliseconds=ms, name=f"{ms}") for ms in (None, 2.0, 1.0))
    assert store.put(planned) == planned
    assert store.put(entry(milliseconds=None, name="again")) == planned
    assert store.put(first) == first
    assert store.put(faster) == store.put(planned) == store.put(first._replace(complete=False)) == first
    assert store.put(faster, replace=True) == store.get(key()) == faster
    assert [*store] == [faster]


@pytest.mark.parametrize(
    ("standing", "given", "wins"),
    [
        ({"milliseconds": None}, {}, True),
        ({}, {"milliseconds": None}, False),
        ({"complete": False}, {}, True),
        ({}, {"complete": False}, False),
        ({}, {"milliseconds": 0.001}, False),
        ({"complete": False}, {"milliseconds": None}, False),
    ],
)
def test_of_two_stores_the_entry_that_says_more_stands(
    store: Store, standing: dict[str, Any], given: dict[str, Any], wins: bool
) -> None:
    store.put(entry(1, name="standing", **standing))
    other = Store("")
    other.put(entry(1, name="given", **given))
    other.put(entry(2))
    assert store.merge(other) == 1 + wins
    assert [one.choice.name for one in store] == ["given" if wins else "standing", entry(2).choice.name]
    assert store.merge(other) == 0


def test_an_entry_that_is_forgotten_may_be_put_again(store: Store) -> None:
    store.put(entry())
    store.put(entry(1))
    store.forget(key())
    store.forget(key(5))  # there is none
    assert (store.get(key()), [*store], len(store)) == (None, [entry(1)], 1)
    assert store.put(entry(name="another")) == store.get(key()) == entry(name="another")


def test_the_candidates_of_an_entry_need_not_be_read(store: Store) -> None:
    store.put(entry())
    assert store.get(key(), without_candidates=True) == entry(candidates=())


# Faults of candidates


def test_faults_are_found_by_the_problem_whatever_the_options(store: Store) -> None:
    assert store.add_faults([fault(1), fault(1, candidate="engine 4"), fault(2)]) == 3
    assert store.faults_of(key(1, options='{"tf32":false}')) == [fault(1), fault(1, candidate="engine 4")]
    assert store.faults_of(key(1, cudnn=CUDNN + 1)) == store.faults_of(key(3)) == []
    assert store.faults() == [fault(1), fault(1, candidate="engine 4"), fault(2)]
    assert (len(store), store.info().faults) == (0, 3)


def test_a_fault_that_is_known_is_not_added_again(store: Store) -> None:
    store.add_faults([fault()])
    assert store.add_faults([fault(made_at="2026-05-01T12:00:00+00:00")]) == 0
    assert store.faults() == [fault()]
    assert store.add_faults([fault(driver="14.0"), fault(symptom="wrong result"), fault(driver="14.0")]) == 2


def test_a_fault_that_is_removed_may_be_found_again(store: Store) -> None:
    store.add_faults([fault(), fault(candidate="engine 4")])
    assert store.remove_faults([fault(), fault(5)]) == 1
    assert store.faults() == [fault(candidate="engine 4")]
    assert store.remove_faults(store.faults()) == 1
    assert store.faults() == store.faults_of(key()) == []
    assert store.add_faults([fault()]) == 1


@pytest.mark.parametrize("odd", [[], 1, "x", {}, [1], {"key": []}, {"key": {"a": 1}}, math.inf])
def test_a_record_with_odd_content_is_left_out(store: Store, tmp_path: Path, odd: Any) -> None:
    """Its checksum holds."""
    store.put(entry(1))
    with patch.multiple(line_file, canonical_json=json.dumps):
        store._lines.change(
            lambda records: records.update({f"{kind} {key(2).digest}": odd for kind in ("entry", "fault")})
        )
    store.export(tmp_path / "export.jsonl")
    for one in (store, Store(tmp_path / "export.jsonl")):
        assert ([*one], one.get(key(2)), one.faults()) == ([entry(1)], None, [])


# Exports


def test_an_export_has_the_entries_and_faults_and_is_only_read(store: Store, tmp_path: Path) -> None:
    for number in range(3):
        store.put(entry(number))
    store.add_faults([fault(1), fault(2)])
    file = tmp_path / "plans.jsonl"
    assert store.export(file) == 3
    before = file.read_bytes()
    assert json.loads(before.splitlines()[0]) == {"kind": "cudnnpy store", "format": 4, "records": 5}
    opened = public.open(file)
    assert (opened.read_only, len(opened), opened.get(key(2)), opened.faults()) == (True, 3, entry(2), store.faults())
    for change in (
        lambda: opened.put(entry(1)),
        lambda: opened.forget(key(1)),
        lambda: opened.load(file),
        lambda: opened.add_faults([fault(1)]),
    ):
        with pytest.raises(ValueError, match=says("store must be open for writing...; got <Store ...read only>")):
            change()
    assert file.read_bytes() == before
    other = Store("")
    other.put(entry(1, text="first"))
    assert (other.load(str(file)), other.load(file)) == (2, 0)
    assert [*other] == [entry(0), entry(1, text="first"), entry(2)]
    assert other.faults() == store.faults()


def test_equal_entries_give_equal_exports(store: Store, tmp_path: Path) -> None:
    """Whatever the order in which they were put, and what the file had before."""
    texts = []
    for numbers in (range(30), reversed(range(30))):
        for number in numbers:
            store.put(entry(number, milliseconds=1 if number % 2 else 1.0), replace=True)
        store.export(tmp_path / "plans.jsonl")
        texts.append((tmp_path / "plans.jsonl").read_bytes())
    assert texts[0] == texts[1]
    assert texts[0].count(b"\n") == 31


def test_an_export_does_not_replace_the_store_itself(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.jsonl")
    store.put(entry())
    with pytest.raises(ValueError, match=says("path must be another file than the store's; got ...")):
        store.export(tmp_path / "." / "store.jsonl")
    for use in (store.load, store.merge, lambda path: store.export(path / "plans.jsonl")):
        with pytest.raises(FileNotFoundError):
            use(tmp_path / "none")
    assert [*store] == [entry()]


# What is refused


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda store: store.get("key"), TypeError, "key must be a Key; got 'key'"),
        (lambda store: store.forget(None), TypeError, "key must be a Key; got None"),
        (lambda store: store.put({}), TypeError, "entry must be an Entry; got {}"),
        (
            lambda store: store.put(entry(text=3)),
            ValueError,
            "entry.text must be a str without control characters; got 3",
        ),
        (lambda store: store.add_faults(["engine 3"]), TypeError, "faults must be Faults; got 'engine 3'"),
        (
            lambda store: store.add_faults([fault(1), fault(detail="two\nlines")]),
            ValueError,
            "fault.detail must be a str without control characters; got 'two\\nlines'",
        ),
        (lambda store: Store(3), TypeError, "path must be a str or a path; got 3"),
        (lambda store: Store("a\0b"), TypeError, "path must be a str or a path; got 'a\\x00b'"),
        (
            lambda store: Store("/\ud800"),
            ValueError,
            "path must be a name in the encoding of the file system; got '/\\ud800'",
        ),
        (lambda store: Store("", read_only=1), TypeError, "read_only must be a bool; got 1"),
    ],
)
def test_what_is_not_an_argument_is_named(
    store: Store, call: Callable[[Store], object], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as caught:
        call(store)
    assert str(caught.value) == message
    assert (len(store), store.faults()) == (0, [])


def test_a_closed_store_is_not_used(store: Store) -> None:
    with store as same:
        assert same is store
        store.put(entry())
    for use in (lambda: store.get(key()), lambda: store.put(entry()), lambda: len(store), store.info):
        with pytest.raises(ClosedError, match="is used after close"):
            use()
    store.close()


@pytest.mark.parametrize(
    "content",
    [
        b"hello\n" * 1000,
        b"\x7fELF" + os.urandom(5000),
        b"{}\n",
        b'{"kind": "something"}\n',
        b'{"kind": "cudnnpy store", "format": 4}',
        bytes(8192),
    ],
    ids=["text", "program", "JSON", "other JSON", "half a line", "zeros"],
)
def test_a_file_of_another_kind_is_not_touched(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "notes"
    file.write_bytes(content)
    for read_only in (False, True):
        with pytest.raises(ValueError, match=says("path must be a store...; got...notes, a file of another kind...")):
            public.open(file, read_only=read_only)
    assert file.read_bytes() == content
    assert [*tmp_path.iterdir()] == [file]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"SQLite format 3\0" + bytes(90),
            "...an SQLite file, as earlier releases...tune again or export the choices...",
        ),
        (b'{"format":5,"kind":"cudnnpy store"}\n', "...a store of format 5, not 4...use it with the release..."),
    ],
)
def test_a_store_of_another_release_is_refused_and_not_touched(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "store"
    file.write_bytes(content)
    for use in (public.open, Store("").load):
        with pytest.raises(ValueError, match=says(message)):
            use(file)
    assert file.read_bytes() == content


def test_a_large_file_of_another_kind_is_not_read_whole(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.write(b"hello")
        file.truncate(6 << 30)
    before = time.monotonic()
    with pytest.raises(ValueError, match="a file of another kind"):
        public.open(tmp_path / "large")
    assert time.monotonic() - before < 1


def test_a_folder_and_a_device_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says("path must be a file; got ..., a folder...")):
        public.open(tmp_path)
    with pytest.raises(ValueError, match=says("path must be a file; got /dev/null, a device...")):
        public.open("/dev/null")
    with pytest.raises(FileNotFoundError):
        public.open(tmp_path / "none", read_only=True)
    assert [*tmp_path.iterdir()] == []


def test_a_file_to_be_read_alone_that_cannot_be_is_an_error() -> None:
    for use in (partial(public.open, read_only=True), public.add_layer, Store("").load):
        with pytest.raises(OSError, match="Input/output error"):
            use("/proc/self/mem")


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    file = tmp_path / "store"
    file.touch()
    store = public.open(file)
    assert (len(store), file.stat().st_size, [*Store(file, read_only=True)]) == (0, 0, [])
    store.put(entry())
    assert [*Store(file)] == [entry()]
