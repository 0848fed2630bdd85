"""Backend (graph API) descriptors with typed attributes: `d[raw.CUDNN_ATTR_TENSOR_DIMENSIONS] = (1, 3, 224, 224)`.

The type of every attribute comes from the generated table (raw.attribute_types), so a value of a wrong type or count
is refused, by the attribute's name, before C is called. One class serves every kind of descriptor:

    tensor = Descriptor(raw.CUDNN_BACKEND_TENSOR_DESCRIPTOR, {
        raw.CUDNN_ATTR_TENSOR_UNIQUE_ID: 1,
        raw.CUDNN_ATTR_TENSOR_DATA_TYPE: raw.CUDNN_DATA_FLOAT,
        ...
    })
    tensor[raw.CUDNN_ATTR_TENSOR_DIMENSIONS]    # (1, 3, 224, 224)
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Mapping, Sequence
from ctypes import byref, c_int64
from enum import EnumMeta, IntEnum
from typing import Any

from cudnnpy import raw
from cudnnpy._owned import Owned
from cudnnpy.checks import elements
from cudnnpy.handle import Handle
from cudnnpy.raw import _api

_POINTER_TYPES = (raw.CUDNN_TYPE_BACKEND_DESCRIPTOR, raw.CUDNN_TYPE_HANDLE, raw.CUDNN_TYPE_VOID_PTR)
_LARGEST_FLOAT = 3.4028234663852886e38
_FLOAT_TYPES = (raw.CUDNN_TYPE_FLOAT, raw.CUDNN_TYPE_DOUBLE)


class Descriptor(Owned):
    """One cudnnBackendDescriptor_t of any kind.

    `kind` is a cudnnBackendDescriptorType_t. With `attributes` the descriptor is set and finalized at once; without
    them it is left open, for `d[attribute] = value` and finalize(). An attribute set to None is left out.
    C functions: cudnnBackendCreateDescriptor, SetAttribute, Finalize, GetAttribute, DestroyDescriptor.
    """

    _create = "cudnnBackendCreateDescriptor"
    _destroy = "cudnnBackendDestroyDescriptor"

    def __init__(self, kind: int, attributes: Mapping[int, Any] | None = None) -> None:
        self.kind = kind
        self._children: list[Any] = []  # what C points to; kept as long as the descriptor
        with self._created(kind):
            if attributes is not None:
                for attribute, value in attributes.items():
                    if value is not None:
                        self[attribute] = value
                self.finalize()

    def __setitem__(self, attribute: int, value: Any) -> None:
        self.set(attribute, value)

    def __getitem__(self, attribute: int) -> Any:
        """One value where the header says that there is one, else a tuple; text for characters."""
        values = self.get(attribute)
        if isinstance(values, str) or attribute not in _api.SINGLE_ATTRIBUTES:
            return values
        return values[0] if len(values) == 1 else values

    def set(self, attribute: int, value: Any, kind: int | None = None) -> None:
        """cudnnBackendSetAttribute. `kind` picks an attribute type where several are allowed."""
        name, kind = _name_and_kind(attribute, kind)
        values = _as_values(name, kind, value)
        if attribute in _api.SINGLE_ATTRIBUTES and len(values) != 1:
            raise ValueError(f"{name} takes one element, {len(values)} given")
        array = (_element_type(kind) * len(values))(*values)
        if kind in _POINTER_TYPES:
            self._children.append(value)
        raw.call("cudnnBackendSetAttribute", self.pointer, attribute, kind, len(values), array)

    def finalize(self) -> None:
        """cudnnBackendFinalize: the library checks the whole, and nothing can be set afterwards."""
        raw.call("cudnnBackendFinalize", self.pointer)

    def get(self, attribute: int, kind: int | None = None) -> Any:
        """cudnnBackendGetAttribute: a tuple of every element; text for characters. Not for descriptors: see children."""
        _, kind = _name_and_kind(attribute, kind)
        count = c_int64()
        raw.call("cudnnBackendGetAttribute", self.pointer, attribute, kind, 0, byref(count), None)
        if not count.value:
            return "" if kind == raw.CUDNN_TYPE_CHAR else ()
        array = (_element_type(kind) * count.value)()
        raw.call("cudnnBackendGetAttribute", self.pointer, attribute, kind, count.value, byref(count), array)
        if kind == raw.CUDNN_TYPE_CHAR:
            return bytes(array).rstrip(b"\0").decode()
        if kind == raw.CUDNN_TYPE_FRACTION:
            return tuple((fraction.numerator, fraction.denominator) for fraction in array[: count.value])
        return tuple(array[: count.value])

    def children(self, attribute: int, kind: int, limit: int | None = None) -> list[Descriptor]:
        """The descriptors that an attribute holds, as new ones of the given kind."""
        count = c_int64(limit or 0)
        kinds = raw.CUDNN_TYPE_BACKEND_DESCRIPTOR
        if limit is None:
            raw.call("cudnnBackendGetAttribute", self.pointer, attribute, kinds, 0, byref(count), None)
        found = [Descriptor(kind) for _ in range(count.value)]
        if not found:
            return []
        array = (ctypes.c_void_p * len(found))(*(child.address for child in found))
        raw.call("cudnnBackendGetAttribute", self.pointer, attribute, kinds, len(found), byref(count), array)
        for unused in found[count.value :]:
            unused.close()
        return found[: count.value]


def _name_and_kind(attribute: int, kind: int | None) -> tuple[str, int]:
    """An attribute's name and the type that is meant; ValueError for an unknown one, TypeError for a type it has not."""
    try:
        name = raw.cudnnBackendAttributeName_t(attribute).name
    except ValueError:
        raise ValueError(f"attribute: {attribute!r} given; expected a cudnnBackendAttributeName_t") from None
    kinds = raw.attribute_types(attribute)
    if kind is not None and kind not in kinds:
        allowed = " or ".join(raw.cudnnBackendAttributeType_t(k).name for k in kinds)
        raise TypeError(f"{name} takes {allowed}, not {kind!r}")
    return name, kinds[0] if kind is None else kind


