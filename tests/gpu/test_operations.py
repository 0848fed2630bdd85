"""Drawn problems of the operations beside the convolutions against cudnnpy.reference; and their calls in CUDA graphs,
in threads, and again.

drawing.py says how many are drawn, of which each call gets a share, and from which seed. What ran, what was refused, and
how much of its allowed error each operation used is printed at the end; a failure is printed as a `Problem(...)` that
test_one_drawn_problem, given it in DRAWN, repeats.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import operations
import pytest
import torch
from drawing import ENOUGH, EXAMPLES, check_each, print_outcomes
from operation_kinds import KINDS
from operation_problem import Problem
from operation_problems import CHOSEN, problems
from operations import Case, packed_as, same_bits
from strategies import FILLER, NOT_A_NUMBER, GuardedWorkspace, Memory, Placed, to_float64
from test_threads import side_by_side

import cudnnpy
from cudnnpy import reference
from cudnnpy._launch import operands
from cudnnpy.errors import CaptureError, NoAlgorithmError, NotSupportedError

COMPILED = ("BatchNormalization", "LayerNormalization", "RMSNormalization", "InstanceNormalization", "FusedConvolution")
MOST_REFUSED = 0.5  # of the problems of one call that are not plain

# Plain problems (packed, aligned) that cuDNN has nothing for: the call, what it has to have (a field, an option or a
# keyword of the problem, or "rank"; a tuple stands for any of its values), and why.
LACKING: list[tuple[str, dict[str, Any], str]] = [
    ("FusedConvolution.forward", {"mode": "convolution"}, "few engines that fuse reverse a filter"),
    ("FusedConvolution.forward", {"tf32": False, "dtype": "float32"}, "most engines that fuse round float32 to tf32"),
    (
        "FusedConvolution.forward",
        {"groups": (2, 3, 4, 8, 16), "dtype": "bfloat16"},
        "few engines that fuse have groups",
    ),
]

# What runs have found, and what is to be looked at by itself.
DRAWN: list[Problem] = [
    Problem(
        call="Activation.backward",
        shape=(1, 17),
        options={"mode": "clipped_relu", "coefficient": 1.0},
        memory=(Memory(offset=8), Memory(), Memory()),
        data="after_in_place",
        seed=2806,
    ),
    Problem(
        call="Activation.backward",
        shape=(1, 1, 3, 3),
        options={"mode": "tanh"},
        memory=(Memory(channels_last=True),) * 3,
        stream="side",
        repeats=6,
        seed=53271,
    ),
    Problem(
        call="Softmax.backward",
        shape=(3, 8, 1, 1, 3),
        dtype="float64",
        options={"algorithm": "log", "mode": "channel", "layout": "NCHW"},
        memory=(Memory(channels_last=True), Memory(channels_last=True)),
        alpha=0.75,
        seed=8337265,
    ),
    Problem(
        call="FusedConvolution.forward",
        shape=(2, 8, 2, 4, 2),
        other=(5, 8, 2, 1, 1),
        other_dtype="float32",
        options={"stride": 2, "layout": "NCHW"},
        keywords={"activation": None},
        given=("bias",),
        memory=(Memory(), Memory(), Memory(True)),
        with_out=True,
        data="whole",
        repeats=6,
        seed=4294967294,
    ),
    Problem(
        call="Softmax.forward",
        shape=(2, 1025, 1, 2, 3),
        options={"algorithm": "accurate", "mode": "channel", "layout": "NCHW"},
        memory=(Memory(channels_last=True),),
    ),
]


class Outcomes:
    """What became of the problems of a session; printed at the end of it."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.shares: dict[str, float] = defaultdict(float)
        self.unexpected: dict[str, list[Problem]] = defaultdict(list)  # plain ones refused, by call

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("drawn operations")
        for what in sorted({*self.ran, *self.refused}):
            share = f", up to {self.shares[what]:.3f} of the allowed error" if what in self.shares else ""
            terminalreporter.line(f"{self.ran[what]:6} ran, {self.refused[what]:4} refused: {what}{share}")
        for why, count in self.reasons.most_common(60):
            terminalreporter.line(f"{count:6} refused: {why}")
        for refused in self.unexpected.values():
            for problem in sorted(refused, key=size)[:ENOUGH]:
                terminalreporter.line(f"plain, and refused: {problem}")


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Outcomes:
    return print_outcomes(request, Outcomes())


