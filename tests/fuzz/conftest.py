"""The campaigns use what the tests without a GPU are made of."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "shared"))

from planning import planning_environment

__all__ = ["planning_environment"]
