"""Convolution and ConvolutionTranspose, one example for each promise (rows B3, C1, C3, C4, C5, D3, D4, D6).

`pytest tests/gpu -k smoke` picks the few that are meant for compute-sanitizer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from plan_runs import execute
from whole_numbers import assert_same, exact_result, to_host, whole_numbers

import cudnnpy
from cudnnpy import Convolution, ConvolutionTranspose, NoAlgorithmError, Plan
from cudnnpy._convolution.options import algorithm_names
from cudnnpy._layers.lowerings import convolution_lowerings

OPERATIONS = ("forward", "backward_data", "backward_filter")
PREFERENCES = ("fastest", "limited_workspace", "no_workspace", "autotune")
X, W, Y = (4, 16, 12, 11), (32, 16, 3, 3), (4, 32, 12, 11)  # with padding 1


def arguments(operation: str, **how: Any) -> tuple[Any, ...]:
    """The arguments of an operation on X, W and Y."""
    x, w, dy = whole_numbers(*X, seed=1, **how), whole_numbers(*W, seed=2, **how), whole_numbers(*Y, seed=3, **how)
    given = {"forward": (x, w), "backward_data": (dy, w, X), "backward_filter": (dy, x, W), "backward_bias": (dy,)}
    return given[operation]


def run(conv: Convolution, operation: str, *given: Any, **options: Any) -> torch.Tensor:
    result: torch.Tensor = getattr(conv, operation)(*given, **options)
    return result


# Operations and preferences


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("prefer", PREFERENCES)
def test_one_preference_serves_all_three_directions(prefer: str, operation: str) -> None:
    conv = Convolution(padding=1, prefer=prefer, tune_seconds=1.0)
    given = arguments(operation)
    assert_same(run(conv, operation, *given), exact_result(operation, *given, padding=1))
    size = conv.plan(operation, *given).workspace_size
    assert size <= {"no_workspace": 0, "limited_workspace": 1 << 30}.get(prefer, 1 << 40)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_smoke_gradients_are_added_to_what_is_there(operation: str) -> None:
    """alpha and beta, in every direction: a gradient written, then the same added twice with half its weight."""
    conv, given = Convolution(padding=1), arguments(operation)
    out = run(conv, operation, *given)
    for _ in range(2):
        assert run(conv, operation, *given, out=out, alpha=0.5, beta=1.0) is out
    assert_same(out, 2 * exact_result(operation, *given, padding=1))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_the_bias_gradient_of_single_positions(dtype: str) -> None:
    """dy and the result have one shape, which cudnnReduceTensor does not support."""
    dy = whole_numbers(1, 8, 1, 1, dtype=dtype)
    np.testing.assert_array_equal(to_host(Convolution().backward_bias(dy)), to_host(dy)[0, :, 0, 0])


@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("shape", [(8, 64, 40, 40), (1, 16, 200, 200), (1200, 3, 2, 3)], ids=str)
def test_bias_gradients_of_large_tensors_go_another_way(shape: tuple[int, ...], dtype: str, last: bool) -> None:
    """They are reductions of the graph API; and in the same call's cache, an address off by one element."""
    dy = whole_numbers(*shape, dtype=dtype, last=last)
    right = to_host(dy).sum(axis=(0, 2, 3))
    conv = Convolution()
    assert_same(conv.backward_bias(dy), right)
    shifted = torch.empty(dy.numel() + 8, dtype=dy.dtype, device="cuda").as_strided(dy.shape, dy.stride(), 1)
    shifted.copy_(dy)
    assert_same(conv.backward_bias(shifted), right)


@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
def test_the_transposed_convolution_adds_bias_and_activation(last: bool) -> None:
    """The call; and the gradient that it is, planned for raw addresses: each candidate, and the plan's text."""
    conv = Convolution(stride=2)
    x, w, bias = (
        whole_numbers(2, 8, 5, 6, last=last),
        whole_numbers(8, 16, 3, 3, seed=1, last=last),
        whole_numbers(16, seed=2),
    )
    right = exact_result("forward", x, w, bias=bias, activation="relu", transpose=True, stride=2)
    shifted = torch.cat([bias[:1], bias])[1:]  # off by one element
    for given in (bias, shifted):
        assert_same(ConvolutionTranspose(stride=2).forward(x, w, given, "relu"), right)
    order = torch.channels_last if last else torch.contiguous_format
    out = torch.empty(right.shape, device="cuda").to(memory_format=order)
    how: dict[str, Any] = {"bias": bias, "activation": "relu", "out": out}
    plan = conv.plan("backward_data", x, w, **how)
    assert plan.operands == ("dy", "w", "bias", "dx")
    plans = [plan, Plan.from_json(plan.to_json())]
    plans += [Plan(plan.problem, c) for c in conv.candidates("backward_data", x, w, **how) if not c.rejection_reason]
    assert len(plans) > 4
    for one in plans:
        out.fill_(torch.nan)
        execute(one, x, w, bias, out)
        assert_same(out, right)


