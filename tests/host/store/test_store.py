"""A store: keys, entries, faults, the precedence of two entries, failed plans, and rejected values."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from messages import says
from stored import CUDNN, entry, fault, key

from cudnnpy import store as public
from cudnnpy.errors import ClosedError
from cudnnpy.store import Entry, Forgotten, Key, Store
from cudnnpy.tuning.store.contents import CHECKED, ENTRY, FAULT, FORGOTTEN
from cudnnpy.tuning.store.sqlite import DEFINITION

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


# Plans that failed, and plans that were checked


def test_a_plan_that_failed_is_not_kept_again(store: Store) -> None:
    store.put(entry())
    store.forget(key(), "its first result was wrong")
    assert (store.get(key()), len(store)) == (None, 0)
    assert store.put(entry()) == entry()
    assert store.get(key()) is None
    (failed,) = store.forgotten()
    assert failed == Forgotten(key(), entry().text, failed.plan, "its first result was wrong", failed.made_at)
    assert datetime.now(UTC) - datetime.fromisoformat(failed.made_at) < timedelta(minutes=5)
    assert store.is_forgotten(key(), entry().plan)
    assert not store.is_forgotten(key(1), entry().plan)
    other = Store("")
    other.put(entry())
    assert store.merge(other) == 0
    assert store.put(entry(name="another")).choice.name == "another"
    assert store.get(key()) == entry(name="another")


def test_forgetting_another_plan_leaves_the_entry(store: Store) -> None:
    store.put(entry())
    store.forget(key(), "it failed", plan=entry(name="another").plan)
    assert store.get(key()) == entry()
    assert store.put(entry(name="another"), replace=True) == entry(name="another")
    assert store.get(key()) == entry()
    store.forget(key(5), "there is none")
    assert len(store.forgotten()) == 1


def test_a_plan_is_checked_for_an_environment(store: Store) -> None:
    store.mark_checked(key(), "driver 570")
    assert not store.is_checked(key(), "driver 570")  # there is no plan
    store.put(entry())
    store.mark_checked(key(), "driver 570")
    assert store.is_checked(key(), "driver 570")
    assert not store.is_checked(key(), "driver 580")
    store.put(entry(name="another"), replace=True)
    assert not store.is_checked(key(), "driver 570")


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


@pytest.mark.parametrize("kind", [ENTRY, FORGOTTEN, CHECKED, FAULT])
@pytest.mark.parametrize(
    "odd", ["{ bad", "[]", "1", '"x"', "{}", "[1]", "[" * 100_000, '{"key":[]}', '{"key":{"a":1}}']
)
def test_a_row_with_odd_content_is_left_out(store: Store, tmp_path: Path, kind: str, odd: str) -> None:
    """Its checksum holds."""
    store.put(entry(1))
    store._rows.run(lambda rows: rows.put(odd, kind, key(2)), writes=True)
    assert ([*store], store.forgotten(), store.faults()) == ([entry(1)], [], [])
    store.info()
    store.export(tmp_path / "export.jsonl")
    assert [*store] == [entry(1)]


# What is refused


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda store: store.get("key"), TypeError, "key must be a Key; got 'key'"),
        (lambda store: store.forget(None, "why"), TypeError, "key must be a Key; got None"),
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
        b"SQLite format 3\0" + bytes(90),
        bytes(8192),
        f"BEGIN;\n{DEFINITION};\n".encode(),
    ],
    ids=["text", "program", "JSON", "SQLite's first bytes", "zeros", "dump of a store"],
)
def test_a_file_of_another_kind_is_not_touched(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "notes"
    file.write_bytes(content)
    for read_only in (False, True):
        with pytest.raises(ValueError, match=says("path must be a store...; got...notes, a file of another kind...")):
            public.open(file, read_only=read_only)
    assert file.read_bytes() == content
    assert [*tmp_path.iterdir()] == [file]


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


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    file = tmp_path / "store"
    file.touch()
    store = public.open(file)
    assert (len(store), file.stat().st_size) == (0, 0)
    store.put(entry())
    assert [*Store(file)] == [entry()]
