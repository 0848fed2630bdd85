"""The normalizations' calls on stand-in arrays: the results, their types, and their launches."""

from __future__ import annotations

from typing import Any

import pytest
from stand_in_device import Array, StandInDevice

import cudnnpy
from cudnnpy._launch import plan_cache

DTYPES = ("float16", "bfloat16", "float32", "float64")
FILLS = {"float64": "cudnnSetTensor"}
ROWS = [cudnnpy.LayerNormalization, cudnnpy.RMSNormalization]


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
@pytest.mark.parametrize(
    ("shape", "normalized"), [((0, 3, 4), (4,)), ((2, 0, 4), (4,)), ((0, 3, 4), (3, 4)), ((0, 4), (4,))], ids=str
)
def test_rows_of_an_empty_batch(stand_in: StandInDevice, shape: Any, normalized: Any, dtype: str) -> None:
    """Nothing is launched, but for the fills of the parameters' gradients."""
    x, scale = Array(*shape, dtype=dtype), Array(*normalized, dtype=wide(dtype))
    kept = shape[: -len(normalized)]
    layer, rms = cudnnpy.LayerNormalization(), cudnnpy.RMSNormalization()
    y, mean = (shape, dtype), (kept, wide(dtype))
    gradient = normalized, wide(dtype)
    for _ in range(6):  # more often than it takes to be launched directly
        assert told(layer.forward_training(x, scale, scale)) == [y, mean, mean]
        assert told(layer.forward_inference(x, normalized_shape=normalized)) == [y]
        assert told(rms.forward_training(x, scale)) == [y, mean]
        assert told(rms.forward_inference(x, scale)) == [y]
        assert launched(stand_in) == []
        statistic = Array(*kept, dtype=wide(dtype))
        assert told(layer.backward(x, x, scale, statistic, statistic)) == [y, gradient, gradient]
        assert told(rms.backward(x, x, scale, statistic)) == [y, gradient]
        assert launched(stand_in) == [FILLS.get(dtype, "cuMemsetD32Async")] * 3
        assert told(layer.backward(x, x, None, statistic, statistic)) == [y, None, None]
        assert told(rms.backward(x, x, None, statistic)) == [y, None]
        assert launched(stand_in) == []
    assert plan_cache.cache_info().misses == 8
    assert stand_in.planned_graphs == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_no_elements(stand_in: StandInDevice, dtype: str) -> None:
    """There are statistics of them: 0 and NaN, as in PyTorch."""
    x, scale = Array(2, 3, 0, dtype=dtype), Array(0, dtype=wide(dtype))
    y, mean = ((2, 3, 0), dtype), ((2, 3), wide(dtype))
    assert told(cudnnpy.LayerNormalization().forward_training(x, scale, scale)) == [y, mean, mean]
    fills = stand_in.launches[:]
    assert launched(stand_in) == [FILLS.get(dtype, "cuMemsetD32Async")] * 2
    if dtype != "float64":
        assert [fill.arguments[1] for fill in fills] == [0, 0x7FC00000]  # the bits of 0 and NaN
        assert {fill.arguments[2] for fill in fills} == {6}
    statistic = Array(2, 3, dtype=wide(dtype))
    found = cudnnpy.LayerNormalization().backward(x, x, scale, statistic, statistic)
    assert told(found) == [y, ((0,), wide(dtype)), ((0,), wide(dtype))]
    assert launched(stand_in) == []


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 3, 0), (0, 3, 4, 5), (2, 3, 0, 5), (2, 3, 0, 4, 5)], ids=str)
def test_instances_and_batches_of_no_elements(stand_in: StandInDevice, shape: Any, dtype: str) -> None:
    x, scale = Array(*shape, dtype=dtype), Array(3, dtype=wide(dtype))
    y, row, mean = (shape, dtype), ((3,), wide(dtype)), (shape[:2], wide(dtype))
    fill = FILLS.get(dtype, "cuMemsetD32Async")
    instance, batch = cudnnpy.InstanceNormalization(), cudnnpy.BatchNormalization()
    assert told(instance.forward_training(x, scale, scale)) == [y, mean, mean]
    assert launched(stand_in) == [fill] * (2 if shape[0] else 0)
    assert told(instance.forward_inference(x)) == [y]
    assert launched(stand_in) == []
    statistic = Array(*shape[:2], dtype=wide(dtype))
    assert told(instance.backward(x, x, scale, statistic, statistic)) == [y, row, row]
    assert launched(stand_in) == [fill] * 2

    running = [Array(3, dtype=wide(dtype)) for _ in range(2)]
    assert told(batch.forward_training(x, scale, scale, *running, activation="relu")) == [y, row, row]
    assert {launch.name for launch in stand_in.launches} == {fill}
    written = {address for launch in stand_in.launches for address in launch.addresses.values()}
    assert not {array.pointer for array in running} & written  # they stay as they are
    assert launched(stand_in) == [fill] * 2
    assert told(batch.forward_inference(x, scale, scale, *running)) == [y]
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
    assert told(batch.forward_training(x, None, None, none, Array(0))) == [(shape, "float32"), *[((0,), "float32")] * 2]
    assert told(batch.forward_inference(x, None, None, none, none)) == [(shape, "float32")]
    assert told(batch.backward(x, x)) == [(shape, "float32"), None, None]
    assert launched(stand_in) == []


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 3, 4, 5), (2, 3, 4, 5, 0)], ids=str)
def test_responses_of_no_elements(stand_in: StandInDevice, shape: Any) -> None:
    for layout in ("NCHW", "NHWC"):
        response, x = cudnnpy.LocalResponseNormalization(layout=layout), Array(*shape, dtype="float16")
        out = Array(*shape, dtype="float16")
        assert told(response.forward(x)) == told(response.backward(x, x, x)) == [(shape, "float16")]
        assert response.forward(x, out, 2.0, 1.0) is response.backward(x, x, x, out, 2.0, 1.0) is out
    assert launched(stand_in) == []


