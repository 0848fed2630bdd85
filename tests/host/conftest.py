"""What the tests without a GPU share."""

from planning import plan
from standins import world

__all__ = ["plan", "world"]
