"""What the tests without a GPU share."""

from planning import plan, planning_environment
from stand_in_device import stand_in

__all__ = ["plan", "planning_environment", "stand_in"]
