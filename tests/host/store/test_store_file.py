"""The file of a store: damage, files that cannot be written, and processes and threads, of which some are killed or fork."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored import entry, fault, key

from cudnnpy.store import Store
from cudnnpy.tuning.measuring.gpu_worker import gpu_lock
from cudnnpy.tuning.store import line_file

COUNT = 20
ROUNDS = int(os.environ.get("CUDNNPY_STORE_ROUNDS", "1"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "store.jsonl"


def filled(path: Path, count: int = COUNT) -> Store:
    store = Store(path)
    for number in range(count):
        store.put(entry(number))
    return store


@contextmanager
def one_warning(text: str) -> Iterator[None]:
    """There is one RuntimeWarning with this text in the block, at a line of this file, and no other."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    assert [(one.category, one.filename) for one in caught] == [(RuntimeWarning, __file__)]
    assert re.search(text, str(caught[0].message))


# Damage


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of 20 entries."""
    return Path(filled(tmp_path_factory.mktemp("whole") / "store.jsonl").path)


@settings(max_examples=60, deadline=None)
@given(
    places=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 5000), st.integers(0, 255)), max_size=3
    ),
    size=st.floats(0.1, 1),
)
def test_whatever_is_damaged_the_other_lines_are_used(
    tmp_path_factory: pytest.TempPathFactory, whole: Path, places: list[tuple[float, int, int]], size: float
) -> None:
    intact = whole.read_bytes()
    header, content = intact.index(b"\n") + 1, bytearray(intact[: int(size * len(intact))])
    for place, length, value in places:
        start = header + int(place * (len(content) - header))
        content[start : start + length] = bytes(value * number % 251 for number in range(length))
    lines = {*bytes(content).splitlines(keepends=True)}
    left = [entry(number) for number, line in enumerate(intact.splitlines(keepends=True)[1:]) if line in lines]
    path = tmp_path_factory.mktemp("damaged") / "store.jsonl"
    path.write_bytes(content)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store = Store(path)
        assert [*store] == sorted(left)
        assert store.put(entry(COUNT)) == store.get(key(COUNT)) == entry(COUNT)
    assert len(caught) <= 1
    assert [*store] == sorted([*left, entry(COUNT)])
    assert path.read_bytes().startswith(content[: content.rindex(b"\n") + 1])  # only half a line is cut off


def test_damaged_and_missing_lines_give_one_warning(path: Path, whole: Path) -> None:
    lines = whole.read_bytes().splitlines(keepends=True)
    path.parent.mkdir()
    path.write_bytes(
        b"".join([*lines[:4], b"[" * 100_000 + b"\n", lines[4].replace(b"forward", b"forwarD"), *lines[5:]])
    )
    with one_warning("store.jsonl has 2 damaged or missing lines, which are left out; its other lines are used"):
        store = Store(path)
        assert len(store) == COUNT - 1
    export = path.with_name("export.jsonl")
    store.export(export)
    export.write_bytes(b"".join(export.read_bytes().splitlines(keepends=True)[:-2]))
    with one_warning("has 2 damaged or missing lines"):
        assert Store("").load(export) == COUNT - 3


def test_a_file_is_rewritten_once_most_of_its_lines_are_old(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_file, "_SPARE_LINES", 5)
    store, other = filled(path, 3), Store(path)
    path.chmod(0o640)
    for number in range(7):
        store.put(entry(1, text=f"text {number}"), replace=True)
    assert path.read_bytes().count(b"\n") == 11
    assert other.get(key(1)) == entry(1, text="text 6")
    assert (path.stat().st_mode & 0o777, path.stat().st_nlink) == (0o640, 1)
    store.forget(key(1))
    store.add_faults([fault(1)])
    assert path.read_bytes().count(b"\n") == 4
    for one in (store, other, Store(path)):
        assert ([*one], one.faults()) == ([entry(0), entry(2)], [fault(1)])


def test_lines_that_were_replaced_before_a_file_was_rewritten_are_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the last line that was read is at the same place in the new file."""
    monkeypatch.setattr(line_file, "_SPARE_LINES", 5)
    store = filled(path, 2)
    other = Store(path)
    for number in range(8):
        store.put(entry(0, text=f"{number}{entry(0).text[1:]}"), replace=True)
    assert path.read_bytes().count(b"\n") == 3
    assert [*other] == [*store] == [*Store(path)]


def test_ctrl_c_behind_a_change_leaves_it_to_be_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_arguments: object) -> None:
        raise KeyboardInterrupt

    store = filled(path, 1)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(line_file.LineFile, "_add", stop)
        store.put(entry(1))
    assert store.get(key(1)) == Store(path).get(key(1)) == entry(1)


# Other files in place of the file