@pytest.fixture(autouse=True)
def _own_allocator_afterwards() -> Iterator[None]:
    yield
    cudnnpy.set_allocator(None)


def size(problem: Problem) -> int:
    return math.prod(problem.shape)


def lacking(p: Problem) -> str:
    """Why cuDNN has nothing for a problem, by the table; "" if it must have."""
    has = {**vars(p), **p.options, **p.keywords, "rank": len(p.shape)}
    for call, wanted, why in LACKING:
        if p.call == call and all(has.get(n) in (v if isinstance(v, tuple) else (v,)) for n, v in wanted.items()):
            return why
    return ""


def check_call(problem: Problem, outcomes: Outcomes) -> None:
    """One problem through the operation's own call."""
    case = Case(problem)
    workspace = GuardedWorkspace()
    cudnnpy.clear_cache()
    cudnnpy.set_allocator(workspace)
    name = f"{problem.call} {problem.dtype}"
    refusal: Exception | None = None
    try:
        found = case.complete()
    except (NoAlgorithmError, NotSupportedError) as error:
        refusal = error
    if refusal is not None:
        outcomes.refused[name] += 1
        outcomes.reasons[f"{name} {str(refusal).splitlines()[0]:.120}"] += 1
        outcomes.refused[f"{problem.call}, not plain"] += not problem.is_plain
        assert not case.untouched(), f"refused, but {case.untouched()}"
        if problem.is_plain and not lacking(problem):
            outcomes.unexpected[problem.call].append(problem)
        return
    outcomes.ran[name] += 1
    outcomes.ran[f"{problem.call}, not plain"] += not problem.is_plain
    misses = cudnnpy.cache_info().misses
    first = {result: torch.clone(tensor) for result, tensor in case.all_results(found).items()}
    for repeat in range(1, problem.repeats):
        case.restore()
        found = case.complete()
        if case.kind.is_deterministic(problem):
            for result, tensor in case.all_results(found).items():
                assert same_bits(tensor, first[result]), f"{result} has other bits in call {repeat + 1}"
    assert cudnnpy.cache_info().misses == misses, "a known signature was planned again"
    assert not case.wrong(found), case.wrong(found)
    assert not case.spoiled(), case.spoiled()
    assert not workspace.changed_outside(), "it wrote outside its workspace"
    outcomes.shares[name] = max(outcomes.shares[name], case.share(found))


def _features(p: Problem) -> str:
    """What a row of LACKING could name."""
    return f"{p.call} {p.dtype} rank {len(p.shape)} {p.options} {p.keywords} {p.memory[:1]}"


