"""The properties of a problem that known issues of cuDNN's engines depend on, and the conditions of these issues.

The docstring of a condition is the column "when" of docs/known-issues.md.
"""

from __future__ import annotations

from typing import NamedTuple

from cudnnpy._core.layouts import (
    TensorSpec,
    are_channels_last,
    channels_last_strides,
    have_same_memory_format,
    is_dense,
)

_ONE_AXIS, _THREE_AXES = 3, 5  # axes of a tensor with one spatial axis, and with three
_LONG_FILTER = 129  # positions of the shortest filter that was reported


class ProblemTraits(NamedTuple):
    """The properties of a problem that an issue may depend on, from Problem.traits or Graph.traits.

    `convolutions` are the (x, w, y) of each convolution, also for a gradient. `fused` names the operations that the same
    plan applies to the result ("bias", "tanh"). `is_aligned` means that every address is a multiple of 16. `facts` are other
    properties of a graph, by their names in cudnnpy/graph/graph_facts.py.
    """

    operation: str
    convolutions: tuple[tuple[TensorSpec, TensorSpec, TensorSpec], ...] = ()
    fused: frozenset[str] = frozenset()
    reductions: frozenset[str] = frozenset()
    is_aligned: bool = True
    pads_evenly: bool = True
    alpha: float = 1.0
    beta: float = 0.0
    facts: frozenset[str] = frozenset()


def always(traits: ProblemTraits) -> bool:
    """all problems"""
    return True


def is_misaligned(traits: ProblemTraits) -> bool:
    """an address that is not a multiple of 16"""
    return not traits.is_aligned


def fuses_misaligned(traits: ProblemTraits) -> bool:
    """a bias or an activation fused after a convolution, and an address that is not a multiple of 16"""
    return bool(traits.convolutions and traits.fused) and not traits.is_aligned


def fuses_tanh(traits: ProblemTraits) -> bool:
    """tanh fused after a convolution"""
    return bool(traits.convolutions) and "tanh" in traits.fused


def mixes_orders(traits: ProblemTraits) -> bool:
    """a convolution with some tensors channels last, or x or y of one position, and others channels first"""
    return not all(have_same_memory_format(x, w, y) for x, w, y in traits.convolutions)


def fuses_in_mixed_orders(traits: ProblemTraits) -> bool:
    """a bias or an activation fused; some tensors channels last, or x or y of one position, and others channels first"""
    return bool(traits.fused) and mixes_orders(traits)


def has_gaps_channels_first(traits: ProblemTraits) -> bool:
    """x with gaps between its elements and channels that are not innermost"""
    return any(not is_dense(x) and x.strides is not None and x.strides[1] != 1 for x, _, _ in traits.convolutions)


def has_alpha(traits: ProblemTraits) -> bool:
    """alpha other than 1"""
    return traits.alpha != 1.0


def is_int8_to_int32(traits: ProblemTraits) -> bool:
    """x of int8, y of int32"""
    return any((x.dtype, y.dtype) == ("int8", "int32") for x, _, y in traits.convolutions)


def is_int8_to_float32_channels_first(traits: ProblemTraits) -> bool:
    """x of int8, y of float32 and not channels last"""
    return any(
        (x.dtype, y.dtype) == ("int8", "float32") and y.strides != channels_last_strides(y.shape)
        for x, _, y in traits.convolutions
    )


def has_beta(traits: ProblemTraits) -> bool:
    """beta other than 0"""
    return traits.beta != 0.0


def pads_unevenly(traits: ProblemTraits) -> bool:
    """padding that differs before and after"""
    return not traits.pads_evenly


def adds(traits: ProblemTraits) -> bool:
    """a reduction other than a minimum or a maximum"""
    return not traits.reductions <= {"min", "max", "amax"}


def fuses_bias_in_tf32(traits: ProblemTraits) -> bool:
    """float32 with a bias fused, where tf32 is allowed"""
    return "bias" in traits.fused and any(x.dtype == "float32" for x, _, _ in traits.convolutions)


def is_not_float16(traits: ProblemTraits) -> bool:
    """x of another type than float16, or no convolution"""
    return all(x.dtype != "float16" for x, _, _ in traits.convolutions)


