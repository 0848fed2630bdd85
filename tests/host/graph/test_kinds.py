"""The table of kinds: its names are cuDNN's, and the methods of Graph add what the rows say."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from enum import EnumMeta
from typing import Any

import numpy as np
import pytest

from cudnnpy import Graph, TensorSpec, raw, reference
from cudnnpy._core.dtypes import numpy_dtype
from cudnnpy.errors import FunctionNotAvailableError
from cudnnpy.graph.descriptors import check_release
from cudnnpy.graph.graph_json import graph_from_json, graph_to_json
from cudnnpy.graph.kinds import DTYPE, FLAG, FRACTIONS, INTEGER, INTEGERS, KINDS, NUMBER
from cudnnpy.graph.operation_graph import canonical_graph
from cudnnpy.raw import _api

TYPES = {
    DTYPE: {raw.CUDNN_TYPE_DATA_TYPE},
    INTEGERS: {raw.CUDNN_TYPE_INT64},
    INTEGER: {raw.CUDNN_TYPE_INT64},
    NUMBER: {raw.CUDNN_TYPE_FLOAT, raw.CUDNN_TYPE_DOUBLE},
    FLAG: {raw.CUDNN_TYPE_BOOLEAN},
    FRACTIONS: {raw.CUDNN_TYPE_INT64, raw.CUDNN_TYPE_FRACTION},
}
SHORTER = {INTEGERS: raw.CUDNN_TYPE_INT32, INTEGER: raw.CUDNN_TYPE_INT32}  # the type of some attributes of integers
# The methods of Graph whose names are not their kinds'
METHODS = {
    "convolution": "convolution_forward",
    "resample": "resample_fwd",
    "resample_backward": "resample_bwd",
    "normalization": "norm_forward",
    "normalization_backward": "norm_backward",
    "rope": "rope_fwd",
    "rope_backward": "rope_bwd",
    "sdpa": "sdpa_fwd",
    "sdpa_backward": "sdpa_bwd",
    "moe_grouped_matmul_backward": "moe_grouped_matmul_bwd",
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
            types = set(raw.attribute_types(attribute(option.attribute_name(prefix))))
            if isinstance(option.type, EnumMeta):
                ((usual, *_),) = (raw.attribute_types(attribute(option.attribute_name(prefix))),)
                assert getattr(_api, _api.ATTRIBUTE_C_TYPES[usual]) is option.type
            else:
                assert TYPES[option.type] & types or SHORTER.get(option.type) in types


@pytest.mark.parametrize("name", KINDS)
def test_what_a_row_requires_of_a_descriptor_is_what_the_headers_say(name: str) -> None:
    """No row leaves out an operand without which cuDNN would end the process."""
    kind = KINDS[name]
    number = getattr(raw, f"CUDNN_BACKEND_OPERATION_{kind.descriptor}_DESCRIPTOR")
    ours = {
        attribute(kind.attribute_prefix + end.rstrip("?*")) for end in (*kind.operands.values(), *kind.results.values())
    }
    ours |= {
        attribute(option.attribute_name(kind.attribute_prefix)) for option in kind.options.values() if option.attribute
    }
    ours |= {attribute(kind.attribute_prefix + kind.nested_attribute)} if kind.nested else set()
    for _, alternatives in _api.REQUIRED_ATTRIBUTES.get(number, ()):
        assert ours & set(alternatives)


def spec(*shape: int, dtype: Any = "float16") -> TensorSpec:
    return TensorSpec(shape, dtype)


def of_images(g: Graph) -> dict[str, Callable[[], Any]]:
    x, w, y = (g.tensor(n, spec(*s)) for n, s in (("x", (2, 4, 8, 8)), ("w", (4, 4, 3, 3)), ("y", (2, 4, 6, 6))))
    s, v = g.tensor("s", spec(1, 4, 1, 1, dtype="float32")), g.tensor("v", spec(1, 4, 1, 1, dtype="float32"))
    pooled = g.tensor("pooled", spec(2, 4, 4, 4))
    return {
        "convolution": lambda: g.convolution(x, w),
        "convolution_backward_data": lambda: g.convolution_backward_data(y, w, (2, 4, 8, 8)),
        "convolution_backward_filter": lambda: g.convolution_backward_filter(y, x, (4, 4, 3, 3)),
        "pointwise": lambda: g.pointwise("binary_select", x, x, g.pointwise("cmp_gt", x, x)),
        "reduction": lambda: g.reduction("add", x, (1,), deterministic=True),
        "resample": lambda: g.resample("maxpool", x, 2),
        "resample_backward": lambda: g.resample_backward("avgpool_include_padding", pooled, (2, 4, 8, 8), 2),
        "normalization": lambda: g.normalization("batch_norm", x, s, s, 1e-5, running=(v, v)),
        "normalization_backward": lambda: g.normalization_backward("batch_norm", x, x, s, s, s),
        "gen_stats": lambda: g.gen_stats(x),
        "bn_finalize": lambda: g.bn_finalize(s, v, s, s, 1e-5, 128, running=(v, v)),
        "bn_bwd_weights": lambda: g.bn_bwd_weights(x, x, s, v, s),
        "concat": lambda: g.concat([x, x], -1),
        "block_scale_quantize": lambda: g.block_scale_quantize(x, 4),
    }


def of_sequences(g: Graph) -> dict[str, Callable[[], Any]]:
    q, k, v, o = (g.tensor(n, spec(2, 4, 16, 8)) for n in "qkvo")
    stats = g.tensor("stats", spec(2, 4, 16, 1, dtype="float32"))
    lengths, table = (
        g.tensor("lengths", spec(2, 1, 1, 1, dtype="int32")),
        g.tensor("t", spec(2, 1, 2, 1, dtype="int32")),
    )
    token, weight = g.tensor("token", spec(1, 32, 8)), g.tensor("weight", spec(4, 8, 6))
    first, doutput = g.tensor("first", spec(4, 1, 1, dtype="int32")), g.tensor("doutput", spec(1, 32, 6))
    bound, freqs = g.number(3, dtype="int32"), g.tensor("freqs", spec(16, 1, 1, 8, dtype="float32"))
    return {
        "matmul": lambda: g.matmul(token, g.tensor("b", spec(1, 8, 8)), m=g.tensor("m", spec(1, 1, 1, dtype="int32"))),
        "reshape": lambda: g.reshape(q, (2, 4, 8, 16), mode="logical"),
        "transpose": lambda: g.transpose(q, (0, 2, 1, 3)),
        "slice": lambda: g.slice(q, (0, 0, 4, 0), (2, 4, 16, 8), (1, 1, 2, 1)),
        "signal": lambda: g.signal("wait", lengths, 1, q),
        "rng": lambda: g.rng((2, 4, 16, 16), 7, 0, probability=0.5),
        "paged_cache_load": lambda: g.paged_cache_load(k, lengths, table),
        "block_scale_dequantize": lambda: g.block_scale_dequantize(q, stats, (1, 8)),
        "expand_band_matrix": lambda: g.expand_band_matrix(q, (2, 4, 16, 32), 4, 3, 3, pad_value=0.0),
        "contract_band_matrix": lambda: g.contract_band_matrix(q, 1, 1, 3),
        "diagonal_band_mask": lambda: g.diagonal_band_mask(q, g.number(-1.0), comparison="cmp_ge", left_bound=bound),
        "softmax": lambda: g.softmax(q),
        "rope": lambda: g.rope(q, freqs, output_scale=2.0, rope_dim=4),
        "rope_backward": lambda: g.rope_backward(q, freqs),
        "sdpa": lambda: g.sdpa(q, k, v, 0.5, stats=True, seq_len_q=lengths, seq_len_kv=lengths),
        "sdpa_backward": lambda: g.sdpa_backward(o, q, k, v, o, stats, 0.5),
        "moe_grouped_matmul": lambda: g.moe_grouped_matmul(token, weight, first),
        "moe_grouped_matmul_backward": lambda: g.moe_grouped_matmul_backward(doutput, token, first),
    }


ADDED = {name: make for make in (of_images, of_sequences) for name in make(Graph())}


@pytest.mark.parametrize("method", ADDED)
def test_a_method_adds_what_its_row_says(method: str) -> None:
    g = Graph()
    made = ADDED[method](g)[method]()
    operation, name = g._operations[-1], METHODS.get(method, method)
    kind = KINDS[name]
    assert operation.kind == name
    assert {name for name, _ in operation.operands} <= kind.operands.keys()
    assert {name for name, _ in operation.results} <= kind.results.keys()
    assert {name for name, end in kind.operands.items() if not end.endswith("?")} <= {n for n, _ in operation.operands}
    assert dict(operation.options) == kind.complete(dict(operation.options))
    assert len(operation.results) == (len(made) if isinstance(made, tuple) else 1)


@pytest.mark.parametrize("method", ADDED)
def test_a_graph_of_any_kind_comes_back_from_its_text(method: str) -> None:
    g = Graph()
    made = ADDED[method](g)[method]()
    for at, node in enumerate(made if isinstance(made, tuple) else (made,)):
        g.output(f"result{at}", node)
    graph = canonical_graph(g._operation_graph({}))[0]
    text = json.dumps(graph_to_json(graph))
    assert graph_from_json(json.loads(text)) == graph


@pytest.mark.parametrize("method", ADDED)
def test_the_reference_evaluates_a_graph_of_any_kind(method: str) -> None:
    g, random = Graph(), np.random.default_rng(0)
    made = ADDED[method](g)[method]()
    for at, node in enumerate(made if isinstance(made, tuple) else (made,)):
        g.output(f"result{at}", node, node.spec.dtype)
    nodes = [*g.inputs, *(g.outputs if method == "rng" else ())]
    arrays = {node.name: random.random(node.shape).astype(numpy_dtype(node.spec.dtype)) for node in nodes}
    results, allowed = reference.run(g, arrays), reference.tolerance(g, arrays)
    for node in g.outputs:
        assert results[node.name].shape == allowed[node.name].shape == node.shape
        assert results[node.name].dtype.name == node.spec.dtype
        assert (allowed[node.name] >= 0).all()
        largest = np.abs(results[node.name].astype(np.float64)).max()
        assert (allowed[node.name] <= 0.05 * largest + 0.01).all() or method == "block_scale_quantize"


def test_every_row_has_a_method() -> None:
    assert {METHODS.get(method, method) for method in ADDED} == KINDS.keys()
    others = {"tensor", "number", "output", "add", "plan", "problem", "candidates", "run", "check", "executable"}
    methods = {n for n, value in vars(Graph).items() if inspect.isfunction(value) and not n.startswith("_")}
    assert methods - others == ADDED.keys()


def test_every_descriptor_of_an_operation_has_a_row() -> None:
    descriptors = {name for name in dir(raw) if re.fullmatch("CUDNN_BACKEND_OPERATION_[A-Z_]+_DESCRIPTOR", name)}
    assert {kind.descriptor_name for kind in KINDS.values()} == descriptors


def test_what_the_loaded_release_lacks_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    g = Graph()
    g.output("y", g.softmax(g.tensor("x", spec(2, 4, 16, 16))))
    monkeypatch.setattr(raw, "version", lambda: 91900)
    with pytest.raises(
        FunctionNotAvailableError, match=r"softmax needs cuDNN 9.20.0, .*; the loaded release is 9.19.0"
    ):
        check_release(canonical_graph(g._operation_graph({}))[0])
    monkeypatch.setattr(raw, "version", lambda: 92000)
    check_release(canonical_graph(g._operation_graph({}))[0])


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda g, x: g.add("soft_max", x=x), ValueError, r"kind must be one of .*; got 'soft_max'.*softmax"),
        (lambda g, x: g.add("softmax", y=x), TypeError, r"arguments of softmax must be .*x, sink, stats_log2; got 'y'"),
        (lambda g, x: g.add("softmax"), TypeError, r"x must be a node; got none"),
        (lambda g, x: g.add("softmax", x=x, results=("y",)), ValueError, r"results of softmax must be .*stats.*; got 'y'"),
        (lambda g, x: g.add("concat", inputs=(), axis=0), TypeError, r"inputs must be one node or more; got none"),
        (lambda g, x: g.concat([], 0), TypeError, r"inputs must be one node or more; got none"),
        (lambda g, x: g.concat([x, x], 4), ValueError, r"axes must be .*; got \(4,\)"),
        (lambda g, x: g.add("matmul", a=x, b=x, m_override=x), TypeError, r"m_override must be int32; got float16"),
        (lambda g, x: g.matmul(x, x, compute_dtype="int8"), TypeError, r"compute_dtype must be one of .*; got int8"),
        (lambda g, x: g.add("reduction", x=x, op="add"), TypeError, r"axes must be given; got none"),
        (lambda g, x: g.pointwise("gen_index", x), ValueError, r"axis must be one of 0 to 3 for gen_index; got None"),
        (lambda g, x: g.transpose(x, (0, 1, 1, 2)), ValueError, r"permutation must have each of 0 to 3 once"),
        (lambda g, x: g.slice(x, (0, 0, 0, 0), (9, 1, 1, 1)), ValueError, r"start and limit must be a part of x"),
        (lambda g, x: g.reshape(x, (1, 3)), ValueError, r"shape must have as many elements as x"),
        (lambda g, x: g.tensor("r", spec(2, 1), ragged=x), ValueError, r"ragged must have shape \(3, 1\)"),
        (lambda g, x: g.number(0.5, dtype="int32"), TypeError, r"value must be an integer"),
        (lambda g, x: g.number(1e6, dtype="float16"), ValueError, r"value must be a number that fits float16"),
        (lambda g, x: g.sdpa(x, x, x, seq_len_q=x), TypeError, r"seq_len_q must be int32; got float16"),
        (lambda g, x: Graph(algorithm=3), TypeError, r"algorithm must be a cudnnpy.Engine or a Plan"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_and_changes_nothing(call: Any, kind: type[Exception], message: str) -> None:
    g = Graph()
    x = g.tensor("x", spec(2, 4, 16, 16))
    before = g._operation_graph({})
    with pytest.raises(kind, match=message):
        call(g, x)
    assert g._operation_graph({}) == before


def test_the_valid_sizes_of_products_have_one_element_for_each() -> None:
    g = Graph()
    x = g.tensor("x", spec(2, 4, 16, 16))
    assert g.matmul(x, x, m=g.tensor("m", spec(2, 1, 1, 1, dtype="int32"))).shape == (2, 4, 16, 16)
    with pytest.raises(ValueError, match=r"m_override must have shape \(2, 1, 1, 1\)"):
        g.matmul(x, x, m=g.number(3, 3, "int32"))
