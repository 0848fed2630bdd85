"""Base types of the generated enums, handles and structs, which print under their C names."""

from __future__ import annotations

from ctypes import POINTER, Structure, c_void_p
from enum import EnumType, IntEnum
from typing import Any, ClassVar, Never


class EnumerationType(EnumType):
    """The type of the enums: a call without a number explains how C's variables of an enum are declared here."""

    def __call__(cls, *value: Any, **options: Any) -> Any:
        if not value and not options:
            raise TypeError(
                f"{cls.__name__} must be called with a number; got none. A variable that C writes is ctypes.c_int(), passed as "
                f"byref(variable); {cls.__name__}(variable.value) is its enumerator"
            )
        return super().__call__(*value, **options)


class Enumeration(IntEnum, metaclass=EnumerationType):
    """A C enum, whose enumerators print as their names."""

    def __str__(self) -> str:
        return self._name_

    @classmethod
    def _missing_(cls, value: object) -> Never:
        names = [f"{member:d} ({member})" for member in cls]
        text = f"{cls.__name__} must be one of {', '.join(names[:20])}{', ...' * (len(names) > 20)}; got {value!r:.80}"
        raise ValueError(f"{text}. Type raw.{value}" if value in cls._member_map_ else text)


def handle(name: str, struct: type[Structure]) -> Any:
    """Return the pointer type of a handle, which prints as its C type with the address or NULL."""
    kind: Any = POINTER(struct)
    kind.__name__ = kind.__qualname__ = name  # ctypes names the type in its errors, too
    kind.__repr__ = lambda self: f"<{name} {hex(c_void_p.from_buffer_copy(self).value or 0) if self else 'NULL'}>"
    return kind


class Struct(Structure):
    """A C struct, which prints its fields. Fields of an enum type are read as enumerators, or as ints if there is none."""

    _enums_: ClassVar[dict[str, type[IntEnum]]] = {}

    def __getattribute__(self, name: str) -> Any:
        value, enum = super().__getattribute__(name), type(self)._enums_.get(name)
        return enum._value2member_map_.get(value, value) if enum else value

    def __repr__(self) -> str:
        names = (field[0] for field in self._fields_ if field[0] != "reserved")
        fields = ", ".join(f"{name}={getattr(self, name)!s}" for name in names)
        return f"{type(self).__name__.removesuffix('Struct').removesuffix('_t')}_t({fields})"
