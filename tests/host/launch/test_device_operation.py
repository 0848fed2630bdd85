"""From arrays to a launch, without a GPU: the first call of a signature, and the next ones.

The arrays, the choice and the C library are stand-ins; keys, caches, launchers, handles and plans are the real ones.
"""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from stand_in_device import OTHER, STREAM, Array, StandInDevice, calls_of_c

from cudnnpy import Convolution, ConvolutionTranspose, Engine, Graph, Plan, TensorSpec
from cudnnpy._launch import plan_cache
from cudnnpy.errors import CaptureError
from cudnnpy.handle import Handle

X, W, BIAS, Y = (2, 4, 8, 8), (6, 4, 3, 3), (6,), (2, 6, 6, 6)


# A known signature does no set-up


@pytest.mark.parametrize("space", [0, 4096])
@pytest.mark.parametrize("name", ["forward", "backward_data", "backward_filter", "fused"])
def test_a_known_call_is_one_execute_and_nothing_else(stand_in: StandInDevice, name: str, space: int) -> None:
    stand_in.is_relocatable, stand_in.workspace_size = True, space
    conv = Convolution()
    x, w, bias, y = Array(*X), Array(*W), Array(*BIAS), Array(*Y)
    call: Callable[[], Any] = {
        "forward": lambda: conv.forward(x, w, out=y),
        "backward_data": lambda: conv.backward_data(y, w, out=x),
        "backward_filter": lambda: conv.backward_filter(y, x, out=w),
        "fused": lambda: conv.forward(x, w, bias, "relu", y),
    }[name]
    result = call()
    assert result is {"backward_data": x, "backward_filter": w}.get(name, y)
    assert len(stand_in.choices) == 1
    assert stand_in.c_calls["cudnnBackendExecute"] == 1
    assert stand_in.c_calls["cudnnSetStream"] == 1

    def counted(times: int = 1) -> dict[str, int]:
        stand_in.c_calls.clear()
        for _ in range(times):
            call()
        return calls_of_c(stand_in)

    # by cuDNN, with the variant pack of the first call, which the direct launch replaces
    assert counted() == {"cudnnBackendExecute": 1, "cudnnBackendDestroyDescriptor": 1}
    assert stand_in.direct_launches == 1
    assert counted() == {"cudnnBackendExecute": 1}  # directly
    assert counted(100) == {"cudnnBackendExecute": 100}
    stand_in.stream = OTHER
    assert counted() == {"cudnnBackendExecute": 1}  # on any stream, which has a workspace of its own
    stand_in.stream = STREAM
    assert counted() == {"cudnnBackendExecute": 1}
    assert len(stand_in.choices) == 1
    assert len(stand_in.allocated) == (2 if space else 0)


ARRAYS = {"x": X, "dx": X, "w": W, "dw": W, "y": Y, "dy": Y, "bias": BIAS}


@pytest.mark.parametrize("space", [0, 4096])
@pytest.mark.parametrize(
    ("operands", "call"),
    [
        (("x", "w", "y"), lambda conv, x, w, y: conv.forward(x, w, out=y)),
        (("x", "w", "bias", "y"), lambda conv, x, w, bias, y: conv.forward(x, w, bias, "relu", y)),
        (("dy", "w", "dx"), lambda conv, dy, w, dx: conv.backward_data(dy, w, out=dx)),
        (("dy", "x", "dw"), lambda conv, dy, x, dw: conv.backward_filter(dy, x, out=dw)),
    ],
    ids=["forward", "fused", "backward_data", "backward_filter"],
)
def test_each_array_reaches_the_operand_that_it_is_for(
    stand_in: StandInDevice, operands: tuple[str, ...], call: Any, space: int
) -> None:
    """Addresses that are new, that were launched before, by cuDNN and directly, on either stream."""
    conv, stand_in.is_relocatable, stand_in.workspace_size = Convolution(), True, space
    calls = [[Array(*ARRAYS[name]) for name in operands] for _ in range(5)]
    for arrays in [*calls, *reversed(calls)] + calls[:2] * 5 + calls:
        stand_in.stream = OTHER if stand_in.stream == STREAM else STREAM
        call(conv, *arrays)
        launch = stand_in.launches[-1]
        expected = dict(zip(operands, (array.pointer for array in arrays), strict=True))
        taken = [memory.start for memory, _, stream, _ in stand_in.workspaces if stream == stand_in.stream] or [0]
        assert launch.addresses == {**expected, "workspace": taken[0]}
        assert (launch.name, launch.stream) == ("cudnnBackendExecute", stand_in.stream)
    assert stand_in.direct_launches == 1
    assert len(stand_in.choices) == plan_cache.cache_info().misses == 1


