"""The limit of time that every test has (time_limits.py): a test that waits for ever fails where it waits."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import time_limits

WAITS = """
import subprocess, sys, threading
def test_waits():
    subprocess.run([sys.executable, "-c", "import time; time.sleep(60)"])
def test_waits_in_its_clean_up():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]):
        threading.Event().wait()
def test_ends():
    pass
"""
WAITS_IN_C = """
import ctypes
def test_waits_in_c():
    lock, library = ctypes.create_string_buffer(64), ctypes.CDLL(None)
    for _ in range(2):
        library.pthread_mutex_lock(lock)
"""
WAITS_AT_THE_END = """
import threading
def test_leaves_a_thread():
    threading.Thread(target=threading.Event().wait).start()
"""


def run(folder: Path, test: str, seconds: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(test)
    environment = {**os.environ, "PYTHONPATH": str(Path(time_limits.__file__).parent), time_limits.VARIABLE: seconds}
    command = [sys.executable, "-m", "pytest", "-p", "time_limits", "-p", "no:cacheprovider", "test_it.py"]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=240
    )


def test_a_test_that_waits_fails_where_it_waits(tmp_path: Path) -> None:
    done = run(tmp_path, WAITS, "3")  # with less, a busy machine may not handle the signal within a tenth of it
    assert done.returncode == 1
    assert "2 failed, 1 passed" in done.stdout
    for place in ("subprocess.run([", "threading.Event().wait()"):
        assert re.search(rf"^> +{re.escape(place)}", done.stdout, re.MULTILINE)
    assert "TimeLimitError: longer than 3 s, the limit of a test (CUDNNPY_TEST_SECONDS)" in done.stdout


@pytest.mark.parametrize("test", [WAITS_IN_C, WAITS_AT_THE_END])
def test_a_process_that_cannot_go_on_ends_with_its_places(tmp_path: Path, test: str) -> None:
    done = run(tmp_path, test, "1")
    assert done.returncode == 1
    assert "Timeout (" in done.stderr
    assert "in _shutdown" in done.stderr or "in test_waits_in_c" in done.stderr


@pytest.mark.parametrize(
    ("path", "folder"),
    [("/x/tests/host/store/test_a.py", "host"), ("/x/tests/gpu/test_a.py", "gpu"), ("/elsewhere/one/test_a.py", "one")],
)
def test_a_folder_of_tests_is_known_at_any_depth(path: str, folder: str) -> None:
    assert time_limits.folder_of(Path(path)) == folder


def test_the_limits_of_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(time_limits.VARIABLE, raising=False)
    monkeypatch.setenv("CUDNNPY_FUZZ_SECONDS", "inf")
    assert time_limits.seconds("fuzz") == float("inf")
    assert time_limits.seconds("host") == 300 < time_limits.seconds("gpu") < time_limits.seconds("index")
