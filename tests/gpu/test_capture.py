"""Calls inside a CUDA graph capture: warmed-up calls are recorded and replayed, others are rejected and do no harm."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from cuda.core import Device
from test_convolution import W, X, Y, arguments, needy
from whole_numbers import assert_same, exact_result, whole_numbers

import cudnnpy
from cudnnpy import Convolution, ConvolutionTranspose
from cudnnpy.errors import CaptureError

OPERATIONS = ("forward", "backward_data", "backward_filter", "backward_bias")


@pytest.fixture(autouse=True)
def _complete(direct_launches: None) -> Iterator[None]:
    yield
    torch.cuda.synchronize()


@pytest.mark.parametrize(
    ("calls", "are_direct"), [(1, True), (6, True), (6, False)], ids=["after one", "directly", "by cuDNN"]
)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_warmed_up_call_is_recorded(operation: str, calls: int, are_direct: bool) -> None:
    """Also where the calls before were direct launches; the graph reads what is there at its launch."""
    cudnnpy.set_direct_launches(are_direct)
    conv, given = Convolution(padding=1), arguments(operation)
    run = getattr(conv, operation)
    out = torch.empty(exact_result(operation, *given, padding=1).shape, device="cuda")
    for _ in range(calls):
        run(*given, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(*given, out=out)
    for seed in (7, 8):
        given[0].copy_(whole_numbers(*given[0].shape, seed=seed))
        out.fill_(torch.nan)
        graph.replay()
        assert_same(out, exact_result(operation, *given, padding=1))
    out.fill_(torch.nan)
    run(*given, out=out)
    assert_same(out, exact_result(operation, *given, padding=1))


@pytest.mark.parametrize("warm_up", ["same stream", "other stream"])
@pytest.mark.parametrize("kind", ["needs workspace", "results allocated", "bias and activation", "transposed"])
def test_what_a_capture_may_hold(kind: str, warm_up: str) -> None:
    x, w, bias = whole_numbers(*X, seed=1), whole_numbers(*W, seed=2), whole_numbers(W[0], seed=3)
    small = whole_numbers(W[1], seed=4)
    options: dict[str, Any] = {"padding": 1}
    conv: Any = needy(x, w) if kind == "needs workspace" else Convolution(padding=1)
    if kind == "transposed":
        conv, x = ConvolutionTranspose(padding=1), whole_numbers(*Y, seed=1)
        options["transpose"] = True
    calls: dict[str, Callable[[], torch.Tensor]] = {
        "needs workspace": lambda: conv.forward(x, w),
        "results allocated": lambda: conv.forward(x, w),
        "bias and activation": lambda: conv.forward(x, w, bias, "relu"),
        "transposed": lambda: conv.forward(x, w, small, "relu"),
    }
    if kind in ("bias and activation", "transposed"):
        options |= {"bias": bias if kind != "transposed" else small, "activation": "relu"}
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream if warm_up == "same stream" else torch.cuda.Stream()):
        calls[kind]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        y = calls[kind]()
    y.fill_(torch.nan)
    for seed in (7, 8):
        x.copy_(whole_numbers(*x.shape, seed=seed))
        graph.replay()
        assert_same(y, exact_result("forward", x, w, **options))


def test_each_launch_accumulates_once() -> None:
    conv, (dy, x, shape) = Convolution(padding=1), arguments("backward_filter")
    out = torch.zeros(shape, device="cuda")
    conv.backward_filter(dy, x, shape, out=out, beta=1.0)
    out.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        conv.backward_filter(dy, x, shape, out=out, beta=1.0)
    for _ in range(3):
        graph.replay()
    assert_same(out, 3 * exact_result("backward_filter", dy, x, shape, padding=1))


def test_captured_workspace_outlives_its_being_outgrown() -> None:
    """A larger call on the same stream takes a larger buffer; the graph keeps its own, and nobody else writes there."""
    x, w = whole_numbers(*X, seed=1), whole_numbers(*W, seed=2)
    large = whole_numbers(32, 16, 40, 40)
    conv, greedy = needy(x, w), needy(large, w)
    size = conv.plan("forward", x, w).workspace_size
    stream = torch.cuda.Stream()
    out = torch.empty(Y, device="cuda")
    conv.forward(x, w, out=out, stream=stream)
    greedy.plan("forward", large, w)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        conv.forward(x, w, out=out)
    greedy.forward(large, w, stream=stream)
    torch.cuda.synchronize()
    gc.collect()
    others = [cudnnpy.to_device(np.full(-(-size // 4), np.nan, np.float32)) for _ in range(16)]
    out.fill_(torch.nan)
    graph.replay()
    assert_same(out, exact_result("forward", x, w, padding=1))
    assert all(np.isnan(cudnnpy.to_numpy(other)).all() for other in others)


def test_graphs_that_run_side_by_side_have_workspace_of_their_own() -> None:
    """Two captures on one stream, launched on two streams at once, and an eager call on the captured stream with them."""
    w = whole_numbers(*W, seed=2)
    xs = [whole_numbers(64, 16, 32, 32, seed=seed) for seed in range(3)]
    outs = [torch.empty(64, 32, 32, 32, device="cuda") for _ in xs]
    conv = needy(xs[0], w)
    stream, *others = (torch.cuda.Stream() for _ in range(3))
    conv.forward(xs[0], w, out=outs[0], stream=stream)
    graphs = []
    for x, out in zip(xs[:2], outs[:2], strict=True):
        conv.forward(x, w, out=out)
        torch.cuda.synchronize()
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1], stream=stream):
            conv.forward(x, w, out=out)
    right = [exact_result("forward", x, w, padding=1) for x in xs]
    for _ in range(10):
        for out in outs:
            out.fill_(torch.nan)
        torch.cuda.synchronize()
        for graph, other in zip(graphs, others, strict=True):
            with torch.cuda.stream(other):
                graph.replay()
        conv.forward(xs[2], w, out=outs[2], stream=stream)
        torch.cuda.synchronize()
        for out, values in zip(outs, right, strict=True):
            assert_same(out, values)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_smoke_a_cold_call_is_refused_and_the_capture_goes_on(operation: str) -> None:
    conv, given = Convolution(padding=1), arguments(operation)
    warm, out = whole_numbers(*X, seed=5), torch.empty(Y, device="cuda")
    w = whole_numbers(*W, seed=2)
    known = Convolution(padding=1, tf32=False)
    known.forward(warm, w, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(CaptureError, match=rf"{operation}: this signature has not been planned yet[\s\S]*warm-up"):
            getattr(conv, operation)(*given)
        known.forward(warm, w, out=out)
    out.fill_(torch.nan)
    graph.replay()
    assert_same(out, exact_result("forward", warm, w, padding=1))
    right = exact_result(operation, *given, padding=1)
    assert_same(getattr(conv, operation)(*given), right)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = getattr(conv, operation)(*given)
    graph.replay()
    assert_same(found, right)


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_calls_on_other_streams_do_not_disturb_a_capture(mode: str) -> None:
    """Enough of them that a direct launch would be made while the capture is under way."""
    conv, (x, w) = Convolution(padding=1), arguments("forward")
    captured, eager = (torch.empty(Y, device="cuda") for _ in range(2))
    side = torch.cuda.Stream()
    conv.forward(x, w, out=captured)
    conv.forward(x, w, out=eager, stream=side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        for _ in range(3):
            conv.forward(x, w, out=eager, stream=side)
        conv.forward(x, w, out=captured)
        for _ in range(4):
            conv.forward(x, w, out=eager, stream=side)
    torch.cuda.synchronize()
    right = exact_result("forward", x, w, padding=1)
    assert_same(eager, right)
    captured.fill_(torch.nan)
    graph.replay()
    assert_same(captured, right)


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_cuda_cores_graph_builder(mode: str) -> None:
    device = Device()
    device.set_current()
    x, w = whole_numbers(*X, seed=1), whole_numbers(*W, seed=2)
    conv = needy(x, w)
    out = torch.empty(Y, device="cuda")
    conv.forward(x, w, out=out)
    torch.cuda.synchronize()
    stream = device.create_stream()
    builder = stream.create_graph_builder()
    builder.begin_building(mode)
    conv.forward(x, w, out=out, stream=builder.stream)
    builder.end_building()
    graph = builder.complete()
    x.copy_(whole_numbers(*X, seed=9))
    out.fill_(torch.nan)
    torch.cuda.synchronize()
    graph.launch(stream)
    stream.sync()
    assert_same(out, exact_result("forward", x, w, padding=1))


def test_a_captured_launch_by_cudnn_is_right_after_other_launches() -> None:
    """Its variant pack is one of an earlier launch, and is destroyed by launches at other addresses before the replay."""
    cudnnpy.set_direct_launches(False)
    x, w = arguments("forward")
    plan = needy(x, w).plan("forward", x, w)
    outs = [torch.empty(Y, device="cuda") for _ in range(4)]
    spaces = [torch.empty(plan.workspace_size, dtype=torch.uint8, device="cuda") for _ in outs]

    def execute(at: int) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        plan.execute(x.data_ptr(), w.data_ptr(), outs[at].data_ptr(), spaces[at].data_ptr(), stream)

    for at in (0, 1, 0):
        execute(at)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        execute(1)
        execute(0)
    for at in (2, 3):
        execute(at)
    for seed in (7, 8):
        x.copy_(whole_numbers(*X, seed=seed))
        for at in (0, 1):
            outs[at].fill_(torch.nan)
        graph.replay()
        execute(2)
        for at in (0, 1, 2):
            assert_same(outs[at], exact_result("forward", x, w, padding=1))
