"""The options that determine which plan is chosen, for every kind of problem."""

from __future__ import annotations

from typing import Any, NamedTuple

from cudnnpy._options.convolution import TUNE_SECONDS, canonical, limit_of_preference
from cudnnpy.typing import Policy, Preference


class PlanningOptions(NamedTuple):
    """How a plan is chosen. `algorithm` forces an Engine, a Plan or an algorithm that the problem knows by name.

    `thorough`: autotune measures all candidates, and not only until several in a row gain nothing. It is an option of
    `cudnnpy tune` alone, and no part of a text.
    """

    prefer: Preference = "fastest"
    workspace_limit: int | None = None
    deterministic: bool = False
    tf32: bool = True
    algorithm: Any = None
    policy: Policy = "on_shape_change"
    tune_seconds: float = TUNE_SECONDS
    thorough: bool = False


def with_limit(options: PlanningOptions) -> PlanningOptions:
    """Return the options with the limit of the workspace that their preference means, whatever the device is."""
    return options._replace(workspace_limit=limit_of_preference(options.prefer, options.workspace_limit))


def checked(options: PlanningOptions) -> PlanningOptions:
    """Return the options in canonical form. Raises ValueError or TypeError, which name the option.

    `algorithm` is not checked here, since its valid values depend on the kind of problem.
    """
    return options._replace(
        **canonical({name: value for name, value in options._asdict().items() if name != "algorithm"})
    )
