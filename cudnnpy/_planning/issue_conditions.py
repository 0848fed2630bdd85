"""The properties of a problem that known issues of cuDNN's engines depend on, and the conditions of these issues.

The docstring of a condition is the column "when" of docs/known-issues.md.
"""

from __future__ import annotations

from typing import NamedTuple

from cudnnpy._core.layouts import TensorSpec, channels_last_strides, have_one_order, is_dense, lie_channels_last

_ONE_AXIS, _THREE_AXES = 3, 5  # axes of a tensor with one spatial axis, and with three
_LONG_FILTER = 129  # positions of the shortest filter that was reported


class Facts(NamedTuple):
    """The properties of a problem that an issue may depend on, from Problem.facts or Graph.facts.

    `convolutions` are the (x, w, y) of each convolution, also for a gradient. `fused` names the operations that the same
    plan applies to the result ("bias", "tanh"). `is_aligned` means that every address is a multiple of 16.
    """

    operation: str
    convolutions: tuple[tuple[TensorSpec, TensorSpec, TensorSpec], ...] = ()
    fused: frozenset[str] = frozenset()
    reductions: frozenset[str] = frozenset()
    is_aligned: bool = True
    pads_evenly: bool = True
    alpha: float = 1.0
    beta: float = 0.0


def always(facts: Facts) -> bool:
    """all problems"""
    return True


def is_misaligned(facts: Facts) -> bool:
    """an address that is not a multiple of 16"""
    return not facts.is_aligned


def fuses_misaligned(facts: Facts) -> bool:
    """a bias or an activation fused, and an address that is not a multiple of 16"""
    return bool(facts.fused) and not facts.is_aligned


def fuses_tanh(facts: Facts) -> bool:
    """tanh fused after a convolution"""
    return bool(facts.convolutions) and "tanh" in facts.fused


def mixes_orders(facts: Facts) -> bool:
    """a convolution with some tensors channels last, or x or y of one position, and others channels first"""
    return not all(have_one_order(x, w, y) for x, w, y in facts.convolutions)


def fuses_in_mixed_orders(facts: Facts) -> bool:
    """a bias or an activation fused; some tensors channels last, or x or y of one position, and others channels first"""
    return bool(facts.fused) and mixes_orders(facts)


def has_gaps_channels_first(facts: Facts) -> bool:
    """x with gaps between its elements and channels that are not innermost"""
    return any(not is_dense(x) and x.strides is not None and x.strides[1] != 1 for x, _, _ in facts.convolutions)


def has_alpha(facts: Facts) -> bool:
    """alpha other than 1"""
    return facts.alpha != 1.0


def is_int8_to_int32(facts: Facts) -> bool:
    """x of int8, y of int32"""
    return any((x.dtype, y.dtype) == ("int8", "int32") for x, _, y in facts.convolutions)


def is_int8_to_float32_channels_first(facts: Facts) -> bool:
    """x of int8, y of float32 and not channels last"""
    return any(
        (x.dtype, y.dtype) == ("int8", "float32") and y.strides != channels_last_strides(y.shape)
        for x, _, y in facts.convolutions
    )


def has_beta(facts: Facts) -> bool:
    """beta other than 0"""
    return facts.beta != 0.0


def pads_unevenly(facts: Facts) -> bool:
    """padding that differs before and after"""
    return not facts.pads_evenly


def adds(facts: Facts) -> bool:
    """a reduction other than a minimum or a maximum"""
    return not facts.reductions <= {"min", "max", "amax"}


def fuses_bias_in_tf32(facts: Facts) -> bool:
    """float32 with a bias fused, where tf32 is allowed"""
    return "bias" in facts.fused and any(x.dtype == "float32" for x, _, _ in facts.convolutions)


def is_not_float16(facts: Facts) -> bool:
    """x of another type than float16, or no convolution"""
    return all(x.dtype != "float16" for x, _, _ in facts.convolutions)


def is_half_of_three_axes(facts: Facts) -> bool:
    """float16 or bfloat16, three spatial axes, a filter of several positions, and tensors that are not channels last"""
    return any(
        x.dtype in ("float16", "bfloat16")
        and len(x.shape) == _THREE_AXES
        and max(w.shape[2:]) > 1
        and not lie_channels_last(x, y)
        for x, w, y in facts.convolutions
    )


def is_float32_of_three_axes(facts: Facts) -> bool:
    """float32 and three spatial axes, where tf32 is allowed"""
    return any(x.dtype == "float32" and len(x.shape) == _THREE_AXES for x, _, _ in facts.convolutions)


def is_grouped_or_half(facts: Facts) -> bool:
    """groups, float16 or bfloat16"""
    return any(w.shape[1] < x.shape[1] or x.dtype in ("float16", "bfloat16") for x, w, _ in facts.convolutions)


def is_depthwise(facts: Facts) -> bool:
    """a group for each channel of x"""
    return any(w.shape[1] == 1 < x.shape[1] for x, w, _ in facts.convolutions)


def is_grouped_with_long_filters(facts: Facts) -> bool:
    """float32, one spatial axis, groups, and filters of 129 positions or more"""
    return any(
        x.dtype == "float32" and len(x.shape) == _ONE_AXIS and w.shape[1] < x.shape[1] and w.shape[2] >= _LONG_FILTER
        for x, w, _ in facts.convolutions
    )


def fuses_bias_channels_first(facts: Facts) -> bool:
    """float32 with a bias fused, a filter of 3x3, and tensors that are not channels last"""
    return "bias" in facts.fused and any(
        x.dtype == "float32" and w.shape[2:] == (3, 3) and not lie_channels_last(x, y) for x, w, y in facts.convolutions
    )
