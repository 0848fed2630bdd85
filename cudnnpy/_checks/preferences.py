"""PreferenceOptions: prefer, workspace_limit, deterministic, tf32 and tune_seconds, which every layer and the planner have."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, get_args

from cudnnpy._checks.byte_counts import read_bytes
from cudnnpy._checks.option_values import check_flag, check_integer, check_number, check_option, error_repr
from cudnnpy._checks.options import Options
from cudnnpy.typing import Preference

PREFERENCES: tuple[Preference, ...] = get_args(Preference)
DEFAULT_LIMIT = 1 << 30  # bytes; the limit of "limited_workspace" by default
TUNE_SECONDS = 2.0  # the most that "autotune" takes for one problem, by default


@dataclass(frozen=True, kw_only=True)
class PreferenceOptions(Options):
    """How an algorithm is chosen.

    Parameters
    ----------
    prefer : {"fastest", "limited_workspace", "no_workspace", "autotune"}
        Which of the candidates is taken, as for `Convolution`.
    workspace_limit : int, optional
        The largest workspace in bytes. By default 1 GiB for "limited_workspace", and the free memory for the others.
    deterministic : bool
        Whether every result must have the same bits every time.
    tf32 : bool
        Whether float32 may be rounded to tf32 for the tensor cores.
    tune_seconds : float
        The time limit of "autotune" for one problem, in seconds.

    Raises
    ------
    TypeError, ValueError
        An option is of another type, or out of range.
    """

    prefer: Preference = "fastest"
    workspace_limit: int | None = None
    deterministic: bool = False
    tf32: bool = True
    tune_seconds: float = TUNE_SECONDS

    def _canonical(self) -> dict[str, Any]:
        return super()._canonical() | {
            "prefer": check_option("prefer", self.prefer, PREFERENCES),
            "workspace_limit": _workspace_limit(self.workspace_limit),
            "deterministic": check_flag("deterministic", self.deterministic),
            "tf32": check_flag("tf32", self.tf32),
            "tune_seconds": check_number("tune_seconds", self.tune_seconds, above=0.0, finite=True),
        }

    def _preferences(self) -> dict[str, Any]:
        """Return these options by name, without those that a subclass adds."""
        return {option.name: getattr(self, option.name) for option in fields(PreferenceOptions)}

    def _permitted_workspace(self) -> int | None:
        """Return the largest workspace that the preference permits, in bytes; None if it permits any.

        It is 0 for "no_workspace", and otherwise `workspace_limit`, whose default is 1 GiB for "limited_workspace".
        """
        if self.prefer == "no_workspace":
            return 0
        is_default = self.prefer == "limited_workspace" and self.workspace_limit is None
        return DEFAULT_LIMIT if is_default else self.workspace_limit


def _workspace_limit(value: Any) -> int | None:
    expected = "a number of bytes, 0 or more, or None"
    if isinstance(value, str) and (count := read_bytes(value)) is not None:
        raise TypeError(f"workspace_limit must be {expected}; got {error_repr(value)}, which is {count}")
    return None if value is None else check_integer("workspace_limit", value, 0, expected=expected)
