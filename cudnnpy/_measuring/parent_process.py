"""The end of a child process with its parent, however the parent ends."""

from __future__ import annotations

import os
import select
import threading


def end_with(pipe: int) -> None:
    """End this process when the other end of a pipe is closed, as the end of the parent closes it, whatever is done here."""
    ends = select.poll()
    ends.register(pipe, 0)  # nothing but the end is reported, and nothing is read
    threading.Thread(target=lambda: (ends.poll(), os._exit(1)), daemon=True).start()