def _element_type(kind: int) -> Any:
    return ctypes.c_void_p if kind in _POINTER_TYPES else raw.ctype(_api.ATTRIBUTE_C_TYPES[kind])


def _as_values(name: str, kind: int, value: Any) -> Sequence[Any]:
    """The elements for C; TypeError or ValueError, naming the attribute, for what the attribute type cannot hold."""
    wanted = raw.cudnnBackendAttributeType_t(kind).name
    if kind == raw.CUDNN_TYPE_CHAR:
        if not isinstance(value, str):
            raise TypeError(f"{name} takes text ({wanted}), {value!r} given")
        return [bytes([byte]) for byte in value.encode() + b"\0"]
    if kind == raw.CUDNN_TYPE_FRACTION:
        return _as_fractions(name, wanted, value)
    several = elements(value)
    values = (value,) if several is None else several
    plain = (element.item() if hasattr(element, "item") else element for element in values)  # NumPy's numbers
    return [_as_element(name, wanted, kind, element) for element in plain]


def _as_fractions(name: str, wanted: str, value: Any) -> list[Any]:
    """One (numerator, denominator), or a sequence of them."""
    several = isinstance(value, tuple | list) and all(isinstance(pair, tuple | list) for pair in value)
    pairs = value if several else [value]
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"{name} takes {wanted}, so (numerator, denominator) pairs; {pair!r} given")
    return [_api.cudnnFraction_t(*(_as_element(name, wanted, raw.CUDNN_TYPE_INT64, n) for n in pair)) for pair in pairs]


def _as_element(name: str, wanted: str, kind: int, element: Any) -> Any:
    if kind == raw.CUDNN_TYPE_BOOLEAN:
        good = isinstance(element, bool)
    elif kind in _FLOAT_TYPES:
        good = isinstance(element, float | int) and not isinstance(element, bool)
        largest = _LARGEST_FLOAT if kind == raw.CUDNN_TYPE_FLOAT else sys.float_info.max
        if good and largest < abs(element) != math.inf:
            raise ValueError(f"{name}: {element} does not fit {wanted}")
    elif kind in (raw.CUDNN_TYPE_BACKEND_DESCRIPTOR, raw.CUDNN_TYPE_HANDLE):
        good = isinstance(element, Descriptor if kind == raw.CUDNN_TYPE_BACKEND_DESCRIPTOR else Handle)
        element = element.address if good else element
    else:
        good = isinstance(element, int) and not isinstance(element, bool)
        enum = getattr(_api, _api.ATTRIBUTE_C_TYPES[kind], None)
        if isinstance(element, IntEnum) and isinstance(enum, EnumMeta) and not isinstance(element, enum):
            raise TypeError(f"{name} takes {wanted}, so a {enum.__name__}; {element!r} given")
        bits = 64 if kind in (raw.CUDNN_TYPE_INT64, raw.CUDNN_TYPE_VOID_PTR) else 32
        if good and not -(1 << (bits - 1)) <= element < 1 << (bits if kind == raw.CUDNN_TYPE_VOID_PTR else bits - 1):
            raise ValueError(f"{name}: {element} does not fit {wanted}")
    if not good:
        raise TypeError(f"{name} takes {wanted}, {element!r} given")
    return element
