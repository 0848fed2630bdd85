"""The base of all options: checked and brought to one form when they are made, then unchangeable."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """Options that cannot change, equal by value, hashable, and copied and pickled by value.

    A subclass is a frozen dataclass whose fields are the options. It brings them to canonical form in `_canonical`, and makes
    whatever else an object holds in `_derived`. Nothing else sets an attribute. A field that is made in `_derived` is not an
    option: it is declared with ``field(init=False, repr=False, compare=False)``.
    """

    def _canonical(self) -> dict[str, Any]:
        """The options whose canonical form may differ from what was given, by name.

        Raises TypeError for an option of another type, ValueError for one that is out of range.
        """
        return {}

    def _derived(self) -> dict[str, Any]:
        """What else the object holds, made from the options in canonical form, by name."""
        return {}

    def __post_init__(self) -> None:
        """Check the options, and bring them to canonical form."""
        for made in (self._canonical, self._derived):
            for name, value in made().items():
                object.__setattr__(self, name, value)

    def _fields(self) -> dict[str, Any]:
        """The options by name."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.init}

    def __reduce__(self) -> tuple[Any, ...]:
        """By the options alone: what is derived from them is made again, in the process that they come to."""
        return _remade, (type(self), self._fields())


def _remade(kind: type[Frozen], options: dict[str, Any]) -> Frozen:
    return kind(**options)
