"""The layers of stores that a process reads, and where its own choices go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fresh_process import python
from messages import says
from stored import entry, fault, key

from cudnnpy import store as public
from cudnnpy.store import Store
from cudnnpy.tuning.store.levels import LayerEntry, Layers, current


@pytest.fixture(autouse=True)
def no_application(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDNNPY_STORE_LAYERS", raising=False)


def made(path: Path, *numbers: int, name: str) -> Path:
    with Store(path) as store:
        for number in numbers:
            store.put(entry(number, name=name))
    return path


def test_the_users_store_comes_first_then_applications_in_their_order(tmp_path: Path) -> None:
    user = Store(made(tmp_path / "user", 1, name="user's"))
    first, second = (
        Store(made(tmp_path / name, *numbers, name=name)) for name, numbers in (("a", (1, 2)), ("b", (2, 3)))
    )
    found = Layers(user, [first, second])
    assert found.get(key(1)) == LayerEntry(entry(1, name="user's"), "user")
    assert found.get(key(2)) == LayerEntry(entry(2, name="a"), f"application {tmp_path / 'a'}")
    assert found.get(key(3)) == LayerEntry(entry(3, name="b"), f"application {tmp_path / 'b'}")
    assert found.get(key(4)) is None
    found.writable.put(entry(4))
    assert [one.key for one in user] == [key(1), key(4)]
    assert len(first) == 2


def test_a_users_store_that_is_open_for_reading_alone_is_read(tmp_path: Path) -> None:
    """New choices are kept in memory, and come before it."""
    user = Store(made(tmp_path / "user", 1, name="user's"), read_only=True)
    found = Layers(user)
    assert found.get(key(1)) == LayerEntry(entry(1, name="user's"), "user")
    assert found.writable.put(entry(2)) == entry(2)
    assert found.get(key(2)) is not None
    assert [one.key for one in Store(tmp_path / "user")] == [key(1)]


def test_faults_of_all_layers_count_and_changes_go_to_the_users(tmp_path: Path) -> None:
    user, application = Store(tmp_path / "user.jsonl"), Store(tmp_path / "application.jsonl")
    application.add_faults([fault(1)])
    layers = Layers(user, [application])
    assert layers.add_faults(key(1), "its text", [("engine 9", "wrong result", "off by\n1", "13.0")]) == 1
    (added,) = user.faults()
    assert added[1:6] == ("its text", "engine 9", "wrong result", "off by 1", "13.0")
    assert application.faults() == [fault(1)]
    assert layers.faults_of(key(1)) == [added, fault(1)]


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    for path in ("", tmp_path / "folder" / "store.jsonl"):
        layers = Layers(Store(path))
        assert layers.is_blank
        assert (layers.get(key(1)), layers.faults_of(key(1))) == (None, [])
        assert layers.user.faults_of(key(1)) == layers.user.faults() == []
        assert (layers.user.add_faults([]), layers.user.remove_faults([])) == (0, 0)
    assert [*tmp_path.iterdir()] == []
    Store(tmp_path / "folder" / "store.jsonl").put(entry(1))  # as another process does
    assert not layers.is_blank
    assert layers.user.get(key(1)) == entry(1)


# What a process has


def test_an_empty_variable_turns_the_file_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDNNPY_STORE", "")
    assert public.default().path == ""
    assert public.open().path == ""
    current().writable.put(entry())
    assert public.default().get(key()) == entry()


def test_the_variable_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDNNPY_STORE", str(tmp_path / "mine" / "store"))
    assert public.default().path == str(tmp_path / "mine" / "store")
    assert not (tmp_path / "mine").exists()  # before there is something to write
    current().writable.put(entry())
    assert public.open().get(key()) == entry()
    monkeypatch.setenv("CUDNNPY_STORE", str(tmp_path / "other"))
    assert current().get(key()) is None
    monkeypatch.setenv("CUDNNPY_STORE", "~/store")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert public.default().path == str(tmp_path / "store")


def test_without_the_variable_it_is_in_the_platforms_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDNNPY_STORE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert public.default().path == str(tmp_path / "cudnnpy" / "store.jsonl")
    assert public.open().path == public.default().path
    assert [*tmp_path.iterdir()] == []


def test_a_program_sets_its_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDNNPY_STORE", str(tmp_path / "user"))
    public.use(tmp_path / "program")
    assert public.default().path == str(tmp_path / "program")
    store = Store("")
    public.use(store)
    assert public.default() is store
    public.use("")
    assert public.default().path == ""
    public.use(None)
    assert public.default().path == str(tmp_path / "user")
    with pytest.raises(ValueError, match=says("path must be a file; got...")):
        public.use(tmp_path)


def test_a_program_and_the_environment_add_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, name in enumerate("abc"):
        made(tmp_path / name, number, 9, name=name)
    Store(tmp_path / "c").export(tmp_path / "c.jsonl")
    store = public.add_layer(tmp_path / "a")
    assert store.read_only
    public.add_layer(tmp_path / "a")  # again, which changes nothing
    monkeypatch.setenv("CUDNNPY_STORE_LAYERS", os.pathsep.join([str(tmp_path / "b"), "", str(tmp_path / "c.jsonl")]))
    found = {number: current().get(key(number)) for number in (0, 1, 2, 9)}
    assert {number: one and (one.entry.choice.name, one.layer) for number, one in found.items()} == {
        0: ("a", f"application {tmp_path / 'a'}"),
        1: ("b", f"application {tmp_path / 'b'}"),
        2: ("c", f"application {tmp_path / 'c.jsonl'}"),
        9: ("a", f"application {tmp_path / 'a'}"),
    }


@pytest.mark.parametrize(
    ("variable", "path", "message"),
    [
        ("CUDNNPY_STORE", "", "CUDNNPY_STORE must name a store; got '...': path must be a file; got ..., a folder..."),
        ("CUDNNPY_STORE", "notes", "CUDNNPY_STORE must name a store; got '...notes': path must be a store..."),
        ("CUDNNPY_STORE", "a:b/notes", "CUDNNPY_STORE must name a store; got '...a:b/notes': path must be a store..."),
        (
            "CUDNNPY_STORE_LAYERS",
            "/proc/self/mem",
            "CUDNNPY_STORE_LAYERS must name a store; got '...': Input/output...",
        ),
        ("CUDNNPY_STORE_LAYERS", "none", "CUDNNPY_STORE_LAYERS must name a store; got '...none': no such store"),
        (
            "CUDNNPY_STORE_LAYERS",
            "notes",
            "CUDNNPY_STORE_LAYERS must name a store; got '...notes': path must be a store...",
        ),
    ],
)
def test_a_variable_that_names_no_store_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, path: str, message: str
) -> None:
    tmp_path = tmp_path / "a:b" if ":" in path else tmp_path
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "notes").write_text("hello\n" * 100)
    monkeypatch.setenv(variable, str(tmp_path / path.removeprefix("a:b/")))
    for use in (current, public.default):
        with pytest.raises(ValueError, match=says(message)):
            use()
    assert [file.name for file in tmp_path.iterdir()] == ["notes"]


def test_importing_the_store_imports_neither_platformdirs_nor_numpy() -> None:
    program = (
        "import sys; import cudnnpy; cudnnpy.store.open(''); cudnnpy.store.default();"
        "print({'platformdirs', 'numpy'} & set(sys.modules))"
    )
    assert python(program, CUDNNPY_STORE="") == "set()\n"
