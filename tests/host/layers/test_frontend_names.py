"""Names of cudnn-frontend's graph and tensors: each error has the name to type, and the porting page has them all."""

from __future__ import annotations

import copy
import re
from typing import Any

import pages
import pytest

import cudnnpy
from cudnnpy._checks.other_names import advice
from cudnnpy.graph.kinds import KINDS

SENTENCES = advice("graph")
OF_TENSORS = {name for name in SENTENCES if name.startswith("set_") or name == "get_dim"}
ELSEWHERE = {  # names on the page that are no methods of a graph or a tensor, or that cudnnpy has no sentence for
    "pygraph", "create_handle", "destroy_handle", "set_stream", "get_stream", "get_last_error_string", "backend_version",
    "create_kernel_cache", "create_device_properties", "select_plan", "build_plan_at_index", "execute_plan_at_index",
    "deselect_engines", "populate_cuda_graph", "set_uid", "reshape", "transpose", "slice", "concatenate", "rope",
    "moe_grouped_matmul", "block_scale_quantize", "adalayernorm", "concat",
}  # fmt: skip


@pytest.fixture
def graph() -> tuple[cudnnpy.Graph, Any]:
    g = cudnnpy.Graph()
    return g, g.tensor("x", cudnnpy.TensorSpec((2, 8, 6, 6), "float16"))


@pytest.mark.parametrize("name", SENTENCES)
def test_a_name_says_what_to_type(graph: tuple[cudnnpy.Graph, Any], name: str) -> None:
    of = graph[1] if name in OF_TENSORS else graph[0]
    assert not hasattr(of, name)
    with pytest.raises(AttributeError) as caught:
        getattr(of, name)
    assert str(caught.value) == f"{type(of).__name__!r} object has no attribute {name!r}: {SENTENCES[name]}"


@pytest.mark.parametrize("name", sorted(set(KINDS) - set(dir(cudnnpy.Graph)) - set(SENTENCES)))
def test_a_kind_says_that_add_has_it(graph: tuple[cudnnpy.Graph, Any], name: str) -> None:
    with pytest.raises(AttributeError, match=rf"type g\.add\('{name}', \.\.\.\), as docs/graph-kinds\.md shows$"):
        getattr(graph[0], name)


