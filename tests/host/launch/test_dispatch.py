"""What every operation's call does: its key, its results, what it does the first time and what it does again.

test_device_operation.py says the same of the convolutions.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from sample_calls import BY_NAME, SAMPLES, C, Sample, X
from stand_in_device import OTHER, STREAM, Array, Recorded, StandInDevice, calls_of_c

import cudnnpy
from cudnnpy import TensorSpec
from cudnnpy._arrays import array_libraries as arrays
from cudnnpy._launch import dispatch, plan_cache
from cudnnpy._launch.dispatch import Call
from cudnnpy.errors import CaptureError

each_call = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
LAST = (144, 1, 24, 4)  # X, channels last


nn: Any = cudnnpy  # whose types forbid what is tried here


def counts() -> tuple[int, int, int]:
    """The plan cache's entries, and how often it had to plan and to forget."""
    info = plan_cache.cache_info()
    return info.size, info.misses, info.evictions


def misses() -> int:
    return plan_cache.cache_info().misses


def test_every_operation_has_a_sample_with_all_of_its_arrays_and_options() -> None:
    """So that what holds for the samples holds for every public operation and every argument of it."""
    kinds = {name.partition(".")[0] for name in BY_NAME}
    # attention's calls are in tests/host/layers/test_attention.py
    others = {"sigmoid", "run", "tolerance", "Convolution", "ConvolutionTranspose", "Attention"}
    assert kinds == set(cudnnpy.reference.__all__) - others
    for sample in SAMPLES:
        parameters = inspect.signature(sample.operation()).parameters
        known = {*sample.arrays, *sample.optional, *sample.keywords, "out", "stream"}
        assert set(parameters) - known <= {"activation", "layout", "dtype", "bias"}, sample.name
        assert known <= set(parameters), sample.name


# A known signature does no set-up


@each_call
def test_a_known_signature_plans_nothing_and_launches_once(stand_in: StandInDevice, sample: Sample) -> None:
    stand_in.is_relocatable = True
    call, given = sample.operation(), sample.given()
    result = call(**given)
    assert (result[0] if sample.many > 1 else result) is given["out"]
    assert stand_in.launches[-1].name == sample.launch
    assert misses() == 1
    call(**given)  # from the third call on, the launch of a graph is direct
    gc.collect()  # descriptors of earlier tests are destroyed now, not among the calls that are counted
    for count in (1, 50):
        stand_in.c_calls.clear()
        for _ in range(count):
            call(**given)
        assert calls_of_c(stand_in) == {sample.launch: count}
    stand_in.c_calls.clear()
    stand_in.stream = OTHER
    call(**given)
    assert {name: n for name, n in calls_of_c(stand_in).items() if name != "cudnnSetStream"} == {sample.launch: 1}
    assert stand_in.launches[-1].stream == OTHER
    assert misses() == 1
    assert len(stand_in.planned_graphs) <= 1


@each_call
def test_each_array_reaches_the_argument_that_it_is_for(stand_in: StandInDevice, sample: Sample) -> None:
    """In every call, whether its addresses are new or were launched before, by cuDNN and directly."""
    stand_in.is_relocatable = True
    call = sample.operation()
    calls = [sample.given() for _ in range(5)]
    for given in [*calls, *reversed(calls)] + calls[:2] * 40:
        found = results(call(**given))
        arrays: dict[str | int, Any] = {**given, **dict(enumerate(found))}
        launch = stand_in.launches[-1]
        assert launch.name == sample.launch
        reached = {name: address for name, address in launch.addresses.items() if name != "workspace"}
        assert reached == {name: arrays[sample.role(name)].pointer for name in reached}
        assert len(reached) == len({array.pointer for array in (*found, *given.values()) if isinstance(array, Array)})
    assert misses() == 1
    assert stand_in.direct_launches == (stand_in.launches[-1].name == "cudnnBackendExecute")


# The key


