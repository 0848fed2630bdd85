"""The options that decide which plan is chosen, whatever the problem is."""

from __future__ import annotations

from typing import Any, NamedTuple

from cudnnpy._options.convolution import canonical
from cudnnpy.typing import Policy, Preference

DEFAULT_LIMIT = 1 << 30  # bytes: what limited_workspace means when no limit is given


class PlanningOptions(NamedTuple):
    """How a plan is chosen. `algorithm` is an Engine, a plan, or what the problem knows by a name; None for a choice."""

    prefer: Preference = "fastest"
    workspace_limit: int | None = None
    deterministic: bool = False
    tf32: bool = True
    algorithm: Any = None
    policy: Policy = "on_shape_change"
    tune_seconds: float = 5.0


def checked(options: PlanningOptions) -> PlanningOptions:
    """The options in one canonical form. Raises ValueError or TypeError, which name the option.

    `algorithm` is left to those who know what it may be for their problems.
    """
    return options._replace(
        **canonical({name: value for name, value in options._asdict().items() if name != "algorithm"})
    )
