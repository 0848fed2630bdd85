"""Backend descriptors: every kind of attribute crosses into C and back; values that do not fit are rejected before."""

from __future__ import annotations

import ctypes
import math
from collections import Counter
from ctypes import c_void_p, cast
from typing import Any

import numpy as np
import pytest
from stand_in_library import LibcudnnFixture

from cudnnpy import backend, raw
from cudnnpy.backend import Descriptor
from cudnnpy.descriptors import TensorDescriptor
from cudnnpy.handle import Handle
from cudnnpy.raw import _api

PAIRS = [
    (attribute, kind)
    for attribute, kinds in _api.ATTRIBUTE_TYPES.items()
    for kind in kinds
]  # fmt: skip
FIRST_OF_KIND = {kind: attribute for attribute, kind in reversed(PAIRS) if attribute not in backend._BY_VALUE}


class Attributes:
    """In place of the library: what cudnnBackendSetAttribute is given, cudnnBackendGetAttribute gives back."""

    def __init__(self) -> None:
        self.held: dict[int, tuple[int, int, bytes]] = {}
        self.counts: Counter[str] = Counter()

    def __call__(self, name: str, *arguments: Any) -> int | None:
        self.counts[name] += 1
        if name == "cudnnBackendSetAttribute":
            _, attribute, kind, count, array = arguments
            self.held[attribute] = kind, count, bytes(array)
        elif name == "cudnnBackendGetAttribute":
            _, attribute, kind, room, count, array = arguments
            held_kind, held_count, held = self.held[attribute]
            assert kind == held_kind
            count._obj.value = held_count
            if array is not None:
                assert room >= held_count
                ctypes.memmove(array, held, len(held))
        else:
            return None  # the real function answers
        return 0


@pytest.fixture
def library(libcudnn: LibcudnnFixture) -> Attributes:
    fake = Attributes()
    libcudnn(fake, real=True)
    return fake


def handle() -> Handle:
    """A Handle with an address, made without a GPU."""
    made = Handle.__new__(Handle)
    made._pointer = cast(c_void_p(0x1230), raw.cudnnHandle_t)
    return made


def samples(kind: int) -> tuple[Any, ...]:
    """Values of an attribute type; each is given to set as it stands."""
    if kind == raw.CUDNN_TYPE_BOOLEAN:
        return True, False
    if kind == raw.CUDNN_TYPE_CHAR:
        return '{"a": "é"}', ""
    if kind == raw.CUDNN_TYPE_INT64:
        return 0, -1, 2**63 - 1, -(2**63)
    if kind == raw.CUDNN_TYPE_INT32:
        return 0, -1, 2**31 - 1, -(2**31)
    if kind == raw.CUDNN_TYPE_VOID_PTR:  # on the device
        return 16, 2**64 - 16
    if kind == raw.CUDNN_TYPE_DOUBLE:
        return 0.1, -2.5, 3
    if kind == raw.CUDNN_TYPE_FLOAT:
        return 0.25, -2.5, 3
    if kind == raw.CUDNN_TYPE_FRACTION:
        return (1, 2), (7, 3)
    return tuple(getattr(_api, _api.ATTRIBUTE_C_TYPES[kind]))[:3]  # an enum


POINTERS = (raw.CUDNN_TYPE_BACKEND_DESCRIPTOR, raw.CUDNN_TYPE_HANDLE)


@pytest.mark.parametrize(
    "kind", sorted(set(FIRST_OF_KIND) - set(POINTERS)), ids=lambda k: raw.cudnnBackendAttributeType_t(k).name
)
def test_a_value_of_every_attribute_type_comes_back(library: Attributes, kind: int) -> None:
    attribute = FIRST_OF_KIND[kind]
    with Descriptor(raw.CUDNN_BACKEND_TENSOR_DESCRIPTOR) as descriptor:
        for value in samples(kind):
            descriptor.set(attribute, value, kind)
            got = descriptor.get(attribute, kind)
            assert got == (value if kind == raw.CUDNN_TYPE_CHAR else (value,))


@pytest.mark.parametrize(
    ("attribute", "kind"),
    [
        (a, k)
        for a, k in PAIRS
        if k not in (*POINTERS, raw.CUDNN_TYPE_CHAR) and a not in backend._UNSETTABLE | backend._BY_VALUE
    ],
)
def test_sequences_come_back_where_there_may_be_several(library: Attributes, attribute: int, kind: int) -> None:
    values = (1, 2) if attribute in _api.ATTRIBUTE_RANGES else samples(kind)[:2]
    with Descriptor(raw.CUDNN_BACKEND_TENSOR_DESCRIPTOR) as descriptor:
        if attribute in _api.SINGLE_ATTRIBUTES:
            with pytest.raises(
                ValueError, match=rf"{raw.cudnnBackendAttributeName_t(attribute).name} must have one element; got 2"
            ):
                descriptor.set(attribute, values, kind)
            assert library.counts["cudnnBackendSetAttribute"] == 0
            descriptor.set(attribute, values[:1], kind)
            assert descriptor.get(attribute, kind) == tuple(values[:1])
            if kind == raw.attribute_types(attribute)[0]:
                assert descriptor[attribute] == values[0]
        else:
            for given in (values, list(values)):
                descriptor.set(attribute, given, kind)
                assert descriptor.get(attribute, kind) == tuple(values)
            descriptor.set(attribute, [], kind)
            assert descriptor.get(attribute, kind) == ()


