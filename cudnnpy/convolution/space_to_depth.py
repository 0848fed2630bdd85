"""Strided convolutions of few channels as convolutions of stride 1: blocks of neighbouring pixels become channels.

cuDNN's engines pad three channels to four or eight, and have nothing fast for the gradient to such an x. Cut into blocks
of s x t pixels, s and t being the strides, x of (N, C, H, W), with its padding as zeros around it, is a tensor of
(N, s t C, H', W'); and w of (K, C, R, S), with zeros behind it up to whole blocks, is one of (K, s t C, R', S'). Then

    y[i] = sum over r of x[s i + r] w[r] = sum over j, p of x'[i + j, p] w'[j, p]        where r = s j + p

is a convolution of stride 1 without padding, and so are its gradients, which are put together again. cudnnTransformTensorEx
does both (CUDNN_TRANSFORM_FOLD and _UNFOLD, with zeros added or elements cut off), at the speed of memory, and it alone
decides on the order of the new channels: x and w go through the same.

On an H200 (docs/benchmarks) the gradient to a ResNet's picture takes 0.36 to 0.5 of the time of the best engine without,
its first convolution in bfloat16 0.55, and cutting a picture into 16 x 16 patches 0.14 (the gradient to it: 62 us, where
the best engine needs 1.4 s). A NaN or an infinity meets the zeros behind w: it spreads within its blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import TensorSpec, channels_last_strides, is_channels_last, is_packed, packed_strides
from cudnnpy._runtime.executables import At, Function, described, scales
from cudnnpy.convolution.problem import Geometry, Problem
from cudnnpy.descriptors import TensorTransformDescriptor
from cudnnpy.handle import Handle
from cudnnpy.raw import CUDNN_TENSOR_NCHW, CUDNN_TENSOR_NHWC, CUDNN_TRANSFORM_FOLD, CUDNN_TRANSFORM_UNFOLD

_CHANNELS = 4  # of x at most: with more there is little padding to save
_LARGE = 1 << 20  # bytes of x below which two or three more launches would show
_MOST = 1 << 30  # elements of x: cuDNN's older functions count in 32 bits, and padding adds to them


class Cut(NamedTuple):
    """A tensor in blocks of pixels, whose channels they become: zeros before and after it (elements cut off where they
    are fewer than 0), and the blocks' size, for each spatial axis. Blocks of 1 are padding alone.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    block: tuple[int, ...]

    def of(self, spec: TensorSpec) -> TensorSpec:
        """The tensor in blocks, packed in the memory order of the whole one."""
        n, c, *spatial = spec.shape
        padded = (b + size + a for b, size, a in zip(self.before, spatial, self.after, strict=True))
        sizes = (size // length for size, length in zip(padded, self.block, strict=True))
        shape = (n, c * math.prod(self.block), *sizes)
        packed = channels_last_strides if is_channels_last(spec) else packed_strides
        return spec._replace(shape=shape, strides=packed(shape), alignment=16)

    def apart(self, whole: TensorSpec) -> Transform:
        """whole (0) -> blocks (1)."""
        return Transform(self, whole, CUDNN_TRANSFORM_FOLD, 0.0)

    def together(self, whole: TensorSpec, beta: float = 0.0) -> Transform:
        """blocks (0) + beta * whole -> whole (1)."""
        return Transform(self, whole, CUDNN_TRANSFORM_UNFOLD, beta)


class Transform:
    """One launch of cudnnTransformTensorEx. Its descriptor wants a driver, so it is made when it is first bound."""

    workspace_size = 0

    def __init__(self, cut: Cut, whole: TensorSpec, direction: int, beta: float) -> None:
        self.cut, self.whole, self.direction, self.beta = cut, whole, direction, beta

    @cached_property
    def function(self) -> Function:
        """The call of the C function."""
        folds, cut = self.direction == CUDNN_TRANSFORM_FOLD, self.cut
        x, y = (self.whole, cut.of(self.whole)) if folds else (cut.of(self.whole), self.whole)
        spatial = max(len(self.whole.shape) - 2, 2)
        height = spatial - len(cut.block)  # a single axis is the width of a picture of height 1
        sign = 1 if folds else -1  # what was added is cut off
        how = TensorTransformDescriptor()
        how.set(
            "cudnnSetTensorTransformDescriptor",
            2 + spatial,
            CUDNN_TENSOR_NHWC if is_channels_last(self.whole) else CUDNN_TENSOR_NCHW,
            (*(0,) * (2 + height), *(sign * size for size in cut.before)),
            (*(0,) * (2 + height), *(sign * size for size in cut.after)),
            (*(1,) * height, *cut.block),
            self.direction,
        )
        one, beta = scales(1.0, self.beta, self.whole.dtype)
        return Function("cudnnTransformTensorEx", how, one, described(x), At(0), beta, described(y), At(1))

    def bind(self, handle: Handle, pointers: tuple[int, ...], workspace: int) -> Callable[[], int]:
        """The call on these addresses."""
        return self.function.bind(handle, pointers, workspace)


def can_cut(spec: TensorSpec) -> bool:
    """Whether cudnnTransformTensorEx takes a tensor as it lies: packed in either order, at an aligned address."""
    return is_packed(spec) and spec.alignment >= 16 and dtype_of(spec.dtype).itemsize > 1


def folded(problem: Problem) -> tuple[Problem, Cut, Cut] | None:
    """The problem on blocks of pixels, and how x and w are cut; None where that cannot be, or has nothing to save."""
    x, w, g = problem.x, problem.w, problem.geometry
    elements = math.prod(x.shape)
    if x.shape[1] > _CHANNELS or elements * dtype_of(x.dtype).itemsize < _LARGE or elements > _MOST:
        return None
    if problem.groups > 1 or problem.mode != "cross_correlation" or any(step > 1 for step in g.dilation):
        return None
    if all(step == 1 for step in g.stride) or any(r < step for r, step in zip(w.shape[2:], g.stride, strict=True)):
        return None
    if not (can_cut(x) and can_cut(w) and is_channels_last(x) == is_channels_last(w)):
        return None
    blocks = [-(-size // step) for size, step in zip(w.shape[2:], g.stride, strict=True)]
    reach = [step * (out + count - 1) for step, out, count in zip(g.stride, problem.y.shape[2:], blocks, strict=True)]
    after = tuple(end - size - pad for end, size, pad in zip(reach, x.shape[2:], g.pre_padding, strict=True))
    if any(size < 0 for size in after):  # there is a part of x that no result depends on
        return None
    nothing, one = (0,) * len(blocks), (1,) * len(blocks)
    of_x = Cut(g.pre_padding, after, g.stride)
    rest = (step * count - size for step, count, size in zip(g.stride, blocks, w.shape[2:], strict=True))
    of_w = Cut(nothing, tuple(rest), g.stride)
    part = problem._replace(x=of_x.of(x), w=of_w.of(w), geometry=Geometry(nothing, nothing, one, one))
    return part, of_x, of_w


def is_promising(problem: Problem, strict: bool) -> bool:
    """Whether blocks are to be tried first, as measured; `strict`: float32 is multiplied as it is, without tensor cores."""
    x, w = problem.x, problem.w
    gradient, is_wide = problem.operation == "backward_data", min(w.shape[2:]) > 3
    if x.dtype == "float64" or strict:
        return strict and gradient and is_wide
    if gradient or w.shape[2:] == problem.geometry.stride:  # patches side by side: a product of matrices
        return True
    if problem.operation == "forward":
        return is_wide and x.dtype != "float16"
    return x.dtype == "bfloat16"
