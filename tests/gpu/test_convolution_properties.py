"""Drawn convolutions on the GPU against cudnnpy.reference: every operation, dtype, layout and option.

drawing.py says how many are drawn and from which seed. How many ran or were refused and why is printed at the end; a
failure is printed as a `Drawn(...)` that test_one_drawn_problem, given it in DRAWN, repeats.

`pytest tests/gpu -k smoke` is a small selection of all GPU tests, quick enough under compute-sanitizer.
"""

from __future__ import annotations

import math
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import strategies
import torch
from drawing import EXAMPLES, check_each, print_outcomes
from operations import same_bits
from strategies import DEVICE, NOT_A_NUMBER, Case, Drawn, GuardedWorkspace, Memory, few_channels, problems
from tolerance import difference, is_approximate

import cudnnpy
from cudnnpy._layers.lowerings import convolution_lowerings
from cudnnpy._planning.selection import NOT_COMPILED
from cudnnpy.errors import NoAlgorithmError

PLAIN_REFUSALS = 0.2  # the largest share of plain problems (packed, no filters) that may have no engine

# What runs have found, and what is to be looked at by itself.
DRAWN: list[Drawn] = [
    Drawn(
        operation="backward_filter",
        x_shape=(3, 8, 1),
        w_shape=(8, 8, 5),
        padding="same",
        stride=(2,),
        dilation=(3,),
        mode="convolution",
        memory=(Memory(True, (), (), 1), Memory(True, (), (), 0), Memory(True, (), (), 3)),
        with_out=True,
        seed=1123995,
    ),
    Drawn(
        operation="backward_data",
        x_shape=(1, 12, 13),
        w_shape=(12, 4, 2),
        padding=(1,),
        stride=(1,),
        dilation=(1,),
        groups=3,
        layout="NHWC",
        with_out=True,
        repeats=6,
        seed=1,
    ),
    Drawn(
        operation="forward",
        x_shape=(3, 32, 8, 6),
        w_shape=(16, 16, 2, 4),
        padding="same",
        stride=(1, 1),
        dilation=(2, 2),
        groups=2,
        bias=True,
        activation="tanh",
        deterministic=True,
        whole_numbers=True,
        seed=15922004,
    ),
    Drawn(
        operation="backward_filter",
        x_shape=(2, 8, 3, 1),
        w_shape=(4, 8, 3, 4),
        padding="same",
        stride=(1, 3),
        dilation=(1, 1),
        with_out=True,
    ),
    Drawn("forward", (2, 1, 2), (16, 1, 2), stride=(2,), dilation=(1,), with_out=True, alpha=0.75, repeats=6, seed=528),
    Drawn("forward", (2, 8, 2, 3), (16, 8, 2, 3), memory=(Memory(True),) * 3, with_out=True, alpha=0.75),
    # results of one position, beside an x that is channels first
    Drawn(
        operation="forward",
        x_shape=(1, 32, 5, 6),
        w_shape=(32, 16, 3, 3),
        dtype="bfloat16",
        padding=1,
        stride=(1, 2),
        dilation=(3, 3),
        groups=2,
        activation="relu",
        deterministic=True,
        whole_numbers=True,
        stream="side",
        repeats=6,
        seed=26948,
    ),
    Drawn(
        "forward",
        (3, 32, 7, 8),
        (32, 32, 3, 3),
        "bfloat16",
        stride=(1, 2),
        dilation=(3, 3),
        bias=True,
        activation="relu",
    ),
    Drawn(
        "forward", (3, 32, 7, 8), (32, 16, 3, 3), "float16", stride=(1, 2), dilation=(3, 3), groups=2, activation="relu"
    ),
    Drawn("forward", (3, 32, 1, 1), (32, 32, 1, 1), "float16", bias=True, activation="relu"),
    Drawn(
        "forward", (3, 32, 3, 3), (16, 32, 3, 3), "bfloat16", memory=(Memory(True),) * 3, bias=True, activation="relu"
    ),
    Drawn("forward", (3, 1, 9, 8), (16, 1, 3, 3), "float16", memory=(Memory(True),) * 3, bias=True, activation="relu"),
    Drawn("forward", (3, 32, 5), (16, 32, 5), "float16", bias=True, activation="relu"),
]


