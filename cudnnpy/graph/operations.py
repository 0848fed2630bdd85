"""GraphOperations, the methods of Graph that add operations. Each checks its options and infers the result from the inputs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsIndex

from cudnnpy import raw
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import TensorSpec, packed_strides, with_channels_last_strides
from cudnnpy._options.checks import check_flag, check_number, check_padding, expand_per_axis
from cudnnpy.graph.argument_checks import check_statistic, checked_axes, checked_how, each_axis
from cudnnpy.graph.frontend_names import with_frontend_keywords
from cudnnpy.graph.nodes import GraphTensors, Node, TypedValue
from cudnnpy.graph.shape_inference import broadcast, convolved, share, statistics
from cudnnpy.names import enumerator
from cudnnpy.typing import ConvolutionMode, GraphNormalization, PerAxis, PointwiseMode, ReduceOperation, ResampleMode

_BINARY = {"add", "add_square", "div", "max", "min", "mod", "mul", "pow", "sub", "atan2", "floor_mod"}
_BINARY |= {"cmp_eq", "cmp_neq", "cmp_gt", "cmp_ge", "cmp_lt", "cmp_le", "logical_and", "logical_or"}


@with_frontend_keywords
class GraphOperations(GraphTensors):
    """Tensors, and the operations that compute them.

    Each operation returns its result, whose shape and memory format follow from its arguments. All raise TypeError and
    ValueError for nodes and options that do not fit, and then leave the graph unchanged. Modes are cuDNN's names in lower
    case, or enumerators.
    """

    def convolution(
        self,
        x: Node,
        w: Node,
        *,
        padding: PerAxis | Sequence[SupportsIndex | Sequence[SupportsIndex]] = 0,
        stride: PerAxis = 1,
        dilation: PerAxis = 1,
        mode: ConvolutionMode | raw.cudnnConvolutionMode_t = "cross_correlation",
    ) -> Node:
        """Add a convolution (CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR).

        Parameters
        ----------
        x : Node
            (N, C, spatial...), with 2 or 3 spatial axes.
        w : Node
            (K, C / groups, spatial...).
        padding : int or tuple
            An int; or one int or one (before, after) pair for each spatial axis.
        stride, dilation : int or tuple of ints
            An int, or one int for each spatial axis.
        mode : {"cross_correlation", "convolution"}
            "convolution" flips the filter.
        """
        self._check_nodes(x=x, w=w)
        kind = enumerator(raw.cudnnConvolutionMode_t, mode, "mode")
        rank = len(x.shape) - 2
        if rank not in (2, 3) or len(w.shape) != len(x.shape):
            raise ValueError(f"x and w must both have 2 or 3 spatial axes; got shapes {x.shape} and {w.shape}")
        if 0 in (*x.shape[1:], *w.shape):
            raise ValueError(
                f"x and w must have sizes of 1 or more, except for a batch of 0; got shapes {x.shape} and {w.shape}"
            )
        sides = expand_per_axis("padding", check_padding(padding), rank)
        before, after = zip(*(s if isinstance(s, tuple) else (s, s) for s in sides), strict=True)
        strides, dilations = each_axis("stride", stride, 1, rank), each_axis("dilation", dilation, 1, rank)
        spatial = convolved(x.shape, w.shape, before, after, strides, dilations)
        y = self._made((x.shape[0], w.shape[0], *spatial), x)
        tensors = x, w, y
        specs = with_channels_last_strides(*(node.spec for node in tensors))
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
            ALPHA=TypedValue(*one),
            BETA=TypedValue(0.0, one[1]),
        )
        self._convolutions.append(tensors)
        self._max_reduction_length = max(self._max_reduction_length, math.prod(w.shape[1:]))
        for node, spec in zip(tensors, specs, strict=True):
            node.spec = spec
        pads = tuple(zip(before, after, strict=True))
        self._record("convolution", x=x, w=w, padding=pads, stride=strides, dilation=dilations, mode=kind)
        return y

    def pointwise(
        self,
        mode: PointwiseMode | raw.cudnnPointwiseMode_t,
        x: Node,
        b: Node | None = None,
        t: Node | None = None,
        how: Mapping[str, float] | None = None,
    ) -> Node:
        """Add an elementwise operation (CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR).

        Parameters
        ----------
        mode : str
            A name of cudnnPointwiseMode_t.
        x, b, t : Node
            One, two or three tensors, as the mode requires; axes of size 1 are broadcast. For a gradient ("relu_bwd", ...), x
            is the gradient with respect to the result and b the input of the forward operation.
        how : mapping, optional
            Numbers by name: relu_lower_clip, relu_upper_clip, relu_lower_clip_slope, elu_alpha, softplus_beta, swish_beta.
        """
        kind = enumerator(raw.cudnnPointwiseMode_t, mode, "mode")
        options: dict[str, Any] = {"MODE": kind, "MATH_PREC": dtype_of(self.compute_dtype).number}
        numbers = checked_how(how)
        options |= {name.upper(): TypedValue(value, raw.CUDNN_TYPE_DOUBLE) for name, value in numbers.items()}
        name = kind.name.removeprefix("CUDNN_POINTWISE_").lower()
        is_gradient = name.endswith("_bwd")
        wanted = (True, is_gradient or name in _BINARY or name == "binary_select", name == "binary_select")
        for argument, node, is_wanted in zip("xbt", (x, b, t), wanted, strict=True):
            if node is not None:
                self._check_nodes(**{argument: node})
            if is_wanted != (node is not None):
                expected = "the input of the forward operation" if is_gradient else "a node"
                given = "None" if node is None else "a node"
                what = expected if is_wanted else "None"
                raise TypeError(f"{argument} must be {what} for {name}; got {given}")
        shapes = [node.shape for node in (x, b, t) if node is not None]
        ranks = {len(shape) for shape in shapes}
        if len(ranks) > 1 or any(len({1, *sizes}) > 2 for sizes in zip(*shapes, strict=True)):
            raise ValueError(f"x, b and t must have the same size, or 1, on each axis; got shapes {shapes}")
        widest = max((x, *(n for n in (b, t) if n is not None)), key=lambda node: math.prod(node.shape))
        y = self._made([broadcast(*sizes) for sizes in zip(*shapes, strict=True)], widest)
        description = ("POINTWISE", options)
        if is_gradient:
            self._add("POINTWISE", "POINTWISE", [y], PW_DESCRIPTOR=description, XDESC=b, DYDESC=x, DXDESC=y)
        else:
            self._add("POINTWISE", "POINTWISE", [y], PW_DESCRIPTOR=description, XDESC=x, BDESC=b, TDESC=t, YDESC=y)
        self._record("pointwise", mode=kind, x=x, b=b, t=t, how=numbers)
        return y

    def reduction(
        self, op: ReduceOperation | raw.cudnnReduceTensorOp_t, x: Node, axes: Iterable[SupportsIndex]
    ) -> Node:
        """Add a reduction over axes, which remain with size 1 (CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR).

        Parameters
        ----------
        op : str
            A name of cudnnReduceTensorOp_t.
        x : Node
            The tensor.
        axes : tuple of ints
            One or more axes, each once; negative ones count from the last.
        """
        self._check_nodes(x=x)
        kind = enumerator(raw.cudnnReduceTensorOp_t, op, "op")
        reduced = checked_axes(axes, len(x.shape))
        shape = [1 if axis in reduced else size for axis, size in enumerate(x.shape)]
        y = self._made(shape, x)
        how = {"OPERATOR": kind, "COMP_TYPE": dtype_of(self.compute_dtype).number}
        self._add("REDUCTION", "REDUCTION", [y], XDESC=x, YDESC=y, DESC=("REDUCTION", how))
        self._record("reduction", op=kind, x=x, axes=sorted(reduced))
        self._max_reduction_length = max(self._max_reduction_length, share(x.shape, shape))
        return y

    def matmul(self, a: Node, b: Node) -> Node:
        """Add a matrix product, (batch..., M, K) by (batch..., K, N) (CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)."""
        self._check_nodes(a=a, b=b)
        batches = zip(a.shape[:-2], b.shape[:-2], strict=False)
        fit = len(a.shape) == len(b.shape) >= 2 and all(m == n or 1 in (m, n) for m, n in batches)
        if not fit or a.shape[-1] != b.shape[-2]:
            raise ValueError(f"a and b must have shapes (..., M, K) and (..., K, N); got {a.shape} and {b.shape}")
        batch = [broadcast(*sizes) for sizes in zip(a.shape[:-2], b.shape[:-2], strict=True)]
        shape = (*batch, a.shape[-2], b.shape[-1])
        c = Node(TensorSpec(shape, self.compute_dtype, packed_strides(shape)))
        how = {"COMP_TYPE": dtype_of(self.compute_dtype).number}
        self._add("MATMUL", "MATMUL", [c], ADESC=a, BDESC=b, CDESC=c, DESC=("MATMUL", how))
        self._record("matmul", a=a, b=b)
        self._max_reduction_length = max(self._max_reduction_length, a.shape[-1])
        return c

    def resample(
        self,
        mode: ResampleMode | raw.cudnnResampleMode_t,
        x: Node,
        window: PerAxis,
        *,
        padding: PerAxis = 0,
        stride: PerAxis | None = None,
    ) -> Node:
        """Add a pooling (CUDNN_BACKEND_OPERATION_RESAMPLE_FWD_DESCRIPTOR).

        Parameters
        ----------
        mode : {"maxpool", "avgpool_include_padding", "avgpool_exclude_padding"}
            A name of cudnnResampleMode_t.
        x : Node
            (N, C, spatial...).
        window, padding, stride : int or tuple of ints
            An int, or one int for each spatial axis; the stride is the window by default.
        """
        self._check_nodes(x=x)
        kind = enumerator(raw.cudnnResampleMode_t, mode, "mode")
        rank = len(x.shape) - 2
        size, pads = each_axis("window", window, 1, rank), each_axis("padding", padding, 0, rank)
        step = size if stride is None else each_axis("stride", stride, 1, rank)
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
        one = TypedValue(1.0, raw.CUDNN_TYPE_DOUBLE), TypedValue(0.0, raw.CUDNN_TYPE_DOUBLE)
        self._add(
            "RESAMPLE_FWD", "RESAMPLE_FWD", [y], XDESC=x, YDESC=y, DESC=("RESAMPLE", how), ALPHA=one[0], BETA=one[1]
        )
        self._record("resample", mode=kind, x=x, window=size, padding=pads, stride=step)
        return y

    def normalization(
        self,
        mode: GraphNormalization | raw.cudnnBackendNormMode_t,
        x: Node,
        scale: Node,
        bias: Node | None,
        epsilon: float,
        *,
        training: bool = True,
        running: tuple[Node, Node] | None = None,
        average_factor: float = 1.0,
    ) -> tuple[Node, ...]:
        """Add a normalization (CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR).

        Parameters
        ----------
        mode : {"batch_norm", "layer_norm", "instance_norm", "rms_norm"}
            A name of cudnnBackendNormMode_t.
        x, scale, bias : Node
            The tensor and its parameters, with the same number of axes as x; bias may be None.
        epsilon : float
            Added to the variance; 0 or more.
        training : bool
            Whether the statistics are results.
        running : tuple of Nodes, optional
            The running mean and variance.
        average_factor : float
            The weight of the new statistics in the running ones.

        Returns
        -------
        tuple of Nodes
            y; with `training` also the mean (except for "rms_norm") and the inverse variance; with `running` also the new
            running mean and variance.
        """
        kind = enumerator(raw.cudnnBackendNormMode_t, mode, "mode")
        self._check_nodes(x=x, scale=scale, **({} if bias is None else {"bias": bias}))
        check_flag("training", training)
        self._check_running(running)
        rank = len(x.shape)
        check_statistic("scale", scale, x)
        if bias is not None and bias.shape != scale.shape:
            raise ValueError(f"bias must have shape {scale.shape}, as scale; got shape {bias.shape}")
        numbers = [self._number_of("epsilon", check_number("epsilon", epsilon, 0.0, finite=True), rank)]
        check_number("average_factor", average_factor, finite=True)
        numbers += [self._number_of("average_factor", average_factor, rank)] if running else []
        y = self._made(x.shape, x)
        stats = statistics(kind, x.shape, scale.shape)
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
        self._max_reduction_length = max(self._max_reduction_length, share(x.shape, stats))
        return made

    def _check_running(self, running: Any) -> None:
        if running is None:
            return
        if not isinstance(running, tuple | list) or len(running) != 2:
            raise TypeError(
                f"running must be two nodes, the mean and the variance, or None; got a {type(running).__name__}"
            )
        for node in running:
            self._check_nodes(running=node)

    def normalization_backward(
        self,
        mode: GraphNormalization | raw.cudnnBackendNormMode_t,
        dy: Node,
        x: Node,
        scale: Node,
        mean: Node | None,
        inverse: Node,
        *,
        bias: bool = True,
    ) -> tuple[Node, ...]:
        """Add the gradients of a normalization (CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR).

        Parameters
        ----------
        mode : str
            As for `normalization`.
        dy : Node
            The gradient with respect to y.
        x, scale : Node
            The tensor and its scale.
        mean, inverse : Node
            The statistics of the normalization; mean is None for "rms_norm".
        bias : bool
            Whether dbias is a result.

        Returns
        -------
        tuple of Nodes
            dx and dscale; with `bias` also dbias.
        """
        kind = enumerator(raw.cudnnBackendNormMode_t, mode, "mode")
        self._check_nodes(dy=dy, x=x, scale=scale, **({} if mean is None else {"mean": mean}), inverse=inverse)
        check_flag("bias", bias)
        if dy.shape != x.shape:
            raise ValueError(f"dy must have shape {x.shape}, as x; got shape {dy.shape}")
        check_statistic("scale", scale, x)
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
        self._max_reduction_length = max(self._max_reduction_length, share(x.shape, inverse.shape))
        return made
