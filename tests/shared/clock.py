"""A clock that stands until the test moves it."""

from __future__ import annotations


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now