def test_descriptors_and_handles_go_as_their_addresses_and_live_as_long(library: Attributes) -> None:
    child = Descriptor(raw.CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
    owner = handle()
    with Descriptor(raw.CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) as graph:
        graph[raw.CUDNN_ATTR_OPERATIONGRAPH_HANDLE] = owner
        graph[raw.CUDNN_ATTR_OPERATIONGRAPH_OPS] = [child, child]
        held = {attribute: bytes_ for attribute, (_, _, bytes_) in library.held.items()}
        assert held[raw.CUDNN_ATTR_OPERATIONGRAPH_HANDLE] == (0x1230).to_bytes(8, "little")
        assert held[raw.CUDNN_ATTR_OPERATIONGRAPH_OPS] == child.address.to_bytes(8, "little") * 2
        assert [taken for taken, _ in graph._held.values()] == [(owner,), (child, child)]


def test_a_constant_goes_as_the_address_of_its_value(library: Attributes) -> None:
    half = ctypes.c_float(0.5)
    with Descriptor(raw.CUDNN_BACKEND_TENSOR_DESCRIPTOR) as descriptor:
        descriptor[raw.CUDNN_ATTR_TENSOR_CONSTANT_VALUE] = half
        (_, _, address) = library.held[raw.CUDNN_ATTR_TENSOR_CONSTANT_VALUE]
        assert ctypes.c_float.from_address(int.from_bytes(address, "little")).value == 0.5


WRONG: list[tuple[str, Any, type[Exception]]] = [
    ("CUDNN_ATTR_TENSOR_DIMENSIONS", (1, 2.0), TypeError),
    ("CUDNN_ATTR_TENSOR_DIMENSIONS", (1, True), TypeError),
    ("CUDNN_ATTR_TENSOR_DIMENSIONS", "12", TypeError),
    ("CUDNN_ATTR_TENSOR_DIMENSIONS", (1, 2**63), ValueError),
    ("CUDNN_ATTR_TENSOR_DIMENSIONS", (-(2**63) - 1,), ValueError),
    ("CUDNN_ATTR_TENSOR_UNIQUE_ID", None, TypeError),
    ("CUDNN_ATTR_TENSOR_UNIQUE_ID", (1, 2), ValueError),
    ("CUDNN_ATTR_TENSOR_UNIQUE_ID", (), ValueError),
    ("CUDNN_ATTR_TENSOR_IS_VIRTUAL", 1, TypeError),
    ("CUDNN_ATTR_TENSOR_DATA_TYPE", "float32", TypeError),
    ("CUDNN_ATTR_TENSOR_DATA_TYPE", 2**31, ValueError),
    ("CUDNN_ATTR_TENSOR_DATA_TYPE", raw.CUDNN_CROSS_CORRELATION, TypeError),
    ("CUDNN_ATTR_POINTWISE_ELU_ALPHA", 10**400, ValueError),
    ("CUDNN_ATTR_POINTWISE_ELU_ALPHA", "1", TypeError),
    ("CUDNN_ATTR_POINTWISE_ELU_ALPHA", True, TypeError),
    ("CUDNN_ATTR_ENGINEHEUR_SM_COUNT_TARGET", 2**31, ValueError),
    ("CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS", (2**64,), ValueError),
    ("CUDNN_ATTR_VARIANT_PACK_WORKSPACE", 16.0, TypeError),
    ("CUDNN_ATTR_TENSOR_CONSTANT_VALUE", 3, TypeError),
    ("CUDNN_ATTR_TENSOR_CONSTANT_VALUE", ctypes.c_void_p(16), TypeError),
    ("CUDNN_ATTR_TENSOR_CONSTANT_VALUE", [ctypes.c_float(3.0)], TypeError),
    ("CUDNN_ATTR_OPERATION_REDUCTION_INIT_VALUES", 0, TypeError),
    ("CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION", b"{}", TypeError),
    ("CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH", 0x1230, TypeError),
    ("CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH", "handle", TypeError),
    ("CUDNN_ATTR_OPERATIONGRAPH_OPS", "tensor", TypeError),
    ("CUDNN_ATTR_OPERATIONGRAPH_HANDLE", "descriptor", TypeError),
]


@pytest.mark.parametrize(("name", "value", "kind"), WRONG)
def test_what_does_not_fit_is_refused_before_c_is_called(
    library: Attributes, name: str, value: Any, kind: type[Exception]
) -> None:
    owners = {"handle": handle, "tensor": lambda: TensorDescriptor((1, 1, 1, 1)), "descriptor": _descriptor}
    given = owners[value]() if "OPERATION" in name and isinstance(value, str) else value
    with Descriptor(raw.CUDNN_BACKEND_TENSOR_DESCRIPTOR) as descriptor:
        with pytest.raises(kind, match=name):
            descriptor[getattr(raw, name)] = given
        assert library.counts["cudnnBackendSetAttribute"] == 0


def _descriptor() -> Descriptor:
    return Descriptor(raw.CUDNN_BACKEND_TENSOR_DESCRIPTOR)


@pytest.mark.parametrize("value", [3, (1, 2, 3), [(1, 2), 3], ((1, 2.5),), "1/2", (1,)])
def test_fractions_are_pairs_of_integers(library: Attributes, value: Any) -> None:
    with Descriptor(raw.CUDNN_BACKEND_RESAMPLE_DESCRIPTOR) as descriptor:
        with pytest.raises(TypeError, match=r"CUDNN_ATTR_RESAMPLE_STRIDES must be .*CUDNN_TYPE_FRACTION"):
            descriptor.set(raw.CUDNN_ATTR_RESAMPLE_STRIDES, value, raw.CUDNN_TYPE_FRACTION)
        assert library.counts["cudnnBackendSetAttribute"] == 0


def test_an_attribute_type_that_the_attribute_has_not_is_refused(library: Attributes) -> None:
    with (
        Descriptor(raw.CUDNN_BACKEND_POINTWISE_DESCRIPTOR) as descriptor,
        pytest.raises(
            TypeError,
            match=r"kind must be CUDNN_TYPE_DOUBLE or.*; got <cudnnBackendAttributeType_t\.CUDNN_TYPE_INT64: 3>",
        ),
    ):
        descriptor.set(raw.CUDNN_ATTR_POINTWISE_ELU_ALPHA, 1.0, raw.CUDNN_TYPE_INT64)
    with Descriptor(raw.CUDNN_BACKEND_POINTWISE_DESCRIPTOR) as descriptor:
        with pytest.raises(TypeError, match=r"kind must be CUDNN_TYPE_.* for CUDNN_ATTR_POINTWISE_ELU_ALPHA; got"):
            descriptor.get(raw.CUDNN_ATTR_POINTWISE_ELU_ALPHA, raw.CUDNN_TYPE_INT64)
        for use in (descriptor.get, lambda unknown: descriptor.set(unknown, 1)):
            with pytest.raises(ValueError, match=r"attribute must be a cudnnBackendAttributeName_t.*; got 99999"):
                use(99999)
        with pytest.raises(
            ValueError, match=r"POINTWISE_ELU_ALPHA must be a value that fits CUDNN_TYPE_FLOAT; got 1e\+300"
        ):
            descriptor.set(raw.CUDNN_ATTR_POINTWISE_ELU_ALPHA, 1e300, raw.CUDNN_TYPE_FLOAT)
        descriptor.set(raw.CUDNN_ATTR_POINTWISE_ELU_ALPHA, 1e300, raw.CUDNN_TYPE_DOUBLE)
        descriptor.set(raw.CUDNN_ATTR_POINTWISE_ELU_ALPHA, -math.inf, raw.CUDNN_TYPE_FLOAT)
    assert library.counts["cudnnBackendSetAttribute"] == 2
    assert library.counts["cudnnBackendGetAttribute"] == 0


@pytest.mark.parametrize("value", [range(1, 4), np.array([1, 2, 3]), [np.int64(1), 2, 3]])
def test_sequences_of_any_kind_are_taken(library: Attributes, value: Any) -> None:
    with Descriptor(raw.CUDNN_BACKEND_TENSOR_DESCRIPTOR) as descriptor:
        descriptor[raw.CUDNN_ATTR_TENSOR_DIMENSIONS] = value
        assert descriptor[raw.CUDNN_ATTR_TENSOR_DIMENSIONS] == (1, 2, 3)


def test_an_attribute_set_to_none_is_left_out(library: Attributes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Descriptor, "finalize", lambda self: None)
    attributes: dict[int, Any] = {raw.CUDNN_ATTR_TENSOR_UNIQUE_ID: 0, raw.CUDNN_ATTR_TENSOR_IS_VIRTUAL: None}
    with Descriptor(raw.CUDNN_BACKEND_TENSOR_DESCRIPTOR, attributes):
        assert set(library.held) == {raw.CUDNN_ATTR_TENSOR_UNIQUE_ID}
