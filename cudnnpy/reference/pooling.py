"""Pooling: the maximum or the average of each window, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cudnnpy import raw
from cudnnpy._launch.dispatch import Call
from cudnnpy._launch.program import Operand
from cudnnpy._layers import pooling as device
from cudnnpy.reference import _arrays
from cudnnpy.reference._arrays import Array, NumpyOperation
from cudnnpy.reference._kinds import resample_bwd, resample_fwd

_MODES = {
    "max": raw.CUDNN_RESAMPLE_MAXPOOL,
    "max_deterministic": raw.CUDNN_RESAMPLE_MAXPOOL,
    "average_include_padding": raw.CUDNN_RESAMPLE_AVGPOOL_INCLUDE_PADDING,
    "average_exclude_padding": raw.CUDNN_RESAMPLE_AVGPOOL_EXCLUDE_PADDING,
}


class Pooling(NumpyOperation, device.Pooling):
    __doc__ = device.Pooling.__doc__

    def _forward(self, call: Call, alpha: float, beta: float) -> list[Array]:
        return self._resampled(resample_fwd, "y", call, self._forward_operands(call, alpha, beta), alpha, beta)

    def _backward(self, call: Call, alpha: float, beta: float) -> list[Array]:
        return self._resampled(resample_bwd, "dx", call, self._backward_operands(call, alpha, beta), alpha, beta)

    def _resampled(
        self, function: Any, result: str, call: Call, operands: Sequence[Operand], alpha: float, beta: float
    ) -> list[Array]:
        """Return the result of a resampling of graphs, which has another name there."""
        _arrays.check_operands(operands, call.arrays)
        given = {operand.name: _arrays.logical(call.arrays[operand.name], self.layout) for operand in operands[:-1]}
        window, padding, stride = self._each(given["x"].ndim - 2)
        pads = raw.CUDNN_NEG_INF_PAD if self.mode.startswith("max") else raw.CUDNN_ZERO_PAD
        options = {"mode": _MODES[self.mode], "padding_mode": pads, "window": window, "stride": stride}
        options |= {"pre_padding": padding, "post_padding": padding}
        values = _arrays.in_layout(function(options, given, {result: operands[-1].spec})[result], self.layout)
        return [_arrays.store_scaled(values, call.arrays["x"].dtype, call.arrays["out"], alpha, beta)]
