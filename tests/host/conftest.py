"""What the tests without a GPU share."""

from standins import world

__all__ = ["world"]
