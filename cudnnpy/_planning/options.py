"""The options that decide which plan is chosen, whatever the problem is."""

from __future__ import annotations

from typing import Any, NamedTuple

from cudnnpy._core.validation import check_flag, check_integer, check_number, check_option

PREFERENCES = ("fastest", "limited_workspace", "no_workspace", "autotune")
POLICIES = ("on_shape_change", "once")
DEFAULT_LIMIT = 1 << 30  # bytes: what limited_workspace means when no limit is given


class PlanningOptions(NamedTuple):
    """How a plan is chosen. `algorithm` is an Engine, a plan, or what the problem knows by a name; None for a choice."""

    prefer: str = "fastest"
    workspace_limit: int | None = None
    deterministic: bool = False
    tf32: bool = True
    algorithm: Any = None
    policy: str = "on_shape_change"
    tune_seconds: float = 5.0


def checked(options: PlanningOptions) -> PlanningOptions:
    """The options in one canonical form. Raises ValueError or TypeError, which name the option.

    `algorithm` is left to those who know what it may be for their problems.
    """
    for name, allowed in (("prefer", PREFERENCES), ("policy", POLICIES)):
        check_option(name, getattr(options, name), allowed)
    for name in ("deterministic", "tf32"):
        check_flag(name, getattr(options, name))
    limit = options.workspace_limit
    if limit is not None:
        limit = check_integer("workspace_limit", limit, 0, expected="a number of bytes, 0 or more, or None")
    seconds = check_number("tune_seconds", options.tune_seconds, above=0.0)
    return options._replace(workspace_limit=limit, tune_seconds=seconds)
