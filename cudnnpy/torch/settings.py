"""The options of `enable`, and the active ones, completed by PyTorch's flags."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

from cudnnpy._checks.preferences import PreferenceOptions
from cudnnpy._core.cache_token import CacheToken, cache_token
from cudnnpy._process.module_state import declare

Flags: TypeAlias = tuple[bool, bool, bool, bool]  # PyTorch's, for a call: benchmark, deterministic, enabled, allow_tf32


@dataclass(frozen=True)
class Settings:
    """The options of `enable`, the names of those that follow PyTorch's own flags, and whether attention is run, too."""

    planning: PreferenceOptions = field(default_factory=PreferenceOptions)
    following: frozenset[str] = frozenset({"prefer", "deterministic", "tf32"})
    attention: bool = False

    @cached_property
    def token(self) -> CacheToken:
        """The token that represents them in plan cache keys."""
        return cache_token(Settings, self.planning, self.following)

    def options(self, flags: Flags) -> dict[str, Any]:
        """Return the options of a convolution, for the values of PyTorch's flags."""
        benchmark, deterministic, _, tf32 = flags
        found = {"prefer": "autotune" if benchmark else "fastest", "deterministic": deterministic, "tf32": tf32}
        return self.planning._preferences() | {name: found[name] for name in self.following}


@dataclass
class Active:
    """The active settings, and their cache token; None while PyTorch's own kernels are registered."""

    settings: Settings | None = None
    identity: CacheToken | None = None


ACTIVE = Active()

declare(__name__, "ACTIVE", resets=False)  # registration._setting sets it
