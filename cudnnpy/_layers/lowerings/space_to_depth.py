"""Lower strided convolutions of few channels to convolutions of stride 1, by a space-to-depth transformation of x and w.

cuDNN's engines pad three channels to four or eight, and no engine is fast for the gradient with respect to such an x.
The transformation makes channels of blocks of s x t pixels, where s and t are the strides: x of (N, C, H, W), zero-padded,
becomes (N, s t C, H', W'), and w of (K, C, R, S), zero-padded to whole blocks, becomes (K, s t C, R', S'). Then

    y[i] = sum over r of x[s i + r] w[r] = sum over j, p of x'[i + j, p] w'[j, p]        where r = s j + p

is a convolution of stride 1 without padding, and so are its gradients, to which the inverse transformation is applied.
cudnnTransformTensorEx computes both at the speed of memory (CUDNN_TRANSFORM_FOLD and _UNFOLD, which also pad and crop).
It determines the order of the new channels, which is the same for x and w.

On an H200 (docs/benchmarks) the gradient with respect to the image of a ResNet takes 0.36 to 0.5 of the time of the best
engine without this transformation, its first convolution in bfloat16 0.55, and a convolution with 16 x 16 patches 0.14
(its gradient with respect to the image takes 62 us instead of 1.4 s). Since the padding of w is multiplied by x, a NaN or
an infinity in x spreads within its block.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

from cudnnpy._convolution.sizes import Geometry
from cudnnpy._convolution.specification import ConvolutionSpec
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import (
    MAX_TENSOR_ELEMENTS,
    TensorSpec,
    channels_last_strides,
    is_only_channels_last,
    is_packed,
    packed_strides,
)
from cudnnpy._launch.steps import FunctionCall, OperandAddress, scaling_arguments, tensor_descriptor
from cudnnpy.descriptors import TensorTransformDescriptor
from cudnnpy.handle import Handle
from cudnnpy.raw import CUDNN_TENSOR_NCHW, CUDNN_TENSOR_NHWC, CUDNN_TRANSFORM_FOLD, CUDNN_TRANSFORM_UNFOLD

_CHANNELS = 4  # maximum of x's channels; with more, engines add little padding
_MIN_BYTES = 1 << 20  # minimum of x's bytes; below, two or three more launches cost more than they save


class SpaceToDepth(NamedTuple):
    """A space-to-depth transformation: the padding before and after, and the size of blocks, on each spatial axis.

    Padding below 0 crops. With blocks of size 1 the transformation only pads.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    block: tuple[int, ...]

    def of(self, spec: TensorSpec) -> TensorSpec:
        """Return the transformed tensor, packed in the memory format of the given one."""
        n, c, *spatial = spec.shape
        padded = (b + size + a for b, size, a in zip(self.before, spatial, self.after, strict=True))
        sizes = (size // length for size, length in zip(padded, self.block, strict=True))
        shape = (n, c * math.prod(self.block), *sizes)
        packed = channels_last_strides if is_only_channels_last(spec) else packed_strides
        return spec._replace(shape=shape, strides=packed(shape), alignment=16)

    def to_depth(self, whole: TensorSpec) -> Transform:
        """Return the transformation of operand 0, `whole`, to operand 1."""
        return Transform(self, whole, CUDNN_TRANSFORM_FOLD, 0.0)

    def to_space(self, whole: TensorSpec, beta: float = 0.0) -> Transform:
        """Return the inverse transformation of operand 0, plus beta * whole, to operand 1, `whole`."""
        return Transform(self, whole, CUDNN_TRANSFORM_UNFOLD, beta)


class Transform:
    """A launch of cudnnTransformTensorEx. Its descriptor needs a driver, so it is created when it is first bound."""

    workspace_size = 0

    def __init__(self, transform: SpaceToDepth, whole: TensorSpec, direction: int, beta: float) -> None:
        self.transform, self.whole, self.direction, self.beta = transform, whole, direction, beta

    @cached_property
    def function(self) -> FunctionCall:
        """The call of the C function."""
        folds, transform = self.direction == CUDNN_TRANSFORM_FOLD, self.transform
        x, y = (self.whole, transform.of(self.whole)) if folds else (transform.of(self.whole), self.whole)
        spatial = max(len(self.whole.shape) - 2, 2)
        height = spatial - len(transform.block)  # a single axis is the width of an image of height 1
        sign = 1 if folds else -1  # the inverse crops the padding
        how = TensorTransformDescriptor()
        how.set(
            "cudnnSetTensorTransformDescriptor",
            2 + spatial,
            CUDNN_TENSOR_NHWC if is_only_channels_last(self.whole) else CUDNN_TENSOR_NCHW,
            (*(0,) * (2 + height), *(sign * size for size in transform.before)),
            (*(0,) * (2 + height), *(sign * size for size in transform.after)),
            (*(1,) * height, *transform.block),
            self.direction,
        )
        one, beta = scaling_arguments(1.0, self.beta, self.whole.dtype)
        tensors = one, tensor_descriptor(x), OperandAddress(0), beta, tensor_descriptor(y), OperandAddress(1)
        return FunctionCall("cudnnTransformTensorEx", how, *tensors)

    def bind(self, handle: Handle, addresses: tuple[int, ...], workspace: int) -> Callable[[], int]:
        """Return the launch on these addresses."""
        return self.function.bind(handle, addresses, workspace)


def can_transform(spec: TensorSpec) -> bool:
    """Return whether cudnnTransformTensorEx supports a tensor: packed in either memory format, and aligned."""
    return is_packed(spec) and spec.alignment >= 16 and dtype_of(spec.dtype).itemsize > 1


def with_space_to_depth(problem: ConvolutionSpec) -> tuple[ConvolutionSpec, SpaceToDepth, SpaceToDepth] | None:
    """Return the transformed problem, and the transformations of x and w; None where it is not supported or not faster."""
    x, w, g = problem.x, problem.w, problem.geometry
    elements = math.prod(x.shape)
    if x.shape[1] > _CHANNELS or elements * dtype_of(x.dtype).itemsize < _MIN_BYTES or elements > MAX_TENSOR_ELEMENTS:
        return None
    if problem.groups > 1 or problem.mode != "cross_correlation" or any(step > 1 for step in g.dilation):
        return None
    if all(step == 1 for step in g.stride) or any(r < step for r, step in zip(w.shape[2:], g.stride, strict=True)):
        return None
    if not (can_transform(x) and can_transform(w) and is_only_channels_last(x) == is_only_channels_last(w)):
        return None
    blocks = [-(-size // step) for size, step in zip(w.shape[2:], g.stride, strict=True)]
    reach = [step * (out + count - 1) for step, out, count in zip(g.stride, problem.y.shape[2:], blocks, strict=True)]
    after = tuple(end - size - pad for end, size, pad in zip(reach, x.shape[2:], g.pre_padding, strict=True))
    if any(size < 0 for size in after):  # the result does not depend on all of x
        return None
    no_padding, one = (0,) * len(blocks), (1,) * len(blocks)
    of_x = SpaceToDepth(g.pre_padding, after, g.stride)
    rest = (step * count - size for step, count, size in zip(g.stride, blocks, w.shape[2:], strict=True))
    of_w = SpaceToDepth(no_padding, tuple(rest), g.stride)
    part = problem._replace(x=of_x.of(x), w=of_w.of(w), geometry=Geometry(no_padding, no_padding, one, one))
    return part, of_x, of_w
