"""Run a program and write the problems that it plans to a file.

`cudnnpy tune --record` runs `main` in a process of its own, so that the program's memory and threads are gone when the problems
are tuned. Nothing is measured meanwhile.
"""

from __future__ import annotations

import atexit
import os
import runpy
import sys

from cudnnpy.tuning.measurement_freeze import freeze
from cudnnpy.tuning.recording import record


def main() -> None:
    """Run a program as `python SCRIPT.py ...` or `python -m MODULE ...` would.

    The arguments of this process are the number of the open file, then the arguments of such a command.
    """
    file, *command = sys.argv[1:]
    os.set_inheritable(int(file), False)
    is_module = command[0] == "-m"
    sys.argv = command[is_module:]
    if not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, os.getcwd() if is_module else os.path.dirname(os.path.realpath(sys.argv[0])))
    recording, recorded = record(), os.getpid()
    freeze()

    def save() -> None:
        if os.getpid() == recorded:  # not in a process that the program has forked
            recording.save(f"/proc/self/fd/{file}")

    atexit.register(
        save
    )  # the first is called last: after the program's threads and exit handlers, which may plan, too
    try:
        if is_module:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        save()  # a crash at exit leaves this list
