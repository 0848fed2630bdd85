"""What can be wrong with the file of a store."""

from __future__ import annotations


class Unusable(Exception):
    """A file cannot be read, or not be written; the text says why."""


class Damaged(Exception):
    """A file of this package is damaged, and cannot be replaced."""


class Foreign(Exception):
    """A file is not of this package."""
