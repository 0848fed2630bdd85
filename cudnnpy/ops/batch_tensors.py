"""The tensors of batch normalization: the memory formats in which nodes and functions are fast, and the parameters' shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cudnnpy import raw
from cudnnpy._core.layouts import (
    TensorSpec,
    are_channels_last,
    byte_extent,
    channels_last_strides,
    packed_strides,
    to_packed,
)
from cudnnpy._launch.dispatch import Call
from cudnnpy._launch.program import Operand
from cudnnpy._launch.steps import tensor_descriptor
from cudnnpy._options.normalization import statistics_dtype
from cudnnpy.descriptors import TensorDescriptor

# Channels first, graphs are faster for few long channels: the maximum of channels, and the minimum of elements in each.
_MAX_FEW_CHANNELS, _MIN_LONG_CHANNEL = 128, 1 << 16
_MIN_LAST_BYTES = 1 << 14  # of x, from which on graphs are worth compiling channels last


def as_channels_first(spec: TensorSpec) -> TensorSpec:
    """The tensor packed channels first, or a copy that is."""
    return spec if spec.strides == packed_strides(spec.shape) else to_packed(spec)


def as_channels_last(spec: TensorSpec) -> TensorSpec:
    """A tensor that is channels last in memory, with these strides for axes of size 1, too."""
    return spec._replace(strides=channels_last_strides(spec.shape))


class Normalized(NamedTuple):
    """The x of a call, with its axes as (N, C, spatial...), and the shapes and descriptors of its parameters."""

    x: TensorSpec
    spatial: bool  # the mode
    channels_last: bool  # the layout of the arrays themselves

    @property
    def shape(self) -> tuple[int, ...]:
        """The parameters' shape, in the arrays' own layout."""
        if len(self.x.shape) == 1:
            return (0,)
        if self.spatial:
            return (self.x.shape[1],)
        return (*self.x.shape[2:], self.x.shape[1]) if self.channels_last else self.x.shape[1:]

    @property
    def statistics(self) -> TensorSpec:
        """A packed parameter of the statistics' dtype."""
        return TensorSpec(self.shape, statistics_dtype(self.x.dtype), packed_strides(self.shape))

    @property
    def flat(self) -> TensorSpec:
        """The same as one row."""
        return TensorSpec((math.prod(self.shape),), statistics_dtype(self.x.dtype), (1,))

    @property
    def kind(self) -> int:
        """The mode as the functions take it."""
        return int(raw.CUDNN_BATCHNORM_SPATIAL if self.spatial else raw.CUDNN_BATCHNORM_PER_ACTIVATION)

    def descriptor(self) -> TensorDescriptor:
        """The parameters' descriptor."""
        if self.spatial:
            rank = max(len(self.x.shape), 4)
            return TensorDescriptor((1, self.x.shape[1], *(1,) * (rank - 2)), statistics_dtype(self.x.dtype))
        shape = (1, *self.x.shape[1:])
        return tensor_descriptor(TensorSpec(shape, statistics_dtype(self.x.dtype), packed_strides(shape)))

    def logical(self, parameter: TensorSpec) -> TensorSpec:
        """A parameter for per_activation with its axes as (1, C, spatial...): the functions take these packed only."""
        if self.spatial:
            return parameter
        shape = (1, *self.x.shape[1:])
        strides = channels_last_strides(shape) if self.channels_last else packed_strides(shape)
        return parameter._replace(shape=shape, strides=strides)

    def in_either_format(self, spec: TensorSpec) -> TensorSpec:
        """An x or y as the functions support it: packed channels first, or, in mode "spatial", channels last."""
        return spec if self.spatial and spec.strides == channels_last_strides(spec.shape) else as_channels_first(spec)

    def format_of_function(self, call: Call) -> Callable[[TensorSpec], TensorSpec]:
        """The memory format in which the functions for training and the gradient get x, y and gradients.

        Channels first is the faster one. Without memory for copies, tensors that are channels last stay so.
        """
        return as_channels_first if call.memory_limit is None else self.in_either_format

    def required_specs(self, operands: Sequence[Operand], data: Callable[[TensorSpec], TensorSpec]) -> list[TensorSpec]:
        """Return the required specs of the operands: x, y and gradients converted by `data`, and packed parameters.

        The parameters have the dtype of the statistics.
        """
        dtype = statistics_dtype(self.x.dtype)
        return [data(spec) if name in ("dy", "x", "out") else to_packed(spec, dtype) for name, spec, *_ in operands]

    def faster_formats(self, *others: TensorSpec) -> list[Callable[[TensorSpec], TensorSpec]]:
        """The memory formats in which the node of a graph is faster than the function, the fastest first.

        These are channels last, which the function is slow in, and channels first, if necessary on copies, for few long
        channels. Images of one position are channels last. The nodes take aligned tensors of 16 or 32 bits.
        """
        x, tensors = self.x, (self.x, *others)
        count = x.shape[0] * math.prod(x.shape[2:])  # values for each channel
        aligned = all(t.alignment >= 16 for t in tensors)
        if not self.spatial or x.dtype == "float64" or count == 1 or not aligned or len(x.shape) not in (4, 5):
            return []
        last = are_channels_last(*tensors) and byte_extent(x) >= _MIN_LAST_BYTES
        first = all(t.strides == packed_strides(t.shape) for t in tensors)
        few = x.shape[1] <= _MAX_FEW_CHANNELS and count >= _MIN_LONG_CHANNEL
        return [*([as_channels_last] if last else []), *([as_channels_first] if few and (first or last) else [])]
