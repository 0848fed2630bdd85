"""The notation of a problem and its options: writing, parsing, and rejected texts."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import replace
from pathlib import Path

import pytest
import sample_graphs
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from problem_strategies import planning_options, problems
from stand_in_device import Array, StandInDevice
from test_descriptions import IMAGES, calls

from cudnnpy import Convolution, ConvolutionTranspose, Graph, TensorSpec
from cudnnpy._core.layouts import channels_last_strides
from cudnnpy._layers.lowerings.convolution_candidates import ConvolutionProblem
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem_notation import SYNTAXES, ProblemTextError, parse, syntax_of, text_of
from cudnnpy.graph.problem import GraphProblem

ROOT = Path(__file__).resolve().parents[3]
X, W = "1x64x8x8", "64x64x3x3"
PLAIN = f"forward {X} {W}"
# Calls of test_descriptions.py that plan convolutions or graphs.
PLANNED = ["forward", "backward_data", "backward_filter", "backward_bias", "depthwise", "depthwise backward_filter"]
PLANNED += ["transposed", "fused", "graph"]


def problem(operation: str = "forward", *shapes: tuple[int, ...], result=None, **options) -> ConvolutionProblem:
    """The problem that a Convolution with these options has."""
    first, second = (TensorSpec(shape) for shape in shapes or ((1, 64, 8, 8), (64, 64, 3, 3)))
    return Convolution(**options)._problem(operation, first, second, result, device=0)


# There and back


@settings(max_examples=250, deadline=None)
@given(problems(), planning_options())
def test_every_problem_comes_back_from_its_text(drawn: ConvolutionProblem, options: PlanningOptions) -> None:
    text = text_of(drawn, options)
    read, read_options = parse(text, drawn.device)
    assert isinstance(read, ConvolutionProblem)
    if drawn.is_empty:  # it is never planned, and the strides of a tensor without elements have no meaning
        assert [spec.shape for spec in read.specs] == [spec.shape for spec in drawn.specs]
        return
    assert (read, read_options) == (drawn, options)
    assert text_of(read, read_options) == text
    assert text.isascii()
    assert text.isprintable()
    assert str(drawn) == text_of(drawn)
    assert text.startswith(str(drawn))


@settings(max_examples=150, deadline=None)
@given(problems(), planning_options(), st.randoms())
def test_words_may_come_in_any_order(drawn: ConvolutionProblem, options: PlanningOptions, random: object) -> None:
    """Except that the shape of x comes before that of w."""
    assume(not drawn.is_empty)
    operation, x, w, *words = text_of(drawn, options).split()
    words.append(operation)
    random.shuffle(words)
    at = sorted(random.randrange(len(words) + 1) for _ in range(2))
    words[at[1] : at[1]] = [w]
    words[at[0] : at[0]] = [x]
    assert parse(" \n\t ".join(words), drawn.device) == (drawn, options)


@settings(max_examples=150, deadline=None)
@given(problems())
def test_every_word_of_a_text_is_needed(drawn: ConvolutionProblem) -> None:
    """Without one of them it is another problem or none."""
    assume(not drawn.is_empty)
    words = text_of(drawn).split()
    for at in range(len(words)):
        try:
            read, _ = parse(" ".join(words[:at] + words[at + 1 :]), drawn.device)
        except ProblemTextError:
            continue
        assert read != drawn, words[at]


@pytest.mark.parametrize("name", sample_graphs.GRAPHS)
def test_a_graph_comes_back_from_its_text(name: str) -> None:
    made = replace(sample_graphs.as_graph(sample_graphs.GRAPHS[name](Graph())), device=1)
    if name == "nothing_that_cudnn_takes":  # its spec was changed behind the graph
        return
    for options, words in (
        (PlanningOptions(), ""),
        (PlanningOptions(deterministic=True, tf32=False), " deterministic tf32=False"),
    ):
        text = text_of(made, options)
        assert parse(text, 1) == (made, options)
        assert isinstance(parse(text)[0], GraphProblem)
        content = text.removeprefix("graph ").removesuffix(words)
        assert json.dumps(json.loads(content), sort_keys=True, separators=(",", ":")) == content
        spaced = json.dumps(json.loads(content), indent=2)
        assert parse(f"{words} {spaced} graph", 1) == (made, options)
    assert len(str(made)) < 300


def test_names_in_a_graph_may_have_braces_spaces_and_quotation_marks() -> None:
    graph = Graph()
    graph.output(
        "y } \"'\\é", graph.pointwise("relu_fwd", graph.tensor("x # }", sample_graphs.channels_last((1, 8, 4, 4))))
    )
    made = graph.problem()
    text = text_of(made, PlanningOptions(tf32=False))
    assert parse(text) == parse(f"{text} # {text}") == (made, PlanningOptions(tf32=False))


def test_a_comment_begins_a_word() -> None:
    with pytest.raises(ProblemTextError, match=r"got 'relu#'"):
        parse(f"{PLAIN} relu#")
    with pytest.raises(ProblemTextError, match="got an empty text"):
        parse("# pooling: x 1x64x8x8 float32; cudnnPoolingForward; workspace 0 bytes; host 9.0 us")


def test_a_transposed_convolution_is_the_convolution_behind_it() -> None:
    """Its forward is backward_data: x of the text is its result, and y is its input."""
    transposed = ConvolutionTranspose(stride=2, padding=1)._transposed((8, 4, 4, 4))
    specs = TensorSpec((2, 8, 5, 5)), TensorSpec((8, 4, 4, 4))
    made = transposed._problem("backward_data", *specs, (2, 4, 10, 10), device=0)
    assert str(made) == "backward_data 2x4x10x10 8x4x4x4 pad=1 stride=2"
    assert parse(str(made)) == (made, PlanningOptions())


@pytest.mark.parametrize("name", PLANNED)
def test_what_a_call_plans_comes_back(stand_in: StandInDevice, name: str) -> None:
    """Convolutions, and the graphs of fused convolutions and of the other operations."""
    for x in IMAGES:
        call, shapes = calls(x)[name]
        call(*(Array(*shape) for shape in shapes))
        if name != "graph":  # its tensors are packed
            order = channels_last_strides
            call(*(Array(*shape, strides=order(shape) if len(shape) > 2 else None) for shape in shapes))
    found = [(problem, options) for problem, options, _ in stand_in.choices]
    found += [(problem, PlanningOptions()) for problem in stand_in.planned_graphs]
    for pair in found:
        assert parse(text_of(*pair), pair[0].device) == pair
        assert text_of(*parse(text_of(*pair))) == text_of(*pair)
        assert len(str(pair[0])) < 800
    assert found


# What is written


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (PLAIN, PLAIN),
        (f"forward {X} {W} pad=1,1 stride=1,1 dilation=2,2 groups=1 packed float32", f"{PLAIN} pad=1 dilation=2"),
        (f"{PLAIN} padding=1,2 stride=2,1", f"{PLAIN} pad=1,2 stride=2,1"),
        (f"{PLAIN} pad=0:1,2:2", f"{PLAIN} pad=0:1,2"),
        (f"{PLAIN} pad=0:1", f"{PLAIN} pad=0:1"),
        (f"{PLAIN} pad=same stride=2", f"{PLAIN} pad=0:1 stride=2"),
        (f"{PLAIN} pad=full", f"{PLAIN} pad=2"),
        (f"{PLAIN} half", f"{PLAIN} float16"),
        (f"{PLAIN} dtype=bf16 mode=convolution", f"{PLAIN} mode=convolution bfloat16"),
        (f"{PLAIN} convolution relu bias", f"{PLAIN} mode=convolution bias activation=relu"),
        (f"{PLAIN} activation=identity alpha=1.0 beta=0", PLAIN),
        (f"{PLAIN} fp16 compute_dtype=half", f"{PLAIN} float16 compute_dtype=float16"),
        (f"{PLAIN} int8 y.dtype=int32 compute_dtype=int32", f"{PLAIN} int8"),
        (f"{PLAIN} fp8_e4m3 y.dtype=fp32", f"{PLAIN} float8_e4m3fn y.dtype=float32"),
        (f"{PLAIN} x.strides=4096,64,8,1 w.strides=packed", PLAIN),
        (f"{PLAIN} x.strides=4096,1,512,64 y.strides=channels_last", f"{PLAIN} channels_last w.strides=packed"),
        (f"{PLAIN} channels_last y.strides=9999,1,384,64", f"{PLAIN} channels_last"),
        (f"{PLAIN} x.strides=8192,128,16,1", f"{PLAIN} x.strides=8192,128,16,1"),
        (f"{PLAIN} x.alignment=16 w.alignment=4", f"{PLAIN} w.alignment=4"),
        (f"{PLAIN} alpha=.5 beta=-1e-3", f"{PLAIN} alpha=0.5 beta=-0.001"),
        (f"{PLAIN} deterministic=true tf32=false prefer=autotune", f"{PLAIN} prefer=autotune deterministic tf32=False"),
        (f"{PLAIN} deterministic=False tf32 workspace_limit=None tune_seconds=2.0 prefer=fastest", PLAIN),
        (f"{PLAIN} workspace_limit=1048576", f"{PLAIN} workspace_limit=1MiB"),
        (f"{PLAIN} workspace_limit=3GiB", f"{PLAIN} workspace_limit=3GiB"),
        (f"{PLAIN} workspace_limit=1500KiB", f"{PLAIN} workspace_limit=1500KiB"),
        (f"{PLAIN} workspace_limit=1MB", f"{PLAIN} workspace_limit=1000000"),
        (f"{PLAIN} workspace_limit=0 tune_seconds=0.5", f"{PLAIN} workspace_limit=0 tune_seconds=0.5"),
        (f"{PLAIN} pad=1 # engine 3 (tilek=1); heuristics; stride=2", f"{PLAIN} pad=1"),
        (f"# {PLAIN}\n{PLAIN} pad=1 #stride=2\n dilation=2 #", f"{PLAIN} pad=1 dilation=2"),
        ("forward 4x3x100 8x3x5 pad=1:0", "forward 4x3x100 8x3x5 pad=1:0"),
        ("forward 1x1x4x4x4 1x1x1x1x1 channels_last", "forward 1x1x4x4x4 1x1x1x1x1"),
    ],
)
def test_a_text_has_one_form(text: str, written: str) -> None:
    assert text_of(*parse(text)) == written
    assert parse(written) == parse(text)


def test_a_text_says_what_a_call_would_plan() -> None:
    made = problem(padding=1)
    assert parse("forward 1x64x8x8 64x64x3x3 pad=1") == (made, PlanningOptions())
    data = problem("backward_data", (1, 64, 8, 8), (64, 64, 3, 3), result=(1, 64, 8, 8), padding="same")
    assert parse("backward_data 1x64x8x8 64x64x3x3 pad=1") == (data, PlanningOptions())
    filters = problem("backward_filter", (1, 64, 3, 3), (1, 64, 8, 8), result=(64, 64, 3, 3), stride=3, padding=1)
    assert parse("backward_filter 1x64x8x8 64x64x3x3 pad=1 stride=3") == (filters, PlanningOptions())


def test_what_is_not_chosen_for_is_not_in_a_text() -> None:
    made = problem(padding=1)
    options = PlanningOptions(algorithm="gemm", tf32=False)
    assert text_of(made, options) == f"{PLAIN} pad=1 tf32=False"
    assert text_of(made._replace(device=3)) == text_of(made)
    assert parse(f"{PLAIN} pad=1", device=3)[0] == made._replace(device=3)


# What is refused


@pytest.mark.parametrize(
    ("text", "column", "reason"),
    [
        (
            "",
            1,
            "operation must be one of 'forward', 'backward_data', 'backward_filter', 'graph', .*; got an empty text",
        ),
        ("  \n", 1, "operation must be one of .*; got an empty text"),
        (f"{X} {W}", 1, f"operation must be one of .*; got '{X}'"),
        (f"{X} {W} foward", 20, "operation must be one of .*; got 'foward'. Did you mean 'forward'?"),
        (f"{PLAIN} backward_data", 28, "operation must be given once; got 'backward_data' after 'forward'"),
        ("forward", 1, "shapes must be two, of x and of w, such as .*; got no shape"),
        (f"forward {X}", 1, f"shapes must be two, .*; got {X}"),
        (f"{PLAIN} {X}", 28, f"shapes must be two, .*; got {X} {W} {X}"),
        (f"{PLAIN} stirde=2", 28, "word must be a word of the notation; got 'stirde=2'. Did you mean 'stride'?"),
        (f"{PLAIN} float61", 28, "word must be .*; got 'float61'. Did you mean 'float64'?"),
        (f"{PLAIN} chanels_last", 28, "word must be .*; got 'chanels_last'. Did you mean 'channels_last'?"),
        (f"{PLAIN} 7", 28, "shape must be sizes joined by x, such as 1x3x8x8; got '7'"),
        ("forward 1,3,8,8 4x3x3x3", 9, "shape must be sizes joined by x, 1x3x8x8; got '1,3,8,8'"),
        ("forward (1, 3, 8, 8) 4x3x3x3", 9, r"shape must be sizes joined by x, such as 1x3x8x8; got '\(1,'"),
        (f"{PLAIN} {'z' * 999}", 28, f"word must be one of .*; got '{'z' * 60}...'"),
        (f"{PLAIN} pad", 28, "pad must have a value, pad=...; got 'pad'"),
        (f"{PLAIN} pad=", 28, "pad must have a value, pad=...; got 'pad='"),
        (f"{PLAIN} pad 1", 28, "pad must have a value, pad=...; got 'pad'"),
        (f"{PLAIN} bias=1", 28, "bias must have no value; got 'bias=1'"),
        (f"{PLAIN} pad=1 padding=2", 34, "padding must be given once; got 'padding=2' as well"),
        (f"{PLAIN} float16 half", 36, "dtype must be given once; got 'half' as well"),
        (f"{PLAIN} packed channels_last", 35, "memory format must be given once; got 'channels_last' as well"),
        (f"{PLAIN} NHWC", 28, r"NHWC must be written as channels_last, with shapes .*\(N, C, spatial...\); got 'NHWC'"),
        (f"{PLAIN} same", 28, "same must be written as pad=same; got 'same'"),
        (f"{PLAIN} float", 28, "float must be 'float32' as in C, or 'float64' as in NumPy; got 'float'"),
        (f"{PLAIN} algorithm=gemm", 28, "algorithm must be left out, .*; got 'algorithm=gemm'"),
        (f"{PLAIN} policy=once", 28, "policy must be left out, .*; got 'policy=once'"),
        (f"{PLAIN} device=1", 28, "device must be left out, .*; got 'device=1'"),
        (f"{PLAIN} pad=-1", 28, "padding must be an integer of 0 or more, .*; got -1"),
        (f"{PLAIN} pad=1,x", 28, "padding must be .*; got 'x'"),
        (f"{PLAIN} pad=1:2:3", 28, r"padding must be .*; got .*1, 2, 3.*"),
        (f"{PLAIN} pad=1,1,1", 28, "padding must be .* each of 2 spatial axes; got .*"),
        (f"{PLAIN} relu stride=0", 33, "stride must be an integer of 1 or more, .*; got 0"),
        (f"{PLAIN} stride=2x2", 28, "stride must be .*; got '2x2'"),
        (f"{PLAIN} dilation=1.5", 28, "dilation must be .*; got '1.5'"),
        (f"{PLAIN} groups=3", 9, "x must have 192 channels, 64 in each of 3 .*; got 64 .*"),
        (f"{PLAIN} groups=two", 28, "groups must be an integer of 1 or more; got 'two'"),
        ("forward 1x128x8x8 63x64x3x3 groups=2", 29, "groups must divide the 63 output channels of w; got 2"),
        (f"{PLAIN} mode=flipped", 28, "mode must be one of .*; got 'flipped'"),
        (f"{PLAIN} dtype=float33", 28, "dtype must be one of .*; got 'float33'. Did you mean 'float32'?"),
        (f"{PLAIN} int32", 9, "x must be of a floating-point type, or int8; got int32"),
        (f"{PLAIN} y.dtype=float16", 28, "out must be float32 for float32 inputs; got float16"),
        (f"{PLAIN} compute_dtype=float64", 28, "compute_dtype must be 'float32' for float32; got 'float64'"),
        (
            f"{PLAIN} x.strides=1,2",
            28,
            r"x.strides must be None, or a tuple of 4 integers of 0 or more; got \(1, 2\) \(shape \(1, 64, 8, 8\)\)",
        ),
        (f"{PLAIN} x.strides=NHWC", 28, "x.strides must be 'packed', 'channels_last' or 4 integers; got 'NHWC'"),
        (f"{PLAIN} y.strides=1,1,1,1", 28, "y must not overlap itself in memory; got .*"),
        (
            f"{PLAIN} w.strides=-1,9,3,1",
            28,
            r"w.strides must be None, or a tuple of 4 integers of 0 or more; got \(-1, 9, 3, 1\).*",
        ),
        (f"{PLAIN} x.alignment=3", 28, "x.alignment must be a power of two, 4 or more for float32; got 3"),
        (f"{PLAIN} half w.alignment=12", 33, "w.alignment must be a power of two, .*; got 12"),
        (f"{PLAIN} bias.alignment=8", 28, "bias.alignment must come with the word bias; got 8 without it"),
        (
            f"{PLAIN} activation=gelu",
            28,
            "activation must be one of .*; got 'gelu'. A gelu is an operation of graphs: .*",
        ),
        (f"backward_filter {X} {W} bias", 36, "bias must be None for backward_filter; got .*"),
        (f"{PLAIN} alpha=two", 28, "alpha must be a finite number; got 'two'"),
        (f"{PLAIN} alpha=inf", 28, "alpha must be a finite number; got inf"),
        (f"{PLAIN} beta=nan", 28, "beta must be a finite number; got nan"),
        (f"{PLAIN} prefer=quickest", 28, "prefer must be one of 'fastest', .*; got 'quickest'"),
        (f"{PLAIN} workspace_limit=1XB", 28, "workspace_limit must be a number of bytes, such as 64MiB, .*; got '1XB'"),
        (f"{PLAIN} workspace_limit=-1", 28, "workspace_limit must be .*; got '-1'"),
        (f"{PLAIN} deterministic=yes", 28, "deterministic must be a bool; got 'yes'"),
        (f"{PLAIN} tune_seconds=0", 28, "tune_seconds must be a finite number above 0; got 0.0"),
        ("forward 1x64x2x2 64x64x3x3", 18, "w must fit into x with padding; got a filter of size 3 .*"),
        ("forward 1x64 64x64x3x3", 9, r"x must have 3, 4 or 5 axes .*; got shape \(1, 64\)"),
        ("forward 1x64x8 64x64x3x3", 16, "w must have 3 axes, as x; got shape .*"),
        ("forward 1x64x8x0 64x64x3x3", 9, "x must have sizes of 1 or more, .*; got shape .*"),
        (f"forward {9**20}x64x8x8 {W}", 9, "x must fit into memory; got shape .*"),
        (f"forward {9**18}x64x8x8 {W}", 9, "x must fit into memory; got shape .*"),
        (f"{PLAIN} pad={9**18}", 9, "y must fit into memory; got shape .*"),
        ("forward 2x64x8x8 64x64x3x3 x.strides=" + f"{9**19},64,8,1", 28, "x must fit into memory; got shape .*"),
        ("graph", 1, "graph must have one JSON object; got 0"),
        ("graph {} {}", 1, "graph must have one JSON object; got 2"),
        ("graph {}", 7, "graph must be the JSON of a graph; got invalid JSON: it must have .*"),
        ('graph {"a": 1, b}', 16, "graph must be the JSON of a graph; got invalid JSON: Expecting property .*"),
        ('graph {"operations":[],"tensors":[]}', 7, "graph must be .*: its graph has no output"),
        (
            'graph {"calls":[],"compute_dtype":"float32","tensors":[]}',
            7,
            "graph must be .*; plan again if .*",
        ),
        ("graph {} pad=1", 10, "word must be one of deterministic, tf32, prefer=, .*; got 'pad=1'"),
    ],
)
def test_a_text_that_is_no_problem_is_refused_in_one_line(text: str, column: int, reason: str) -> None:
    with pytest.raises(ProblemTextError) as caught:
        parse(text)
    error = caught.value
    assert (error.column, error.line, error.file) == (column, None, "")
    assert re.fullmatch(reason.replace("?", r"\?"), error.reason), error.reason
    assert str(error) == f"column {column}: {error.reason}"
    assert "\n" not in str(error)
    assert len(str(error)) < 800


@pytest.mark.parametrize("text", [None, b"forward", 7, ["forward"]])
def test_what_is_no_text_is_a_type_error(text: object) -> None:
    with pytest.raises(TypeError, match=f"problem must be a str in the notation, .*; got a {type(text).__name__}"):
        parse(text)


def test_an_error_keeps_its_place_in_another_process() -> None:
    for error in (ProblemTextError("x must be y; got z", 3, 2, "a.txt"), ProblemTextError("no", file="a.txt")):
        again = pickle.loads(pickle.dumps(error))
        assert (again.reason, again.column, again.line, again.file, str(again)) == (
            error.reason,
            error.column,
            error.line,
            error.file,
            str(error),
        )


SAMPLES = [
    f"{PLAIN} pad=0:1,2 stride=2,1 dilation=2 groups=1 float16 channels_last w.strides=packed x.alignment=4 bias relu alpha=2",
    f"backward_filter {X} {W} tf32=False deterministic workspace_limit=3MiB prefer=autotune w.strides=576,9,3,1",
    text_of(sample_graphs.convolution_bias_relu(Graph()).problem()),
]
PIECES = [
    *{
        piece
        for kind in map(syntax_of, SYNTAXES)
        for piece in (*kind.values, *kind.words, *kind.operations, *kind.aliases)
    }
]
PIECES += [*'= :,x{}"\\[]0', "-1", "9" * 50, "1e999", "nan", "\ud800", "é", "\n", "\0"]


@st.composite
def spoiled(draw: st.DrawFn) -> str:
    """A text with a few parts left out, repeated or replaced."""
    text = draw(st.sampled_from(SAMPLES))
    for _ in range(draw(st.integers(1, 4))):
        at, until = sorted(draw(st.integers(0, len(text))) for _ in range(2))
        until = min(until, at + draw(st.sampled_from([0, 1, 2, 30])))
        text = text[:at] + draw(st.sampled_from(["", "", text[at:until] * 2, *PIECES])) + text[until:]
    return text


@settings(max_examples=500, deadline=None)
@given(
    spoiled()
    | st.text()
    | st.lists(st.sampled_from(PIECES)).map(" ".join)
    | st.lists(st.sampled_from(PIECES)).map("".join)
)
@example('graph {"calls":[]')
def test_any_text_is_a_problem_or_refused(text: str) -> None:
    refused = None
    try:
        read, options = parse(text)
    except ProblemTextError as error:
        refused = error
    if refused:
        assert 1 <= refused.column <= max(len(text), 1)
        assert "\n" not in str(refused)
    elif not (isinstance(read, ConvolutionProblem) and read.is_empty):
        assert parse(text_of(read, options)) == (read, options)


def test_the_page_lists_every_word_and_its_examples_are_problems() -> None:
    page = (ROOT / "docs" / "notation.md").read_text()
    for kind in map(syntax_of, SYNTAXES):
        for word in (*kind.operations, *kind.values, *kind.aliases):
            assert re.search(rf"`{re.escape(word)}\b|\b{re.escape(word)}=|\.strides=|\.alignment=", page), word
    blocks = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith(("forward", "backward"))]
    assert len(lines) >= 6
    for line in lines:
        assert text_of(*parse(line)) == line
