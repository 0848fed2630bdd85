"""Calls of batch normalization on stand-in arrays: the results, their types, and their launches."""

from __future__ import annotations

import io
from typing import Any

import pytest
from stand_in_device import Array, StandInDevice

import cudnnpy
from cudnnpy._launch import plan_cache
from cudnnpy._planning import selection
from cudnnpy._planning.chooser import Chooser
from cudnnpy._planning.selection import choose

DTYPES = ("float16", "bfloat16", "float32", "float64")
LAST = (64 * 1600, 1, 64 * 40, 64)
RUNNING = ("running_mean", "running_variance")
FILLS = {"float64": "cudnnSetTensor"}


def wide(dtype: str) -> str:
    return "float64" if dtype == "float64" else "float32"


def told(results: Any) -> list[Any]:
    """(shape, dtype) of results that are arrays of the library of x; None of those that are not there."""
    found = results if isinstance(results, tuple) else (results,)
    assert all(one is None or type(one) is Array for one in found)
    return [None if one is None else (one.shape, one.dtype) for one in found]


def launched(stand_in: StandInDevice) -> list[str]:
    """What was launched since the last question."""
    names = [launch.name for launch in stand_in.launches]
    stand_in.launches.clear()
    return names


# Sizes of 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 3, 0), (0, 3, 4, 5), (2, 3, 0, 5), (2, 3, 0, 4, 5)], ids=str)
def test_batches_of_no_elements(stand_in: StandInDevice, shape: Any, dtype: str) -> None:
    x, scale = Array(*shape, dtype=dtype), Array(3, dtype=wide(dtype))
    y, row = (shape, dtype), ((3,), wide(dtype))
    fill = FILLS.get(dtype, "cuMemsetD32Async")
    batch = cudnnpy.BatchNormalization()
    running = [Array(3, dtype=wide(dtype)) for _ in range(2)]
    named = dict(zip(RUNNING, running, strict=True))
    assert told(batch.forward_training(x, scale, scale, **named, activation="relu")) == [y, row, row]
    assert {launch.name for launch in stand_in.launches} == {fill}
    written = {address for launch in stand_in.launches for address in launch.addresses.values()}
    assert not {array.pointer for array in running} & written  # they stay as they are
    assert launched(stand_in) == [fill] * 2
    assert told(batch.forward_inference(x, scale, scale, mean=running[0], variance=running[1])) == [y]
    assert launched(stand_in) == []
    assert told(batch.backward(x, x, scale)) == [y, row, row]
    assert launched(stand_in) == [fill] * 2
    outs = {"out_scale": running[0], "out_bias": running[1]}
    assert batch.backward(x, x, scale, **outs, parameter_beta=0.5)[1:] == tuple(running)
    assert launched(stand_in) == ["cudnnScaleTensor"] * 2
    assert stand_in.planned_graphs == []


@pytest.mark.parametrize("shape", [(2, 0), (2, 0, 4), (0,)], ids=str)
def test_batches_of_no_channels(stand_in: StandInDevice, shape: Any) -> None:
    x, none = Array(*shape), Array(0)
    batch = cudnnpy.BatchNormalization()
    running = dict(zip(RUNNING, (none, Array(0)), strict=True))
    assert told(batch.forward_training(x, **running)) == [(shape, "float32"), *[((0,), "float32")] * 2]
    assert told(batch.forward_inference(x, None, None, mean=none, variance=none)) == [(shape, "float32")]
    assert told(batch.backward(x, x)) == [(shape, "float32"), None, None]
    assert launched(stand_in) == []


# Large tensors that are channels last


def test_the_node_is_planned_as_a_graph_is(stand_in: StandInDevice) -> None:
    """So that it is recorded for `cudnnpy tune`, and lines of a trace name its engine."""
    x, row = Array(8, 64, 40, 40, strides=LAST, pointer=1 << 20), Array(64, pointer=1 << 30)
    lines = io.StringIO()
    with cudnnpy.record() as recording, cudnnpy.trace(file=lines):
        _, *saved = cudnnpy.BatchNormalization().forward_training(x, row, row)
        cudnnpy.BatchNormalization().backward(x, x, row, *saved)
    assert launched(stand_in) == ["cudnnBackendExecute"] * 2
    assert [problem.title for problem in stand_in.planned_graphs] == ["graph of norm_forward", "graph of norm_backward"]
    assert [text.partition(" ")[0] for text in recording.problems] == ["graph"] * 2
    for line, text in zip(lines.getvalue().splitlines(), recording.problems, strict=True):
        assert line.startswith(f"{text} # made up")


def test_without_an_engine_the_functions_are_called(stand_in: StandInDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Chooser, "order", lambda chooser: iter(()))
    monkeypatch.setattr(selection, "choose", choose)
    x, row = Array(8, 64, 40, 40, strides=LAST, pointer=1 << 20), Array(64, pointer=1 << 30)
    _, *saved = cudnnpy.BatchNormalization().forward_training(x, row, row)
    cudnnpy.BatchNormalization().backward(x, x, row, *saved)
    names = [name for name in launched(stand_in) if "BatchNormalization" in name]
    assert names == ["cudnnBatchNormalizationForwardTraining", "cudnnBatchNormalizationBackward"]


# Axes and parameters


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_are_there_where_parameters_are(stand_in: StandInDevice, dtype: str) -> None:
    x, y, batch = Array(2, 4, 6, dtype=dtype), ((2, 4, 6), dtype), cudnnpy.BatchNormalization()
    for kind in dict.fromkeys((dtype, wide(dtype))):
        scale, gradient, own = Array(4, dtype=kind), ((4,), kind), ((4,), dtype)
        for bias, expected in ((None, gradient), (True, gradient), (False, None)):
            assert told(batch.backward(x, x, scale, bias=bias)) == [y, gradient, expected]
        for bias, expected in ((None, None), (True, own), (False, None)):
            assert told(batch.backward(x, x, bias=bias)) == [y, None, expected]
        out = Array(4, dtype=kind)
        assert batch.backward(x, x, out_bias=out, bias=True)[2] is out


def test_parameters_that_are_not_there_are_in_scratch_memory(stand_in: StandInDevice) -> None:
    """A scale of 1, and a bias of 0."""
    x = Array(2, 4, 6, dtype="float16")
    batch = cudnnpy.BatchNormalization()
    for _ in range(2):
        batch.forward_training(x)
        patterns = [launch.arguments[1] for launch in stand_in.launches[:2]]
        assert patterns == [0x3F800000, 0]
        assert launched(stand_in) == ["cuMemsetD32Async"] * 2 + ["cudnnBatchNormalizationForwardTraining"]
    assert plan_cache.cache_info().misses == 1
