"""Convolution.backward_bias as it is planned: graphs for large tensors, cudnnReduceTensor for the rest."""

from __future__ import annotations

from typing import Any

import pytest
from stand_in_device import Array, StandInDevice

import cudnnpy
from cudnnpy import Convolution
from cudnnpy._launch import plan_cache
from cudnnpy._planning.problem_notation import parse_plannable

LARGE = (8, 64, 40, 40)
LAST = (64 * 1600, 1, 64 * 40, 64)
GRAPH, COPY, REDUCE = "cudnnBackendExecute", "cudnnTransformTensor", "cudnnReduceTensor"


def launched(stand_in: StandInDevice, dy: Array, **more: Any) -> list[str]:
    stand_in.launches.clear()
    out = Convolution().backward_bias(dy, **more)
    assert (out.shape, out.dtype) == ((dy.shape[1],), dy.dtype)
    return [launch.name for launch in stand_in.launches]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_large_tensors_are_reduced_by_graphs(stand_in: StandInDevice, dtype: str) -> None:
    """Channels first in two, each image's channels and then the batch; channels last in one."""
    assert launched(stand_in, Array(*LARGE, dtype=dtype, pointer=1 << 20)) == [GRAPH, GRAPH]
    assert [problem.specs[0].shape for problem in stand_in.planned_graphs] == [(512, 1600, 1, 1), (8, 64, 1, 1)]
    stand_in.planned_graphs.clear()
    assert launched(stand_in, Array(*LARGE, dtype=dtype, strides=LAST, pointer=1 << 20)) == [GRAPH]
    assert stand_in.planned_graphs[0].specs[0].shape == (12800, 64, 1, 1)
    again = launched(stand_in, Array(*LARGE, dtype=dtype, strides=LAST, pointer=1 << 20), alpha=2.0)
    assert again == [GRAPH, COPY]


@pytest.mark.parametrize("prefer", ["fastest", "no_workspace", "autotune"])
def test_of_the_preferences_autotune_alone_applies(stand_in: StandInDevice, prefer: Any) -> None:
    with cudnnpy.record() as recording:
        Convolution(prefer=prefer, tf32=False).backward_bias(Array(*LARGE, pointer=1 << 20))
    assert len(recording.problems) == 2
    options = [parse_plannable(text)[1] for text in recording.problems]
    expected = "autotune" if prefer == "autotune" else "fastest"
    assert [(one.prefer, one.tf32) for one in options] == [(expected, True)] * 2


def test_what_is_to_have_the_same_bits_every_time_is_left_to_c(stand_in: StandInDevice) -> None:
    """Graphs add in any order; no signature is another's."""
    dy = Array(*LARGE, pointer=1 << 20)
    for conv, name in ((Convolution(), GRAPH), (Convolution(deterministic=True), REDUCE), (Convolution(), GRAPH)):
        stand_in.launches.clear()
        conv.backward_bias(dy)
        assert {launch.name for launch in stand_in.launches} == {name}


@pytest.mark.parametrize(
    "dy",
    [
        Array(2, 6, 5, 5),
        Array(*LARGE, pointer=(1 << 20) + 4),
        Array(*LARGE, strides=tuple(2 * stride for stride in LAST)),
        Array(*LARGE, dtype="float64"),
        Array(2, 6, 5),
        Array(2, 6, 5, 5, 5),
    ],
    ids=["small", "at an odd address", "with gaps", "float64", "three axes", "five axes"],
)
def test_the_rest_is_left_to_c(stand_in: StandInDevice, dy: Array) -> None:
    assert launched(stand_in, dy) == [REDUCE]
    assert stand_in.planned_graphs == []


@pytest.mark.parametrize("more", [{}, {"strides": (600, 100, 20, 2)}])
def test_small_bfloat16_is_reduced_as_float32(stand_in: StandInDevice, more: Any) -> None:
    assert launched(stand_in, Array(2, 6, 5, 5, dtype="bfloat16", **more)) == [COPY, REDUCE, COPY]


@pytest.mark.parametrize("shape", [(2, 6, 5, 5), LARGE, (1, 6, 1, 1)])
def test_alpha_and_beta_come_last(stand_in: StandInDevice, shape: Any) -> None:
    dy, out = Array(*shape), Array(shape[1])
    assert launched(stand_in, dy, out=out, alpha=0.5, beta=2.0)
    numbers = [a._obj.value for a in stand_in.launches[-1].arguments if hasattr(a, "_obj")]
    assert numbers == [0.5, 2.0]
    assert stand_in.launches[-1].arguments[-1] == out.pointer


def test_a_result_that_overlaps_dy_is_refused_before_any_work(stand_in: StandInDevice) -> None:
    dy = Array(2, 6, 5, 5, pointer=1 << 20)
    for at in (1 << 20, (1 << 20) - 16, (1 << 20) + 1184):
        with pytest.raises(ValueError, match="out must not overlap dy in memory"):
            Convolution().backward_bias(dy, out=Array(6, pointer=at))
    assert stand_in.launches == []
    assert plan_cache.cache_info().size == 0
    # a known signature is looked at, too
    launched(stand_in, dy, out=Array(6, pointer=1 << 22))
    with pytest.raises(ValueError, match="out must not overlap dy in memory"):
        Convolution().backward_bias(dy, out=Array(6, pointer=1 << 20))