def test_two_objects_see_each_others_changes_at_once(path: Path) -> None:
    one = filled(path, 1)
    link = path.with_name("link")
    link.symlink_to(path)
    other = Store(link)
    for number in range(1, 6, 2):
        other.put(entry(number))
        other.add_faults([fault(number)])
        assert (one.get(key(number)), one.faults_of(key(number))) == (entry(number), [fault(number)])
        one.put(entry(number + 1))
        one.remove_faults([fault(number)])
        assert (other.get(key(number + 1)), other.faults()) == (entry(number + 1), [])
    assert [*one] == [*other]
    assert link.is_symlink()


def test_a_file_that_is_removed_or_replaced_is_read_again(path: Path, whole: Path) -> None:
    store = filled(path, 3)
    shutil.rmtree(path.parent)
    assert (store.get(key(0)), len(store)) == (None, 0)
    assert store.put(entry(1)) == entry(1)
    assert [*Store(path)] == [entry(1)]
    shutil.copy(whole, path)
    assert len(store) == COUNT
    path.write_bytes(whole.read_bytes().splitlines(keepends=True)[0])
    assert len(store) == 0
    path.write_bytes(b"hello\n")
    with one_warning("cannot be used: a file of another kind"):
        assert store.put(entry(2)) == store.get(key(2)) == entry(2)
    assert path.read_bytes() == b"hello\n"


@pytest.mark.parametrize("number", range(1, 6))
def test_a_file_that_is_removed_during_a_change_is_made_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Behind each of the calls that look for it."""
    store, stat, calls = filled(path, 1), os.stat, [0]

    def removing(place: object, **options: object) -> os.stat_result:
        found = stat(place, **options)  # type: ignore[arg-type]
        if place == str(path):
            calls[0] += 1
            if calls[0] == number:
                path.unlink()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", removing)
        store.put(entry(1))
    assert store.info().memory_reason == ""
    assert store.put(entry(2)) == Store(path).get(key(2)) == entry(2)


# Files that cannot be written

AS_NOBODY = """
import os, sys, warnings
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
USES = """
store = Store({path!r})
assert store.get(key(1)) == {stored}, store.get(key(1))
assert store.put(entry(2)) == store.get(key(2)) == entry(2)
assert store.put(entry(1, name="another")) == ({stored} or entry(1, name="another"))
assert store.info().memory_reason
"""


def warnings_as_nobody(program: str) -> int:
    """Run a program as a user who may not write where this one may; return the number of its warnings."""
    text = AS_NOBODY.format(path=sys.path, program=program)
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, cwd="/", check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.count("RuntimeWarning")