# Axes and parameters


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_axes(stand_in: StandInDevice, dtype: str) -> None:
    """The statistics have none."""
    for shape in ((6,), (2, 3), (1, 2, 3, 4, 5)):
        x, scale = Array(*shape, dtype=dtype), Array(*shape, dtype=dtype)
        y, mean = (shape, dtype), ((), wide(dtype))
        layer, rms = cudnnpy.LayerNormalization(), cudnnpy.RMSNormalization()
        assert told(layer.forward_training(x, scale, scale)) == [y, mean, mean]
        assert told(rms.forward_training(x, normalized_shape=shape)) == [y, mean]
        statistic = Array(dtype=wide(dtype))
        for given in (scale, None):
            there = [y if given else None] * 2
            assert told(layer.backward(x, x, given, statistic, statistic)) == [y, *there]
            assert told(rms.backward(x, x, given, statistic)) == [y, *there[:1]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_are_there_where_parameters_are(stand_in: StandInDevice, dtype: str) -> None:
    x, y = Array(2, 4, 6, dtype=dtype), ((2, 4, 6), dtype)
    layer, instance, batch = (
        kind() for kind in (cudnnpy.LayerNormalization, cudnnpy.InstanceNormalization, cudnnpy.BatchNormalization)
    )
    for kind in dict.fromkeys((dtype, wide(dtype))):
        gradients: list[tuple[Any, int, list[Any]]] = [(layer, 6, [Array(2, 4, dtype=wide(dtype))] * 2)]
        gradients += [(instance, 4, gradients[0][2]), (batch, 4, [None, None])]
        for norm, size, saved in gradients:
            scale, gradient, own = Array(size, dtype=kind), ((size,), kind), ((size,), dtype)
            for bias, expected in ((None, gradient), (True, gradient), (False, None)):
                assert told(norm.backward(x, x, scale, *saved, bias=bias)) == [y, gradient, expected]
            for bias, expected in ((None, None), (True, own), (False, None)):
                assert told(norm.backward(x, x, None, *saved, bias=bias)) == [y, None, expected]
        out = Array(4, dtype=kind)
        assert batch.backward(x, x, out_bias=out, bias=True)[2] is out


def test_parameters_that_are_not_there_are_constants_of_the_plan(stand_in: StandInDevice) -> None:
    """Filled when the call is planned, and launched by no call."""
    x = Array(2, 4, 6, dtype="float16")
    layer = cudnnpy.LayerNormalization()
    layer.forward_training(x, normalized_shape=6)
    assert launched(stand_in) == ["cuMemsetD16Async"] * 2 + ["cudnnBackendExecute"]
    layer.forward_training(x, normalized_shape=(6,))
    assert launched(stand_in) == ["cudnnBackendExecute"]
    assert plan_cache.cache_info().misses == 1
    cudnnpy.BatchNormalization().forward_training(x)
    assert launched(stand_in) == ["cuMemsetD32Async"] * 2 + ["cudnnBatchNormalizationForwardTraining"]


@pytest.mark.parametrize("kind", ROWS)
def test_normalized_shape_tells_calls_apart(stand_in: StandInDevice, kind: Any) -> None:
    norm, x = kind(), Array(2, 4, 6)
    shapes = [norm.forward_training(x, normalized_shape=shape)[1].shape for shape in (6, (4, 6), [2, 4, 6], 6)]
    assert shapes == [(2, 4), (2,), (), (2, 4)]


def test_float64_is_composed_of_functions(stand_in: StandInDevice) -> None:
    x, scale = Array(8, 6, dtype="float64"), Array(6, dtype="float64")
    cudnnpy.LayerNormalization().forward_inference(x, scale, scale)
    names = launched(stand_in)
    assert {name for name in names if "Normalization" in name} == {"cudnnBatchNormalizationForwardInference"}
    assert names.count("cudnnReduceTensor") == 2
    assert stand_in.planned_graphs == []


def test_responses_of_three_axes(stand_in: StandInDevice) -> None:
    for layout in ("NCW", "NWC", "NCHW", "NHWC"):
        response, x = cudnnpy.LocalResponseNormalization(layout=layout), Array(2, 4, 6)
        assert told(response.forward(x)) == told(response.backward(x, x, x)) == [((2, 4, 6), "float32")]
    assert set(launched(stand_in)) == {"cudnnLRNCrossChannelForward", "cudnnLRNCrossChannelBackward"}
