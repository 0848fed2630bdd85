"""PlanningOptions: the preferences with the algorithm, the options that determine which plan is chosen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from cudnnpy._checks.preferences import PreferenceOptions


@dataclass(frozen=True, kw_only=True)
class PlanningOptions(PreferenceOptions):
    """How a plan is chosen. `algorithm` forces an Engine, a Plan or an algorithm that the problem knows by name.

    `algorithm` is not checked here, since its valid values depend on the kind of problem. `thorough`: autotune measures all
    candidates, and not only until several in a row gain nothing. Only `cudnnpy tune` sets it, and it is no part of a text.
    """

    algorithm: Any = None
    thorough: bool = False

    def _replace(self, **options: Any) -> Self:
        """Return the options with others in place of some."""
        return replace(self, **options)


def with_limit(options: PlanningOptions) -> PlanningOptions:
    """Return the options with the limit of the workspace that their preference means, whatever the device is."""
    return options._replace(workspace_limit=options._permitted_workspace())
