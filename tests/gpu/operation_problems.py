"""What hypothesis draws for the operations beside the convolutions; and one chosen problem for each of their calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from operation_kinds import KINDS
from operation_problem import Problem
from strategies import Memory, _memories, _weighted

WEIGHTS = {"float32": 4, "float16": 3, "bfloat16": 3, "float64": 2}
ROOM = {1: 40, 2: 40, 3: 24, 4: 9, 5: 5}  # the longest spatial axis of a rank
MOST_DISTINCT = 6400
POOLINGS = (
    *("max", "max", "max_deterministic"),
    *("average_include_padding", "average_exclude_padding", "average_inc_pad", "average_exc_pad"),
)
MANY = 1025  # channels

Draw = st.DrawFn


def problems(call: str) -> st.SearchStrategy[Problem]:
    """Problems of one call, quick on the CPU too."""
    return _problems(call)


@st.composite
def _problems(draw: Draw, call: str) -> Problem:
    kind, operation = KINDS[call], call.partition(".")[0]
    dtype = draw(_weighted(*((name, WEIGHTS[name]) for name in kind.dtypes)))
    p = _DRAWS[operation](draw, Problem(call, (1,), dtype))
    in_place = bool(kind.in_place) and p.other_dtype in ("", dtype) and draw(_weighted((False, 4), (True, 1)))
    with_out = not in_place and draw(st.booleans())
    scaled = "beta" in kind.factors and p.keywords.get("activation") is None
    alpha = draw(_weighted((1.0, 4), (0.5, 1), (-2.0, 1), (0.75, 1))) if kind.factors and scaled else 1.0
    beta = draw(_weighted((0.0, 3), (1.0, 2), (0.5, 1), (-2.0, 1))) if scaled and (with_out or in_place) else 0.0
    return replace(
        p,
        in_place=in_place,
        with_out=with_out,
        alpha=alpha,
        beta=beta,
        memory=_lies(draw, len(p.shape), _tensors(p) + with_out),
        stream=draw(_weighted(("current", 3), ("side", 1), ("argument", 1))),
        repeats=draw(_weighted((1, 2), (6, 1))),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


def _tensors(p: Problem) -> int:
    """How many of the inputs are as x is."""
    return KINDS[p.call].tensors - (p.operation == "FusedConvolution" and "residual" not in p.given)


def _lies(draw: Draw, rank: int, count: int) -> tuple[Memory, ...]:
    last = draw(st.booleans())
    if draw(_weighted((True, 2), (False, 1))):
        return (Memory(last),) * count
    return tuple(draw(_memories(rank, last)) for _ in range(count))


def _any_shape(draw: Draw, least: int, most: int) -> tuple[int, ...]:
    """Some sizes may be 0."""
    shape = _shape(draw, least, most)
    if draw(_weighted((False, 15), (True, 1))):
        shape = tuple(size * draw(_weighted((1, 2), (0, 1))) for size in shape)
    return shape


def _shape(draw: Draw, least: int, most: int, room: dict[int, int] = ROOM) -> tuple[int, ...]:
    rank = draw(_weighted(*((r, 4 if r == 4 else 2) for r in range(least, most + 1))))
    kind = draw(_weighted(("usual", 20), ("ones", 1), ("many channels", 1)))
    if kind == "ones":
        return (1,) * rank
    if kind == "many channels" and rank > 1:
        return (draw(st.integers(1, 2)), MANY, *(draw(st.integers(1, 2)) for _ in range(rank - 2)))
    if rank == 1:
        return (draw(st.integers(1, 300)),)
    channels = draw(st.sampled_from([1, 2, 3, 4, 5, 8, 8, 16, 17, 32]))
    return (draw(st.integers(1, 4)), channels, *(draw(st.integers(1, room[rank])) for _ in range(rank - 2)))


def _layout(draw: Draw, rank: int) -> str:
    first, last = {3: ("NCW", "NWC"), 5: ("NCDHW", "NDHWC")}.get(rank, ("NCHW", "NHWC"))
    return str(draw(_weighted(("NCHW", 4), ("NHWC", 3), (first, 1), (last, 1)) if rank > 2 else st.just("NCHW")))


def _data(draw: Draw, *special: str) -> str:
    return str(draw(_weighted(("", 7), *((name, 1) for name in special))))


def _activation(draw: Draw, p: Problem) -> Problem:
    mode = draw(st.sampled_from(["sigmoid", "relu", "tanh", "clipped_relu", "elu", "identity", "swish"]))
    choices = {"clipped_relu": [0.5, 1.0, 3.0, 6.0], "elu": [1.0, 0.5, 1.5], "swish": [1.0, 0.5, 2.0]}
    options: dict[str, Any] = {"mode": mode}
    if mode in choices:
        options["coefficient"] = draw(st.sampled_from(choices[mode]))
    if p.call.endswith("forward"):
        data = _data(draw, "nan", *([] if mode == "swish" else ["infinity"]))  # swish of -infinity is 0 x infinity
    else:
        in_place_too = mode in ("relu", "sigmoid", "tanh", "clipped_relu")
        data = _data(draw, *(["after_in_place"] if in_place_too else []))
    return replace(p, shape=_any_shape(draw, 1, 5), options=options, data=data)


def _pooling(draw: Draw, p: Problem) -> Problem:
    mode = draw(st.sampled_from(POOLINGS))
    shape = _shape(draw, 3, 5)
    rank = len(shape) - 2
    uniformly = draw(st.booleans())

    def each(entries: st.SearchStrategy[int]) -> tuple[int, ...]:
        return (draw(entries),) * rank if uniformly else tuple(draw(entries) for _ in range(rank))

    window = each(st.integers(1, 3))
    padding = tuple(draw(st.integers(0, size - 1)) for size in ((window[0],) if uniformly else window))
    padding *= rank if uniformly else 1
    stride = each(st.integers(1, 3))
    spatial = [max(size, w - 2 * pad) for size, w, pad in zip(shape[2:], window, padding, strict=True)]
    batch, channels = shape[:2]
    while batch * channels * math.prod(spatial) > MOST_DISTINCT:
        batch, channels = (batch - 1, channels) if batch > 1 else (1, channels // 2)
    options: dict[str, Any] = {"mode": mode, "window": window, "padding": padding, "layout": _layout(draw, rank + 2)}
    if uniformly:
        options |= {"window": window[0], "padding": padding[0]}
    if draw(_weighted((True, 3), (False, 1))):
        options["stride"] = stride[0] if uniformly else stride
    if draw(_weighted((False, 15), (True, 1))):
        batch = 0
    found = replace(p, shape=(batch, channels, *spatial), options=options)
    return replace(found, data=_data(draw, "nan", "infinity")) if p.call.endswith("forward") else found


def _softmax(draw: Draw, p: Problem) -> Problem:
    shape = _any_shape(draw, 2, 5)
    options = {
        "algorithm": draw(st.sampled_from(["fast", "accurate", "accurate", "log"])),
        "mode": draw(st.sampled_from(["channel", "instance"])),
        "layout": _layout(draw, len(shape)),
    }
    return replace(p, shape=shape, options=options, data=_data(draw, "nan") if p.call.endswith("forward") else "")


def _batch(draw: Draw, p: Problem) -> Problem:
    shape = _shape(draw, 2, 5)
    mode = draw(_weighted(("spatial", 3), ("per_activation", 1)))
    options: dict[str, Any] = {"mode": mode, "layout": _layout(draw, len(shape))}
    if draw(st.booleans()):
        options["epsilon"] = draw(st.sampled_from([1e-3, 1e-5, 0.1]))
    given: tuple[str, ...] = ()
    keywords: dict[str, Any] = {}
    data = ""
    if p.call.endswith("training"):
        given = draw(st.sampled_from([(), ("running_mean", "running_variance")]))
        factors: list[dict[str, Any]] = [{"average_factor": 0.25}, {"average_factor": 1.0}, {"average_factor": -1.0}]
        keywords = draw(st.sampled_from([{}, {}, *factors]))
        if draw(_weighted((False, 3), (True, 1))):
            keywords = {**keywords, "activation": "relu"}
    elif p.call.endswith("inference"):
        data = _data(draw, "nan")
    else:
        given = draw(st.sampled_from([(), ("saved_mean", "saved_inverse_variance")]))
        if draw(st.booleans()):
            given = (*given, "out_scale", "out_bias")
            keywords = draw(st.sampled_from([{}, {"parameter_alpha": 0.5, "parameter_beta": 1.0}]))
    return _without(draw, replace(p, shape=shape, options=options, keywords=keywords, given=given, data=data))


def _without(draw: Draw, p: Problem) -> Problem:
    """The same with parameters of x's own type, or with none of them."""
    if p.dtype != "float64" and draw(st.booleans()):
        p = replace(p, other_dtype=p.dtype)
    if "out_scale" in p.given:
        return p
    left_out = tuple(name for name in ("scale", "bias") if draw(_weighted((False, 3), (True, 1))))
    keywords = dict(p.keywords)
    if p.call.endswith("backward"):
        if left_out:
            keywords["bias"] = "bias" not in left_out
        return replace(p, without=left_out[: "scale" in left_out], keywords=keywords)
    return replace(p, without=left_out)


