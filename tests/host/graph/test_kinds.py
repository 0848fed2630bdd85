"""The table of kinds: its names are cuDNN's, and the methods of Graph add what the rows say."""

from __future__ import annotations

import inspect
from enum import EnumMeta
from typing import Any

import pytest

from cudnnpy import Graph, TensorSpec, raw
from cudnnpy.graph.kinds import DTYPE, FLAG, INTEGER, INTEGERS, KINDS, NUMBER
from cudnnpy.raw import _api

TYPES = {
    DTYPE: {raw.CUDNN_TYPE_DATA_TYPE},
    INTEGERS: {raw.CUDNN_TYPE_INT64},
    INTEGER: {raw.CUDNN_TYPE_INT64},
    NUMBER: {raw.CUDNN_TYPE_FLOAT, raw.CUDNN_TYPE_DOUBLE},
    FLAG: {raw.CUDNN_TYPE_BOOLEAN},
}
# The methods of Graph, and the rows that they add. Convolution adds its gradients without Graph.
METHODS = {
    "convolution": "convolution_forward",
    "pointwise": "pointwise",
    "reduction": "reduction",
    "matmul": "matmul",
    "resample": "resample_fwd",
    "normalization": "norm_forward",
    "normalization_backward": "norm_backward",
}


def attribute(name: str) -> int:
    found: int = getattr(raw, name)
    return found


@pytest.mark.parametrize("name", KINDS)
def test_the_names_of_a_row_are_cudnns(name: str) -> None:
    kind = KINDS[name]
    assert isinstance(getattr(raw, f"CUDNN_BACKEND_OPERATION_{kind.descriptor}_DESCRIPTOR"), int)
    for end in (*kind.operands.values(), *kind.results.values()):
        number = attribute(kind.attribute_prefix + end.rstrip("?*"))
        assert set(_api.ATTRIBUTE_KINDS[number]) == {raw.CUDNN_BACKEND_TENSOR_DESCRIPTOR}
    if kind.nested:
        (held,) = _api.ATTRIBUTE_KINDS[attribute(kind.attribute_prefix + kind.nested_attribute)]
        assert held == getattr(raw, f"CUDNN_BACKEND_{kind.nested}_DESCRIPTOR")
    prefixes = {kind.attribute_prefix: kind.options, f"CUDNN_ATTR_{kind.nested}_": kind.nested_options}
    for prefix, options in prefixes.items():
        for option in options.values():
            if not option.attribute:
                continue
            types = set(raw.attribute_types(attribute(prefix + option.attribute)))
            if isinstance(option.type, EnumMeta):
                ((usual, *_),) = (raw.attribute_types(attribute(prefix + option.attribute)),)
                assert getattr(_api, _api.ATTRIBUTE_C_TYPES[usual]) is option.type
            else:
                assert TYPES[option.type] <= types


@pytest.mark.parametrize("name", KINDS)
def test_what_a_row_requires_of_a_descriptor_is_what_the_headers_say(name: str) -> None:
    """No row leaves out an operand without which cuDNN would end the process."""
    kind = KINDS[name]
    number = getattr(raw, f"CUDNN_BACKEND_OPERATION_{kind.descriptor}_DESCRIPTOR")
    ours = {
        attribute(kind.attribute_prefix + end.rstrip("?*")) for end in (*kind.operands.values(), *kind.results.values())
    }
    ours |= {
        attribute(kind.attribute_prefix + option.attribute) for option in kind.options.values() if option.attribute
    }
    ours |= {attribute(kind.attribute_prefix + kind.nested_attribute)} if kind.nested else set()
    for _, alternatives in _api.REQUIRED_ATTRIBUTES.get(number, ()):
        assert ours & set(alternatives)


def added(method: str) -> Any:
    """The operation that a method adds, with every optional argument that a row has an operand for."""
    g = Graph()
    x, w, one = (g.tensor(n, TensorSpec(s)) for n, s in (("x", (2, 4, 8, 8)), ("w", (4, 4, 3, 3)), ("s", (1, 4, 1, 1))))
    other = g.tensor("r", TensorSpec((1, 4, 1, 1)))
    {
        "convolution": lambda: g.convolution(x, w),
        "pointwise": lambda: g.pointwise("binary_select", x, x, x),
        "reduction": lambda: g.reduction("add", x, (1,)),
        "matmul": lambda: g.matmul(x, x),
        "resample": lambda: g.resample("maxpool", x, 2),
        "normalization": lambda: g.normalization("batch_norm", x, one, one, 1e-5, running=(other, other)),
        "normalization_backward": lambda: g.normalization_backward("batch_norm", x, x, one, one, one),
    }[method]()
    return g._operations[-1]


@pytest.mark.parametrize("method", METHODS)
def test_a_method_adds_what_its_row_says(method: str) -> None:
    operation, kind = added(method), KINDS[METHODS[method]]
    assert operation.kind == METHODS[method]
    assert {name for name, _ in operation.operands} <= kind.operands.keys()
    assert {name for name, _ in operation.results} <= kind.results.keys()
    required = {name for name, end in kind.operands.items() if not end.endswith("?")}
    assert required <= {name for name, _ in operation.operands}
    assert dict(operation.options) == kind.complete(dict(operation.options))


def test_every_row_but_a_convolutions_gradients_has_a_method() -> None:
    gradients = {"convolution_backward_data", "convolution_backward_filter"}
    assert set(METHODS.values()) == KINDS.keys() - gradients
    others = {"tensor", "number", "output", "plan", "problem", "run", "executable"}
    methods = {n for n, value in vars(Graph).items() if inspect.isfunction(value) and not n.startswith("_")}
    assert methods - others == METHODS.keys()
