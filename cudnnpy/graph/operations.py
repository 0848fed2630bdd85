"""The operations of a graph: each infers its result from its inputs, and checks its options before it is added."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import index
from typing import Any

from cudnnpy import raw
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import TensorSpec, packed_strides, spelled_channels_last
from cudnnpy._core.validation import check_flag, check_number, check_padding, check_per_axis, for_each_axis
from cudnnpy.graph.nodes import Node, Tensors, Typed
from cudnnpy.names import enumerator

_BINARY = {"add", "add_square", "div", "max", "min", "mod", "mul", "pow", "sub", "atan2", "floor_mod"}
_BINARY |= {"cmp_eq", "cmp_neq", "cmp_gt", "cmp_ge", "cmp_lt", "cmp_le", "logical_and", "logical_or"}
_HOW = ("relu_lower_clip", "relu_upper_clip", "relu_lower_clip_slope", "elu_alpha", "softplus_beta", "swish_beta")


class Nodes(Tensors):
    """Tensors, and the operations that make them."""

    def convolution(
        self,
        x: Node,
        w: Node,
        *,
        padding: Any = 0,
        stride: Any = 1,
        dilation: Any = 1,
        mode: str = "cross_correlation",
    ) -> Node:
        """x (N, C, spatial...) with w (K, C / groups, spatial...). Two spatial axes at least; padding: per axis, or pairs."""
        self._check_nodes(x=x, w=w)
        kind = enumerator(raw.cudnnConvolutionMode_t, mode, "mode")
        rank = len(x.shape) - 2
        if rank not in (2, 3) or len(w.shape) != len(x.shape):
            raise ValueError(f"x and w must both have 2 or 3 spatial axes; got shapes {x.shape} and {w.shape}")
        if 0 in (*x.shape[1:], *w.shape):
            raise ValueError(
                f"x and w must have sizes of 1 or more, except for a batch of 0; got shapes {x.shape} and {w.shape}"
            )
        sides = for_each_axis("padding", check_padding(padding), rank)
        before, after = zip(*(s if isinstance(s, tuple) else (s, s) for s in sides), strict=True)
        strides, dilations = _each("stride", stride, 1, rank), _each("dilation", dilation, 1, rank)
        spatial = _convolved(x.shape, w.shape, before, after, strides, dilations)
        y = self._made((x.shape[0], w.shape[0], *spatial), x)
        tensors = x, w, y
        specs = spelled_channels_last(*(node.spec for node in tensors))
        how = {
            "COMP_TYPE": dtype_of(self.compute_dtype).number,
            "CONV_MODE": kind,
            "SPATIAL_DIMS": rank,
            "PRE_PADDINGS": before,
            "POST_PADDINGS": after,
            "FILTER_STRIDES": strides,
            "DILATIONS": dilations,
        }
        one = (1.0, raw.CUDNN_TYPE_DOUBLE if self.compute_dtype == "float64" else raw.CUDNN_TYPE_FLOAT)
        self._add(
            "CONVOLUTION_FORWARD",
            "CONVOLUTION_FORWARD",
            [y],
            X=x,
            W=w,
            Y=y,
            CONV_DESC=("CONVOLUTION", how),
            ALPHA=Typed(*one),
            BETA=Typed(0.0, one[1]),
        )
        self._convolutions.append(tensors)
        self._longest = max(self._longest, math.prod(w.shape[1:]))
        for node, spec in zip(tensors, specs, strict=True):
            node.spec = spec
        pads = tuple(zip(before, after, strict=True))
        self._record("convolution", x=x, w=w, padding=pads, stride=strides, dilation=dilations, mode=kind)
        return y

    def pointwise(
        self,
        mode: str,
        x: Node,
        b: Node | None = None,
        t: Node | None = None,
        how: Mapping[str, float] | None = None,
    ) -> Node:
        """An elementwise operation of one, two or three tensors, whose axes of size 1 are repeated.

        For a gradient ("relu_bwd", ...) `x` is the gradient of the result and `b` what the forward operation was given.
        `how` may have relu_lower_clip, relu_upper_clip, relu_lower_clip_slope, elu_alpha, softplus_beta, swish_beta.
        """
        kind = enumerator(raw.cudnnPointwiseMode_t, mode, "mode")
        options: dict[str, Any] = {"MODE": kind, "MATH_PREC": dtype_of(self.compute_dtype).number}
        numbers = _checked_how(how)
        options |= {name.upper(): Typed(value, raw.CUDNN_TYPE_DOUBLE) for name, value in numbers.items()}
        name = kind.name.removeprefix("CUDNN_POINTWISE_").lower()
        is_gradient = name.endswith("_bwd")
        wanted = (True, is_gradient or name in _BINARY or name == "binary_select", name == "binary_select")
        for argument, node, is_wanted in zip("xbt", (x, b, t), wanted, strict=True):
            if node is not None:
                self._check_nodes(**{argument: node})
            if is_wanted != (node is not None):
                expected = "what the forward operation was given" if is_gradient else "a node"
                given = "None" if node is None else "a node"
                what = expected if is_wanted else "None"
                raise TypeError(f"{argument} must be {what} for {name}; got {given}")
        shapes = [node.shape for node in (x, b, t) if node is not None]
        ranks = {len(shape) for shape in shapes}
        if len(ranks) > 1 or any(len({1, *sizes}) > 2 for sizes in zip(*shapes, strict=True)):
            raise ValueError(f"x, b and t must have the same size, or 1, on each axis; got shapes {shapes}")
        widest = max((x, *(n for n in (b, t) if n is not None)), key=lambda node: math.prod(node.shape))
        y = self._made([_broadcast(*sizes) for sizes in zip(*shapes, strict=True)], widest)
        description = ("POINTWISE", options)
        if is_gradient:
            self._add("POINTWISE", "POINTWISE", [y], PW_DESCRIPTOR=description, XDESC=b, DYDESC=x, DXDESC=y)
        else:
            self._add("POINTWISE", "POINTWISE", [y], PW_DESCRIPTOR=description, XDESC=x, BDESC=b, TDESC=t, YDESC=y)
        self._record("pointwise", mode=kind, x=x, b=b, t=t, how=numbers)
        return y

    def reduction(self, op: str, x: Node, axes: Iterable[int]) -> Node:
        """x reduced over axes, which stay with size 1; negative ones count from the last."""
        self._check_nodes(x=x)
        kind = enumerator(raw.cudnnReduceTensorOp_t, op, "op")
        reduced = _checked_axes(axes, len(x.shape))
        shape = [1 if axis in reduced else size for axis, size in enumerate(x.shape)]
        y = self._made(shape, x)
        how = {"OPERATOR": kind, "COMP_TYPE": dtype_of(self.compute_dtype).number}
        self._add("REDUCTION", "REDUCTION", [y], XDESC=x, YDESC=y, DESC=("REDUCTION", how))
        self._record("reduction", op=kind, x=x, axes=sorted(reduced))
        self._longest = max(self._longest, _share(x.shape, shape))
        return y

    def matmul(self, a: Node, b: Node) -> Node:
        """(batch..., M, K) by (batch..., K, N)."""
        self._check_nodes(a=a, b=b)
        batches = zip(a.shape[:-2], b.shape[:-2], strict=False)
        fit = len(a.shape) == len(b.shape) >= 2 and all(m == n or 1 in (m, n) for m, n in batches)
        if not fit or a.shape[-1] != b.shape[-2]:
            raise ValueError(f"a and b must have shapes (..., M, K) and (..., K, N); got {a.shape} and {b.shape}")
        batch = [_broadcast(*sizes) for sizes in zip(a.shape[:-2], b.shape[:-2], strict=True)]
        shape = (*batch, a.shape[-2], b.shape[-1])
        c = Node(TensorSpec(shape, self.compute_dtype, packed_strides(shape)))
        how = {"COMP_TYPE": dtype_of(self.compute_dtype).number}
        self._add("MATMUL", "MATMUL", [c], ADESC=a, BDESC=b, CDESC=c, DESC=("MATMUL", how))
        self._record("matmul", a=a, b=b)
        self._longest = max(self._longest, a.shape[-1])
        return c

    def resample(self, mode: str, x: Node, window: Any, *, padding: Any = 0, stride: Any = None) -> Node:
        """Pooling: mode "maxpool", "avgpool_include_padding" or "avgpool_exclude_padding"."""
        self._check_nodes(x=x)
        kind = enumerator(raw.cudnnResampleMode_t, mode, "mode")
        rank = len(x.shape) - 2
        size, pads = _each("window", window, 1, rank), _each("padding", padding, 0, rank)
        step = size if stride is None else _each("stride", stride, 1, rank)
        spatial = [(n + 2 * p - k) // s + 1 for n, p, k, s in zip(x.shape[2:], pads, size, step, strict=True)]
        if min(spatial, default=0) < 1:
            raise ValueError(f"window must fit into x with padding, {x.shape}; got {window!r}")
        y = self._made((*x.shape[:2], *spatial), x)
        how = {
            "MODE": kind,
            "COMP_TYPE": dtype_of(self.compute_dtype).number,
            "SPATIAL_DIMS": rank,
            "NAN_PROPAGATION": raw.CUDNN_PROPAGATE_NAN,
            "PADDING_MODE": raw.CUDNN_NEG_INF_PAD if kind == raw.CUDNN_RESAMPLE_MAXPOOL else raw.CUDNN_ZERO_PAD,
            "PRE_PADDINGS": pads,
            "POST_PADDINGS": pads,
            "STRIDES": step,
            "WINDOW_DIMS": size,
        }
        one = Typed(1.0, raw.CUDNN_TYPE_DOUBLE), Typed(0.0, raw.CUDNN_TYPE_DOUBLE)
        self._add(
            "RESAMPLE_FWD", "RESAMPLE_FWD", [y], XDESC=x, YDESC=y, DESC=("RESAMPLE", how), ALPHA=one[0], BETA=one[1]
        )
        self._record("resample", mode=kind, x=x, window=size, padding=pads, stride=step)
        return y

    def normalization(
        self,
        mode: str,
        x: Node,
        scale: Node,
        bias: Node | None,
        epsilon: float,
        *,
        training: bool = True,
        running: tuple[Node, Node] | None = None,
        average_factor: float = 1.0,
    ) -> tuple[Node, ...]:
        """(y, mean, inverse variance, new running mean, new running variance), as far as there are such.

        mode: "batch_norm", "layer_norm", "instance_norm" or "rms_norm" (which has no mean). Without `training` y alone.
        """
        kind = enumerator(raw.cudnnBackendNormMode_t, mode, "mode")
        self._check_nodes(x=x, scale=scale, **({} if bias is None else {"bias": bias}))
        check_flag("training", training)
        self._check_running(running)
        rank = len(x.shape)
        _check_statistic("scale", scale, x)
        if bias is not None and bias.shape != scale.shape:
            raise ValueError(f"bias must have shape {scale.shape}, as scale; got shape {bias.shape}")
        numbers = [self._number_of("epsilon", check_number("epsilon", epsilon, 0.0, finite=True), rank)]
        check_number("average_factor", average_factor, finite=True)
        numbers += [self._number_of("average_factor", average_factor, rank)] if running else []
        y = self._made(x.shape, x)
        stats = _statistics(kind, x.shape, scale.shape)
        mean = self._made(stats, x) if training and kind != raw.CUDNN_RMS_NORM else None
        inverse = self._made(stats, x) if training else None
        new = [self._made(stats, x) for _ in running] if running else [None, None]
        made = tuple(node for node in (y, mean, inverse, *new) if node is not None)
        self._add(
            "NORM_FORWARD",
            "NORM_FWD",
            [*made, *numbers],
            MODE=kind,
            PHASE=raw.CUDNN_NORM_FWD_TRAINING if training else raw.CUDNN_NORM_FWD_INFERENCE,
            XDESC=x,
            MEAN_DESC=mean,
            INV_VARIANCE_DESC=inverse,
            SCALE_DESC=scale,
            BIAS_DESC=bias,
            EPSILON_DESC=numbers[0],
            EXP_AVG_FACTOR_DESC=numbers[1] if running else None,
            INPUT_RUNNING_MEAN_DESC=running and running[0],
            INPUT_RUNNING_VAR_DESC=running and running[1],
            OUTPUT_RUNNING_MEAN_DESC=new[0],
            OUTPUT_RUNNING_VAR_DESC=new[1],
            YDESC=y,
        )
        self._record(
            "normalization",
            mode=kind,
            x=x,
            scale=scale,
            bias=bias,
            epsilon=float(epsilon),
            training=training,
            running=running,
            average_factor=float(average_factor),
        )
        self._longest = max(self._longest, _share(x.shape, stats))
        return made

    def _check_running(self, running: Any) -> None:
        if running is None:
            return
        if not isinstance(running, tuple | list) or len(running) != 2:
            raise TypeError(f"running must be two nodes, the mean and the variance, or None; got {running!r}")
        for node in running:
            self._check_nodes(running=node)

    def normalization_backward(
        self, mode: str, dy: Node, x: Node, scale: Node, mean: Node | None, inverse: Node, *, bias: bool = True
    ) -> tuple[Node, ...]:
        """(dx, dscale, dbias), the last where `bias` says so."""
        kind = enumerator(raw.cudnnBackendNormMode_t, mode, "mode")
        self._check_nodes(dy=dy, x=x, scale=scale, **({} if mean is None else {"mean": mean}), inverse=inverse)
        check_flag("bias", bias)
        if dy.shape != x.shape:
            raise ValueError(f"dy must have shape {x.shape}, as x; got shape {dy.shape}")
        _check_statistic("scale", scale, x)
        dx, dscale = self._made(x.shape, x), self._made(scale.shape, scale)
        dbias = self._made(scale.shape, scale) if bias else None
        made = tuple(node for node in (dx, dscale, dbias) if node is not None)
        self._add(
            "NORM_BACKWARD",
            "NORM_BWD",
            made,
            MODE=kind,
            XDESC=x,
            MEAN_DESC=mean,
            INV_VARIANCE_DESC=inverse,
            DYDESC=dy,
            SCALE_DESC=scale,
            DSCALE_DESC=dscale,
            DBIAS_DESC=dbias,
            DXDESC=dx,
        )
        self._record(
            "normalization_backward", mode=kind, dy=dy, x=x, scale=scale, mean=mean, inverse=inverse, bias=bias
        )
        self._longest = max(self._longest, _share(x.shape, inverse.shape))
        return made


def _convolved(
    x: tuple[int, ...],
    w: tuple[int, ...],
    before: Sequence[int],
    after: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> list[int]:
    """The spatial sizes of a convolution's result for the shapes of x and w. Raises ValueError for those that do not fit."""
    if x[1] % w[1] or w[0] % (x[1] // w[1]):
        raise ValueError(
            f"w must have shape (K, C / groups, ...), where groups divides C and K; got shape {w} for {x[1]} channels"
        )
    spatial = [
        (size + a + b - d * (taps - 1) - 1) // s + 1
        for size, taps, a, b, s, d in zip(x[2:], w[2:], before, after, strides, dilations, strict=True)
    ]
    if min(spatial) < 1:
        raise ValueError(f"w must fit into x with padding, {x}; got shape {w}")
    return spatial


def _broadcast(*sizes: int) -> int:
    """The size of an axis that tensors have with these sizes, of which those that are 1 are repeated."""
    return next((size for size in sizes if size != 1), 1)


def _statistics(kind: raw.cudnnBackendNormMode_t, x: tuple[int, ...], scale: tuple[int, ...]) -> list[int]:
    """The shape of the mean and the inverse variance."""
    if kind == raw.CUDNN_BATCH_NORM:
        return list(scale)
    if kind == raw.CUDNN_INSTANCE_NORM:
        return [*x[:2], *(1,) * (len(x) - 2)]
    return [1 if n == s else n for n, s in zip(x, scale, strict=True)]


def _share(whole: Sequence[int], part: Sequence[int]) -> int:
    """How many elements of a shape there are for each one of another."""
    return math.prod(whole) // max(math.prod(part), 1)


def _each(name: str, given: Any, low: int, rank: int) -> tuple[int, ...]:
    return for_each_axis(name, check_per_axis(name, given, low), rank)


def _checked_axes(axes: Iterable[int], rank: int) -> set[int]:
    """Axes of a tensor, each given once, counted from the first."""
    expected = f"one or more of {-rank} to {rank - 1}, each axis once"
    given: Any = axes if isinstance(axes, str | bytes) or not isinstance(axes, Iterable) else tuple(axes)
    try:
        numbers = [index(axis) for axis in given if not isinstance(axis, bool)]
        if len(numbers) != len(given):
            raise TypeError
    except TypeError:
        raise TypeError(f"axes must be integers, {expected}; got {given!r}") from None
    found = {axis % rank for axis in numbers}
    if not numbers or len(found) != len(numbers) or any(not -rank <= axis < rank for axis in numbers):
        raise ValueError(f"axes must be {expected}; got {given!r}")
    return found


def _checked_how(how: Mapping[str, float] | None) -> dict[str, float]:
    """The options of an elementwise operation; infinite ones are numbers too."""
    if how is None:
        return {}
    if not isinstance(how, Mapping):
        raise TypeError(f"how must be a mapping with keys among {', '.join(_HOW)}; got {how!r}")
    if unknown := [name for name in how if name not in _HOW]:
        raise ValueError(f"how must have keys among {', '.join(_HOW)}; got {unknown[0]!r}")
    return {name: check_number(f"how[{name!r}]", value) for name, value in how.items()}


def _check_statistic(name: str, node: Node, x: Node) -> None:
    if len(node.shape) != len(x.shape) or any(s not in (1, n) for s, n in zip(node.shape, x.shape, strict=True)):
        raise ValueError(
            f"{name} must have {len(x.shape)} axes of the sizes of x, {x.shape}, or 1; got shape {node.shape}"
        )