class Outcomes:
    """What became of the problems of a session; printed at the end of it."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.ran = 0
        self.plain_refusals: Counter[str] = Counter()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("drawn problems")
        for what, count in sorted(self.counts.items()):
            terminalreporter.line(f"{count:7} {what}")
        for what, count in self.plain_refusals.most_common(20):
            terminalreporter.line(f"{count:7} plain, refused: {what}")


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Outcomes:
    return print_outcomes(request, Outcomes())


def size(drawn: Drawn) -> int:
    return math.prod(drawn.x_shape) + math.prod(drawn.w_shape)


def chosen() -> Any:
    """The plan of the last call, for its notes: the newest in the cache."""
    from cudnnpy._launch.plan_cache import plan_cache

    for entry in reversed(plan_cache().values()):
        planned = entry.launcher.planned
        plan = getattr(planned, "plan", None) or planned  # in a program, with copies
        if hasattr(plan, "source"):  # and no epilogue's
            return plan
    return None


def kind_of(plan: Any, drawn: Drawn) -> dict[str, bool]:
    """What tolerance.allowed wants to know of an engine."""
    notes, name, source = getattr(plan, "notes", ()), getattr(plan, "name", ""), getattr(plan, "source", "")
    tensor_cores = not {"tensor_core", "down_convert_inputs"}.isdisjoint(notes) or source == "legacy"
    return {
        "tf32": drawn.dtype == "float32" and drawn.tf32 and tensor_cores,
        "approximate": is_approximate(name, notes),
        # what is not deterministic among the v7 algorithms adds parts in the result's memory
        "reduced": "reduced_precision_reduction" in notes
        or (source == "legacy" and not getattr(plan, "deterministic", True)),
    }


def assert_filters_kept(plan: Any, drawn: Drawn) -> None:
    """The options that rule candidates out rule out what they say."""
    if drawn.operation == "backward_bias":
        return
    limit = 0 if drawn.prefer == "no_workspace" else drawn.workspace_limit
    assert limit is None or plan.workspace_size <= limit, f"{plan} above the limit of {limit} bytes"
    assert plan.deterministic or not drawn.deterministic, f"{plan} is not deterministic"
    if drawn.dtype == "float32" and not drawn.tf32:
        assert {"tensor_core", "down_convert_inputs"}.isdisjoint(plan.notes), f"{plan} uses tf32"


def call(case: Case) -> torch.Tensor:
    """The call on the stream that was drawn, complete when this returns."""
    if DEVICE != "cuda":
        return case.call()
    torch.cuda.synchronize()
    stream = torch.cuda.Stream() if case.drawn.stream != "current" else None
    with torch.cuda.stream(stream) if case.drawn.stream == "side" else nullcontext():
        result = case.call(stream if case.drawn.stream == "argument" else None)
    torch.cuda.synchronize()
    return result


def check_call(drawn: Drawn, outcomes: Outcomes) -> None:
    """One drawn problem through the operation's own call."""
    case = Case(drawn)
    workspace = GuardedWorkspace()
    cudnnpy.clear_cache()
    cudnnpy.set_allocator(workspace)
    kind = f"{drawn.operation} {drawn.dtype}"
    outcomes.counts["drawn"] += 1
    outcomes.counts["plain"] += drawn.is_plain
    try:
        result = call(case)
    except NoAlgorithmError as error:
        outcomes.counts[f"refused: {reason(drawn)}"] += 1
        if drawn.is_plain:
            outcomes.plain_refusals[f"{kind} {error.problem}"] += 1
            outcomes.counts["plain, refused"] += 1
        return
    outcomes.counts[f"ran: {kind}"] += 1
    outcomes.ran += 1
    plan = chosen()
    outcomes.counts["ran: in blocks"] += " + blocks" in getattr(plan, "name", "")
    outcomes.counts["ran: on nothing"] += drawn.is_empty
    outcomes.counts["ran: output_padding beyond the stride"] += beyond_the_stride(drawn)
    if drawn.has_plan:
        assert_filters_kept(plan, drawn)
    else:
        assert plan is None, f"{plan} was chosen for nothing"
    first = torch.clone(result)
    for _ in range(drawn.repeats - 1):
        if case.out is not None:
            case.out.restore()
        result = call(case)
        if getattr(plan, "deterministic", False):
            assert same_bits(result, first), f"{plan} gave other bits when it was called again"
    assert result.dtype == case.dtype
    assert result.device.type == DEVICE
    assert case.out is None or result is case.out.tensor
    assert tuple(result.shape) == case.result_shape
    kinds = kind_of(plan, drawn)
    wrong = difference(strategies.to_float64(result), case.expected, case.allowed(**kinds))
    assert not wrong, f"{wrong}\n    by {plan}, notes {getattr(plan, 'notes', ())}"
    assert not case.spoiled(), f"{case.spoiled()}\n    by {plan}"
    assert not workspace.changed_outside(), f"written outside the workspace by {plan}"


