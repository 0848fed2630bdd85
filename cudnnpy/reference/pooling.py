"""Pooling: the maximum or the average of each window, and its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from cudnnpy import raw
from cudnnpy._checks.call_arguments import check_scales
from cudnnpy._core.layouts import TensorSpec, from_logical, to_logical
from cudnnpy._layers import pooling as device
from cudnnpy.reference import _arrays, _geometry
from cudnnpy.reference._arrays import Array, Arrays, Float64, NumpyOperation, Shape
from cudnnpy.reference._kinds import resample_bwd, resample_fwd

_MODES = {
    "max": raw.CUDNN_RESAMPLE_MAXPOOL,
    "max_deterministic": raw.CUDNN_RESAMPLE_MAXPOOL,
    "average_include_padding": raw.CUDNN_RESAMPLE_AVGPOOL_INCLUDE_PADDING,
    "average_exclude_padding": raw.CUDNN_RESAMPLE_AVGPOOL_EXCLUDE_PADDING,
}


class Pooling(NumpyOperation, device.Pooling):
    __doc__ = device.Pooling.__doc__

    def _output_shape(self, x_shape: Shape) -> Shape:
        return self._resampling("x_shape", _geometry.shape("x_shape", x_shape, (0,)))[1]

    def _forward(self, arrays: Arrays, alpha: float, beta: float) -> list[Array]:
        x, out = _arrays.check_tensor("x", arrays["x"], empty="batch"), arrays["out"]
        options, y_shape = self._resampling("x", x.shape)
        alpha, beta = check_scales(alpha, beta, out=out)
        _arrays.check_out(out, y_shape, (x.dtype.name,), x=x)
        values = resample_fwd(options, {"x": self._float64(x)}, {"y": self._spec(y_shape)})["y"]
        return [_arrays.store_scaled(_arrays.in_layout(values, self.layout), x.dtype, out, alpha, beta)]

    def _backward(self, arrays: Arrays, alpha: float, beta: float) -> list[Array]:
        dy, out = _arrays.check_array("dy", arrays["dy"], _arrays.FLOATS), arrays["out"]
        x = _arrays.check_tensor("x", arrays["x"], empty="batch")
        _arrays.check_same_dtype("x", x, "dy", dy)
        options, y_shape = self._resampling("x", x.shape)
        if dy.shape != y_shape:
            raise ValueError(
                f"dy must have shape {y_shape}, the output's for x of shape {x.shape}; got shape {dy.shape}"
            )
        y = _arrays.check_like("y", arrays["y"], "dy", dy)
        alpha, beta = check_scales(alpha, beta, out=out)
        _arrays.check_out(out, x.shape, (x.dtype.name,), dy=dy, x=x, y=y)
        given = {"dy": self._float64(dy), "x": self._float64(x)}
        values = resample_bwd(options, given, {"dx": self._spec(x.shape)})["dx"]
        return [_arrays.store_scaled(_arrays.in_layout(values, self.layout), x.dtype, out, alpha, beta)]

    def _resampling(self, name: str, x_shape: Shape) -> tuple[dict[str, Any], Shape]:
        """Check a shape in the layout's axis order; return the options of the resampling, and the shape of the result."""
        _geometry.check_rank(name, x_shape, self.layout)
        batch, channels, *sizes = to_logical(x_shape, self.layout.endswith("C"))
        windows, paddings, strides = self._each(len(sizes))
        spatial: list[int] = []
        for size, window, padding, stride in zip(sizes, windows, paddings, strides, strict=True):
            spatial.append((size + 2 * padding - window) // stride + 1)
            if spatial[-1] < 1:
                raise ValueError(
                    f"window must be at most {size + 2 * padding}, the padded size of x; "
                    f"got {window} (on spatial axis {len(spatial) - 1})"
                )
        geometry = {"window": windows, "pre_padding": paddings, "post_padding": paddings, "stride": strides}
        pads = raw.CUDNN_NEG_INF_PAD if self.mode.startswith("max") else raw.CUDNN_ZERO_PAD
        options = {"mode": _MODES[self.mode], "padding_mode": pads, **geometry}
        return options, from_logical((batch, channels, *spatial), self.layout.endswith("C"))

    def _float64(self, array: Array) -> Float64:
        return _arrays.channels_first(array, self.layout).astype(np.float64)

    def _spec(self, shape: Shape) -> TensorSpec:
        return TensorSpec(to_logical(shape, self.layout.endswith("C")), "float64")