def is_half_of_three_axes(traits: ProblemTraits) -> bool:
    """float16 or bfloat16, three spatial axes, a filter of several positions, and tensors that are not channels last"""
    return any(
        x.dtype in ("float16", "bfloat16")
        and len(x.shape) == _THREE_AXES
        and max(w.shape[2:]) > 1
        and not are_channels_last(x, y)
        for x, w, y in traits.convolutions
    )


def is_float32_of_three_axes(traits: ProblemTraits) -> bool:
    """float32 and three spatial axes, where tf32 is allowed"""
    return any(x.dtype == "float32" and len(x.shape) == _THREE_AXES for x, _, _ in traits.convolutions)


def is_grouped_or_half(traits: ProblemTraits) -> bool:
    """groups, float16 or bfloat16"""
    return any(w.shape[1] < x.shape[1] or x.dtype in ("float16", "bfloat16") for x, w, _ in traits.convolutions)


def is_depthwise(traits: ProblemTraits) -> bool:
    """a group for each channel of x"""
    return any(w.shape[1] == 1 < x.shape[1] for x, w, _ in traits.convolutions)


def is_grouped_with_long_filters(traits: ProblemTraits) -> bool:
    """float32, one spatial axis, groups, and filters of 129 positions or more"""
    return any(
        x.dtype == "float32" and len(x.shape) == _ONE_AXIS and w.shape[1] < x.shape[1] and w.shape[2] >= _LONG_FILTER
        for x, w, _ in traits.convolutions
    )


def fuses_bias_channels_first(traits: ProblemTraits) -> bool:
    """float32 with a bias fused, a filter of 3x3, and tensors that are not channels last"""
    return "bias" in traits.fused and any(
        x.dtype == "float32" and w.shape[2:] == (3, 3) and not are_channels_last(x, y)
        for x, w, y in traits.convolutions
    )


# Graphs


def sums_channels_first(traits: ProblemTraits) -> bool:
    """a convolution with x, w or y that is not channels last"""
    return not all(are_channels_last(*tensors) for tensors in traits.convolutions)


def has_index(traits: ProblemTraits) -> bool:
    """gen_index without two products, as attention has them"""
    return "indexes outside attention" in traits.facts


def broadcasts_beside_convolution(traits: ProblemTraits) -> bool:
    """beside a convolution, a pointwise operand that has neither all elements, nor one for each channel, for each position \
(of each image), or in all"""
    return "broadcasts beside a convolution" in traits.facts


def compares_narrow(traits: ProblemTraits) -> bool:
    """a comparison with a result that other pointwise operations broadcast, outside attention"""
    return "compares narrow tensors" in traits.facts


def has_two_formats(traits: ProblemTraits) -> bool:
    """images in memory of which some are channels last and others are not; no matrix product"""
    return "has two formats" in traits.facts


def computes_first_operand(traits: ProblemTraits) -> bool:
    """operations before a convolution, and an image in memory that is not channels last"""
    return "computes a first operand" in traits.facts


def has_gradient_of_result(traits: ProblemTraits) -> bool:
    """the gradient of an activation whose x is a result that is not in memory, with a convolution"""
    return "has a gradient of a result" in traits.facts


def resamples_result(traits: ProblemTraits) -> bool:
    """resampling, or its gradient, of a result that is not in memory"""
    return "resamples a result" in traits.facts


def only_reduces_uneven_channels(traits: ProblemTraits) -> bool:
    """reductions as the only outputs after resampling or its gradient, and channels that do not fill a multiple of 16 bytes"""
    return "only reduces uneven channels" in traits.facts


def indexes_rows_of_batches(traits: ProblemTraits) -> bool:
    """gen_index of another axis than the last beside a matrix product with three axes and several batches"""
    return "indexes rows of batches" in traits.facts


def scales_float8_otherwise(traits: ProblemTraits) -> bool:
    """a matrix product of float8 with a number by value, or with a result of another type than float8"""
    return "scales float8 otherwise" in traits.facts


def converts_uneven_int8(traits: ProblemTraits) -> bool:
    """operations before a matrix product, and an int8 input with rows or an address that are no multiples of 16 bytes"""
    return "converts uneven int8" in traits.facts


def has_signed_block_scales(traits: ProblemTraits) -> bool:
    """scales of blocks in a type with a sign, any but float8_e8m0fnu"""
    return "has signed block scales" in traits.facts
