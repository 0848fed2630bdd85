"""Kinds of arithmetic, the directions of a convolution, and the tiny convolution by which host cost is measured."""

from __future__ import annotations

from typing import NamedTuple

from cudnnpy.typing import ConvolutionOperation, ElementName

OPERATIONS: tuple[ConvolutionOperation, ...] = ("forward", "backward_data", "backward_filter")


class Kind(NamedTuple):
    """A data type, its memory format, whether tf32 is allowed, and the tolerance between two libraries (relative)."""

    name: str
    dtype: ElementName
    channels_last: bool
    tf32: bool
    tolerance: float


class TinyLayer(NamedTuple):
    """A convolution so small that the GPU is always done before the host's next call."""

    x_shape: tuple[int, ...] = (1, 8, 8, 8)
    w_shape: tuple[int, ...] = (8, 8, 3, 3)
    y_shape: tuple[int, ...] = (1, 8, 8, 8)
    padding: int = 1


TINY = TinyLayer()