def _fused(draw: Draw, p: Problem) -> Problem:
    rank = draw(_weighted((2, 5), (1, 1), (3, 1)))
    channels, filters = draw(st.sampled_from([8, 16, 8, 3, 1])), draw(st.sampled_from([8, 16, 32, 8, 5, 1]))
    groups = draw(_weighted((1, 8), (2, 1)))
    kernel = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    options: dict[str, Any] = {
        "padding": draw(st.integers(0, 1)),
        "stride": draw(_weighted((1, 3), (2, 1))),
        "dilation": draw(_weighted((1, 4), (2, 1))),
        "groups": groups,
        "layout": _layout(draw, rank + 2),
        "mode": draw(_weighted(("cross_correlation", 5), ("convolution", 1))),
        "deterministic": draw(_weighted((False, 4), (True, 1))),
        "tf32": draw(_weighted((True, 4), (False, 1))),
    }
    reach = [(taps - 1) * options["dilation"] + 1 for taps in kernel]
    spatial = [max(1, r - 2 * options["padding"]) + draw(st.integers(0, {1: 12, 2: 8, 3: 4}[rank])) for r in reach]
    given = tuple(name for name in ("scale", "bias", "residual") if draw(st.booleans()))
    keywords = {"activation": draw(st.sampled_from([None, "relu", "relu", "sigmoid", "tanh", "elu", "swish"]))}
    return replace(
        p,
        shape=(draw(_weighted((1, 5), (2, 5), (3, 5), (0, 1))), groups * channels, *spatial),
        other=(groups * filters, channels, *kernel),
        other_dtype=draw(st.sampled_from(["", "float32"])),
        options=options,
        keywords=keywords if draw(_weighted((True, 5), (False, 1))) else {},
        given=given,
        data=draw(st.sampled_from(["", "whole"])),
    )


