"""Kinds of arithmetic, and the directions of a convolution."""

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
