"""Run a program and write the problems that it plans to a file.

    python -m cudnnpy.cli.tune.recorded_program DESCRIPTOR SCRIPT.py ...

DESCRIPTOR is the number of the open file. The program runs as `python SCRIPT.py ...` or `python -m MODULE ...` would. Nothing
is measured meanwhile: the problems are tuned afterwards. `cudnnpy tune --record` starts this as a process of its own, so that
the program's memory and threads are gone when the problems are tuned.
"""

from __future__ import annotations

import os
import runpy
import sys

from cudnnpy._planning.measurement_freeze import freeze
from cudnnpy._planning.recording import record


def main() -> None:
    """Run the program of the process's arguments."""
    file, *command = sys.argv[1:]
    os.set_inheritable(int(file), False)
    is_module = command[0] == "-m"
    sys.argv = command[is_module:]
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd() if is_module else os.path.dirname(os.path.realpath(sys.argv[0]))
    with record() as recording, freeze():
        try:
            if is_module:
                runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(sys.argv[0], run_name="__main__")
        finally:
            recording.save(f"/proc/self/fd/{file}")


if __name__ == "__main__":
    main()
