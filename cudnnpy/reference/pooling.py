"""Pooling: the maximum or the average of each window, and its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from cudnnpy import raw
from cudnnpy._launch.dispatch import Call
from cudnnpy._layers import pooling as device
from cudnnpy.reference import _arrays
from cudnnpy.reference._arrays import Array, Float64, NumpyOperation
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
        operands, x = self._forward_operands(call, alpha, beta), call.arrays["x"]
        _arrays.check_operands(operands, call.arrays)
        values = resample_fwd(self._resampling(x), {"x": self._float64(x)}, {"y": operands[-1].spec})["y"]
        out = call.arrays["out"]
        return [_arrays.store_scaled(_arrays.in_layout(values, self.layout), x.dtype, out, alpha, beta)]

    def _backward(self, call: Call, alpha: float, beta: float) -> list[Array]:
        operands, x = self._backward_operands(call, alpha, beta), call.arrays["x"]
        _arrays.check_operands(operands, call.arrays)
        given = {name: self._float64(call.arrays[name]) for name in ("dy", "x")}
        values = resample_bwd(self._resampling(x), given, {"dx": operands[-1].spec})["dx"]
        out = call.arrays["out"]
        return [_arrays.store_scaled(_arrays.in_layout(values, self.layout), x.dtype, out, alpha, beta)]

    def _resampling(self, x: Array) -> dict[str, Any]:
        """Return the options of the resampling of an array."""
        window, padding, stride = self._each(x.ndim - 2)
        pads = raw.CUDNN_NEG_INF_PAD if self.mode.startswith("max") else raw.CUDNN_ZERO_PAD
        geometry = {"window": window, "pre_padding": padding, "post_padding": padding, "stride": stride}
        return {"mode": _MODES[self.mode], "padding_mode": pads, **geometry}

    def _float64(self, array: Array) -> Float64:
        return _arrays.channels_first(array, self.layout).astype(np.float64)