@pytest.mark.parametrize("activation", [None, "identity", "relu", "sigmoid", "tanh", "elu", "swish"])
@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_bias_and_activation(dtype: str, last: bool, activation: str | None) -> None:
    x, w = (tensor / 8 for tensor in arguments("forward", dtype=dtype, last=last))
    bias = whole_numbers(W[0], dtype=dtype, seed=4)
    found = Convolution(padding=1).forward(x, w, bias, activation)
    right = exact_result("forward", x, w, padding=1, bias=bias, activation=activation)
    np.testing.assert_allclose(to_host(found), right, rtol=4e-3, atol=2e-3)


# Algorithms by name, engines, plans


@pytest.mark.parametrize(("operation", "name"), [(op, name) for op in OPERATIONS for name in algorithm_names(op)])
def test_a_v7_algorithm_by_name(operation: str, name: str) -> None:
    """It runs right, or the error has cuDNN's reason."""
    given = arguments(operation)
    conv = Convolution(padding=1, algorithm=name, tf32=False)
    (candidate,) = [c for c in conv.candidates(operation, *given) if c.name == name]
    if not candidate.rejection_reason:
        assert_same(run(conv, operation, *given), exact_result(operation, *given, padding=1))
        assert conv.plan(operation, *given).source == "legacy"
        return
    assert name not in {"implicit_gemm", "implicit_precomp_gemm", "1"}
    with pytest.raises(NoAlgorithmError, match=r"not supported here: CUDNN_STATUS_\w+ \(\d+\)"):
        run(conv, operation, *given)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("algorithm", [None, "1"])
def test_a_plan_as_text(operation: str, algorithm: str | None) -> None:
    name = "implicit_precomp_gemm" if algorithm and operation == "forward" else algorithm
    given = arguments(operation)
    plan = Convolution(padding=1, algorithm=name).plan(operation, *given)
    again = Plan.from_json(plan.to_json())
    for what in ("name", "source", "notes", "deterministic", "operands", "workspace_size", "problem", "engine"):
        assert getattr(again, what) == getattr(plan, what)
    right = exact_result(operation, *given, padding=1)
    out = torch.full(right.shape, torch.nan, device="cuda")
    execute(again, *given[:2], out)
    assert_same(out, right)


def check_candidates(
    ending: str, how: dict[str, Any], operation: Any, given: tuple[Any, ...], right: np.ndarray
) -> None:
    """Exact candidates whose names end so run, as plans and as texts of plans, and give the right result."""
    found = [c for c in Convolution(**how).candidates(operation, *given) if c.name.endswith(f" + {ending}")]
    inexact = {"winograd", "fft", "reduced_precision_reduction"}
    usable = [c for c in found if not c.rejection_reason and not inexact & {*c.notes}]
    assert usable
    for candidate in usable[:6]:
        plan = Convolution(**how, algorithm=candidate.engine).plan(operation, *given)
        assert plan.name == candidate.name
        for one in (plan, Plan.from_json(plan.to_json())):
            out = torch.full(right.shape, torch.nan, device="cuda", dtype=given[0].dtype)
            execute(one, *given[:2], out)
            assert_same(out, right)


