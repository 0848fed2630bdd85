"""Public classes and modules: `dir` lists public names only, and errors about names and calls say what there is."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from cudnnpy._checks.suggestions import explain_keywords, explained, suggest_option

_ClassT = TypeVar("_ClassT", bound=type)


def _public(names: Iterable[str]) -> list[str]:
    return [name for name in names if not name.startswith("_") or name.endswith("__")]


def no_attribute(owner: object, name: str) -> str:
    """Return the message for an attribute that an object, class or module lacks: it lists the public ones."""
    has = "" if name.startswith("_") else f". It has {', '.join(one for one in dir(owner) if not one.startswith('_'))}"
    if isinstance(owner, type | ModuleType):
        lacks = f"{'module' if isinstance(owner, ModuleType) else 'type object'} {owner.__name__!r}"
    else:
        lacks = f"{type(owner).__name__!r} object"
    return f"{lacks} has no attribute {name!r:.80}{has}"


def list_attributes(kind: _ClassT) -> _ClassT:
    """Make the error for an attribute that an object of a class lacks list the public ones; PublicDir does, too."""
    kind.__getattr__ = PublicDir.__getattr__  # type: ignore[attr-defined]
    return kind


def complete_module(names: dict[str, Any]) -> None:
    """Complete a public module, whose variables are given, at its end.

    `dir` lists its public names, as does the error for another name; its functions explain calls that do not fit, and objects
    of its classes list what they have.
    """

    def __getattr__(name: str) -> NoReturn:
        raise AttributeError(no_attribute(sys.modules[names["__name__"]], name))

    public = names["__all__"]
    names.setdefault("__getattr__", __getattr__)
    names["__dir__"] = lambda: sorted(public)
    for name in public:
        value: Any = names.get(name)
        if isinstance(value, type):
            if not hasattr(value, "__getattr__") and not getattr(value, "_is_protocol", False):
                list_attributes(value)
        elif isinstance(value, FunctionType) or hasattr(value, "cache_clear"):
            names[name] = value = explained(value)
            value.__module__ = names["__name__"]  # where pickle finds it


class _PublicDirType(type):
    def __dir__(cls) -> list[str]:
        return [name for name in _public(super().__dir__()) if cls._has(name)]

    def _has(cls, name: str) -> bool:
        """Return whether a listed attribute is there, without __getattr__."""
        try:
            type.__getattribute__(cls, name)
        except AttributeError:
            return False
        return True

    if not TYPE_CHECKING:  # type checkers report unknown attributes

        def __getattr__(cls, name):
            raise AttributeError(no_attribute(cls, name), name=name, obj=cls)


class PublicDir(metaclass=_PublicDirType):
    """A class whose private names, which start with an underscore, are not completed at a prompt.

    Nor are names that a class inherits and refuses, as cudnnpy.reference refuses methods that need a GPU. The public methods
    of subclasses explain calls that do not fit, with `_suggest` for unknown keywords.
    """

    __slots__ = ()
    _suggest: ClassVar[Any] = staticmethod(suggest_option)  # a suggestions.Suggest

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        explain_keywords(cls, cls._suggest)

    def __dir__(self) -> list[str]:
        return _public({*dir(type(self)), *getattr(self, "__dict__", ())})

    if not TYPE_CHECKING:  # type checkers report unknown attributes

        def __getattr__(self, name):
            raise AttributeError(no_attribute(self, name), name=name, obj=self)
