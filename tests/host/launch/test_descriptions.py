"""The strides of axes of size 1 have no meaning: arrays that differ in nothing else are one signature of one plan.

Array libraries write different numbers there, and cuDNN chooses engines by them (test_depthwise_engines.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stand_in_device import STREAM, Array, StandInDevice

import cudnnpy
from cudnnpy import Convolution, FusedConvolution, Graph, TensorSpec
from cudnnpy._core.layouts import (
    channels_last_strides,
    normalize_unit_strides,
    packed_strides,
    suggests_channels_last,
)
from cudnnpy._launch import plan_cache
from cudnnpy._planning.problem_notation import text_of

Shape = tuple[int, ...]
nn: Any = cudnnpy
drawn = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])

# Images with axes of size 1: batches of 1, single channels, images of one position, all of these
IMAGES: list[Shape] = [(1, 4, 6, 6), (8, 1, 6, 6), (8, 4, 1, 1), (1, 1, 6, 6), (1, 4, 1, 1), (8, 4, 1, 6), (1, 1, 1, 1)]


def graph(x: Shape, w: Shape, bias: Shape) -> Callable[..., Any]:
    made = Graph()
    a, b, c = (made.tensor(name, TensorSpec(shape)) for name, shape in (("x", x), ("w", w), ("bias", bias)))
    made.output("y", made.pointwise("add", made.convolution(a, b, padding=1), c))
    return lambda a, b, c: made.run(x=a, w=b, bias=c)


def calls(x: Shape) -> dict[str, tuple[Callable[..., Any], list[Shape]]]:
    """Calls on arrays of some shapes: every operation, on images of shape x."""
    n, c, *spatial = x
    w, up, y, row = (8, c, 3, 3), (c, 8, 3, 3), (n, 8, *spatial), (1, 8, 1, 1)
    conv, depthwise = Convolution(padding=1), Convolution(padding=1, groups=c)
    pool = nn.Pooling("max", 3, padding=1, stride=2)
    pooled = pool.output_shape(x)
    batch, fused, transposed = (
        nn.BatchNormalization(),
        FusedConvolution(padding=1),
        nn.ConvolutionTranspose(padding=1),
    )
    return {
        "forward": (conv.forward, [x, w]),
        "backward_data": (lambda dy, w: conv.backward_data(dy, w, x), [y, w]),
        "backward_filter": (lambda dy, x: conv.backward_filter(dy, x, w), [y, x]),
        "backward_bias": (conv.backward_bias, [y]),
        "depthwise": (depthwise.forward, [x, (c, 1, 3, 3)]),
        "depthwise backward_filter": (lambda dy, x: depthwise.backward_filter(dy, x, (c, 1, 3, 3)), [x, x]),
        "transposed": (transposed.forward, [x, up]),
        "fused": (fused.forward, [x, w, (8,), (8,), y]),
        "graph": (graph(x, w, row), [x, w, row]),
        "activation": (nn.Activation("tanh").forward, [x]),
        "its gradient": (nn.Activation("tanh").backward, [x, x, x]),
        "pooling": (pool.forward, [x]),
        "the gradient of pooling": (pool.backward, [pooled, x, pooled]),
        "softmax": (nn.Softmax().forward, [x]),
        "the gradient of softmax": (nn.Softmax().backward, [x, x]),
        "batch normalization": (batch.forward_training, [x, (c,), (c,)]),
        "inference": (
            lambda a, s, b, m, v: batch.forward_inference(a, s, b, mean=m, variance=v),
            [x, (c,), (c,), (c,), (c,)],
        ),
        "the gradient of batch normalization": (batch.backward, [x, x, (c,)]),
    }


def any_strides(shape: Shape, strides: Shape, numbers: st.DataObject) -> Shape:
    """The strides of the same memory, with any numbers on axes of size 1, but none that PyTorch reads as an order."""
    drawn = tuple(numbers.draw(st.integers(0, 99)) if n == 1 else s for n, s in zip(shape, strides, strict=True))
    spec = TensorSpec(shape, strides=drawn)
    return normalize_unit_strides(spec)[0].strides or () if suggests_channels_last(spec) else drawn


@pytest.mark.parametrize("name", list(calls((1, 4, 6, 6))))
@drawn
@given(st.sampled_from(IMAGES), st.booleans(), st.data())
def test_arrays_in_the_same_memory_have_one_plan(
    stand_in: StandInDevice, name: str, x: Shape, last: bool, data: st.DataObject
) -> None:
    """It is found even while a stream is captured, when nothing may be planned; and the results are alike."""
    call, shapes = calls(x)[name]
    if name == "graph":
        last = False  # its tensors are
    plan_cache.clear_cache()
    packed = [channels_last_strides(shape) if last and len(shape) > 2 else packed_strides(shape) for shape in shapes]

    def arrays() -> list[Array]:
        kept = zip(shapes, packed, strict=True)
        return [Array(*shape, strides=any_strides(shape, strides, data)) for shape, strides in kept]

    before = call(*arrays())
    planned = len(stand_in.choices), len(stand_in.planned_graphs)
    stand_in.capturing.add(STREAM)
    try:
        after = call(*arrays())
    finally:
        stand_in.capturing.clear()
    assert (len(stand_in.choices), len(stand_in.planned_graphs)) == planned
    info = plan_cache.cache_info()
    assert (info.size, info.misses) == (1, 1)
    described = [
        [(r.shape, r.strides, r.dtype) for r in (f if isinstance(f, tuple) else (f,))] for f in (before, after)
    ]
    assert described[0] == described[1]


def test_the_cache_counts_a_plan_once_and_drops_it_with_its_last_signature(stand_in: StandInDevice) -> None:
    conv, w = Convolution(padding=1), Array(8, 4, 3, 3)
    for first in (144, 7, 1):
        conv.forward(Array(1, 4, 6, 6, strides=(first, 36, 6, 1)), w)
    info = plan_cache.cache_info()
    assert (info.size, info.misses, info.evictions) == (1, 1, 0)
    assert len(plan_cache.plan_cache()) == 3
    cudnnpy.set_cache_limit(1)
    conv.forward(Array(2, 4, 6, 6), w)
    conv.forward(Array(1, 4, 6, 6, strides=(9, 36, 6, 1)), w)
    assert plan_cache.cache_info().misses == 3


# The memory order of new results


@pytest.mark.parametrize("kind", [Convolution, FusedConvolution])
def test_a_result_follows_how_a_single_channel_is_described(stand_in: StandInDevice, kind: Any) -> None:
    """As in PyTorch, where x.to(memory_format=torch.channels_last) of one channel gives a result that is channels last."""
    conv, w, out = kind(padding=1), (8, 1, 3, 3), (2, 8, 6, 6)
    first, last = (36, 36, 6, 1), (36, 1, 6, 1)
    assert conv.forward(Array(2, 1, 6, 6, strides=first), Array(*w)).strides == packed_strides(out)
    assert conv.forward(Array(2, 1, 6, 6, strides=last), Array(*w)).strides == channels_last_strides(out)
    strides = (9, 1, 3, 1)
    assert conv.forward(Array(2, 1, 6, 6, strides=first), Array(*w, strides=strides)).strides == channels_last_strides(
        out
    )
    assert plan_cache.cache_info().size == 2  # their results differ
    misses = plan_cache.cache_info().misses
    for strides in (first, last):  # these do not
        conv.forward(Array(2, 1, 6, 6, strides=strides), Array(*w), out=Array(*out))
    assert plan_cache.cache_info().misses == misses + 1


def test_an_array_of_one_order_decides_whatever_the_others_are_described_as(stand_in: StandInDevice) -> None:
    last = channels_last_strides((2, 8, 6, 6))
    conv, depthwise = Convolution(padding=1), Convolution(padding=1, groups=8)
    for strides in ((9, 9, 3, 1), (9, 1, 3, 1), (9, 0, 3, 1)):
        y = depthwise.forward(Array(2, 8, 6, 6, strides=last), Array(8, 1, 3, 3, strides=strides))
        assert y.strides == last
        assert depthwise.forward(Array(2, 8, 6, 6), Array(8, 1, 3, 3, strides=strides)).strides == packed_strides(
            y.shape
        )
        # the filter gradient is described as the images are
        dw = depthwise.backward_filter(Array(2, 8, 6, 6, strides=last), Array(2, 8, 6, 6, strides=last), (8, 1, 3, 3))
        assert dw.strides == (9, 1, 3, 1)
    one = Array(2, 1, 6, 6, strides=(36, 36, 6, 1))
    w = Array(8, 1, 3, 3)
    dx = conv.backward_data(Array(2, 8, 6, 6, strides=last), w, one.shape)
    assert dx.strides == (36, 1, 6, 1)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    "call",
    [
        Convolution().forward,
        nn.ConvolutionTranspose().forward,
        FusedConvolution().forward,
        lambda x, w: Convolution().backward_data(x, w, (4, 8, 1, 1)),
        lambda x, w: nn.Activation("tanh").forward(x),
        lambda x, w: nn.Pooling(window=1).forward(x),
        lambda x, w: nn.Softmax().forward(x),
    ],
)
def test_images_of_one_position_have_one_plan_and_keep_their_description(
    stand_in: StandInDevice, call: Callable[..., Any], dtype: str
) -> None:
    first, last = (8, 1, 1, 1), (8, 1, 8, 8)
    w = Array(8, 8, 1, 1, dtype=dtype)
    for strides in (last, first, last, first):
        assert call(Array(4, 8, 1, 1, dtype=dtype, strides=strides), w).strides == strides
    info = plan_cache.cache_info()
    assert (info.size, info.misses) == (1, 1)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("kind", [Convolution, FusedConvolution])
def test_images_of_one_position_whose_axes_are_n_h_w_c_have_contiguous_results(
    stand_in: StandInDevice, kind: Any, dtype: str
) -> None:
    x, w = Array(4, 1, 1, 8, dtype=dtype), Array(6, 1, 1, 8, dtype=dtype)
    assert kind(layout="NHWC").forward(x, w).strides == (6, 6, 6, 1)


# Problems, and the texts of plans


@given(st.sampled_from(IMAGES), st.booleans(), st.sampled_from(["float16", "float32"]), st.data())
def test_a_problem_is_one_however_its_tensors_are_described(
    x: Shape, last: bool, dtype: Any, data: st.DataObject
) -> None:
    """So a plan that is forced, or was read from a text, serves arrays of every description."""
    n, c, *spatial = x
    shapes = {"forward": (x, (8, c, 3, 3)), "backward_data": ((n, 8, *spatial), (8, c, 3, 3))}
    shapes["backward_filter"] = shapes["backward_data"][0], x
    results = {"forward": (n, 8, *spatial), "backward_data": x, "backward_filter": (8, c, 3, 3)}
    for operation, (one, two) in shapes.items():
        found = []
        for _ in range(2):
            specs = []
            for shape in (one, two, results[operation]):
                packed = channels_last_strides(shape) if last else packed_strides(shape)
                specs.append(TensorSpec(shape, dtype, any_strides(shape, packed, data)))
            first, second, out = specs
            made = Convolution(padding=1)._problem(
                operation, first, second, None if operation == "forward" else out.shape, out=out, device=0
            )
            found.append(made)
        assert found[0] == found[1]
        assert hash(found[0]) == hash(found[1])
        assert text_of(found[0]) == text_of(found[1])


@pytest.mark.parametrize("operation", ["forward", "backward_data", "backward_filter"])
@pytest.mark.parametrize(("x", "w"), [((8, 1, 28, 28), (32, 1, 3, 3)), ((8, 64, 1, 1), (32, 64, 1, 1))])
def test_a_problem_of_both_orders_is_one_whichever_is_described(operation: Any, x: Shape, w: Shape) -> None:
    """One channel, and images of one position."""
    y, found = (x[0], w[0], *x[2:]), set()
    for of_x, of_w in itertools.product((packed_strides, channels_last_strides), repeat=2):
        one, two, three = (TensorSpec(s, "float16", of(s)) for s, of in ((x, of_x), (w, of_w), (y, packed_strides)))
        first, second, out = {
            "forward": (one, two, three),
            "backward_data": (three, two, one),
            "backward_filter": (three, one, two),
        }[operation]
        shape = None if operation == "forward" else out.shape
        found.add(Convolution(padding=w[2] // 2)._problem(operation, first, second, shape, out=out, device=0))
    assert len(found) == 1


def test_a_plan_that_is_forced_serves_every_description(stand_in: StandInDevice) -> None:
    last, w = channels_last_strides((1, 8, 6, 6)), (8, 1, 3, 3)
    first = Array(1, 8, 6, 6, strides=last), Array(*w)
    plan = Convolution(padding=1, groups=8).plan("forward", *first)
    forced = Convolution(padding=1, groups=8, algorithm=plan)
    for numbers in (0, 8, 1000):
        x = Array(1, 8, 6, 6, strides=(numbers, *last[1:]))
        assert forced.forward(x, Array(*w, strides=(9, numbers, 3, 1))).strides == last
    assert len(stand_in.choices) == 1  # by plan()
    with pytest.raises(ValueError, match="algorithm must be a plan for this problem; got one for another"):
        forced.forward(Array(1, 8, 6, 6), Array(*w))