@pytest.mark.parametrize("call", KINDS)
def test_drawn_problems(call: str, outcomes: Outcomes) -> None:
    """Every drawn problem runs right or has no engine: a plain one only as LACKING says, of the others at most half."""
    few = call.partition(".")[0] in COMPILED
    check_each(max(6, EXAMPLES // (20 if few else 6)), problems(call), lambda p: check_call(p, outcomes), size)
    unexpected = sorted({_features(p) for p in outcomes.unexpected[call]})
    assert not unexpected, "plain problems were refused, and LACKING does not say so:\n" + "\n".join(unexpected)
    ran, refused = (counts[f"{call}, not plain"] for counts in (outcomes.ran, outcomes.refused))
    drawn = ran + refused
    most = MOST_REFUSED * drawn + 3 * math.sqrt(MOST_REFUSED * (1 - MOST_REFUSED) * drawn)  # three standard deviations
    assert refused <= most, f"{refused} of {drawn} not plain problems were refused"


BY_GRAPH = (
    "Activation",
    "Pooling.forward",
    "BatchNormalization",
    "add_tensor",
    "scale_tensor",
    "transform_tensor",
    "reduce",
)


@pytest.mark.parametrize("call", [call for call in KINDS if call.startswith(BY_GRAPH)])
def test_drawn_problems_by_graph(call: str, outcomes: Outcomes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same as if every tensor were large, so that compiled graphs are taken where there are any."""
    monkeypatch.setattr(operands, "LARGE_BYTES", 0)
    check_each(max(6, EXAMPLES // 30), problems(call), lambda p: check_call(p, outcomes), size)


@pytest.mark.parametrize("problem", DRAWN, ids=str)
def test_one_drawn_problem(problem: Problem, outcomes: Outcomes) -> None:
    ran = outcomes.ran.total()
    check_call(problem, outcomes)
    assert outcomes.ran.total() > ran, "refused"


@pytest.mark.parametrize("repeats", [1, 6], ids=["once", "repeated"])
@pytest.mark.parametrize("call", KINDS)
def test_smoke_chosen_problems(call: str, repeats: int, outcomes: Outcomes) -> None:
    """One by hand of each call, that any GPU must run."""
    name = f"{call} {CHOSEN[call].dtype}"
    before = outcomes.ran[name]
    check_call(replace(CHOSEN[call], repeats=repeats), outcomes)
    assert outcomes.ran[name] == before + 1, f"refused: {outcomes.reasons}"


@pytest.mark.parametrize("last", [False, True], ids=["C", "channels last"])
@pytest.mark.parametrize("layout", [None, "C", "channels_last"])
def test_transform_tensor_gives_the_order_of_memory_that_was_asked_for(layout: str | None, last: bool) -> None:
    """None: x's own."""
    problem = replace(CHOSEN["transform_tensor"], with_out=False, memory=(Memory(last),), keywords={"layout": layout})
    case = Case(problem)
    found = case.complete()
    assert not case.wrong(found), case.wrong(found)
    channels_last = last if layout is None else layout == "channels_last"
    assert packed_as(found["out"], (0, 2, 3, 1) if channels_last else (0, 1, 2, 3))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("other", ["float32", "float16", "bfloat16", "float64"])
def test_transform_tensor_converts(dtype: str, other: str, outcomes: Outcomes) -> None:
    problem = Problem("transform_tensor", (2, 3, 4, 5), dtype, keywords={"dtype": other}, other_dtype=other)
    if other == "float64" != dtype:
        with pytest.raises(TypeError, match=r"dtype must be .*; got float64\. cudnnTransformTensor"):
            check_call(problem, outcomes)
    else:
        check_call(problem, outcomes)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_output_shapes_without_running(layout: str) -> None:
    shape = (2, 11, 8, 3)
    options = {"window": (3, 2), "padding": (1, 0), "stride": 2, "layout": layout}
    assert operations.nn.Pooling(**options).output_shape(shape) == reference.Pooling(**options).output_shape(shape)
    convolution = {"padding": 1, "stride": (2, 1), "layout": layout}
    w_shape = (4, 11, 3, 2) if layout == "NCHW" else (4, 3, 2, 3)
    found = operations.nn.FusedConvolution(**convolution).output_shape(shape, w_shape)
    assert found == reference.FusedConvolution(**convolution).output_shape(shape, w_shape)


@pytest.mark.parametrize("mode", ["max", "max_deterministic"])
def test_padding_never_is_the_maximum(mode: str) -> None:
    """All of x is far below 0, which padding would be."""
    options = {"mode": mode, "window": 3, "padding": 2, "stride": 1}
    case = Case(Problem("Pooling.forward", (2, 3, 5, 4), options=options))
    case.inputs["x"].tensor.sub_(1e6)
    found = case.complete()
    assert float(found["y"].max()) < -9e5


# Dropout: its masks are pseudorandom, so the reference cannot be compared with it


def dropped(shape: tuple[int, ...], dtype: str, memory: Memory, seed: int = 0) -> Placed:
    """Numbers of size 0.5 to 1.5, so that a 0 in the result is one that was dropped."""
    numbers = np.random.default_rng(seed).uniform(0.5, 1.5, shape) * np.random.default_rng(seed + 1).choice(
        [-1, 1], shape
    )
    values = torch.from_numpy(numbers).to(getattr(torch, dtype))
    return Placed(values, memory.strides(shape), memory.offset, NOT_A_NUMBER)


def assert_scaled(found: torch.Tensor, x: Placed, kept: np.ndarray, probability: float, dtype: str) -> None:
    """Kept elements are x / (1 - probability), the others 0."""
    right = np.where(kept, x.numpy() / (1 - probability), 0.0)
    # cuDNN has the probability in float32
    u = {"float64": 2.0**-21, "float32": 2.0**-21, "float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    assert np.all(np.abs(to_float64(found) - right) <= u * np.abs(right)), "elements are neither 0 nor scaled"


@pytest.mark.parametrize("memory", [Memory(), Memory(True)], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("with_out", [False, True])
@pytest.mark.parametrize("probability", [0.0, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_dropout(dtype: str, probability: float, with_out: bool, memory: Memory) -> None:
    """Scales what it keeps, keeps as many as it should (6 standard deviations), and drops the same in the gradient."""
    shape = (4, 17, 9, 5)
    x, dy = dropped(shape, dtype, memory), dropped(shape, dtype, memory, seed=7)
    outs = [Placed(torch.full(shape, math.nan, dtype=x.tensor.dtype), memory.strides(shape), 0, FILLER) for _ in "yx"]
    dropout = operations.nn.Dropout(probability=probability, seed=3)
    y, reserve = dropout.forward(x.tensor, **({"out": outs[0].tensor} if with_out else {}))
    assert reserve.dtype == torch.uint8
    assert not with_out or y is outs[0].tensor
    kept = to_float64(y) != 0
    assert_scaled(y, x, kept, probability, dtype)
    assert abs(kept.mean() - (1 - probability)) <= 6 * math.sqrt(probability * (1 - probability) / kept.size)
    first: torch.Tensor | None = None
    for _ in range(6):
        outs[1].restore()
        dx = dropout.backward(dy.tensor, reserve, **({"out": outs[1].tensor} if with_out else {}))
        assert_scaled(dx, dy, kept, probability, dtype)
        assert first is None or same_bits(dx, first)
        first = dx.clone()
    assert not x.changed()
    assert not dy.changed()
    assert [out.changed_outside() for out in outs] == [0, 0]


def test_smoke_dropout() -> None:
    test_dropout("float32", 0.25, True, Memory())


def masks(seed: int, calls: int) -> list[np.ndarray]:
    dropout, x = operations.nn.Dropout(seed=seed), dropped((64, 33), "float32", Memory())
    return [to_float64(dropout.forward(x.tensor)[0]) != 0 for _ in range(calls)]


def test_dropouts_masks_come_from_the_seed() -> None:
    """The same again from the same seed, call by call; another one in each call and from each seed."""
    first, again, other = masks(5, 8), masks(5, 8), masks(6, 1)
    for a, b in zip(first, again, strict=True):
        assert np.array_equal(a, b)
    different = [*first, *other]
    assert all(not np.array_equal(a, b) for i, a in enumerate(different) for b in different[:i])


def test_a_gradient_uses_the_mask_of_its_own_forward() -> None:
    """Two forwards, then the gradients in the other order."""
    dropout, x = operations.nn.Dropout(), dropped((64, 33), "float32", Memory())
    found = [dropout.forward(x.tensor) for _ in range(2)]
    for y, reserve in reversed(found):
        dx = dropout.backward(x.tensor, reserve)
        assert np.array_equal(to_float64(dx) != 0, to_float64(y) != 0)


# CUDA graphs


@pytest.mark.parametrize("calls", [1, 6], ids=["once", "repeated"])
@pytest.mark.parametrize("call", KINDS)
def test_a_warmed_up_call_is_recorded(call: str, calls: int) -> None:
    """The graph reads and writes what is there at its launch; results that the call made belong to the graph."""
    case = Case(replace(CHOSEN[call], with_out=True))
    for _ in range(calls):
        case.restore()
        case.complete()
    graph = torch.cuda.CUDAGraph()
    case.restore()
    with torch.cuda.graph(graph):
        found = case.call()
    for _ in range(2):
        case.restore()
        graph.replay()
        torch.cuda.synchronize()
        assert not case.wrong(found), case.wrong(found)
    assert not case.spoiled(), case.spoiled()
    case.restore()
    found = case.complete()
    assert not case.wrong(found), case.wrong(found)


@pytest.mark.parametrize("call", KINDS)
def test_smoke_a_cold_call_is_refused_and_the_capture_goes_on(call: str) -> None:
    cudnnpy.clear_cache()
    known = Case(Problem("scale_tensor", (3, 5), alpha=3.0, with_out=True))
    known.complete()
    case = Case(replace(CHOSEN[call], with_out=True))
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        with pytest.raises(CaptureError, match="warm-up"):
            case.call()
        known.call()
    assert not case.untouched(), case.untouched()
    known.restore()
    graph.replay()
    torch.cuda.synchronize()
    found = {"out": known.outs["out"].tensor}
    assert not known.wrong(found), known.wrong(found)
    found = case.complete()
    assert not case.wrong(found), case.wrong(found)


def test_dropout_in_a_capture() -> None:
    """Every replay draws a mask, and the gradient that was captured with it uses that mask."""
    dropout, x = operations.nn.Dropout(seed=1), dropped((64, 33), "float32", Memory())
    y, reserve = dropout.forward(x.tensor)
    dropout.backward(x.tensor, reserve)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, reserve = dropout.forward(x.tensor)
        dx = dropout.backward(x.tensor, reserve)
    for _ in range(3):
        y.fill_(math.nan)
        dx.fill_(math.nan)
        graph.replay()
        torch.cuda.synchronize()
        kept = to_float64(y) != 0
        assert 0.4 < kept.mean() < 0.6
        assert_scaled(y, x, kept, 0.5, "float32")
        assert_scaled(dx, x, kept, 0.5, "float32")


# Again, and side by side


@pytest.mark.parametrize("call", KINDS)
def test_a_known_signature_plans_nothing(call: str) -> None:
    """Nor do other arrays of the same shapes, or another object with the same options."""
    cudnnpy.clear_cache()
    case, other = Case(CHOSEN[call]), Case(replace(CHOSEN[call], seed=1))
    case.complete()
    misses = cudnnpy.cache_info().misses
    assert misses >= 1
    for each in (case, other):
        each.restore()
        found = each.complete()
        assert not each.wrong(found), each.wrong(found)
    assert cudnnpy.cache_info().misses == misses
    larger = CHOSEN[call].shape[0] + 1
    Case(replace(CHOSEN[call], shape=(larger, *CHOSEN[call].shape[1:]))).complete()
    assert cudnnpy.cache_info().misses > misses


@pytest.mark.parametrize("call", KINDS)
def test_two_threads_on_two_streams(call: str) -> None:
    """Other data of the same shapes in each: what got mixed up would be wrong."""
    cases = [Case(replace(CHOSEN[call], seed=s, with_out=True)) for s in (1, 2)]
    found: dict[int, dict[str, Any]] = {}

    def calls(index: int) -> Callable[[], None]:
        def work() -> None:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(100):
                    if cases[index].kind.updated(cases[index].problem):
                        cases[index].restore()
                    found[index] = cases[index].call()
            stream.synchronize()

        return work

    side_by_side(calls(0), calls(1))
    for index, case in enumerate(cases):
        assert not case.wrong(found[index]), case.wrong(found[index])
        assert not case.spoiled(), case.spoiled()


@pytest.mark.parametrize("call", KINDS)
def test_work_is_queued_on_the_stream_that_is_current(call: str) -> None:
    """The inputs are written on a side stream, late: a call on any other stream would read what was there before."""
    case = Case(CHOSEN[call])
    case.complete()
    case.restore()
    values = {name: placed.tensor.clone() for name, placed in case.inputs.items()}
    for placed in case.inputs.values():
        placed.tensor.zero_()
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)  # some 10 ms
        for name, placed in case.inputs.items():
            placed.tensor.copy_(values[name])
        found = case.call()
    side.synchronize()
    assert not case.wrong(found), case.wrong(found)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    ("op", "axes"), [("add", (0, 2, 3)), ("avg", None), ("norm2", (1,)), ("norm1", (2, 3)), ("max", (0,))]
)
def test_a_deterministic_reduction_has_the_same_bits_every_time(op: str, axes: Any, dtype: str) -> None:
    x = torch.randn(16, 64, 56, 56, device="cuda").to(getattr(torch, dtype))
    first = cudnnpy.reduce_tensor(x, op, axes, deterministic=True).clone()
    assert all(torch.equal(cudnnpy.reduce_tensor(x, op, axes, deterministic=True), first) for _ in range(10))
    torch.testing.assert_close(cudnnpy.reduce_tensor(x, op, axes), first, rtol=1e-3, atol=1e-3)
