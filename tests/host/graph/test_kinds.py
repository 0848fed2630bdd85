"""The table of kinds: its names are cuDNN's, and the methods of Graph add what the rows say."""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Callable
from enum import EnumMeta
from typing import Any

import graph_kinds
import pytest

from cudnnpy import Graph, TensorSpec, raw
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
# The methods of Graph, and the rows that they add
METHODS = {
    "convolution": "convolution_forward",
    "convolution_backward_data": "convolution_backward_data",
    "convolution_backward_filter": "convolution_backward_filter",
    "pointwise": "pointwise",
    "reduction": "reduction",
    "matmul": "matmul",
    "resample": "resample_fwd",
    "resample_backward": "resample_bwd",
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
    for operand in (*kind.operands, *kind.results):
        number = attribute(kind.attribute(operand))
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
    ours = {attribute(kind.attribute(operand)) for operand in (*kind.operands, *kind.results)}
    ours |= {
        attribute(option.attribute_name(kind.attribute_prefix)) for option in kind.options.values() if option.attribute
    }
    ours |= {attribute(kind.attribute_prefix + kind.nested_attribute)} if kind.nested else set()
    for _, alternatives in _api.REQUIRED_ATTRIBUTES.get(number, ()):
        assert ours & set(alternatives)


def spec(*shape: int, dtype: Any = "float16") -> TensorSpec:
    return TensorSpec(shape, dtype)


def of_methods(g: Graph) -> dict[str, Callable[[], Any]]:
    x, w, y = (g.tensor(n, spec(*s)) for n, s in (("x", (2, 4, 8, 8)), ("w", (4, 4, 3, 3)), ("y", (2, 4, 6, 6))))
    s, v = g.tensor("s", spec(1, 4, 1, 1, dtype="float32")), g.tensor("v", spec(1, 4, 1, 1, dtype="float32"))
    pooled, m = g.tensor("pooled", spec(2, 4, 4, 4)), g.tensor("m", spec(2, 1, 1, 1, dtype="int32"))
    return {
        "convolution": lambda: g.convolution(x, w),
        "convolution_backward_data": lambda: g.convolution_backward_data(y, w, (2, 4, 8, 8)),
        "convolution_backward_filter": lambda: g.convolution_backward_filter(y, x, (4, 4, 3, 3)),
        "pointwise": lambda: g.pointwise("binary_select", x, x, g.pointwise("cmp_gt", x, x)),
        "reduction": lambda: g.reduction("add", x, (1,), deterministic=True),
        "matmul": lambda: g.matmul(x, x, m=m, padding_value=0.0),
        "resample": lambda: g.resample("maxpool", x, 2),
        "resample_backward": lambda: g.resample_backward("avgpool_include_padding", pooled, (2, 4, 8, 8), 2),
        "normalization": lambda: g.normalization("batch_norm", x, s, s, 1e-5, running=(v, v)),
        "normalization_backward": lambda: g.normalization_backward("batch_norm", x, x, s, s, s),
    }


@pytest.mark.parametrize("method", METHODS)
def test_a_method_adds_what_its_row_says(method: str) -> None:
    g = Graph()
    made = of_methods(g)[method]()
    operation, kind = g._operations[-1], KINDS[METHODS[method]]
    assert operation.kind == METHODS[method]
    assert {name for name, _ in operation.operands} <= kind.operands.keys()
    assert {name for name, _ in operation.results} <= kind.results.keys()
    assert {name for name, end in kind.operands.items() if not end.endswith("?")} <= {n for n, _ in operation.operands}
    assert dict(operation.options) == kind.complete(dict(operation.options))
    assert len(operation.results) == (len(made) if isinstance(made, tuple) else 1)


def test_every_method_that_adds_an_operation_is_tested() -> None:
    others = {"tensor", "number", "output", "add", "plan", "problem", "candidates", "run", "check"}
    methods = {n for n, value in vars(Graph).items() if inspect.isfunction(value) and not n.startswith("_")}
    assert methods - others == METHODS.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_of_any_kind_comes_back_from_its_text(kind: str) -> None:
    graph = canonical_graph(graph_kinds.example(kind).graph._operation_graph({}))[0]
    assert graph_from_json(json.loads(json.dumps(graph_to_json(graph)))) == graph


def test_numbers_are_operands_by_value() -> None:
    g = Graph()
    x = g.tensor("x", spec(2, 4, 16, 16))
    g.output("y", g.add("diagonal_band_mask", x=x, b=-math.inf, comparison_mode="cmp_ge", left_bound=3)["y"])
    assert g._operation_graph({}).numbers == ((3, -math.inf, "float32"), (4, 3, "int32"))


def test_every_descriptor_of_an_operation_has_a_row() -> None:
    descriptors = {name for name in dir(raw) if re.fullmatch("CUDNN_BACKEND_OPERATION_[A-Z_]+_DESCRIPTOR", name)}
    assert {kind.descriptor_name for kind in KINDS.values()} == descriptors


def test_what_the_loaded_release_lacks_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    g = Graph()
    g.output("y", g.add("softmax", x=g.tensor("x", spec(2, 4, 16, 16)))["y"])
    monkeypatch.setattr(raw, "version", lambda: 91900)
    with pytest.raises(
        FunctionNotAvailableError, match=r"softmax needs cuDNN 9.20.0, .*; the loaded release is 9.19.0"
    ):
        check_release(canonical_graph(g._operation_graph({}))[0])
    monkeypatch.setattr(raw, "version", lambda: 92000)
    check_release(canonical_graph(g._operation_graph({}))[0])


def windows(mode: str) -> dict[str, Any]:
    """The options of a resampling whose result has the shape of x."""
    geometry = {"pre_padding": (0, 0), "post_padding": (0, 0), "stride": (1, 1), "window": (1, 1)}
    shape = {} if mode == "nearest" else {"shape": (2, 4, 16, 16)}
    return {"mode": mode, "padding_mode": "zero_pad", "spatial_dims": 2, **geometry, **shape}


def statistics(x: Any) -> dict[str, Any]:
    """The operands of bn_finalize with old running statistics, but without their weight."""
    names = ("y_sum", "y_sq_sum", "scale", "bias", "prev_running_mean", "prev_running_var")
    return {**dict.fromkeys(names, x), "epsilon": 1e-5, "accum_count": 9}


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda g, x: g.add("soft_max", x=x), ValueError, r"kind must be one of .*; got 'soft_max'.*softmax"),
        (lambda g, x: g.add("softmax", y=x), TypeError, r"arguments of softmax must be .*x, sink, stats_log2; got 'y'"),
        (lambda g, x: g.add("softmax"), TypeError, r"x must be a node; got none"),
        (lambda g, x: g.add("softmax", x=x, results=("y",)), ValueError, r"results of softmax must be .*stats.*; got 'y'"),
        (lambda g, x: g.add("concat", inputs=(), axis=0), TypeError, r"inputs must be one node or more; got none"),
        (lambda g, x: g.add("concat", inputs=x, axis=0), TypeError, r"inputs must be a sequence of nodes; got"),
        (lambda g, x: g.add("concat", inputs=[x, x], axis=4), ValueError, r"axis must be one of 0 to 3; got 4"),
        (lambda g, x: g.add("matmul", a=x, b=x, m_override=x), TypeError, r"m_override must be int32; got float16"),
        (lambda g, x: g.matmul(x, x, compute_dtype="int8"), TypeError, r"compute_dtype must be one of .*; got int8"),
        (lambda g, x: g.add("reduction", x=x, op="add"), ValueError, r"axes must be some of 0 to 3, each once; got \(\)"),
        (lambda g, x: g.add("reduction", x=x, op="add", shape=(2, 3, 16, 16)), ValueError, r"shape must have sizes that"),
        (lambda g, x: g.pointwise("gen_index", x), ValueError, r"axis must be one of 0 to 3 for gen_index; got None"),
        (lambda g, x: g.add("transpose", x=x, permutation=(0, 1, 1, 2)), ValueError, r"permutation must .*0 to 3 once"),
        (lambda g, x: g.add("slice", x=x, start=4 * (0,), limit=4 * (9,), stride=4 * (1,)), ValueError, r"start and limit"),
        (lambda g, x: g.add("reshape", x=x, shape=(1, 3)), ValueError, r"shape must have as many elements as x"),
        (lambda g, x: g.tensor("r", spec(2, 1), ragged=x), ValueError, r"ragged must have shape \(3, 1\)"),
        (lambda g, x: g.number(0.5, dtype="int32"), TypeError, r"value must be an integer"),
        (lambda g, x: g.number(1e6, dtype="float16"), ValueError, r"value must be a number that fits float16"),
        (lambda g, x: g.add("sdpa_fwd", q=x, k=x, v=x, seq_len_q=x), TypeError, r"seq_len_q must be int32; got float16"),
        (lambda g, x: g.add("pointwise", mode="exp", x=x, dy=x), TypeError, r"dy must be None for exp; got a node"),
        (lambda g, x: g.add("diagonal_band_mask", x=x, b=0.0, comparison_mode="sin"), ValueError, r"comparison_mode must be a"),
        (lambda g, x: g.add("bn_bwd_weights", x=x, dy=x, mean=x, invstd=x, bn_scale=x), ValueError, r"mean must have s"),
        (lambda g, x: g.add("sdpa_fwd", q=x, k=x, v=x, scale=x), ValueError, r"scale must have one element; got shape"),
        (lambda g, x: g.add("softmax", x=x, results=3), TypeError, r"results must be a sequence of names; got 3"),
        (lambda g, x: g.add("matmul", a=x, b=(x, x)), TypeError, r"b must be a node of this graph; got \("),
        (lambda g, x: g.tensor("t", spec()), ValueError, r"t must have 1 to 8 axes; got none"),
        (lambda g, x: g.add("block_scale_quantize", x=x, block_size=(2, 4)), ValueError, r"block_size must be one integer"),
        (lambda g, x: g.add("resample_fwd", x=x, results=("index",), **windows("nearest")), ValueError, r"results .* y; got"),
        (lambda g, x: g.add("resample_bwd", dy=x, y=x, **windows("maxpool")), TypeError, r"x or index must be a node"),
        (lambda g, x: g.add("resample_bwd", dy=x, index=0, **windows("maxpool")), ValueError, r"index must have shape"),
        (lambda g, x: g.add("bn_finalize", **statistics(x), results=("updated_running_mean",)), ValueError, r"got updated_"),
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