def test_plans_in_blocks_of_pixels_are_right_and_survive_their_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the transformations before and after them."""
    monkeypatch.setattr(convolution_lowerings, "_MIN_BYTES", 0)
    how: dict[str, Any] = {"padding": 3, "stride": 2}
    x_shape, w_shape, y_shape = (4, 3, 22, 20), (16, 3, 7, 7), (4, 16, 11, 10)
    dy, w = whole_numbers(*y_shape, seed=1), whole_numbers(*w_shape, seed=2)
    right = exact_result("backward_data", dy, w, x_shape, **how)
    check_candidates("blocks", how, "backward_data", (dy, w, x_shape), right)


@pytest.mark.parametrize(("dtype", "groups"), [("float16", 1), ("bfloat16", 2), ("float32", 16)])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_copies_to_channels_last_are_right_and_survive_a_plans_text(operation: str, dtype: str, groups: int) -> None:
    how: dict[str, Any] = {"padding": 1, "groups": groups}
    x_shape, w_shape, y_shape = (4, 16, 12, 10), (32, 16 // groups, 3, 3), (4, 32, 12, 10)
    x, w, dy = (whole_numbers(*s, dtype=dtype, seed=n) for n, s in enumerate((x_shape, w_shape, y_shape)))
    given = {"forward": (x, w), "backward_data": (dy, w, x_shape), "backward_filter": (dy, x, w_shape)}[operation]
    right = exact_result(operation, *given, **how)
    check_candidates("channels last", how, operation, given, right)


@pytest.mark.parametrize("mode", ["cross_correlation", "convolution"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    ("sizes", "taps", "how"),
    [
        ((12, 10), (5, 3), {"padding": (1, 2)}),
        ((12, 10), (7, 7), {"padding": ((6, 2), (0, 3))}),
        ((40,), (3,), {"padding": 4, "dilation": 4}),
    ],
)
def test_a_depthwise_gradient_as_a_forward_convolution_is_right(
    sizes: tuple[int, ...], taps: tuple[int, ...], how: dict[str, Any], dtype: str, mode: str
) -> None:
    options: dict[str, Any] = {**how, "groups": 16, "mode": mode}
    x_shape, w_shape = (3, 16, *sizes), (16, 1, *taps)
    y_shape = Convolution(**options).output_shape(x_shape, w_shape)
    dy, w = whole_numbers(*y_shape, dtype=dtype, seed=1), whole_numbers(*w_shape, dtype=dtype, seed=2)
    right = exact_result("backward_data", dy, w, x_shape, **options)
    check_candidates("forward", options, "backward_data", (dy, w, x_shape), right)


def test_a_v7_plan_without_tf32_is_without_it_as_text_too() -> None:
    x, w = torch.randn(X, device="cuda"), torch.randn(W, device="cuda")
    right = exact_result("forward", x, w, padding=1)
    plan = Convolution(padding=1, algorithm="implicit_precomp_gemm", tf32=False).plan("forward", x, w)
    out = torch.empty(Y, device="cuda")
    for one in (plan, Plan.from_json(plan.to_json())):
        execute(one, x, w, out)
        np.testing.assert_allclose(to_host(out), right, rtol=0, atol=5e-5)  # tf32 is off by 1e-2


@pytest.mark.parametrize("activation", ["relu", "elu", "swish", "sigmoid"])
def test_plans_that_are_compiled_at_run_time_survive_their_text(activation: str) -> None:
    """They are compiled again, with the activation's own numbers."""
    conv = Convolution(padding=1)
    x, w, bias = (
        whole_numbers(*shape, dtype="float16", last=len(shape) == 4) for shape in ((2, 16, 8, 8), (16, 16, 3, 3), (16,))
    )
    how: dict[str, Any] = {"bias": bias, "activation": activation}
    found = [c for c in conv.candidates("forward", x, w, **how) if not c.rejection_reason]
    compiled = [c for c in found if c.compiled_at_run_time]
    assert compiled
    for candidate in compiled[:3]:
        plan = Plan(conv.plan("forward", x, w, **how).problem, candidate)
        again = Plan.from_json(plan.to_json())
        assert (again.name, again.workspace_size) == (plan.name, plan.workspace_size)
        out = [torch.full((2, 16, 8, 8), torch.nan, device="cuda", dtype=torch.half) for _ in range(2)]
        results = [each.to(memory_format=torch.channels_last) for each in out]
        for one, result in zip((plan, again), results, strict=True):
            execute(one, x, w, bias, result)
        assert torch.equal(*results)


# plan.execute


# Limits, errors


# Policies


# Arrays: addresses, strides, results


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    ("dtype", "offset"), [("float32", 1), ("float16", 1), ("float16", 2), ("bfloat16", 3), ("float64", 1)]
)
def test_arrays_that_begin_at_odd_elements(dtype: str, offset: int, operation: str) -> None:
    """First aligned, then not, with the same signature: each with a plan for its alignment, planned once."""
    conv, given = Convolution(padding=1), arguments(operation, dtype=dtype)
    right = exact_result(operation, *given, padding=1)
    assert_same(run(conv, operation, *given), right)

    def shifted(tensor: torch.Tensor) -> torch.Tensor:
        buffer = torch.full((tensor.numel() + 32,), torch.nan, dtype=tensor.dtype, device="cuda")
        view = buffer.as_strided(tensor.shape, tensor.stride(), offset)
        return view.copy_(tensor)

    moved = [shifted(value) if isinstance(value, torch.Tensor) else value for value in given]
    for first, second in ((moved[0], given[1]), (given[0], moved[1]), (moved[0], moved[1])):
        assert_same(run(conv, operation, first, second, *given[2:]), right)
    out = shifted(torch.empty(right.shape, dtype=given[0].dtype, device="cuda"))
    for _ in range(6):  # by cuDNN each time: the kernels of misaligned plans may depend on the addresses
        out.fill_(torch.nan)
        run(conv, operation, *moved, out=out)
        assert_same(out, right)
    known = cudnnpy.cache_info().misses
    run(conv, operation, *moved, out=out)
    assert cudnnpy.cache_info().misses == known


def test_a_bias_that_begins_at_an_odd_element() -> None:
    x, w = arguments("forward")
    bias = whole_numbers(W[0] + 1)[1:]
    assert_same(Convolution(padding=1).forward(x, w, bias), exact_result("forward", x, w, padding=1, bias=bias))


