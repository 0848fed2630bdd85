"""The one fork hook: a forked child finds every lock of the package free, and nothing of its parent's threads."""

from __future__ import annotations

from fresh_process import python

_UNDER_LOAD = """
import importlib, os, pathlib, signal, threading
from cudnnpy._process import module_state as _process_state
for file in pathlib.Path("cudnnpy").rglob("*.py"):
    name = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
    if not name.startswith(("cudnnpy.torch", "cudnnpy.__main__", "cudnnpy.tuning.measuring.child", "cudnnpy.cli.tune.dask")):
        importlib.import_module(name)
locks, stop = _process_state._locks, threading.Event()
def load(at):
    while not stop.is_set():  # as threads take them: a lock, then those of the modules below
        with locks[at], locks[at // 2]:
            pass
def take_all():
    for lock in locks:
        with lock:
            pass
threads = [threading.Thread(target=load, args=[at]) for at in range(len(locks))]
for thread in threads:
    thread.start()
codes = set()
for _ in range(8):
    child = os.fork()
    if not child:
        signal.alarm(20)  # of a lock that stays locked
        thread = threading.Thread(target=take_all)
        thread.start()
        thread.join()
        os._exit(0)
    codes.add(os.waitpid(child, 0)[1])
stop.set()
for thread in threads:
    thread.join()
print(len(locks) >= 7, codes)
"""


def test_forks_while_threads_hold_each_lock() -> None:
    assert python(_UNDER_LOAD) == "True {0}\n"


def test_callbacks_run_in_the_child_alone_after_those_of_the_modules_below() -> None:
    """The locks are free by then, also for other threads; the thread that forks may hold one."""
    source = """
import os, threading
from cudnnpy._process.module_state import fork_safe_lock, in_forked_child
lower, upper, called = fork_safe_lock(), fork_safe_lock(), []
def note(name):
    thread = threading.Thread(target=lambda: called.append((name, upper.acquire(timeout=10))))
    thread.start()
    thread.join()
in_forked_child(lambda: note("lower"))
in_forked_child(lambda: called.append("upper"))
with lower:
    child = os.fork()
if not child:
    print(called, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(called)
"""
    assert python(source) == "[('lower', True), 'upper']\n[]\n"
