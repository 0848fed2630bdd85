"""Options, the base class of all options: frozen dataclasses that check themselves."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import Any

from cudnnpy._checks.public_dir import PublicDir


class Options(PublicDir):
    """Options that cannot change, equal by value, hashable, and copied and pickled by value.

    A subclass is a frozen dataclass whose fields are the options. `_canonical` brings them to canonical form, and `_derived`
    computes what else an object holds. Nothing else sets an attribute.
    """

    def _canonical(self) -> dict[str, Any]:
        """Return, by name, the options whose canonical form may differ from the value that was passed.

        Raises TypeError for an option of another type, ValueError for one that is out of range.
        """
        return {}

    def _derived(self) -> dict[str, Any]:
        """Return the object's other attributes, which are computed from the options in canonical form, by name."""
        return {}

    def __post_init__(self) -> None:
        """Check the options, and bring them to canonical form."""
        for compute in (self._canonical, self._derived):
            for name, value in compute().items():
                object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def _fields(self) -> dict[str, Any]:
        """Return the options by name."""
        return {option.name: getattr(self, option.name) for option in fields(self) if option.init}  # type: ignore[arg-type]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the options alone. The other attributes are computed again in the process that unpickles."""
        return _from_options, (type(self), self._fields())


def _from_options(options_type: type[Options], options: dict[str, Any]) -> Options:
    return options_type(**options)
