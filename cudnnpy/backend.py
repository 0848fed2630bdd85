"""Descriptors of the backend (graph) API with typed attributes: `d[raw.CUDNN_ATTR_TENSOR_UNIQUE_ID] = 1`.

The type of every attribute comes from the generated table (raw.attribute_types), so that a value of a wrong type or
count is rejected, with the attribute's name, before C is called. One class serves every kind of descriptor::

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
from functools import lru_cache
from typing import Any, TypeAlias

from cudnnpy import raw
from cudnnpy._checks.option_values import as_elements, check_integer, error_repr
from cudnnpy._checks.public_dir import complete_module
from cudnnpy._core.owned import Owned
from cudnnpy._core.values import check_attribute, integer
from cudnnpy.handle import Handle
from cudnnpy.raw import _api
from cudnnpy.typing import SupportsToList

__all__ = ["Descriptor", "Element", "Value"]

Element: TypeAlias = "float | Descriptor | Handle | SupportsToList | ctypes._SimpleCData[Any]"
"""One element of an attribute: a bool, a number (of NumPy too), an enumerator, a descriptor, a handle or a ctypes number."""

Value: TypeAlias = "str | Element | Sequence[Element | Sequence[int]]"
"""The value of an attribute: text, one element, or a sequence of elements or of (numerator, denominator) pairs."""

_HOLDERS = (raw.CUDNN_TYPE_BACKEND_DESCRIPTOR, raw.CUDNN_TYPE_HANDLE)
_POINTER_TYPES = (*_HOLDERS, raw.CUDNN_TYPE_VOID_PTR)
_MAX_FLOAT32 = 3.4028234663852886e38
_FLOAT_TYPES = (raw.CUDNN_TYPE_FLOAT, raw.CUDNN_TYPE_DOUBLE)
_MAX_ELEMENTS = 1 << 16  # of an attribute: more than cuDNN needs

# cuDNN copies the C++ std::vector at the address that is the value of these.
_UNSETTABLE = {raw.CUDNN_ATTR_VARIANT_PACK_OVERRIDE_SHAPES, raw.CUDNN_ATTR_VARIANT_PACK_OVERRIDE_STRIDES}
# cuDNN reads the value at an address on the host when these are set.
_BY_VALUE = {raw.CUDNN_ATTR_TENSOR_CONSTANT_VALUE, raw.CUDNN_ATTR_OPERATION_REDUCTION_INIT_VALUES}
_UNREADABLE = {raw.CUDNN_ATTR_OPERATION_CONCAT_INPUT_DESCS}  # reading it ends the process with cuDNN 9.28
# An attribute that can be read as soon as a descriptor of the kind is finalized.
_READABLE: dict[int, int] = {
    raw.CUDNN_BACKEND_ENGINE_DESCRIPTOR: raw.CUDNN_ATTR_ENGINE_GLOBAL_INDEX,
    raw.CUDNN_BACKEND_ENGINECFG_DESCRIPTOR: raw.CUDNN_ATTR_ENGINECFG_ENGINE,
    raw.CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR: raw.CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
    raw.CUDNN_BACKEND_TENSOR_DESCRIPTOR: raw.CUDNN_ATTR_TENSOR_DATA_TYPE,
}
# Descriptors whose attributes are set by the caller, not made by the library.
_PLAIN_KINDS = {raw.CUDNN_BACKEND_TENSOR_DESCRIPTOR, *_api.ATTRIBUTE_KINDS[raw.CUDNN_ATTR_OPERATIONGRAPH_OPS]}


class Descriptor(Owned[raw.cudnnBackendDescriptor_t]):
    """One cudnnBackendDescriptor_t of any kind.

    The descriptor refers to the last value of each attribute. C functions: cudnnBackendCreateDescriptor,
    cudnnBackendSetAttribute, cudnnBackendFinalize, cudnnBackendGetAttribute, cudnnBackendDestroyDescriptor.

    Parameters
    ----------
    kind : cudnnBackendDescriptorType_t
        The kind of descriptor.
    attributes : mapping or None
        Values by attribute (cudnnBackendAttributeName_t): the descriptor is set and finalized at once. Attributes that
        are None are left out. Without a mapping the descriptor stays open, for `d[attribute] = value` and finalize().

    Raises
    ------
    TypeError
        If a value has another type than its attribute, or is a descriptor of another kind.
    ValueError
        If a value does not fit, or an attribute is missing without which cuDNN would end the process.
    StatusError
        If cuDNN reports an error.

    Examples
    --------
    >>> from cudnnpy import backend, raw
    >>> tensor = backend.Descriptor(raw.CUDNN_BACKEND_TENSOR_DESCRIPTOR)
    >>> tensor.set(raw.CUDNN_ATTR_TENSOR_DIMENSIONS, (8, 64, 56, 56))
    >>> tensor.close()
    """

    _create = "cudnnBackendCreateDescriptor"
    _destroy = "cudnnBackendDestroyDescriptor"

    def __init__(self, kind: int, attributes: Mapping[int, Value | None] | None = None) -> None:
        if isinstance(kind, IntEnum | str) and not isinstance(kind, raw.cudnnBackendDescriptorType_t):
            text = "kind must be a cudnnBackendDescriptorType_t, such as raw.CUDNN_BACKEND_TENSOR_DESCRIPTOR; got "
            raise TypeError(text + error_repr(kind))
        if not (attributes is None or isinstance(attributes, Mapping)):
            raise TypeError(
                f"attributes must be None or a mapping of attributes to values; got {error_repr(attributes)}"
            )
        self._kind = integer(kind, "kind")
        self._finalized = False
        # Elements that C may point to, by attribute: the last accepted and the last rejected ones
        self._held: dict[int, list[tuple[Any, ...]]] = {}
        self._pointers: dict[int, tuple[Any, ...]] = {}  # closed or not, these C objects outlive this one
        with self._created(self._kind):
            if attributes is not None:
                for attribute, value in attributes.items():
                    if value is not None:
                        self.set(attribute, value)
                self.finalize()

    @property
    def kind(self) -> int:
        """The cudnnBackendDescriptorType_t, as it was passed."""
        return self._kind

    def __setitem__(self, attribute: int, value: Value) -> None:
        self.set(attribute, value)

    def __getitem__(self, attribute: int) -> Any:
        """Return one value if the header states a count of one, text for characters, else a tuple."""
        values = self.get(attribute)
        if isinstance(values, str) or attribute not in _api.SINGLE_ATTRIBUTES:
            return values
        return values[0] if len(values) == 1 else values

    def set(self, attribute: int, value: Value, kind: int | None = None) -> None:
        """Set an attribute. C function: cudnnBackendSetAttribute.

        Parameters
        ----------
        attribute : cudnnBackendAttributeName_t
            The attribute.
        value : Value
            One element, a sequence of elements or of (numerator, denominator) pairs, or text. An address on the device is not
            checked. CUDNN_ATTR_TENSOR_CONSTANT_VALUE takes the constant as a number of ctypes of the tensor's data type, such
            as ctypes.c_float(0.5).
        kind : cudnnBackendAttributeType_t or None
            The type of the attribute, if it has several. None is the usual one.

        Raises
        ------
        TypeError, ValueError
            If the value has another type than the attribute, or does not fit.
        StatusError
            If cuDNN rejects the value.
        """
        name, kind = _name_and_kind(attribute, kind)
        if attribute in _UNSETTABLE:
            raise ValueError(f"attribute must be one that Python can set; got {name}, which holds an object of C++")
        given, values = _as_address(name, value) if attribute in _BY_VALUE else _as_values(name, kind, value)
        check_attribute(name, attribute, values)
        if attribute in _api.SINGLE_ATTRIBUTES and len(values) != 1:
            raise ValueError(f"{name} must have one element; got {len(values)}")
        if kind == raw.CUDNN_TYPE_BACKEND_DESCRIPTOR:
            for child in given:
                _check_kind(name, attribute, child.kind)
        if kind in (raw.CUDNN_TYPE_BACKEND_DESCRIPTOR, raw.CUDNN_TYPE_HANDLE):
            self._pointers[int(attribute)] = tuple(element.pointer for element in given)
        array = (_element_type(kind) * len(values))(*values)
        held = self._held.setdefault(int(attribute), [(), ()])
        held[1] = given
        raw.call("cudnnBackendSetAttribute", self.pointer, attribute, kind, len(values), array)
        held[:] = given, ()

    def finalize(self) -> None:
        """Finalize the descriptor: cuDNN checks it, and it cannot be set afterwards. C function: cudnnBackendFinalize.

        Raises
        ------
        ValueError
            If an attribute is missing without which cuDNN would end the process.
        StatusError
            If cuDNN rejects the descriptor.
        """
        self._check_complete()
        raw.call("cudnnBackendFinalize", self.pointer)
        self._finalized = True

    def get(self, attribute: int, kind: int | None = None) -> Any:
        """Return an attribute as a tuple of its elements, or as text. C function: cudnnBackendGetAttribute.

        Attributes that hold descriptors are read with `children`.

        Parameters
        ----------
        attribute : cudnnBackendAttributeName_t
            The attribute.
        kind : cudnnBackendAttributeType_t or None
            The type of the attribute, if it has several. None is the usual one.
        """
        name, kind = _name_and_kind(attribute, kind)
        if kind == raw.CUDNN_TYPE_BACKEND_DESCRIPTOR:
            raise TypeError(f"attribute must hold values; got {name}, which holds descriptors. Read it with children()")
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
        """Return the descriptors of an attribute, as new ones of a kind. C function: cudnnBackendGetAttribute.

        Parameters
        ----------
        attribute : cudnnBackendAttributeName_t
            The attribute.
        kind : cudnnBackendDescriptorType_t
            The kind of the descriptors.
        limit : int or None
            The largest number of descriptors. None is all of them.
        """
        kinds = raw.CUDNN_TYPE_BACKEND_DESCRIPTOR
        name, _ = _name_and_kind(attribute, kinds)
        _check_kind(name, attribute, integer(kind, "kind"))
        if attribute in _UNREADABLE:
            raise ValueError(f"attribute must be one that cuDNN can read back; got {name}")
        count = c_int64(0 if limit is None else check_integer("limit", limit, 0, _MAX_ELEMENTS))
        if self._kind in _PLAIN_KINDS:  # cuDNN 9.28 returns too many, and follows pointers that were not set
            held = len(self._held.get(attribute, ((), ()))[0])
            if not held:
                raise ValueError(f"{name} must be set by this object before it is read; got nothing")
            count.value = held if limit is None else min(limit, held)
        elif limit is None:
            raw.call("cudnnBackendGetAttribute", self.pointer, attribute, kinds, 0, byref(count), None)
        found = [Descriptor(kind) for _ in range(count.value)]
        if not found:
            return []
        array = (ctypes.c_void_p * len(found))(*(child.address for child in found))
        raw.call("cudnnBackendGetAttribute", self.pointer, attribute, kinds, len(found), byref(count), array)
        for unused in found[count.value :]:
            unused.close()
        for child in found[: count.value]:
            child._finalized = True
        return found[: count.value]

    def _check_complete(self) -> None:
        """Raise ValueError for missing attributes that cuDNN does not check, and that would end the process."""
        if self._finalized:
            return
        accepted = self._accepted()
        for condition, alternatives in _api.REQUIRED_ATTRIBUTES.get(self._kind, ()):
            if not _applies(condition, accepted):
                continue
            found = [attribute for attribute in alternatives if attribute in accepted]
            if not found:
                names = " or ".join(raw.cudnnBackendAttributeName_t(attribute).name for attribute in alternatives)
                kind = f"a {_kind_name(self._kind)}{_condition_text(condition)}"
                raise ValueError(f"{names} must be set before finalize(); got nothing ({kind})")
            for attribute in found:
                if any(isinstance(child, Descriptor) and not child._is_finalized() for child in accepted[attribute]):
                    raise ValueError(f"{_known(attribute, None)[0]} must be a finalized descriptor; got an open one")
        mode = accepted.get(raw.CUDNN_ATTR_OPERATIONGRAPH_MODE, (None,))[0]
        if mode in _api.MODE_OPERATIONS:
            wanted, condition = _api.MODE_OPERATIONS[mode]
            operations = accepted.get(raw.CUDNN_ATTR_OPERATIONGRAPH_OPS, ())
            if not any(one.kind == wanted and _applies(condition, one._accepted()) for one in operations):
                raise ValueError(
                    f"CUDNN_ATTR_OPERATIONGRAPH_OPS must have a {_kind_name(wanted)}{_condition_text(condition)} "
                    f"for the mode {raw.cudnnBackendOperationGraphMode_t(mode).name}; got none"
                )

    def _accepted(self) -> dict[int, tuple[Any, ...]]:
        """Return the elements that cuDNN accepted, by attribute."""
        return {attribute: as_elements for attribute, (as_elements, _) in self._held.items() if as_elements}

    def _is_finalized(self) -> bool:
        """Return whether the descriptor is finalized, possibly by `cudnnpy.raw`.

        An attribute of an open descriptor cannot be read.
        """
        if not self._finalized:
            attribute = _READABLE[self._kind]
            count, (kind, *_) = c_int64(), raw.attribute_types(attribute)
            get = raw.bound("cudnnBackendGetAttribute")
            self._finalized = get(self.pointer, attribute, kind, 0, byref(count), None) == raw.CUDNN_STATUS_SUCCESS
        return self._finalized


def _applies(condition: tuple[tuple[int, int | None], ...], accepted: dict[int, tuple[Any, ...]]) -> bool:
    """Return whether attributes have the values of a condition. None is any value."""
    return all(attribute in accepted and value in (None, *accepted[attribute]) for attribute, value in condition)


def _condition_text(condition: tuple[tuple[int, int | None], ...]) -> str:
    terms = (raw.cudnnBackendAttributeName_t(at).name + f" {value}" * (value is not None) for at, value in condition)
    return f" with {' and '.join(terms)}" if condition else ""


def _kind_name(kind: int) -> str:
    try:
        return raw.cudnnBackendDescriptorType_t(kind).name
    except ValueError:  # of a release newer than the headers
        return f"descriptor kind {kind}"


def _check_kind(name: str, attribute: int, kind: int) -> None:
    """Raise TypeError for a descriptor of another kind than the attribute holds, which cuDNN would not notice."""
    kinds = _api.ATTRIBUTE_KINDS[attribute]
    if kind not in kinds:
        wanted = _kind_name(kinds[0]) if len(kinds) == 1 else "CUDNN_BACKEND_OPERATION_*_DESCRIPTOR"
        raise TypeError(f"{name} must be a {wanted}; got a {_kind_name(kind)}")


def _name_and_kind(attribute: int, kind: int | None) -> tuple[str, int]:
    """Return an attribute's name and its type, the usual one if `kind` is None.

    Raises ValueError for an unknown attribute, TypeError for a type that it does not have.
    """
    if not isinstance(attribute, int) or isinstance(attribute, bool):
        raise TypeError(f"attribute must be a cudnnBackendAttributeName_t; got {error_repr(attribute)}")
    if not (kind is None or isinstance(kind, int)):
        raise TypeError(f"kind must be a cudnnBackendAttributeType_t; got {error_repr(kind)}")
    return _known(attribute, kind)


@lru_cache(maxsize=None, typed=True)
def _known(attribute: int, kind: int | None) -> tuple[str, int]:
    if isinstance(attribute, IntEnum) and not isinstance(attribute, raw.cudnnBackendAttributeName_t):
        raise TypeError(f"attribute must be a cudnnBackendAttributeName_t; got {error_repr(attribute)}")
    try:
        name = raw.cudnnBackendAttributeName_t(attribute).name
    except ValueError:
        raise ValueError(f"attribute must be a cudnnBackendAttributeName_t; got {error_repr(attribute)}") from None
    kinds = raw.attribute_types(attribute)
    if kind is not None and kind not in kinds:
        allowed = " or ".join(raw.cudnnBackendAttributeType_t(k).name for k in kinds)
        raise TypeError(f"kind must be {allowed} for {name}; got {error_repr(kind)}")
    return name, kinds[0] if kind is None else kind


def _as_address(name: str, value: Any) -> tuple[tuple[Any, ...], list[Any]]:
    """Return a number of ctypes and its address. Raises TypeError for anything else: an address would be followed."""
    if not isinstance(value, ctypes._SimpleCData) or isinstance(value, ctypes.c_void_p):
        raise TypeError(f"{name} must be a number of ctypes, such as ctypes.c_float(0.5); got {error_repr(value)}")
    return (value,), [ctypes.addressof(value)]


def _element_type(kind: int) -> Any:
    return ctypes.c_void_p if kind in _POINTER_TYPES else raw.ctype(_api.ATTRIBUTE_C_TYPES[kind])


def _as_values(name: str, kind: int, value: Any) -> tuple[tuple[Any, ...], list[Any]]:
    """Return the elements as they were passed and as C takes them.

    Raises TypeError or ValueError, naming the attribute, for elements that C cannot take.
    """
    if kind == raw.CUDNN_TYPE_INT64:  # sizes and strides, for which the general rules below take twice as long
        plain = value if type(value) is tuple else (value,)
        if len(plain) <= _MAX_ELEMENTS and all(type(element) is int and element >> 63 in (0, -1) for element in plain):
            return plain, list(plain)
    wanted = raw.cudnnBackendAttributeType_t(kind).name
    if kind == raw.CUDNN_TYPE_CHAR:
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a str ({wanted}); got {error_repr(value)}")
        try:
            text = value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{name} must be a str that UTF-8 can encode; got a lone surrogate at {error.start}"
            ) from None
        if b"\0" in text:
            raise ValueError(f"{name} must be a str without NUL characters; got one at byte {text.index(0)}")
        return (True,), [bytes([byte]) for byte in text + b"\0"]  # not the text, which may be long
    # An object of C is not asked for attributes that it lacks, whose errors would take longer than all else here.
    is_owned = isinstance(value, Owned)
    if not is_owned and hasattr(value, "__len__") and len(value) > _MAX_ELEMENTS:
        raise ValueError(f"{name} must have {_MAX_ELEMENTS} elements at most; got {len(value)}")
    if kind == raw.CUDNN_TYPE_FRACTION:
        fractions = _as_fractions(name, wanted, value)
        return (), fractions
    several = None if is_owned else as_elements(value, _MAX_ELEMENTS)
    several = (value,) if several is None else several
    given = tuple([one if type(one) is int or isinstance(one, Owned) else _plain(one) for one in several])
    return given, [_as_element(name, wanted, kind, element) for element in given]


def _plain(element: Any) -> Any:
    """Return a number of NumPy as a Python number. Anything else stays as it is, and is rejected by name."""
    try:
        return element.item() if hasattr(element, "item") else element
    except (TypeError, ValueError):
        return element


def _as_fractions(name: str, wanted: str, value: Any) -> list[Any]:
    """Return the fractions of one (numerator, denominator), or of a sequence of them."""
    several = isinstance(value, tuple | list) and all(isinstance(pair, tuple | list) for pair in value)
    pairs = value if several else [value]
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"{name} must be (numerator, denominator) pairs ({wanted}); got {error_repr(pair)}")
    return [_api.cudnnFraction_t(*(_as_element(name, wanted, raw.CUDNN_TYPE_INT64, n) for n in pair)) for pair in pairs]


def _as_element(name: str, wanted: str, kind: int, element: Any) -> Any:
    if kind == raw.CUDNN_TYPE_BOOLEAN:
        good = isinstance(element, bool)
    elif kind in _FLOAT_TYPES:
        good = isinstance(element, float | int) and not isinstance(element, bool)
        largest = _MAX_FLOAT32 if kind == raw.CUDNN_TYPE_FLOAT else sys.float_info.max
        if good and largest < abs(element) != math.inf:
            raise ValueError(f"{name} must be a value that fits {wanted}; got {error_repr(element)}")
    elif kind in (raw.CUDNN_TYPE_BACKEND_DESCRIPTOR, raw.CUDNN_TYPE_HANDLE):
        good = isinstance(element, Descriptor if kind == raw.CUDNN_TYPE_BACKEND_DESCRIPTOR else Handle)
        element = element.address if good else element
    else:
        good = isinstance(element, int) and not isinstance(element, bool)
        enum = getattr(_api, _api.ATTRIBUTE_C_TYPES[kind], None)
        if isinstance(element, IntEnum) and isinstance(enum, EnumMeta) and not isinstance(element, enum):
            raise TypeError(f"{name} must be a {enum.__name__} ({wanted}); got {error_repr(element)}")
        bits = 64 if kind in (raw.CUDNN_TYPE_INT64, raw.CUDNN_TYPE_VOID_PTR) else 32
        if good and not -(1 << (bits - 1)) <= element < 1 << (bits if kind == raw.CUDNN_TYPE_VOID_PTR else bits - 1):
            raise ValueError(f"{name} must be a value that fits {wanted}; got {error_repr(element)}")
    if not good:
        raise TypeError(f"{name} must be of type {wanted}; got {error_repr(element)}")
    return element


complete_module(globals())
