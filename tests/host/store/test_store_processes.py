"""A store that many processes and threads use at once, of which some are killed, or fork."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import stored
from stored import entry, key

from cudnnpy.store import Store

ROUNDS = int(os.environ.get("CUDNNPY_STORE_ROUNDS", "1"))
PROCESSES, KILLED, ENTRIES = 32, 10, 200


def started(path: Path, acknowledged: Path, seed: int) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-W", "error", stored.__file__, path, acknowledged, str(seed), str(ENTRIES)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(list(map(str, arguments)), env=environment, stderr=subprocess.PIPE, text=True)


def integrity(path: Path) -> list[tuple[str]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA integrity_check").fetchall()


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_what_was_put_stands_though_processes_are_killed(tmp_path: Path, round_: int) -> None:
    """32 processes put the same 200 entries, each with a text of its own, and ten of them are killed at random moments."""
    path, drawn = tmp_path / "store.sqlite", random.Random(os.urandom(8))
    logs = [tmp_path / f"{number}.log" for number in range(PROCESSES)]
    processes = [started(path, log, number) for number, log in enumerate(logs)]
    doomed = drawn.sample(processes, KILLED)
    while not path.exists():
        time.sleep(0.01)
    for process in doomed:
        time.sleep(drawn.uniform(0.0, 0.3))
        process.send_signal(signal.SIGKILL)
    errors = [process.communicate(timeout=300)[1] for process in processes]
    assert errors == [""] * PROCESSES
    survivors = [process for process in processes if process not in doomed]
    assert {process.returncode for process in survivors} == {0}
    assert integrity(path) == [("ok",)]
    with Store(path, read_only=True) as store:
        stands = {found.key: found for found in store}
    assert stands.keys() == {key(number) for number in range(ENTRIES)}
    assert all(
        found == entry(number)._replace(text=found.text) for number in range(ENTRIES) if (found := stands[key(number)])
    )
    acknowledged = [line.split(maxsplit=1) for log in logs if log.exists() for line in log.read_text().splitlines()]
    assert len(acknowledged) >= len(survivors) * ENTRIES
    assert [one for one in acknowledged if stands[key(int(one[0]))].text != one[1]] == []
    assert sorted(file.name for file in tmp_path.iterdir() if "damaged" in file.name) == []


def test_threads_of_one_process_share_a_store(tmp_path: Path) -> None:
    """Each of 16 threads puts the same entries; every one gets what stands."""
    store = Store(tmp_path / "store.sqlite")

    def put_all(thread: int) -> list[str]:
        return [store.put(entry(number, text=f"by {thread}")).text for number in range(30)]

    with ThreadPoolExecutor(16) as pool:
        found = [*pool.map(put_all, range(16))]
    assert found == [[one.text for number in range(30) if (one := store.get(key(number)))]] * 16
    assert integrity(tmp_path / "store.sqlite") == [("ok",)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_uses_the_store_of_its_parent(tmp_path: Path) -> None:
    """Both go on, though the child ends like a program, with whatever that destroys."""
    store = Store(tmp_path / "store.sqlite")
    store.put(entry(0))
    program = f"""
import os, sys
sys.path[:0] = {sys.path!r}
from stored import entry, key
from cudnnpy.store import Store
store, memory = Store({str(store.path)!r}), Store("")
memory.put(entry(1))
child = os.fork()
for number in range(20):
    store.put(entry(2 * number + (child == 0)))
assert memory.get(key(1)) == memory.put(entry(1)) == entry(1)
if child:
    assert os.waitpid(child, 0)[1] == 0
    for number in range(40):
        assert store.get(key(number)) == entry(number)
"""
    subprocess.run([sys.executable, "-W", "error::RuntimeWarning", "-c", program], check=True, timeout=60)
    assert {one.key for one in store} == {*map(key, range(40))}
    assert integrity(tmp_path / "store.sqlite") == [("ok",)]


@pytest.mark.parametrize("path", ["store.sqlite", ""])
def test_a_fork_waits_until_sqlite_has_ended_in_other_threads(tmp_path: Path, path: str) -> None:
    """SQLite's own locks would stay locked in the child."""
    program = f"""
import os, sys, threading, time
sys.path[:0] = {sys.path!r}
from stored import entry, key
from cudnnpy.store import Store
store = Store({path and str(tmp_path / path)!r})
store.put(entry(1))
inside, ended = threading.Event(), []
def work(connection):
    inside.set()
    time.sleep(0.3)
    ended.append(True)
thread = threading.Thread(target=store._rows.run, args=[work], kwargs={{"writes": True}})
thread.start()
inside.wait()
child = os.fork()
if not child:
    os._exit(not (ended and store.get(key(1)) == store.put(entry(1)) == entry(1)))
assert os.waitpid(child, 0)[1] == 0
thread.join()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
