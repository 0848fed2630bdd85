"""The nodes of an operation graph: tensors, and the operations that make them. cudnnpy.graph plans and runs them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from ctypes import c_double, c_float
from dataclasses import dataclass
from itertools import count
from typing import Any

from cudnnpy import engines, raw
from cudnnpy.arrays import read, spec_of
from cudnnpy.backend import Descriptor
from cudnnpy.checks import check_padding, check_per_axis, check_spec, for_each_axis
from cudnnpy.dtypes import dtype_of
from cudnnpy.layouts import (
    TensorSpec,
    have_one_order,
    packed_strides,
    result_strides,
    same_memory,
    spelled_channels_last,
)
from cudnnpy.names import enumerator


@dataclass(eq=False)
class Node:
    """A tensor of a graph: an input, a number, or what an operation makes. Virtual until it is an output."""

    uid: int
    spec: TensorSpec
    name: str = ""
    virtual: bool = True
    number: Any = None  # of ctypes, for a tensor by value

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes, in the graph's order (N, C, spatial...)."""
        return self.spec.shape


class Nodes:
    """Tensors and operations, in the order in which they were added. compute_dtype: "float32", or "float64"."""

    def __init__(self, compute_dtype: str = "float32") -> None:
        self.compute_dtype = dtype_of(compute_dtype, "compute_dtype").name
        self.inputs: list[Node] = []
        self.outputs: list[Node] = []
        self.operations: list[str] = []
        self._nodes: list[tuple[str, str, dict[str, Any]]] = []  # descriptor kind, attributes' prefix, attributes
        self._constants: list[Node] = []
        self._uids = count(1)
        self._longest = 1
        self._adds_in_any_order = False  # what engines compiled at run time do for reductions, without a note
        self._convolutions: list[tuple[Node, Node, Node]] = []

    # Tensors

    def tensor(self, name: str, like: Any) -> Node:
        """An input: `like` is an array or a TensorSpec. Raises ValueError for a name that is taken."""
        self._check_name(name)
        spec = like if isinstance(like, TensorSpec) else spec_of(read(like, name)[1])
        self.inputs.append(Node(next(self._uids), spelled(spec, name), name, virtual=False))
        return self.inputs[-1]

    def number(self, value: float, rank: int = 4) -> Node:
        """A number that is fixed with the graph, as a tensor of `rank` axes of size 1."""
        kind = c_double if self.compute_dtype == "float64" else c_float
        spec = TensorSpec((1,) * rank, self.compute_dtype, (1,) * rank)
        self._constants.append(Node(next(self._uids), spec, virtual=False, number=kind(value)))
        return self._constants[-1]

    def output(self, name: str, node: Node, dtype: Any = None, strides: Sequence[int] | None = None) -> Node:
        """Makes a node a result in memory: of the first input's dtype and the node's memory order, unless they are given."""
        self._check_name(name)
        if not node.virtual:
            raise ValueError(f"node: {node.name or 'a number'} is in memory already; expected what an operation made")
        kind = dtype_of(self.inputs[0].spec.dtype if dtype is None else dtype).name
        if strides is None or same_memory(node.spec, node.spec._replace(strides=tuple(strides))):
            strides = node.spec.strides  # which an axis of size 1 has, too
        strides = None if strides is None else tuple(strides)
        node.spec, node.name, node.virtual = node.spec._replace(dtype=kind, strides=strides), name, False
        self.outputs.append(node)
        return node

    def _is_misread(self) -> bool:
        """Whether engines that are compiled at run time misread a convolution's tensors (see convolution/forms.py)."""
        return any(
            not have_one_order(x.spec, w.spec, result.spec)
            for x, w, y in self._convolutions
            for result in (y, *(node for node in self.outputs if node.shape == y.shape))
        )

    def _check_name(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise TypeError(f"name: {name!r} given; expected text")
        if name in ("self", "stream"):
            raise ValueError(f"name: {name!r} given; expected another: run() has an argument of this name")
        if name in [node.name for node in (*self.inputs, *self.outputs)]:
            raise ValueError(f"name: {name!r} is taken; expected another")

    def _made(self, shape: Sequence[int], like: Node) -> Node:
        shape = tuple(shape)
        return Node(next(self._uids), TensorSpec(shape, self.compute_dtype, result_strides(shape, like.spec)))

    def _add(self, kind: str, prefix: str, **attributes: Any) -> None:
        """An operation; None is left out, and (kind, {...}) stands for a descriptor of its own."""
        self.operations.append(kind.lower())
        self._nodes.append((f"OPERATION_{kind}", f"OPERATION_{prefix}", attributes))

    # Operations

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
        rank = len(x.shape) - 2
        if rank < 2 or len(w.shape) != len(x.shape):
            raise ValueError(f"x, w: shapes {x.shape} and {w.shape} given; expected two or three spatial axes in both")
        sides = for_each_axis("padding", check_padding(padding), rank)
        before, after = zip(*(s if isinstance(s, tuple) else (s, s) for s in sides), strict=True)
        strides, dilations = _each("stride", stride, 1, rank), _each("dilation", dilation, 1, rank)
        if x.shape[1] % w.shape[1] or w.shape[0] % (x.shape[1] // w.shape[1]):
            raise ValueError(
                f"x, w: {x.shape[1]} channels and filters {w.shape[:2]} given; expected C = groups * C / groups"
            )
        spatial = [
            (size + a + b - d * (taps - 1) - 1) // s + 1
            for size, taps, a, b, s, d in zip(x.shape[2:], w.shape[2:], before, after, strides, dilations, strict=True)
        ]
        if min(spatial) < 1:
            raise ValueError(f"w: shape {w.shape} reaches beyond x with padding, {x.shape}")
        y = self._made((x.shape[0], w.shape[0], *spatial), x)
        tensors = x, w, y
        self._convolutions.append(tensors)
        for node, spec in zip(tensors, spelled_channels_last(*(node.spec for node in tensors)), strict=True):
            node.spec = spec
        how = {
            "COMP_TYPE": dtype_of(self.compute_dtype).number,
            "CONV_MODE": enumerator(raw.cudnnConvolutionMode_t, mode, "mode"),
            "SPATIAL_DIMS": rank,
            "PRE_PADDINGS": before,
            "POST_PADDINGS": after,
            "FILTER_STRIDES": strides,
            "DILATIONS": dilations,
        }
        self._longest = max(self._longest, math.prod(w.shape[1:]))
        one = (1.0, raw.CUDNN_TYPE_DOUBLE if self.compute_dtype == "float64" else raw.CUDNN_TYPE_FLOAT)
        self._add(
            "CONVOLUTION_FORWARD",
            "CONVOLUTION_FORWARD",
            X=x,
            W=w,
            Y=y,
            CONV_DESC=("CONVOLUTION", how),
            ALPHA=_Typed(*one),
            BETA=_Typed(0.0, one[1]),
        )
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
        options |= {name.upper(): _Typed(float(value), raw.CUDNN_TYPE_DOUBLE) for name, value in (how or {}).items()}
        if mode.endswith("_bwd") and b is None:
            raise TypeError(f"b: None given for {mode}; expected what the forward operation was given")
        shapes = [node.shape for node in (x, b, t) if node is not None]
        ranks = {len(shape) for shape in shapes}
        if len(ranks) > 1 or any(len({1, *sizes}) > 2 for sizes in zip(*shapes, strict=True)):
            raise ValueError(f"x, b, t: shapes {shapes} given; expected one size on each axis, or 1")
        widest = max((x, *(n for n in (b, t) if n is not None)), key=lambda node: math.prod(node.shape))
        y = self._made([max(sizes) for sizes in zip(*shapes, strict=True)], widest)
        description = ("POINTWISE", options)
        if mode.endswith("_bwd"):
            self._add("POINTWISE", "POINTWISE", PW_DESCRIPTOR=description, XDESC=b, DYDESC=x, DXDESC=y)
        else:
            self._add("POINTWISE", "POINTWISE", PW_DESCRIPTOR=description, XDESC=x, BDESC=b, TDESC=t, YDESC=y)
        return y

    def reduction(self, op: str, x: Node, axes: Sequence[int]) -> Node:
        """x reduced over axes, which stay with size 1."""
        rank = len(x.shape)
        if not axes or any(not -rank <= axis < rank for axis in axes):
            raise ValueError(f"axes: {axes!r} given; expected one or more of {-rank} to {rank - 1}")
        reduced = {axis % rank for axis in axes}
        shape = [1 if axis in reduced else size for axis, size in enumerate(x.shape)]
        y = self._made(shape, x)
        self._adds_in_any_order |= op not in ("min", "max", "amax")
        self._longest = max(self._longest, math.prod(x.shape) // math.prod(shape))
        how = {
            "OPERATOR": enumerator(raw.cudnnReduceTensorOp_t, op, "op"),
            "COMP_TYPE": dtype_of(self.compute_dtype).number,
        }
        self._add("REDUCTION", "REDUCTION", XDESC=x, YDESC=y, DESC=("REDUCTION", how))
        return y

    def matmul(self, a: Node, b: Node) -> Node:
        """(batch..., M, K) by (batch..., K, N)."""
        batches = zip(a.shape[:-2], b.shape[:-2], strict=False)
        fit = len(a.shape) == len(b.shape) >= 2 and all(m == n or 1 in (m, n) for m, n in batches)
        if not fit or a.shape[-1] != b.shape[-2]:
            raise ValueError(f"a, b: shapes {a.shape} and {b.shape} given; expected (..., M, K) and (..., K, N)")
        self._longest = max(self._longest, a.shape[-1])
        batch = [max(sizes) for sizes in zip(a.shape[:-2], b.shape[:-2], strict=True)]
        shape = (*batch, a.shape[-2], b.shape[-1])
        c = Node(next(self._uids), TensorSpec(shape, self.compute_dtype, packed_strides(shape)))
        how = {"COMP_TYPE": dtype_of(self.compute_dtype).number}
        self._add("MATMUL", "MATMUL", ADESC=a, BDESC=b, CDESC=c, DESC=("MATMUL", how))
        return c

    def resample(self, mode: str, x: Node, window: Any, *, padding: Any = 0, stride: Any = None) -> Node:
        """Pooling: mode "maxpool", "avgpool_include_padding" or "avgpool_exclude_padding"."""
        rank = len(x.shape) - 2
        size, pads = _each("window", window, 1, rank), _each("padding", padding, 0, rank)
        step = size if stride is None else _each("stride", stride, 1, rank)
        spatial = [(n + 2 * p - k) // s + 1 for n, p, k, s in zip(x.shape[2:], pads, size, step, strict=True)]
        if min(spatial, default=0) < 1:
            raise ValueError(f"window: {window!r} given; expected it to fit into x with padding, {x.shape}")
        y = self._made((*x.shape[:2], *spatial), x)
        how = {
            "MODE": enumerator(raw.cudnnResampleMode_t, mode, "mode"),
            "COMP_TYPE": dtype_of(self.compute_dtype).number,
            "SPATIAL_DIMS": rank,
            "NAN_PROPAGATION": raw.CUDNN_PROPAGATE_NAN,
            "PADDING_MODE": raw.CUDNN_NEG_INF_PAD if mode == "maxpool" else raw.CUDNN_ZERO_PAD,
            "PRE_PADDINGS": pads,
            "POST_PADDINGS": pads,
            "STRIDES": step,
            "WINDOW_DIMS": size,
        }
        one = _Typed(1.0, raw.CUDNN_TYPE_DOUBLE), _Typed(0.0, raw.CUDNN_TYPE_DOUBLE)
        self._add("RESAMPLE_FWD", "RESAMPLE_FWD", XDESC=x, YDESC=y, DESC=("RESAMPLE", how), ALPHA=one[0], BETA=one[1])
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
        rank = len(x.shape)
        if len(scale.shape) != rank:
            raise ValueError(f"scale: shape {scale.shape} given; expected {rank} axes, as x")
        y = self._made(x.shape, x)
        stats = [1 if n == s else n for n, s in zip(x.shape, scale.shape, strict=True)]
        if mode == "batch_norm":
            stats = list(scale.shape)
        elif mode == "instance_norm":
            stats = [*x.shape[:2], *(1,) * (rank - 2)]
        mean = self._made(stats, x) if training and mode != "rms_norm" else None
        inverse = self._made(stats, x) if training else None
        new = [self._made(stats, x) for _ in running] if running else [None, None]
        self._longest = max(self._longest, math.prod(x.shape) // math.prod(stats))
        self._add(
            "NORM_FORWARD",
            "NORM_FWD",
            MODE=enumerator(raw.cudnnBackendNormMode_t, mode, "mode"),
            PHASE=raw.CUDNN_NORM_FWD_TRAINING if training else raw.CUDNN_NORM_FWD_INFERENCE,
            XDESC=x,
            MEAN_DESC=mean,
            INV_VARIANCE_DESC=inverse,
            SCALE_DESC=scale,
            BIAS_DESC=bias,
            EPSILON_DESC=self.number(epsilon, rank),
            EXP_AVG_FACTOR_DESC=self.number(average_factor, rank) if running else None,
            INPUT_RUNNING_MEAN_DESC=running and running[0],
            INPUT_RUNNING_VAR_DESC=running and running[1],
            OUTPUT_RUNNING_MEAN_DESC=new[0],
            OUTPUT_RUNNING_VAR_DESC=new[1],
            YDESC=y,
        )
        return tuple(node for node in (y, mean, inverse, *new) if node is not None)

    def normalization_backward(
        self, mode: str, dy: Node, x: Node, scale: Node, mean: Node | None, inverse: Node, *, bias: bool = True
    ) -> tuple[Node, ...]:
        """(dx, dscale, dbias), the last where `bias` says so."""
        dx, dscale = self._made(x.shape, x), self._made(scale.shape, scale)
        dbias = self._made(scale.shape, scale) if bias else None
        self._longest = max(self._longest, math.prod(x.shape) // math.prod(inverse.shape))
        self._add(
            "NORM_BACKWARD",
            "NORM_BWD",
            MODE=enumerator(raw.cudnnBackendNormMode_t, mode, "mode"),
            XDESC=x,
            MEAN_DESC=mean,
            INV_VARIANCE_DESC=inverse,
            DYDESC=dy,
            SCALE_DESC=scale,
            DSCALE_DESC=dscale,
            DBIAS_DESC=dbias,
            DXDESC=dx,
        )
        return tuple(node for node in (dx, dscale, dbias) if node is not None)

    def built(self, target: engines.Target, alignment: Mapping[str, int] | None = None) -> Descriptor:
        """The finalized operation graph. Raises StatusError for one that cuDNN does not take."""
        if not self.outputs:
            raise ValueError("the graph has no output; call output(name, node) for what is to be in memory")
        made: dict[int, Descriptor] = {}

        def of(value: Any) -> Any:
            if isinstance(value, Node):
                if value.uid not in made:
                    spec = value.spec._replace(alignment=(alignment or {}).get(value.name, value.spec.alignment))
                    by_value = value.number is not None
                    made[value.uid] = engines.tensor(value.uid, spec, virtual=value.virtual, by_value=by_value)
                return made[value.uid]
            if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], dict):
                return _descriptor(value[0], value[0], value[1])
            return value

        nodes = [_descriptor(kind, prefix, {n: of(v) for n, v in given.items()}) for kind, prefix, given in self._nodes]
        return engines.graph_of(nodes, target)


@dataclass(frozen=True)
class _Typed:
    """A value for an attribute that takes several types."""

    value: float
    kind: int


def _descriptor(kind: str, prefix: str, attributes: Mapping[str, Any]) -> Descriptor:
    made = Descriptor(getattr(raw, f"CUDNN_BACKEND_{kind}_DESCRIPTOR"))
    for name, value in attributes.items():
        if value is None:
            continue
        attribute = getattr(raw, f"CUDNN_ATTR_{prefix}_{name}")
        if isinstance(value, _Typed):
            made.set(attribute, value.value, value.kind)
        else:
            made[attribute] = value
    made.finalize()
    return made


def spelled(spec: TensorSpec, name: str) -> TensorSpec:
    """A tensor's description in one form, with its strides."""
    spec = check_spec(name, spec)
    return spec if spec.strides is not None else spec._replace(strides=packed_strides(spec.shape))


def _each(name: str, given: Any, low: int, rank: int) -> tuple[int, ...]:
    return for_each_axis(name, check_per_axis(name, given, low), rank)