_DRAWS: dict[str, Callable[[Draw, Problem], Problem]] = {
    "Activation": _activation,
    "Pooling": _pooling,
    "Softmax": _softmax,
    "BatchNormalization": _batch,
    "FusedConvolution": _fused,
}

_X = (2, 8, 7, 6)
_RUNNING = ("running_mean", "running_variance")
_SAVED = ("saved_mean", "saved_inverse_variance")

# One of each call, that any GPU must run: packed, in NCHW memory where cuDNN has engines for it.
CHOSEN: dict[str, Problem] = {
    p.call: p
    for p in (
        Problem("Activation.forward", _X, options={"mode": "sigmoid"}),
        Problem("Activation.backward", _X, options={"mode": "tanh"}),
        Problem("Pooling.forward", _X, options={"mode": "average_exclude_padding", "window": 3, "padding": 1}),
        Problem("Pooling.backward", _X, options={"mode": "max", "window": 2}),
        Problem("Softmax.forward", _X, "float16"),
        Problem("Softmax.backward", _X, options={"algorithm": "log"}),
        Problem("BatchNormalization.forward_training", _X, given=_RUNNING),
        Problem("BatchNormalization.forward_inference", _X, "float16"),
        Problem("BatchNormalization.backward", _X, given=_SAVED),
        Problem(
            "FusedConvolution.forward",
            _X,
            "float16",
            other=(16, 8, 3, 3),
            options={"padding": 1},
            given=("bias", "residual"),
            memory=(Memory(True),) * 3,
            data="whole",
        ),
    )
}
assert list(CHOSEN) == list(KINDS)
