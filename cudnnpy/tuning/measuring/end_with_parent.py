"""End a child process when its parent ends, even by SIGKILL."""

from __future__ import annotations

import os
import select
import threading


def end_with_parent(file: int) -> None:
    """End this process, whatever it is doing, when the other end of a pipe or socket is closed: its parent has ended."""
    ends = select.poll()
    ends.register(file, 0)  # only the end is reported, and nothing is read
    threading.Thread(target=lambda: (ends.poll(), os._exit(1)), daemon=True).start()
