"""What the tests without a GPU share."""

from planning import plan, planning_environment
from stand_in_device import stand_in
from stand_in_graphs import graphs

__all__ = ["graphs", "plan", "planning_environment", "stand_in"]
