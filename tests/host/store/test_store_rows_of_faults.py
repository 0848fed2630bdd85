"""Faults of candidates in a store: they are added, found, moved and removed, and two processes lose none."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from messages import says
from stored import CUDNN, GPU, entry, fault, key

from cudnnpy import store as public
from cudnnpy._store import database, sqlite
from cudnnpy._store.contents import FAULT
from cudnnpy._store.layers import Layers
from cudnnpy._store.machine import Machine
from cudnnpy.store import Store

HERE = Machine(CUDNN, frozenset([GPU]))


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(database, "this_machine", lambda: HERE)
    return Store(tmp_path / "folder" / "store.sqlite" if request.param == "file" else "")


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


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ("engine 3", TypeError, "faults must be Faults; got 'engine 3'"),
        (fault(detail="two\nlines"), ValueError, "fault.detail must be a str without control characters..."),
        (fault(made_at="yesterday"), ValueError, "fault.made_at must be a time in UTC such as ...; got 'yesterday'"),
    ],
)
def test_what_is_no_fault_is_refused(store: Store, wrong: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=says(message)):
        store.add_faults([wrong])
    assert store.faults() == []


def test_a_row_whose_content_is_no_list_of_faults_has_none(store: Store) -> None:
    for content in ("{}", "[1]", '[{"key":{}}]', "null", "[" * 100_000):
        store._rows.run(lambda contents, content=content: contents.put(content, FAULT, key()), writes=True)  # type: ignore[misc]
        assert store.faults_of(key()) == store.faults() == []
    assert store.add_faults([fault()]) == 1
    assert store.faults() == [fault()]


def test_many_faults_of_one_problem_are_added_and_removed_at_once(store: Store) -> None:
    faults = [fault(candidate=f"engine {number:04}") for number in range(1600)]
    before = time.monotonic()
    assert store.add_faults([*faults, *faults]) == 1600
    assert store.faults() == faults
    assert store.remove_faults(faults[1:]) == 1599
    assert time.monotonic() - before < 5


@pytest.mark.parametrize("read", [Store.faults, Store.info, lambda store: store.export(f"{store.path}.jsonl")])
def test_faults_are_parsed_while_the_file_is_not_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Store], object]
) -> None:
    store = Store(tmp_path / "store.sqlite")
    store.add_faults([fault()])
    parse, parsed = database.faults_from_rows, list[Any]()

    def meanwhile(rows: Any) -> Any:
        with closing(sqlite3.connect(store.path, isolation_level=None)) as writer:
            writer.execute("BEGIN EXCLUSIVE")
        parsed.append(rows)
        return parse(rows)

    monkeypatch.setattr(database, "faults_from_rows", meanwhile)
    read(store)
    assert len(parsed) == 1


# Whole stores


def test_faults_travel_with_exports_and_merges(tmp_path: Path) -> None:
    source, export = Store(tmp_path / "source.sqlite"), tmp_path / "choices.jsonl"
    source.put(entry(1))
    source.add_faults([fault(1), fault(2)])
    assert source.export(export) == 1
    header = json.loads(export.read_text().splitlines()[0])
    assert header == {"kind": "cudnnpy store", "format": 2, "entries": 1, "faults": 2}
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


def test_a_damaged_line_of_a_fault_is_left_out_with_a_warning(tmp_path: Path) -> None:
    export, store = tmp_path / "choices.jsonl", Store("")
    store.add_faults([fault(1), fault(2, symptom="process ended")])
    store.export(export)
    export.write_text(export.read_text().replace("process ended", "process endet"))
    with pytest.warns(RuntimeWarning, match="has 1 damaged or missing lines"):
        opened = public.open(export)
    assert opened.faults() == [fault(1)]


def test_old_faults_and_those_of_other_machines_are_pruned(store: Store) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    here, old, elsewhere = fault(1, made_at=now), fault(2), fault(3, key(3, gpu="another"), made_at=now)
    store.add_faults([here, old, elsewhere])
    assert store.prune(older_than=timedelta(days=1), stale=False) == 1
    assert store.faults() == [here, elsewhere]
    assert (store.prune(), store.faults()) == (1, [here])


# Layers


def test_faults_of_all_layers_count_and_changes_go_to_the_users(tmp_path: Path) -> None:
    user, application = Store(tmp_path / "user.sqlite"), Store(tmp_path / "application.sqlite")
    application.add_faults([fault(1)])
    layers = Layers(user, [application])
    assert layers.add_faults(key(1), "its text", [("engine 9", "wrong result", "off by\n1", "13.0")]) == 1
    (added,) = user.faults()
    assert added[1:6] == ("its text", "engine 9", "wrong result", "off by 1", "13.0")
    assert application.faults() == [fault(1)]
    assert layers.look_up(key(1)).faults == (added, fault(1))


def test_a_look_up_reads_a_store_in_one_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "store.sqlite")
    store.put(entry(1))
    connections: list[str] = []
    connect = sqlite.connect
    monkeypatch.setattr(sqlite, "connect", lambda path, *mode: connections.append(path) or connect(path, *mode))
    found, faults = Layers(store).look_up(key(1))
    assert found is not None
    assert (found.entry.plan, faults) == (entry(1).plan, ())
    assert connections == [store.path]


def test_a_store_that_is_not_there_is_neither_made_nor_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "connect", lambda *_: pytest.fail("SQLite is imported"))
    for path in ("", tmp_path / "folder" / "store.sqlite"):
        layers = Layers(Store(path))
        assert layers.is_blank
        assert layers.look_up(key(1)) == (None, ())
        assert layers.get(key(1)) is None
        assert layers.user.faults_of(key(1)) == layers.user.faults() == []
        assert (layers.user.add_faults([]), layers.user.remove_faults([])) == (0, 0)
    assert [*tmp_path.iterdir()] == []


def test_a_store_that_another_process_makes_is_read(tmp_path: Path) -> None:
    layers = Layers(Store(tmp_path / "store.sqlite"))
    assert layers.get(key(1)) is None
    Store(tmp_path / "store.sqlite").put(entry(1))
    found = layers.get(key(1))
    assert found is not None
    assert found.entry == entry(1)
    assert not layers.is_blank


# Processes


ADDS = """
import sys
sys.path[:0] = {path!r}
from stored import fault
from cudnnpy.store import Store
store = Store({file!r})
for number in range(20):
    assert store.add_faults([fault(candidate=f"engine {{number}} of {{sys.argv[1]}}")]) == 1
"""


def test_processes_that_add_faults_of_one_problem_lose_none(tmp_path: Path) -> None:
    file = tmp_path / "store.sqlite"
    program = ADDS.format(path=sys.path, file=str(file))
    processes = [subprocess.Popen([sys.executable, "-c", program, str(number)]) for number in range(4)]
    assert [process.wait(60) for process in processes] == [0] * 4
    names = {f"engine {number} of {process}" for number in range(20) for process in range(4)}
    assert {one.candidate for one in Store(file).faults()} == names
