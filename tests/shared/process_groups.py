"""The processes of a group, and whether one has ended, for tests of what is left of a command."""

from __future__ import annotations

import time
from pathlib import Path


def members_of(group: int) -> list[int]:
    """The processes of a group that have not ended; those that end within seconds are waited for."""
    found: list[int] = []
    for _ in range(100):
        found = []
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = status.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(int(status.parent.name))
        if not found:
            break
        time.sleep(0.1)
    return found


def has_ended(process: int) -> bool:
    """Whether a process has ended; one that ends within seconds is waited for."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False