def test_smoke_inputs_and_results_with_gaps() -> None:
    x, w = whole_numbers(4, 20, 12, 24)[:, 2:18, :, ::2], whole_numbers(32, 16, 5, 3)[:, :, 1:4]
    assert not x.is_contiguous()
    buffer = torch.full((4, 40, 12, 12), 7.0, device="cuda")
    out = buffer[:, 4:36]
    Convolution(padding=1).forward(x, w, out=out)
    assert_same(out, exact_result("forward", x, w, padding=1))
    assert bool((buffer[:, :4] == 7).all() and (buffer[:, 36:] == 7).all())


@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(2, 8, 9, 7), (16, 64, 56, 56)], ids=["small", "large"])
def test_a_bias_gradient_has_the_same_bits_every_time(shape: tuple[int, ...], dtype: str, last: bool) -> None:
    """As deterministic=True wants; it has no algorithms that this would choose among."""
    dy = torch.randn(shape, device="cuda").to(getattr(torch, dtype))
    dy = dy.contiguous(memory_format=torch.channels_last) if last else dy
    conv = Convolution(deterministic=True)
    first = conv.backward_bias(dy).clone()
    for _ in range(10):
        assert torch.equal(conv.backward_bias(dy), first)


# Eight bits


@pytest.mark.parametrize("result", [None, "int32", "float32", "int8"])
def test_int8_forward(result: str | None) -> None:
    """Channels last, by the sixteen: what tensor cores take."""
    x, w = (
        whole_numbers(2, 32, 9, 8, dtype="int8", last=True),
        whole_numbers(16, 32, 3, 3, dtype="int8", last=True, seed=1),
    )
    right = exact_result("forward", x, w)
    out = None if result is None else whole_numbers(2, 16, 7, 6, dtype=result, last=True)
    y = Convolution().forward(x, w, out=out)
    assert y.dtype == getattr(torch, result or "int32")
    assert_same(y, np.clip(right, -128, 127) if result == "int8" else right)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("result", [None, "float32", "float16", "bfloat16"])
def test_float8_forward(dtype: str, result: str | None) -> None:
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU has no float8")
    x, w = (
        whole_numbers(2, 32, 9, 8, dtype=dtype, last=True),
        whole_numbers(16, 32, 3, 3, dtype=dtype, last=True, seed=1),
    )
    out = None if result is None else whole_numbers(2, 16, 7, 6, dtype=result, last=True)
    y = Convolution().forward(x, w, out=out)
    assert y.dtype == getattr(torch, result or dtype)
    assert_same(y, exact_result("forward", x, w))


# A known signature does no set-up


# Workspace


def needy(x: torch.Tensor, w: torch.Tensor) -> Convolution:
    """A convolution whose engine needs workspace."""
    for candidate in Convolution(padding=1).candidates("forward", x, w):
        if not candidate.rejection_reason and candidate.workspace_size and candidate.engine is not None:
            return Convolution(padding=1, algorithm=candidate.engine)
    raise AssertionError("no engine here needs workspace")


def test_outgrown_workspace_is_not_used_by_others_while_work_is_in_flight() -> None:
    """Many calls queued at once, each needing more than the one before: every result is right."""
    shapes = [((n, 16, 24, 24), (32, 16, 3, 3)) for n in (1, 2, 4, 8, 16, 32)]
    pairs = [(whole_numbers(*x), whole_numbers(*w)) for x, w in shapes]
    convs = [needy(x, w) for x, w in pairs]
    for conv, (x, w) in zip(convs, pairs, strict=True):
        conv.plan("forward", x, w)
    torch.cuda.synchronize()
    results = [conv.forward(x, w) for conv, (x, w) in zip(convs, pairs, strict=True)]
    others = [torch.full((1 << 20,), torch.nan, device="cuda") for _ in range(8)]
    for (x, w), y in zip(pairs, results, strict=True):
        assert_same(y, exact_result("forward", x, w, padding=1))
    assert len(others) == 8


# Streams


@pytest.mark.parametrize("how", ["current", "argument", "address"])
def test_work_follows_the_stream(how: str) -> None:
    """On a stream that is busy: the result is right after that stream alone is waited for."""
    conv = Convolution(padding=1)
    x, w = arguments("forward")
    conv.forward(x, w)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    late = torch.zeros_like(x)
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)  # about 50 ms
        late.copy_(x)
        out = torch.empty(Y, device="cuda")
        if how == "current":
            conv.forward(late, w, out=out)
    if how != "current":
        conv.forward(late, w, out=out, stream=side if how == "argument" else side.cuda_stream)
    side.synchronize()
    assert_same(out, exact_result("forward", x, w, padding=1))