def variants(sample: Sample) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Calls that differ from the first in one thing each: {what: (the object's options, arguments)}."""
    found: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {"nothing": ({}, sample.given())}
    given = sample.given
    found["no out"] = ({}, {**given(), "out": None})
    if sample.optional:
        found["nothing optional"] = ({}, given(optional=False))
    for dtype in sample.dtypes[:-1] if sample.dtypes[-1] == "float32" else sample.dtypes[::3] + sample.dtypes[1:2]:
        found[dtype] = ({}, given(dtype))
    found["device"] = ({}, given(device=1))
    # Nothing but the inputs tells these apart.
    found["dtype, no out"] = ({}, {**given(sample.dtypes[0]), "out": None})
    found["device, no out"] = ({}, {**given(device=1), "out": None})
    for name in given():
        found[f"{name} misaligned"] = ({}, {**given(), name: sample.array(name, pointer=(1 << 36) + 4)})
        found[f"{name} misaligned less"] = ({}, {**given(), name: sample.array(name, pointer=(1 << 37) + 8)})
        if sample.array(name).shape == X:
            found[f"{name}'s strides"] = ({}, {**given(), name: sample.array(name, strides=LAST)})
    for name, value in sample.options.items():
        if (name, value) not in (("padding", 0), ("stride", 2)):  # the same as without
            found[f"another {name}"] = ({name: value}, given())
    for name, value in sample.keywords.items():
        found[f"another {name}"] = ({}, {**given(), name: value})
    return found


@each_call
def test_everything_that_changes_a_call_changes_its_key(stand_in: StandInDevice, sample: Sample) -> None:
    """Each variant is planned for, and none a second time."""
    ways = variants(sample)
    assert len(ways) >= 8
    plain, seen = sample.operation(), 0
    for what, (options, arguments) in ways.items():
        (sample.operation(**options) if options else plain)(**arguments)
        seen += 1
        assert misses() == seen, what
    for options, arguments in ways.values():
        sample.operation(**options)(**arguments)
    assert misses() == seen
    assert plan_cache.cache_info().size == seen


# Results


def results(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


@each_call
def test_results_are_made_where_the_first_input_is(stand_in: StandInDevice, sample: Sample) -> None:
    given = {name: array for name, array in sample.given(device=1).items() if name != "out"}
    found = results(sample.operation()(**given))
    assert len(found) == sample.many
    for array in found:
        assert type(array) is Array
        assert array.device == 1
    assert found[0].shape == sample.out
    assert found[0].dtype == "float32"
    assert {array.pointer for array in found} <= {*stand_in.launches[-1].addresses.values()}


class Another(Array):
    """An array of a second library."""


@pytest.mark.usefixtures("stand_in")
def test_results_are_made_by_the_library_of_the_first_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two libraries whose arrays look alike: each gets its own back."""
    library = arrays._libraries[Array]._replace(
        name="another",
        maker=lambda shape, strides, dtype, device: partial(Another, *shape, dtype=dtype.name, strides=strides),
    )
    monkeypatch.setitem(arrays._libraries, Another, library)
    softmax = cudnnpy.Softmax()
    for first, second in ((Array, Another), (Another, Array), (Array, Array), (Another, Another)):
        assert type(softmax.backward(first(*X), second(*X))) is first
    out = Another(*X)
    assert softmax.backward(Array(*X), Another(*X), out=out) is out


# dispatch.run by itself


@pytest.mark.usefixtures("stand_in")
def test_operations_on_the_same_arrays_are_told_apart_by_what_plans_them() -> None:
    plans = Recorded(), Recorded()
    prepares = [lambda call, plan=plan: (plan, [TensorSpec((3,))]) for plan in plans]
    x, out = Array(5), Array(3)
    for prepare in prepares * 2:
        dispatch.run("recorded", None, prepare, ("x", "out"), (x,), (out,), None)
    assert [plan.bound for plan in plans] == [
        [(x.pointer, out.pointer, 0)]
    ] * 2  # the second launch is the first one again
    assert misses() == 2


def test_what_fails_to_be_prepared_is_not_remembered(stand_in: StandInDevice) -> None:
    def fail(call: Call) -> Any:
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            dispatch.run("failing", None, fail, ("x", "out"), (Array(3),), (None,), None)
    assert counts() == (0, 0, 0)


# What cannot be hashed


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda x: nn.Activation().forward(x, beta=[]), TypeError, r"beta must .*; got \[\]"),
        (
            lambda x: nn.BatchNormalization().forward_training(x, Array(*C), Array(*C), activation=[]),
            TypeError,
            r"activation must be one of 'relu'.*; got \[\]",
        ),
        (
            lambda x: nn.FusedConvolution().forward(x, Array(8, 4, 3, 3), activation=[]),
            TypeError,
            r"activation must be one of 'relu'.*; got \[\]",
        ),
    ],
)
def test_what_cannot_be_hashed_is_refused_by_the_operation_itself(
    stand_in: StandInDevice, call: Callable[[Any], Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        call(Array(*X))
    assert calls_of_c(stand_in) == {}
    assert plan_cache.cache_info().size == 0


# Captures


@each_call
def test_an_unplanned_call_in_a_capture_is_refused_and_leaves_it_intact(
    stand_in: StandInDevice, sample: Sample
) -> None:
    call, given = sample.operation(), sample.given()
    stand_in.capturing = {STREAM}
    with pytest.raises(CaptureError, match=rf"^{sample.name}: this signature has not been planned yet.*\(a warm-up\)"):
        call(**given)
    assert calls_of_c(stand_in) == {}
    assert stand_in.allocated == []
    call(**given, stream=OTHER)  # is not being captured
    stand_in.c_calls.clear()
    call(**given)
    assert stand_in.c_calls[sample.launch] == 1  # a warm call is recorded
    assert misses() == 1