def test_experts_have_an_index_for_each_row() -> None:
    g = Graph()
    token, first = g.tensor("token", spec(1, 7, 3)), g.tensor("first", spec(4, 1, 1, dtype="int32"))
    weight, short, long = (
        g.tensor(name, spec(*shape, dtype=dtype))
        for name, shape, dtype in (("w", (4, 3, 5), "float16"), ("s", (1, 5, 1), "int32"), ("l", (1, 7), "int32"))
    )
    given: dict[str, Any] = {"token": token, "weight": weight, "first_token_offset": first}
    assert g.add("moe_grouped_matmul", **given, mode="gather", token_index=short)["output"].shape == (1, 5, 5)
    for index in (short, long):
        with pytest.raises(ValueError, match=r"token_index must have shape \(1, 7, 1\); got shape"):
            g.add("moe_grouped_matmul", **given, mode="none", token_index=index)
    none = g.tensor("none", spec(0, 3, 5))
    with pytest.raises(ValueError, match=r"for one expert or more; got \(1, 7, 3\) and \(0, 3, 5\)"):
        g.add("moe_grouped_matmul", **{**given, "weight": none})
    with pytest.raises(ValueError, match=r"first_token_offset must have shape \(1, 1, 1\); got shape \(0, 1, 1\)"):
        of_none = g.tensor("of_none", spec(0, 1, 1, dtype="int32"))
        g.add("moe_grouped_matmul_bwd", doutput=token, token=token, first_token_offset=of_none)


