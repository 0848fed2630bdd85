"""Settings of the process that a block replaces: those of cudnnpy.log_to and cudnnpy.torch.enable."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cudnnpy._core.process_setting import ProcessSetting

ROOT = Path(__file__).resolve().parents[3]


class Applied(list[str]):
    """What was put into effect, in order. "bad" cannot be."""

    def __call__(self, value: str) -> None:
        if value == "bad":
            raise ValueError(value)
        self.append(value)


@pytest.fixture
def applied() -> Applied:
    return Applied()


def test_a_reset_restores_the_initial_setting_and_forgets_the_blocks(applied: Applied) -> None:
    setting = ProcessSetting("initial", applied)
    setting.reset()
    assert applied == []
    setting.set("other").__enter__()
    setting.reset()
    assert (setting.value, applied) == ("initial", ["other", "initial"])
    with setting.set("new"):
        pass
    assert applied == ["other", "initial", "new", "initial"]


def test_a_block_that_ends_before_a_later_one_changes_nothing(applied: Applied) -> None:
    """As the blocks of two threads may."""
    setting = ProcessSetting("none", applied)
    first, second = setting.set("first"), setting.set("second")
    with second:
        with first:
            pass
        assert setting.value == "second"
    assert setting.value == "none"


def test_a_fork_waits_for_a_thread_that_sets() -> None:
    """Otherwise the lock would be held for ever in the child."""
    source = """
import os, threading
from cudnnpy._core.process_setting import ProcessSetting
begun, go_on = threading.Event(), threading.Event()
def apply(value):
    if value == "slow":
        begun.set()
        go_on.wait(10)
setting = ProcessSetting("none", apply)
thread = threading.Thread(target=setting.set, args=("slow",))
thread.start()
begun.wait(10)
threading.Timer(0.1, go_on.set).start()
child = os.fork()
if not child:
    with setting.set("child"):
        os._exit(0 if setting.value == "child" else 1)
thread.join()
print(setting.value, os.waitpid(child, 0)[1])
"""
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "slow 0\n"), done.stderr
