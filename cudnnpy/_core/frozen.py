"""Operation objects: options that are checked once, and what stands for them in the keys of the plan cache."""

from __future__ import annotations

from dataclasses import fields
from typing import Any
from weakref import WeakValueDictionary


class Identity:
    """What stands for an object in the keys of the plan cache: it is equal to itself alone.

    A copy of an identity, an unpickled one too, is another identity. A key keeps its identities alive, so that none is
    ever taken for another one that lay at the same address.
    """

    __slots__ = ("__weakref__",)

    def __reduce__(self) -> tuple[type[Identity], tuple[()]]:
        return Identity, ()


# An identity is forgotten with the last object and the last key that hold it.
_of_values: WeakValueDictionary[Any, Identity] = WeakValueDictionary()


def identity_of(kind: type, *values: Any) -> Identity:
    """The identity of a kind of object with these values: the same one for the same values, as long as it is in use.

    Values are told apart by their types, too. Two threads that ask at once may get two identities for the same values,
    which costs a second plan, and never one identity for different values.
    """
    key = kind, values, tuple(map(type, values))
    return _of_values.setdefault(key, Identity())


class Frozen:
    """An operation's options: checked once, then unchangeable, equal by value, hashable, and pickled by value.

    A subclass is a frozen dataclass whose fields are the options, and says what it makes of them in `_checked`. Fields
    that are made there are no options: they are declared with field(init=False, repr=False, compare=False).
    """

    _identity: Identity

    def _checked(self) -> dict[str, Any]:
        """The options whose form is another than was given, and other fields, by name. Raises TypeError and ValueError."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        """Checks the options, and brings them to one form."""
        for name, value in self._checked().items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_identity", self._identified())

    def _identified(self) -> Identity:
        return identity_of(type(self), *self._fields().values())

    def _fields(self) -> dict[str, Any]:
        """The options by name. Fields that are not given to the constructor are not options."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.init}  # type: ignore[arg-type]

    def __reduce__(self) -> tuple[Any, ...]:
        """By the options alone: they are checked again, and identified in the process that they come to."""
        return _remade, (type(self), self._fields())


def _remade(kind: type, options: dict[str, Any]) -> Any:
    return kind(**options)