@pytest.mark.parametrize("sentence", dict.fromkeys(SENTENCES.values()))
def test_what_a_sentence_names_exists(graph: tuple[cudnnpy.Graph, Any], sentence: str) -> None:
    g, x = graph
    for method in re.findall(r"\bg\.(\w+)\(", sentence):
        assert callable(getattr(g, method))
    for attribute in re.findall(r"plan\(\)\.(\w+)", sentence):
        assert hasattr(cudnnpy.Plan, attribute) or attribute in cudnnpy.Plan.__annotations__
    for kind, method in re.findall(r"cudnnpy\.(\w+)(?:\([^()]*\))?(?:\.(\w+))?", sentence):
        assert hasattr(getattr(cudnnpy, kind), method or "__call__")
    for options in re.findall(r"Graph\(([^)]+)\)", sentence):
        eval(f"cudnnpy.Graph({options})", {"cudnnpy": cudnnpy, "bytes": 1 << 20})
    for mode, operands in re.findall(r'g\.pointwise\("(\w+)", ([\w, ]+)', sentence):
        count = len([name for name in operands.split(", ") if name not in ("", "how", "axis")])
        g.pointwise(mode, *[x] * count, axis=0 if mode == "gen_index" else None)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (
            lambda g, x: cudnnpy.Graph(io_data_type="half"),
            "Graph must be one of compute_dtype, prefer, ...; got 'io_data_type'. Tensors",
        ),
        (
            lambda g, x: cudnnpy.Graph(compute_data_type="half"),
            "...; got 'compute_data_type'. Did you mean compute_dtype=?",
        ),
        (
            lambda g, x: g.tensor(dim=(2, 8, 6, 6), stride=(288, 1, 48, 8), data_type="half"),
            "Graph.tensor must be one of name, like, ...; got 'dim'. Type g.tensor(name, cudnnpy.TensorSpec(shape, ",
        ),
        (
            lambda g, x: g.tensor("y", x.spec, is_virtual=True),
            "...; got 'is_virtual'. A result is virtual unless it is an output",
        ),
        (lambda g, x: g.convolution(image=x, weight=x), "Graph.convolution must ...; got 'image'. Did you mean x=?"),
        (lambda g, x: g.convolution(x, weight=x), "...; got 'weight'. Did you mean w=?"),
        (lambda g, x: g.convolution(x, x, pre_padding=1), "...; got 'pre_padding'. Did you mean padding=?"),
        (lambda g, x: g.pointwise("relu_fwd", input=x), "...; got 'input'. Did you mean x=?"),
        (lambda g, x: g.pointwise("relu_fwd", x, negative_slope=0.1), "...; got 'negative_slope'. Type how="),
        (lambda g, x: g.reduction(x, mode="add"), "...; got 'mode'. Did you mean op=?"),
        (lambda g, x: g.reduction("add", x, axis=1), "...; got 'axis'. Did you mean axes=?"),
        (lambda g, x: g.matmul(A=x, B=x), "Graph.matmul must be one of a, b, ...; got 'A'. Did you mean a=?"),
        (
            lambda g, x: g.normalization("rms_norm", x, x, None, 1e-5, momentum=1),
            "...; got 'momentum'. Did you mean average_factor=?",
        ),
        (lambda g, x: g.output("y", x, data_type="half"), "...; got 'data_type'. Did you mean dtype=?"),
        (lambda g, x: g.convolution(x, x, paddng=1), "...; got 'paddng'. Did you mean padding=?"),
        (lambda g, x: g.plan(anything=1), "Graph.plan must be one of device; got 'anything'"),
    ],
)
def test_a_keyword_says_what_to_type(graph: tuple[cudnnpy.Graph, Any], call: Any, error: str) -> None:
    with pytest.raises(TypeError) as caught:
        call(*graph)
    expected = f"an argument of {error}" if not error.startswith("...") else error
    assert re.match(re.escape(expected).replace(re.escape("..."), ".*"), str(caught.value)), caught.value


def test_other_errors_of_a_call_stay(graph: tuple[cudnnpy.Graph, Any]) -> None:
    g, x = graph
    with pytest.raises(TypeError, match=r"missing a required argument: 'w'"):
        g.convolution(x)
    with pytest.raises(TypeError, match="w must be a node of this graph; got 1"):
        g.convolution(x, w=1)


def test_other_names_are_those_of_any_object(graph: tuple[cudnnpy.Graph, Any]) -> None:
    g, x = graph
    for of in (g, x):
        with pytest.raises(AttributeError, match=r"has no attribute 'anything'\. It has ") as caught:
            of.anything
        assert caught.value.name == "anything"
        assert caught.value.obj is of


def test_a_graph_is_copied_as_before(graph: tuple[cudnnpy.Graph, Any]) -> None:
    g, x = graph
    other = copy.copy(g)
    g.output("y", g.pointwise("identity", x))
    assert [len(one.outputs) for one in (g, other)] == [1, 0]


def test_every_method_on_the_page_has_a_sentence_or_is_ours() -> None:
    text = (pages.ROOT / "docs" / "porting" / "cudnn-frontend.md").read_text()
    cells = " ".join(re.split(r"(?<!\\)\|", line)[1] for line in text.splitlines() if line.startswith("| "))
    spans = " ".join(re.findall(r"`([^`]+)`", cells))
    called = {*re.findall(r"(?<![\w.])(?:graph\.|y\.)?([a-z]\w+)\(", spans), *re.findall(r"`([a-z]\w+)`", cells)}
    assert len(called) > 60
    assert [name for name in called - {*SENTENCES} - ELSEWHERE if not hasattr(cudnnpy.Graph, name)] == []