def test_a_sink_has_an_element_for_each_head_and_a_mask_of_blocks_integers() -> None:
    g = Graph()
    x, stats = g.tensor("x", spec(2, 4, 8, 8)), g.tensor("stats", spec(2, 4, 8, 1, dtype="float32"))
    given: dict[str, Any] = {**dict.fromkeys(("q", "k", "v", "o", "do"), x), "stats": stats}
    with pytest.raises(ValueError, match=r"sink must have shape \(1, 4, 1, 1\); got shape \(1, 1, 1, 1\)"):
        g.add("sdpa_bwd", **given, sink=1.0)
    with pytest.raises(TypeError, match=r"block_mask must be uint8 or .*; got float16"):
        g.add("sdpa_fwd", q=x, k=x, v=x, block_mask=x)


def test_pages_of_another_number_of_axes_are_named_by_their_shapes() -> None:
    g = Graph()
    with pytest.raises(ValueError, match=r"must have 4 axes; got shapes \(2, 4, 8\) and \(1, 1, 1\)"):
        g.add("paged_cache_load", container=g.tensor("x", spec(2, 4, 8)), sequence=1, page_table=0)


def test_the_valid_sizes_of_products_have_one_element_for_each() -> None:
    g = Graph()
    x = g.tensor("x", spec(2, 4, 16, 16))
    assert g.matmul(x, x, m=g.tensor("m", spec(2, 1, 1, 1, dtype="int32"))).shape == (2, 4, 16, 16)
    with pytest.raises(ValueError, match=r"m_override must have shape \(2, 1, 1, 1\)"):
        g.matmul(x, x, m=g.number(3, 3, "int32"))
