"""A pace that a test gives, in the place of one that events tell."""

from __future__ import annotations

from typing import Protocol


class Given(Protocol):
    """What knows whether the GPU waits for the host; None is not known."""

    gpu_waits: bool | None


class GivenPace:
    """A Pace whose answer is that of its stand-in."""

    def __init__(self, given: Given) -> None:
        self._given, self.left = given, 1

    @property
    def gpu_waits(self) -> bool | None:
        return self._given.gpu_waits

    def look(self, stream: int) -> None:
        """There are no events."""
        self.left = 1