def reason(drawn: Drawn) -> str:
    """What about a problem makes an engine rare, for the counts."""
    reasons = []
    if drawn.dtype == "float64":
        reasons.append("float64")
    if drawn.prefer == "no_workspace" or drawn.workspace_limit is not None:
        reasons.append("workspace")
    if drawn.deterministic:
        reasons.append("deterministic")
    if drawn.dtype == "float32" and not drawn.tf32:
        reasons.append("no tf32")
    if any(memory.has_gaps for memory in drawn.memories):
        reasons.append("gaps")
    if any(memory.offset for memory in drawn.memories):
        reasons.append("misaligned")
    return " and ".join(reasons) or "plain"


def test_drawn_problems(outcomes: Outcomes) -> None:
    """Every drawn problem runs right or has no engine; and few plain ones have none."""
    check_each(EXAMPLES, problems(), lambda drawn: check_call(drawn, outcomes), size)
    plain, refused = outcomes.counts["plain"], outcomes.counts["plain, refused"]
    assert plain > EXAMPLES / 20
    assert refused <= PLAIN_REFUSALS * plain, f"{refused} of {plain} plain problems have no engine"


def test_drawn_problems_tuned(outcomes: Outcomes) -> None:
    """The same with prefer="autotune": what wins is right, and tuning leaves everything of the caller's alone."""
    check_each(max(5, EXAMPLES // 60), problems(prefer="autotune"), lambda drawn: check_call(drawn, outcomes), size)


def check_candidates(drawn: Drawn, outcomes: Outcomes) -> None:
    """Every candidate for a problem that can be planned: executed on raw addresses, each compared."""
    case = Case(drawn)
    conv = drawn.of(cudnnpy)
    arrays = case.arguments([placed.tensor for placed in case.inputs])
    bias = case.bias.tensor if case.bias is not None else None
    out = case.out
    assert out is not None
    options = {"alpha": drawn.alpha, "beta": drawn.beta, "out": out.tensor}
    if drawn.operation == "forward":
        options |= {"bias": bias, "activation": drawn.activation}
    inputs = [placed.tensor for placed in case.inputs] + ([bias] if bias is not None else [])
    addresses = [tensor.data_ptr() for tensor in (*inputs, out.tensor)]
    try:
        problem = conv.plan(drawn.operation, *arrays, **options).problem
    except NoAlgorithmError:
        outcomes.counts["candidates, none"] += 1
        return
    wrong = []
    for candidate in conv.candidates(drawn.operation, *arrays, **options):
        if candidate.rejection_reason == NOT_COMPILED:
            candidate.rejection_reason = ""
            candidate.prepare()
        if candidate.rejection_reason:
            outcomes.counts[f"candidates, refused: {candidate.rejection_reason.split(':')[0].split(',')[0]}"] += 1
            continue
        plan = cudnnpy.Plan(problem, candidate)
        outcomes.counts[f"candidates, ran: {candidate.source}"] += 1
        outcomes.counts["candidates, ran: in blocks"] += " + blocks" in candidate.name
        try:
            check_plan(plan, case, addresses)
        except (AssertionError, cudnnpy.CudnnError) as error:
            text = str(error).split("\nassert ")[0]
            wrong.append(f"{candidate.source} {plan.name}, notes {plan.notes}: {text}")
        candidate.executable = None
    assert not wrong, "\n    ".join(wrong)


def check_plan(plan: cudnnpy.Plan, case: Case, addresses: list[int]) -> None:
    """Ten runs of a plan: right, inside its own memory, and with the same bits each time if it says so."""
    out = case.out
    assert out is not None
    workspace = GuardedWorkspace()
    space = workspace(plan.workspace_size) if plan.workspace_size else None
    stream = torch.cuda.current_stream().cuda_stream
    first: torch.Tensor | None = None
    for run in range(10 if plan.deterministic else 2):
        out.restore()
        if space is not None:
            space.fill_(NOT_A_NUMBER)
        plan.execute(*addresses, space.data_ptr() if space is not None else 0, stream)
        torch.cuda.synchronize()
        if first is None:
            first = out.tensor.clone()
            found = strategies.to_float64(first)
            wrong = difference(found, case.expected, case.allowed(**kind_of(plan, case.drawn)))
            assert not wrong, wrong
        elif plan.deterministic:
            assert same_bits(out.tensor, first), f"run {run + 1} gave other bits, and it is called deterministic"
    assert not case.spoiled(), case.spoiled()
    assert not workspace.changed_outside(), "it wrote outside the workspace"


def beyond_the_stride(drawn: Drawn) -> bool:
    """Whether output_padding is no less than the stride on an axis, so that x is copied."""
    return any(extra >= step for extra, step in zip(drawn.output_padding, drawn.stride, strict=False))


def only_candidates(drawn: Drawn) -> bool:
    return drawn.operation != "backward_bias" and not drawn.transpose and not drawn.is_empty


def with_result(drawn: Drawn) -> Drawn:
    return replace(drawn, with_out=True, prefer="fastest", workspace_limit=None, deterministic=False, stream="current")


def test_every_candidate_of_drawn_problems(outcomes: Outcomes) -> None:
    """Not only the chosen one: each engine and each v7 algorithm that runs gives the right result."""
    drawn = problems().filter(only_candidates).map(with_result)
    check_each(max(3, EXAMPLES // 33), drawn, lambda problem: check_candidates(problem, outcomes), size)
    assert outcomes.counts["candidates, ran: heuristics"] > 0
    assert outcomes.counts["candidates, ran: engines"] > 0
    assert outcomes.counts["candidates, ran: legacy"] > 0


def test_drawn_problems_in_blocks(outcomes: Outcomes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strided convolutions of few channels, however small they are; of some every candidate, also by space-to-depth."""
    monkeypatch.setattr(convolution_lowerings, "_MIN_BYTES", 0)
    check_each(max(10, EXAMPLES // 10), few_channels(), lambda drawn: check_call(drawn, outcomes), size)
    planned = few_channels().filter(only_candidates).map(with_result)
    check_each(max(5, EXAMPLES // 50), planned, lambda drawn: check_candidates(drawn, outcomes), size)
    assert outcomes.counts["candidates, ran: in blocks"] > 0


@pytest.mark.parametrize("drawn", DRAWN, ids=str)
def test_one_drawn_problem(drawn: Drawn, outcomes: Outcomes) -> None:
    refused = sum(count for what, count in outcomes.counts.items() if what.startswith("refused"))
    check_call(drawn, outcomes)
    assert sum(count for what, count in outcomes.counts.items() if what.startswith("refused")) == refused, "refused"
    if only_candidates(drawn):
        check_candidates(with_result(drawn), outcomes)


LAST = Memory(channels_last=True)


@pytest.mark.parametrize(
    "drawn",
    [
        Drawn("forward", (2, 8, 7, 6), (8, 8, 3, 3), padding=1, whole_numbers=True),
        Drawn("forward", (2, 8, 7, 6), (8, 8, 3, 3), "float16", memory=(LAST,) * 3, bias=True, activation="relu"),
        Drawn("backward_data", (2, 8, 7, 6), (8, 8, 3, 3), "bfloat16", padding=((1, 0), (0, 2)), stride=(2, 1)),
        Drawn("backward_filter", (2, 8, 7, 6), (16, 4, 3, 3), groups=2, with_out=True, beta=1.0, alpha=0.5),
        Drawn("backward_bias", (2, 8, 7, 6), (8, 8, 1, 1), "float16"),
        Drawn("forward", (2, 4, 9), (6, 4, 3), layout="NHWC", mode="convolution", dilation=(2,)),
        Drawn("forward", (1, 4, 3, 4, 5), (4, 6, 2, 2, 2), transpose=True, stride=(2, 2, 2), output_padding=(1, 0, 1)),
        Drawn("forward", (2, 4, 6, 6), (4, 4, 3, 3), "float64", padding="same"),
        Drawn("forward", (2, 4, 3, 4), (4, 6, 2, 2), transpose=True, dilation=(3, 2), output_padding=(2, 1)),
        Drawn(
            "backward_data",
            (2, 4, 3, 4),
            (4, 6, 2, 2),
            transpose=True,
            dilation=(3, 2),
            output_padding=(2, 1),
            beta=0.5,
            with_out=True,
        ),
        Drawn("backward_filter", (2, 4, 3, 4), (4, 6, 2, 2), transpose=True, dilation=(3, 2), output_padding=(2, 1)),
        Drawn("forward", (0, 8, 7, 6), (8, 8, 3, 3), "float16", bias=True, activation="relu"),
        Drawn("backward_filter", (0, 8, 7, 6), (8, 8, 3, 3), "bfloat16", with_out=True, beta=0.5),
        Drawn("backward_bias", (0, 8, 7, 6), (8, 8, 1, 1)),
        Drawn("forward", (2, 0, 7, 6), (8, 0, 3, 3), bias=True, activation="tanh"),
        Drawn("forward", (2, 0, 7, 6), (8, 0, 3, 3), "float16", memory=(LAST,) * 3, with_out=True, beta=0.5),
    ],
    ids=lambda drawn: f"{drawn.operation}-{drawn.dtype}-{'x'.join(map(str, drawn.x_shape))}",
)
def test_smoke_chosen_problems(drawn: Drawn, outcomes: Outcomes) -> None:
    """A handful by hand, one of each kind, that any GPU must run."""
    before = outcomes.ran
    check_call(drawn, outcomes)
    assert outcomes.ran == before + 1
