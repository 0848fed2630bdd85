"""Drawn problems of the operations beside the convolutions against cudnnpy.reference; and their calls in CUDA graphs,
in threads, and again.

drawing.py says how many are drawn, of which each call gets a share, and from which seed. What ran, what was refused, and
how much of its allowed error each operation used is printed at the end; a failure is printed as a `Problem(...)` that
test_one_drawn_problem, given it in DRAWN, repeats.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from drawing import ENOUGH, EXAMPLES, check_each, print_outcomes
from operation_kinds import KINDS
from operation_problem import Problem
from operation_problems import CHOSEN, problems
from operations import Case, same_bits
from strategies import GuardedWorkspace, Memory
from test_threads import side_by_side

import cudnnpy
from cudnnpy._layers import batch_normalization, pooling
from cudnnpy.errors import CaptureError, NoAlgorithmError, NotSupportedError

COMPILED = ("BatchNormalization", "FusedConvolution")
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


BY_GRAPH = ("Pooling.forward", "BatchNormalization")


@pytest.mark.parametrize("call", [call for call in KINDS if call.startswith(BY_GRAPH)])
def test_drawn_problems_by_graph(call: str, outcomes: Outcomes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same as if every tensor were large, so that compiled graphs are taken where there are any."""
    for module, name in ((pooling, "_MIN_SUM_BYTES"), (batch_normalization, "_MIN_LAST_BYTES")):
        monkeypatch.setattr(module, name, 0)
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
    known = Case(Problem("Activation.forward", (3, 5), alpha=3.0, with_out=True))
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
    found = {"y": known.outs["y"].tensor}
    assert not known.wrong(found), known.wrong(found)
    found = case.complete()
    assert not case.wrong(found), case.wrong(found)


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
