"""The options of `enable`, and the active ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cudnnpy._core.cache_token import CacheToken, cache_token
from cudnnpy._options.base import Options
from cudnnpy._options.convolution import TUNE_SECONDS, canonical
from cudnnpy._process_state import declare
from cudnnpy.typing import Preference


@dataclass(frozen=True, kw_only=True)
class Settings(Options):
    """The options of `enable`. None follows PyTorch's own flag at each call."""

    prefer: Preference | None = None
    workspace_limit: int | None = None
    deterministic: bool | None = None
    tf32: bool | None = None
    tune_seconds: float = TUNE_SECONDS

    def _canonical(self) -> dict[str, Any]:
        given = self._fields()
        return canonical({name: given[name] for name in given if given[name] is not None or name == "tune_seconds"})

    @cached_property
    def token(self) -> CacheToken:
        """The token that represents them in plan cache keys."""
        return cache_token(Settings, *self._fields().values())

    def options(self, benchmark: bool, deterministic: bool, tf32: bool) -> dict[str, Any]:
        """Return the options of a convolution, for the values of PyTorch's flags."""
        return {
            "prefer": self.prefer or ("autotune" if benchmark else "fastest"),
            "workspace_limit": self.workspace_limit,
            "deterministic": deterministic if self.deterministic is None else self.deterministic,
            "tf32": tf32 if self.tf32 is None else self.tf32,
            "tune_seconds": self.tune_seconds,
        }


class Active:
    """The active settings, and their cache token; None while PyTorch's own kernels are registered."""

    __slots__ = ("identity", "settings")

    def __init__(self) -> None:
        self.set(None)

    def set(self, settings: Settings | None) -> None:
        """Replace the active settings."""
        self.settings = settings
        self.identity = None if settings is None else settings.token


ACTIVE = Active()

declare(__name__, "ACTIVE", resets=False)  # registration._setting sets it
