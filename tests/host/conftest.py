"""What the tests without a GPU share."""

from planning import plan, planning_environment
from standins import world

__all__ = ["plan", "planning_environment", "world"]