# The key


def test_everything_that_changes_a_call_changes_its_key(stand_in: StandInDevice) -> None:
    """One call, changed in one thing at a time; each change is planned for, and none a second time."""
    last = (2 * 4 * 8 * 8 // 2, 1, 32, 4)
    base: dict[str, Any] = {"x": Array(*X), "w": Array(*W), "out": Array(*Y)}
    changes: dict[str, dict[str, Any]] = {
        "x's shape": {"x": Array(3, *X[1:]), "out": Array(3, *Y[1:])},
        "w's shape": {"w": Array(8, *W[1:]), "out": Array(2, 8, 6, 6)},
        "x's strides": {"x": Array(*X, strides=last)},
        "w's strides": {"w": Array(*W, strides=(36, 1, 12, 4))},
        "out's strides": {"out": Array(*Y, strides=(216, 1, 36, 6))},
        "dtype": {"x": Array(*X, dtype="float16"), "w": Array(*W, dtype="float16"), "out": Array(*Y, dtype="float16")},
        "device": {"x": Array(*X, device=1), "w": Array(*W, device=1), "out": Array(*Y, device=1)},
        "no out": {"out": None},
        "bias": {"bias": Array(*BIAS)},
        "activation": {"activation": "relu"},
        "another activation": {"activation": "tanh"},
        "alpha": {"alpha": 2.0},
        "beta": {"beta": 1.0},
        "another beta": {"beta": 0.5},
    }
    conv = Convolution()
    conv.forward(**base)
    for count, change in enumerate(changes.values(), 2):
        conv.forward(**{**base, **change})
        assert len(stand_in.choices) == count
    for change in changes.values():
        conv.forward(**{**base, **change})
    assert len(stand_in.choices) == len(changes) + 1
    assert len({problem for problem, *_ in stand_in.choices}) == len(
        changes
    )  # with and without `out` the problem is one


def test_the_result_of_int8_may_have_several_types(stand_in: StandInDevice) -> None:
    x, w = Array(*X, dtype="int8"), Array(*W, dtype="int8")
    for dtype in ("int32", "float32", "int8"):
        Convolution().forward(x, w, out=Array(*Y, dtype=dtype))
    assert [problem.y.dtype for problem, *_ in stand_in.choices] == ["int32", "float32", "int8"]
    assert Convolution().forward(x, w).dtype == "int32"


# Results


# Bad arrays


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda c: c.forward(Array(*X), Array(*W, device=1)), ValueError, r"w must .*; got an array on device 1"),
        (
            lambda c: c.forward(Array(*X), Array(*W), Array(*BIAS, device=1)),
            ValueError,
            "bias must be on device 0, as x; got an array on device 1",
        ),
        (
            lambda c: c.backward_data(Array(*Y), Array(*W), out=Array(*X, device=1)),
            ValueError,
            "out must be on device 0, as dy; got an array on device 1",
        ),
        (
            lambda c: c.forward(Array(*X, device=-1), Array(*W)),
            TypeError,
            r"x must be .*; got a host array .*to_device.*reference",
        ),
        (lambda c: c.forward(Array(*X), Array(*W, device=-1)), TypeError, r"w must be .*; got a host array"),
        (
            lambda c: c.forward(Array(*X), Array(*W), out=Array(*Y, writable=False)),
            ValueError,
            "out must be a writable array; got a read-only one",
        ),
        (
            lambda c: c.forward(Array(*X), Array(*W), out=Array(2, 6, 6, 5)),
            ValueError,
            r"out must have shape \(2, 6, 6, 6\); got shape \(2, 6, 6, 5\)",
        ),
        (lambda c: c.forward(Array(*X), Array(*W), beta=1.0), ValueError, "beta must be 0 where out is None; got 1.0"),
        (
            lambda c: c.forward(Array(*X, strides=(256, 64, 8, 0)), Array(*W)),
            ValueError,
            r"x must have strides of 1 or more; got strides \(256, 64, 8, 0\)",
        ),
        (lambda c: c.forward(Array(*X, dtype="complex64"), Array(*W)), TypeError, "complex64"),
        (lambda c: c.forward(Array(*X), Array(*W), activation="gelu"), ValueError, r"activation must .*; got 'gelu'"),
        (lambda c: c.forward(object(), Array(*W)), TypeError, r"x must be a device array.*; got <object object"),
        (lambda c: c.forward(Array(*X), None), TypeError, "w must be a device array; got None"),
        (lambda c: c.backward_data(Array(*Y), Array(*W)), TypeError, r"x_shape must be .*; got None"),
        (lambda c: c.backward_filter(Array(*Y), Array(*X)), TypeError, r"w_shape must be .*; got None"),
        (lambda c: c.backward_bias(Array(*Y, dtype="int8")), TypeError, r"dy must .*; got int8"),
        (lambda c: c.backward_bias(Array(6, 6)), ValueError, r"dy must have 3, 4 or 5 axes; got shape \(6, 6\)"),
        (lambda c: c.backward_bias(Array(*Y), out=Array(5)), ValueError, r"out must have shape .*; got shape \(5,\)"),
        (
            lambda c: c.backward_bias(Array(*Y), out=Array(6, device=1)),
            ValueError,
            "out must be on device 0, as dy; got",
        ),
        (lambda c: c.backward_bias(Array(*Y), beta=1.0), ValueError, "beta must be 0 where out is None; got 1.0"),
        (
            lambda c: c.backward_bias(Array(*Y), out=Array(6, writable=False)),
            ValueError,
            "out must be a writable array; got a read-only one",
        ),
        (lambda c: c.forward(Array(*X), Array(*W), stream="fast"), TypeError, r"stream must .*; got 'fast' \(str\)"),
    ],
)
def test_bad_arrays_are_refused_before_any_c_call(
    stand_in: StandInDevice, call: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        call(Convolution())
    assert calls_of_c(stand_in) == {}
    assert stand_in.choices == []
    assert plan_cache.cache_info().size == 0


@pytest.mark.usefixtures("stand_in")
def test_overlapping_and_misplaced_memory_is_refused() -> None:
    x, w = Array(*X, pointer=1 << 20), Array(*W)
    for pointer in (1 << 20, (1 << 20) + 16, (1 << 20) - 16):
        with pytest.raises(ValueError, match="y must not overlap x in memory"):
            Convolution().forward(x, w, out=Array(*Y, pointer=pointer))
    with pytest.raises(ValueError, match=r"x must .*; got address 0x0"):
        Convolution().forward(Array(*X, pointer=0), w, out=Array(*Y))
    with pytest.raises(ValueError, match="x must be aligned to the size of a float32; got address 0x100002"):
        Convolution().forward(Array(*X, pointer=(1 << 20) + 2), w, out=Array(*Y))


def test_misaligned_memory_is_planned_for_by_itself_once(stand_in: StandInDevice) -> None:
    conv = Convolution()
    x, odd, w = Array(*X), Array(*X, pointer=(1 << 21) + 4), Array(*W)
    for _ in range(3):
        conv.forward(x, w)
        conv.forward(odd, w)
    assert [problem.x.alignment for problem, *_ in stand_in.choices] == [16, 4]
    conv.forward(Array(*X, pointer=(1 << 22) + 8), w)
    assert stand_in.choices[-1][0].x.alignment == 8


# A transposed convolution's bias and activation are part of its one plan


def test_a_transposed_convolution_with_bias_and_activation_is_one_plan(stand_in: StandInDevice) -> None:
    conv, x, w, bias = ConvolutionTranspose(), Array(2, 6, 6, 6), Array(*W), Array(4)
    out = Array(*conv.output_shape((2, 6, 6, 6), W))
    assert conv.forward(x, w, bias, "relu", out) is out
    ((problem, *_),) = stand_in.choices
    assert (problem.operation, problem.activation) == ("backward_data", "relu")
    assert problem.operands == ("dy", "w", "bias", "dx")
    stand_in.c_calls.clear()
    conv.forward(x, w, bias, "relu", out)
    assert calls_of_c(stand_in)["cudnnBackendExecute"] == 1
    conv.forward(x, w, bias, "identity", out)
    conv.forward(x, w, out=out)
    assert [(problem.bias is None, problem.activation) for problem, *_ in stand_in.choices[1:]] == [
        (False, None),
        (True, None),
    ]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda up: up.forward(Array(2, 6, 6, 6), Array(*W, dtype="float16")), r"w must be float32.*; got float16"),
        (lambda up: up.forward(Array(2, 6, 6, 6, dtype="int32"), Array(*W, dtype="int32")), r"x must .*; got int32"),
        (
            lambda up: up.backward_filter(Array(2, 4, 8, 8, dtype="float16"), Array(2, 6, 6, 6), W),
            r"dy must be float32, as x.*; got float16",
        ),
        (
            lambda up: up.backward_data(Array(2, 4, 8, 8), Array(*W, dtype="float16"), (2, 6, 6, 6)),
            "w must be float32, as dy; got float16",
        ),
    ],
)
def test_a_transposed_convolution_speaks_of_its_callers_arrays(
    stand_in: StandInDevice, call: Any, message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        call(ConvolutionTranspose())


# Captures


@pytest.mark.parametrize("specs", [False, True], ids=["arrays", "specs"])
def test_nothing_is_planned_while_pytorch_captures_its_current_stream(
    stand_in: StandInDevice, monkeypatch: pytest.MonkeyPatch, specs: bool
) -> None:
    """Whatever stream the call itself is for: planning could spoil the capture."""
    cuda = SimpleNamespace(is_initialized=lambda: True, is_current_stream_capturing=lambda: True)
    torch = SimpleNamespace(cuda=cuda)
    monkeypatch.setitem(sys.modules, "torch", torch)
    arrays = (TensorSpec(X), TensorSpec(W)) if specs else (Array(*X), Array(*W))
    with pytest.raises(
        CaptureError, match=r"plan: .* Plan before the capture, and keep the plan; the capture is intact"
    ):
        Convolution().plan("forward", *arrays, device=0)
    with pytest.raises(CaptureError):
        Convolution().forward(Array(*X), Array(*W), stream=OTHER)
    assert stand_in.choices == []


def test_a_misaligned_call_in_a_capture_is_refused_unless_warm(stand_in: StandInDevice) -> None:
    conv = Convolution()
    odd, w = Array(*X, pointer=(1 << 21) + 4), Array(*W)
    conv.forward(Array(*X), w)
    stand_in.capturing = {STREAM}
    with pytest.raises(CaptureError, match="has not been planned yet"):
        conv.forward(odd, w)
    stand_in.capturing = set()
    conv.forward(odd, w)
    stand_in.capturing = {STREAM}
    conv.forward(odd, w)
    assert len(stand_in.choices) == 2


# Policies, saved plans


def test_once_offers_the_first_shapes_engine_to_later_ones(stand_in: StandInDevice) -> None:
    once, each = Convolution(policy="once"), Convolution()
    for conv in (once, each):
        for batch in (1, 2):
            conv.forward(Array(batch, *X[1:]), Array(*W))
        conv.backward_data(Array(*Y), Array(*W), X)
    offered = [before for *_, before in stand_in.choices]
    assert offered == [None, Engine(7, {1: 2}), None, None, None, None]


def test_a_plan_serves_the_problem_it_was_made_for(stand_in: StandInDevice) -> None:
    conv = Convolution()
    x, w = Array(*X), Array(*W)
    plan = conv.plan("forward", x, w)
    assert isinstance(plan, Plan)
    assert (plan.operands, plan.name, plan.source) == (("x", "w", "y"), "made up", "heuristics")
    forced = Convolution(algorithm=plan)
    forced.forward(x, w)
    assert len(stand_in.choices) == 1
    with pytest.raises(ValueError, match="algorithm must be a plan for this problem"):
        forced.forward(Array(3, *X[1:]), w)


def test_a_plan_is_for_the_device_it_was_made_for(stand_in: StandInDevice) -> None:
    plan = Convolution().plan("forward", Array(*X), Array(*W))
    plan.candidates = [*plan.candidates, *plan.candidates] or [None]  # type: ignore[list-item]
    kept = list(plan.candidates)
    forced = Convolution(algorithm=plan)
    with pytest.raises(
        ValueError,
        match=r"algorithm must be a plan for device 1, where the arrays are; got one for device 0\. Plan there, or move it",
    ):
        forced.forward(Array(*X, device=1), Array(*W, device=1))
    assert stand_in.c_calls["cudnnBackendExecute"] == 0
    forced.forward(Array(*X), Array(*W))
    assert plan.candidates == kept  # the caller's own


def test_options_with_a_plan_are_not_kept(stand_in: StandInDevice) -> None:
    x, w = Array(*X), Array(*W)
    plan = Convolution().plan("forward", x, w)
    for _ in range(2):
        Convolution(algorithm=plan).forward(x, w)
    gone = weakref.ref(plan)
    del plan
    plan_cache.clear_cache()
    gc.collect()
    assert gone() is None


def test_the_plan_of_a_graph_is_no_convolutions(stand_in: StandInDevice) -> None:
    graph = Graph()
    graph.output("y", graph.pointwise("abs", graph.tensor("x", TensorSpec((2, 3)))))
    plan = graph.plan()
    with pytest.raises(TypeError, match="algorithm must be the plan of a convolution; got the plan of a graph"):
        Convolution(algorithm=plan)


def test_a_plan_takes_raw_addresses_and_checks_them(stand_in: StandInDevice) -> None:
    stand_in.is_relocatable, stand_in.workspace_size = True, 100
    plan = Convolution().plan("forward", Array(*X), Array(*W))
    good = (1 << 20, 2 << 20, 3 << 20, 4 << 20, STREAM)
    others = (5 << 20, 6 << 20, 7 << 20, 8 << 20, OTHER)
    for given in (good, others, good, others, (*good[:4], OTHER), (*others[:2], *good[2:])):
        plan.execute(*given)
        launch = stand_in.launches[-1]
        assert tuple(launch.addresses[name] for name in ("x", "w", "y", "workspace")) == given[:-1]
        assert launch.stream == given[-1]
    stand_in.c_calls.clear()
    plan.execute(*good)
    assert stand_in.c_calls == {"cudnnBackendExecute": 1}
    with pytest.raises(TypeError, match="addresses must be x, w, y, workspace, stream; got 4 addresses"):
        plan.execute(*good[:-1])
    for bad, text in (
        ((0, *good[1:]), r"x must .*; got address 0x0"),
        (((1 << 20) + 4, *good[1:]), "x must be aligned to 16 bytes; got address 0x100004"),
        ((*good[:2], good[0], *good[3:]), "y must not overlap x"),
        ((*good[:3], 0, STREAM), "workspace must be the address of 100 bytes; got 0x0"),
        ((*good[:3], good[3] + 8, STREAM), "workspace must be aligned to 16 bytes; got address 0x400008"),
        ((*good[:3], good[2], STREAM), "workspace must not overlap y in memory; got 100 bytes at 0x300000"),
        ((*good[:3], good[1] - 16, STREAM), "workspace must not overlap w in memory; got 100 bytes at 0x1ffff0"),
    ):
        with pytest.raises(ValueError, match=text):
            plan.execute(*bad)


def test_a_plan_takes_addresses_by_name(stand_in: StandInDevice) -> None:
    stand_in.workspace_size = 100
    plan = Convolution().plan("forward", Array(*X), Array(*W))
    x, w, y, space = 1 << 20, 2 << 20, 3 << 20, 4 << 20
    for given, named in (
        ((x, w, y), {"workspace": space, "stream": OTHER}),
        ((x, w, y, space), {"stream": OTHER}),
        ((x,), {"stream": OTHER, "y": y, "workspace": space, "w": w}),
    ):
        plan.execute(*given, **named)
        launch = stand_in.launches[-1]
        assert launch.addresses == {"x": x, "w": w, "y": y, "workspace": space}
        assert launch.stream == OTHER
    first_line = (Plan.execute.__doc__ or "").partition("\n")[0]
    assert "(*operands, workspace, stream)" in first_line


@pytest.mark.parametrize(
    ("count", "names", "given"),
    [
        (4, [], "4 addresses"),
        (6, [], "6 addresses"),
        (0, [], "0 addresses"),
        (3, ["stream"], "3 addresses and stream="),
        (5, ["workspace", "stream"], "5 addresses and workspace= and stream="),
        (4, ["workspace"], "4 addresses and workspace="),
        (5, ["stream"], "5 addresses and stream="),
        (3, ["workspace", "streem"], "3 addresses and workspace= and streem="),
        (2, ["dy", "workspace", "stream"], "2 addresses and dy= and workspace= and stream="),
    ],
)
def test_wrong_addresses_of_a_plan_are_named(stand_in: StandInDevice, count: int, names: list[str], given: str) -> None:
    plan = Convolution().plan("forward", Array(*X), Array(*W))
    stand_in.c_calls.clear()
    with pytest.raises(TypeError, match=rf"^addresses must be x, w, y, workspace, stream; got {given}$"):
        plan.execute(*range(1 << 20, (1 << 20) + count), **dict.fromkeys(names, 1 << 30))
    assert stand_in.c_calls == {}
    assert stand_in.launches == []


def test_threads_plan_and_launch_by_themselves(stand_in: StandInDevice) -> None:
    stand_in.workspace_size = 512
    conv = Convolution()
    x, w = Array(*X), Array(*W)
    start = threading.Barrier(3, timeout=10)
    failures: list[BaseException] = []
    handles: list[Any] = []

    def work() -> None:
        try:
            start.wait()
            for _ in range(50):
                assert conv.forward(x, w).shape == Y
            assert (plan_cache.cache_info().size, plan_cache.cache_info().misses) == (1, 1)
            handles.append(Handle.default(0))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert failures == []
    assert len(stand_in.choices) == 3
    assert len(stand_in.allocated) == 3  # a workspace for each thread
    assert len({id(handle) for handle in handles}) == 3
    assert stand_in.c_calls["cudnnBackendExecute"] == 150
    assert plan_cache.cache_info().size == 0
