"""Several threads: each on its own stream, with the same convolution or another, or with one plan between them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from whole_numbers import assert_same, exact_result, whole_numbers

import cudnnpy
from cudnnpy import Convolution, Plan

CALLS = 1000
X, W, Y = (2, 16, 12, 11), (32, 16, 3, 3), (2, 32, 12, 11)  # with padding 1


@pytest.fixture(autouse=True, params=[True, False], ids=["directly", "by cuDNN"])
def launches(request: pytest.FixtureRequest, direct_launches: None) -> None:
    """Launches of both kinds, each with plans of its own."""
    cudnnpy.set_direct_launches(request.param)


def side_by_side(*work: Callable[[], None]) -> None:
    """Runs every function in a thread of its own, from the same moment on; raises what any of them raised."""
    barrier = threading.Barrier(len(work))
    raised: list[BaseException] = []

    def begin(function: Callable[[], None]) -> None:
        try:
            barrier.wait(60)
            function()
        except BaseException as error:
            raised.append(error)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=begin, args=(function,)) for function in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    if raised:
        raise raised[0]


def needy(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor) -> Any:
    """An engine that needs workspace, for padding 1, and adds to what is there."""
    for candidate in Convolution(padding=1).candidates("forward", x, w, out=out, beta=1.0):
        if not candidate.rejection_reason and candidate.workspace_size and candidate.engine is not None:
            return candidate.engine
    raise AssertionError("no engine here needs workspace")


@pytest.mark.parametrize("workspace", [False, True], ids=["any engine", "with workspace"])
def test_one_convolution_in_two_threads(workspace: bool) -> None:
    """Each call adds its result once: a missing, doubled or mixed-up one shows in the sum, which is exact."""
    x, ws = whole_numbers(*X, seed=1), [whole_numbers(*W, seed=seed) for seed in (2, 3)]
    outs = [torch.zeros(Y, device="cuda") for _ in ws]
    conv = Convolution(padding=1, algorithm=needy(x, ws[0], outs[0]) if workspace else None)

    def calls(w: torch.Tensor, out: torch.Tensor) -> Callable[[], None]:
        def work() -> None:
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(CALLS):
                    conv.forward(x, w, out=out, beta=1.0)

        return work

    side_by_side(*(calls(w, out) for w, out in zip(ws, outs, strict=True)))
    for w, out in zip(ws, outs, strict=True):
        assert_same(out, CALLS * exact_result("forward", x, w, padding=1))


def test_results_allocated_in_each_thread() -> None:
    """New memory for every result, and many shapes, so that plans, launches and results come and go in both."""
    xs, w = [whole_numbers(n, *X[1:], seed=n) for n in (1, 2, 3)], whole_numbers(*W)
    conv = Convolution(padding=1)
    right = [exact_result("forward", x, w, padding=1) for x in xs]

    def work() -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for call in range(CALLS):
                y = conv.forward(xs[call % 3], w)
                if call % 50 < 3:
                    stream.synchronize()
                    assert_same(y, right[call % 3])

    side_by_side(work, work)


def test_one_plan_in_two_threads() -> None:
    x, w = whole_numbers(*X, seed=1), whole_numbers(*W, seed=2)
    outs = [torch.zeros(Y, device="cuda") for _ in range(2)]
    conv = Convolution(padding=1, algorithm=needy(x, w, outs[0]))
    plan: Plan = conv.plan("forward", x, w, out=outs[0], beta=1.0)

    def calls(out: torch.Tensor) -> Callable[[], None]:
        def work() -> None:
            space = torch.empty(plan.workspace_size, dtype=torch.uint8, device="cuda")
            stream = torch.cuda.Stream()
            for _ in range(CALLS):
                plan.execute(x.data_ptr(), w.data_ptr(), out.data_ptr(), space.data_ptr(), stream.cuda_stream)
            stream.synchronize()

        return work

    side_by_side(*map(calls, outs))
    for out in outs:
        assert_same(out, CALLS * exact_result("forward", x, w, padding=1))


def test_a_thread_whose_first_cuda_call_is_ours() -> None:
    """No CUDA context is current there yet."""
    x, w = whole_numbers(*X, seed=1), whole_numbers(*W, seed=2)
    out = torch.zeros(Y, device="cuda")
    stream = torch.cuda.Stream()
    address = stream.cuda_stream

    def work() -> None:
        conv = Convolution(padding=1)
        for _ in range(6):
            conv.forward(x, w, out=out, stream=address)

    side_by_side(work)
    assert_same(out, exact_result("forward", x, w, padding=1))
