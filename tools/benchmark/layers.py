"""What is timed: seven convolutions of ResNet-50 at batch 128, in four kinds of arithmetic and three directions."""

from __future__ import annotations

import math
from typing import NamedTuple

from cudnnpy.typing import ConvolutionOperation, ElementName

BATCH = 128
OPERATIONS: tuple[ConvolutionOperation, ...] = ("forward", "backward_data", "backward_filter")


class Kind(NamedTuple):
    """An element type, its memory order, whether tf32 is allowed, and how far two libraries may differ (relative)."""

    name: str
    dtype: ElementName
    channels_last: bool
    tf32: bool
    tolerance: float


KINDS = (
    Kind("fp32 strict NCHW", "float32", False, False, 1e-4),
    Kind("tf32 NHWC", "float32", True, True, 5e-3),
    Kind("fp16 NHWC", "float16", True, True, 5e-3),
    Kind("bf16 NHWC", "bfloat16", True, True, 3e-2),
)


class Layer(NamedTuple):
    """One square two-dimensional convolution; sizes in elements."""

    name: str
    channels: int
    filters: int
    size: int
    kernel: int
    stride: int = 1
    batch: int = BATCH

    @property
    def padding(self) -> int:
        """Half the filter, so that the output's size is the input's over the stride."""
        return self.kernel // 2

    @property
    def x_shape(self) -> tuple[int, int, int, int]:
        """(N, C, H, W)."""
        return (self.batch, self.channels, self.size, self.size)

    @property
    def w_shape(self) -> tuple[int, int, int, int]:
        """(K, C, R, S)."""
        return (self.filters, self.channels, self.kernel, self.kernel)

    @property
    def y_shape(self) -> tuple[int, int, int, int]:
        """(N, K, P, Q)."""
        size = (self.size + 2 * self.padding - self.kernel) // self.stride + 1
        return (self.batch, self.filters, size, size)

    @property
    def operations(self) -> int:
        """Floating-point operations of one direction by the definition: two for each product of the sum."""
        return 2 * math.prod(self.y_shape) * math.prod(self.w_shape[1:])

    def moved_bytes(self, itemsize: int) -> int:
        """The fewest bytes that any direction moves: each of the three tensors once."""
        return itemsize * (math.prod(self.x_shape) + math.prod(self.w_shape) + math.prod(self.y_shape))


LAYERS = (
    Layer("stem 7x7/2 3-64 @224", 3, 64, 224, 7, stride=2),
    Layer("conv2 1x1 64-256 @56", 64, 256, 56, 1),
    Layer("conv2 3x3 64-64 @56", 64, 64, 56, 3),
    Layer("conv3 3x3/2 128-128 @56", 128, 128, 56, 3, stride=2),
    Layer("conv3 3x3 128-128 @28", 128, 128, 28, 3),
    Layer("conv4 3x3 256-256 @14", 256, 256, 14, 3),
    Layer("conv5 3x3 512-512 @7", 512, 512, 7, 3),
)

# Small enough that the GPU is always done before the host asks again.
TINY = Layer("tiny 3x3 8-8 @8, batch 1", 8, 8, 8, 3, batch=1)