@pytest.fixture
def readable() -> Iterator[Path]:
    """A folder that every user can read, outside of those that pytest closes to others."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        for found in (folder, *folder.iterdir()):
            found.chmod(0o755)


@pytest.mark.parametrize("place", ["store.jsonl", "new/store.jsonl"])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_store_in_a_folder_that_is_read_only_is_read(readable: Path, place: str, is_there: bool) -> None:
    """One warning, then memory alone. A store that is opened for reading gives none."""
    path = readable / place
    if is_there:
        Store(path).put(entry(1))
        path.chmod(0o444)
        path.parent.chmod(0o555)
        assert warnings_as_nobody(f"assert [*Store({str(path)!r}, read_only=True)] == [entry(1)]") == 0
    readable.chmod(0o555)
    before = {file: file.is_file() and file.read_bytes() for file in readable.rglob("*")}
    assert warnings_as_nobody(USES.format(path=str(path), stored="entry(1)" if is_there else None)) == 1
    assert {file: file.is_file() and file.read_bytes() for file in readable.rglob("*")} == before


def test_a_path_that_may_not_be_read_gives_one_warning(readable: Path) -> None:
    path = readable / "private" / "store.jsonl"
    Store(path).put(entry(1))
    path.parent.chmod(0o700 if os.geteuid() == 0 else 0)
    assert warnings_as_nobody(USES.format(path=str(path), stored=None)) == 1


def test_a_disk_that_is_full_leaves_memory(path: Path) -> None:
    """No file of this process can be longer than this one, so that writing stops in a line as on a full disk."""
    store = filled(path, 3)
    content = path.read_bytes()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(content) + 100, before[1]))
    try:
        with one_warning("cannot be used: .*No space left"):
            assert store.put(entry(100)) == store.get(key(100)) == entry(100)
            assert store.add_faults([fault(100)]) == 1
            store.forget(key(1))
            assert store.put(entry(2, name="another")) == entry(2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert ([*store], store.faults()) == (sorted([entry(0), entry(2), entry(100)]), [fault(100)])
    assert "No space left" in store.info().memory_reason
    assert path.read_bytes() == content


@pytest.mark.parametrize("is_error", [False, True])
def test_a_lock_that_stays_leaves_memory(path: Path, monkeypatch: pytest.MonkeyPatch, is_error: bool) -> None:
    """A store that is only read waits for no lock. A warning that is made an error leaves a store that works."""
    store = filled(path, 2)
    monkeypatch.setattr(line_file, "PATIENCE_SECONDS", 0.1)
    with path.open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        assert [*Store(path)] == [entry(0), entry(1)]
        if is_error:
            with pytest.raises(RuntimeWarning):
                store.put(entry(2))
        else:
            with one_warning("it stays locked"):
                store.put(entry(2))
    assert store.put(entry(3)) == store.get(key(3)) == entry(3)
    assert [*Store(path)] == [entry(0), entry(1)]


def test_folders_are_made_for_their_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else can replace the store, or the lock of a GPU. Folders that exist stay as they are."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    (tmp_path / "cache").mkdir(0o755)
    umask = os.umask(0)
    try:
        Store(tmp_path / "cache" / "more" / "cudnnpy" / "store.jsonl").put(entry())
        with gpu_lock("GPU-1", 0.0) as is_held:
            assert is_held
    finally:
        os.umask(umask)
    places = ("cache", "cache/more", "cache/more/cudnnpy", "cache/more/cudnnpy/store.jsonl", "home/cudnnpy")
    assert [(tmp_path / place).stat().st_mode & 0o777 for place in places] == [0o755, 0o700, 0o700, 0o644, 0o700]


# Processes and threads


def forked(path: Path, log: Path, seed: int, count: int) -> int:
    """Start a process that puts entries in an order of its own, and logs which text stands for each after that."""
    child = os.fork()
    if child == 0:
        try:
            warnings.simplefilter("error")
            numbers = random.Random(seed).sample(range(count), count)
            store = Store(path)
            with log.open("w", buffering=1) as stream:
                for number in numbers:
                    stream.write(f"{number} {store.put(entry(number, text=f'by {seed}')).text}\n")
            os._exit(0)
        finally:
            os._exit(1)
    return child


@pytest.mark.parametrize(("count", "killed", "rounds"), [(100, 0, 1), (15, 4, 10 * ROUNDS)])
def test_what_eight_processes_put_stands_though_some_are_killed(
    tmp_path: Path, count: int, killed: int, rounds: int
) -> None:
    for number in range(rounds):
        folder = tmp_path / str(number)
        folder.mkdir()
        path, logs = folder / "store.jsonl", [folder / f"{seed}.log" for seed in range(8)]
        children = [forked(path, log, seed, count) for seed, log in enumerate(logs)]
        for child in children[:killed]:
            time.sleep(random.uniform(0.0, 0.1))
            os.kill(child, signal.SIGKILL)
        assert {os.waitpid(child, 0)[1] for child in children[killed:]} == {0}
        for child in children[:killed]:
            os.waitpid(child, 0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            stands = {found.key: found for found in Store(path, read_only=True)}
        assert stands == {key(number): entry(number, text=stands[key(number)].text) for number in range(count)}
        logged = [line.split(maxsplit=1) for log in logs if log.exists() for line in log.read_text().splitlines()]
        assert len(logged) >= (8 - killed) * count
        assert [one for one in logged if stands[key(int(one[0]))].text != one[1]] == []


def test_threads_share_a_store_and_its_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 16 threads puts the same entries, and gets what stands. When the disk is full, they share memory."""
    store, write = Store(path), os.write

    def put_all(thread: int) -> list[str]:
        return [store.put(entry(number, text=f"by {thread}")).text for number in range(30)]

    def full(file: int, data: bytes) -> int:
        if len(store) < 20:
            return write(file, data)
        raise OSError(errno.ENOSPC, "No space left")

    monkeypatch.setattr(line_file.os, "write", full)
    with pytest.warns(RuntimeWarning, match="No space left") as caught, ThreadPoolExecutor(16) as pool:
        found = [*pool.map(put_all, range(16))]
    assert len(caught) == 1
    assert found == [[one.text for number in range(30) if (one := store.get(key(number)))]] * 16
    assert len(Store(path)) == 20


FORK = """
import os, sys, threading
sys.path[:0] = {modules!r}
from stored import entry, key
from cudnnpy.store import Store
store, memory, ended = Store({path!r}), Store(""), threading.Event()
memory.put(entry(1))
def write():
    number = 1000
    while not ended.is_set():
        store.put(entry(number))
        number += 1
thread = threading.Thread(target=write)
thread.start()
for number in range(20):
    child = os.fork()
    if child == 0:
        store.put(entry(number))
        os._exit(not (store.get(key(number)) == entry(number) and memory.put(entry(1)) == entry(1)))
    store.put(entry(100 + number))
    assert os.waitpid(child, 0)[1] == 0
    assert store.get(key(number)) == entry(number)
ended.set()
thread.join()
assert [one.key in store for one in map(entry, (*range(20), *range(100, 120)))] == [True] * 40
"""


def test_children_that_are_forked_while_a_thread_writes_use_the_store(path: Path) -> None:
    program = FORK.format(modules=sys.path, path=str(path))
    subprocess.run([sys.executable, "-W", "error::RuntimeWarning", "-c", program], check=True, timeout=60)
    numbers = sorted(int(one.text.split()[1].partition("x")[0]) for one in Store(path))
    assert numbers == [*range(20), *range(100, 120), *range(1000, 1000 + len(numbers) - 40)]
