"""KINDS, the table of the kinds of operations of cuDNN's graph API: one row has all that the package knows of a kind.

A row names cuDNN's descriptor, the attributes of operands, results and options, and the rule that checks the operands and
infers the results. Graphs are built by it (descriptors.py), written and read (graph_json.py), and the methods of Graph check
their operands by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import EnumMeta
from typing import Any, NamedTuple

from cudnnpy import raw
from cudnnpy._core.layouts import TensorSpec, packed_strides, result_strides
from cudnnpy.graph.shape_inference import broadcast, convolved, share, statistics
from cudnnpy.typing import ElementName

# The rule of a kind: from the options, the operands by name and the data type of intermediate results to the results by name.
# Raises ValueError or TypeError, which names the argument, for operands that do not fit.
Rule = Callable[[Mapping[str, Any], Mapping[str, TensorSpec], ElementName], dict[str, TensorSpec]]
# From the options, the operands and the results: the number of terms that are added for one element of a result
Terms = Callable[[Mapping[str, Any], Mapping[str, TensorSpec], Mapping[str, TensorSpec]], int]

DTYPE, INTEGERS, INTEGER, NUMBER, FLAG = "dtype", "integers", "integer", "number", "flag"


class Option(NamedTuple):
    """An option of an operation."""

    attribute: str  #: the end of the attribute's name; "" for an option that only the rule reads
    type: EnumMeta | str = INTEGERS  #: cuDNN's enumeration, or DTYPE, INTEGERS, INTEGER, NUMBER or FLAG
    default: Any = None  #: None for an option that is required, or that cuDNN's own default stands in for
    low: int = 0  #: the least integer


class Kind(NamedTuple):
    """A kind of operation of the graph API."""

    descriptor: str  #: CUDNN_BACKEND_OPERATION_{descriptor}_DESCRIPTOR
    #: the operands: name -> the end of CUDNN_ATTR_OPERATION_{prefix}_..., with "?" if it is optional, "*" if it is a list
    operands: Mapping[str, str]
    results: Mapping[str, str]  #: all that an operation can have, by name as the operands
    infer: Rule
    options: Mapping[str, Option] = {}  #: attributes of the operation
    nested: str = ""  #: the name of a descriptor that has further options, CUDNN_BACKEND_{nested}_DESCRIPTOR
    nested_attribute: str = "DESC"  #: the end of the attribute that has this descriptor
    nested_options: Mapping[str, Option] = {}  #: attributes CUDNN_ATTR_{nested}_... of that descriptor
    prefix: str = ""  #: of the attributes' names; the descriptor's name by default
    terms: Terms = lambda options, given, made: 1
    release: int = 90000  #: the first release of cuDNN that has the kind

    @property
    def attribute_prefix(self) -> str:
        """The beginning of the attributes' names."""
        return f"CUDNN_ATTR_OPERATION_{self.prefix or self.descriptor}_"

    @property
    def all_options(self) -> dict[str, Option]:
        """The options of the operation and of its nested descriptor, by name."""
        return {**self.options, **self.nested_options}

    def complete(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options with the defaults of those that are missing, in the order of the table."""
        given = {name: options.get(name, option.default) for name, option in self.all_options.items()}
        return {name: value for name, value in given.items() if value is not None}


# Rules


def _like(shape: tuple[int, ...], like: TensorSpec, dtype: ElementName) -> TensorSpec:
    """Return the spec of a result in the memory format of an operand."""
    return TensorSpec(shape, dtype, result_strides(shape, like))


def _convolution(options: Mapping[str, Any], given: Mapping[str, TensorSpec], dtype: ElementName) -> Any:
    x, w = given["x"], given["w"]
    if len(x.shape) - 2 not in (2, 3) or len(w.shape) != len(x.shape):
        raise ValueError(f"x and w must both have 2 or 3 spatial axes; got shapes {x.shape} and {w.shape}")
    if 0 in (*x.shape[1:], *w.shape):
        raise ValueError(
            f"x and w must have sizes of 1 or more, except for a batch of 0; got shapes {x.shape} and {w.shape}"
        )
    geometry = [options[name] for name in ("pre_padding", "post_padding", "stride", "dilation")]
    _check_axes(options, len(x.shape) - 2, *geometry)
    return {"y": _like((x.shape[0], w.shape[0], *convolved(x.shape, w.shape, *geometry)), x, dtype)}


def _gradient(operand: str, result: str, options: Mapping[str, Any], given: Any, dtype: ElementName) -> Any:
    """Infer the gradient of a convolution, whose shape is an option, since several shapes have the same result."""
    dy, other, shape = given["dy"], given[operand], tuple(options["shape"])
    x, w = (other.shape, shape) if operand == "x" else (shape, other.shape)
    tensors = TensorSpec(x, dtype), TensorSpec(w, dtype)
    forward = _convolution(options, dict(zip("xw", tensors, strict=True)), dtype)["y"]
    if forward.shape != dy.shape:
        raise ValueError(f"dy must have shape {forward.shape} for a {result} of shape {shape}; got shape {dy.shape}")
    return {result: _like(shape, dy, dtype)}


def _check_axes(options: Mapping[str, Any], rank: int, *of_each_axis: tuple[int, ...]) -> None:
    """Raise ValueError unless there is one int for each spatial axis."""
    if options["spatial_dims"] != rank or any(len(numbers) != rank for numbers in of_each_axis):
        raise ValueError(f"options of an axis must be {rank} integers; got {of_each_axis}")


_BINARY = {"add", "add_square", "div", "max", "min", "mod", "mul", "pow", "sub", "atan2", "floor_mod"}
_BINARY |= {"cmp_eq", "cmp_neq", "cmp_gt", "cmp_ge", "cmp_lt", "cmp_le", "logical_and", "logical_or"}


def pointwise_name(mode: int) -> str:
    """Return the name of an elementwise operation: "relu_fwd"."""
    return raw.cudnnPointwiseMode_t(mode).name.removeprefix("CUDNN_POINTWISE_").lower()


def _pointwise(options: Mapping[str, Any], given: Mapping[str, TensorSpec], dtype: ElementName) -> Any:
    name = pointwise_name(options["mode"])
    is_gradient = name.endswith("_bwd")
    arguments = {"x": "dy", "b": "x", "t": "t"} if is_gradient else {"x": "x", "b": "b", "t": "t"}
    operands = {argument: given.get(operand) for argument, operand in arguments.items()}
    wanted = (True, is_gradient or name in _BINARY or name == "binary_select", name == "binary_select")
    for (argument, spec), is_wanted in zip(operands.items(), wanted, strict=True):
        if is_wanted != (spec is not None):
            expected = "the input of the forward operation" if is_gradient else "a node"
            raise TypeError(
                f"{argument} must be {expected if is_wanted else 'None'} for {name}; "
                f"got {'None' if spec is None else 'a node'}"
            )
    specs = [spec for spec in operands.values() if spec is not None]
    shapes = [spec.shape for spec in specs]
    if len(set(map(len, shapes))) > 1 or any(len({1, *sizes}) > 2 for sizes in zip(*shapes, strict=True)):
        raise ValueError(f"x, b and t must have the same size, or 1, on each axis; got shapes {shapes}")
    widest = max(specs, key=lambda spec: math.prod(spec.shape))
    shape = tuple(broadcast(*sizes) for sizes in zip(*shapes, strict=True))
    return {"dx" if is_gradient else "y": _like(shape, widest, dtype)}


def _reduction(options: Mapping[str, Any], given: Mapping[str, TensorSpec], dtype: ElementName) -> Any:
    x, axes = given["x"], options["axes"]
    if not axes or not all(0 <= axis < len(x.shape) for axis in axes) or len(set(axes)) < len(axes):
        raise ValueError(f"axes must be some of 0 to {len(x.shape) - 1}, each once; got {axes}")
    return {"y": _like(tuple(1 if axis in axes else size for axis, size in enumerate(x.shape)), x, dtype)}


def _matmul(options: Mapping[str, Any], given: Mapping[str, TensorSpec], dtype: ElementName) -> Any:
    a, b = given["a"].shape, given["b"].shape
    fit = len(a) == len(b) >= 2 and all(m == n or 1 in (m, n) for m, n in zip(a[:-2], b[:-2], strict=True))
    if not fit or a[-1] != b[-2]:
        raise ValueError(f"a and b must have shapes (..., M, K) and (..., K, N); got {a} and {b}")
    shape = (*(broadcast(*sizes) for sizes in zip(a[:-2], b[:-2], strict=True)), a[-2], b[-1])
    return {"c": TensorSpec(shape, dtype, packed_strides(shape))}


def _resample(options: Mapping[str, Any], given: Mapping[str, TensorSpec], dtype: ElementName) -> Any:
    x, window = given["x"], options["window"]
    geometry = [options[name] for name in ("pre_padding", "post_padding", "window", "stride")]
    _check_axes(options, len(x.shape) - 2, *geometry)
    spatial = [(n + a + b - k) // s + 1 for n, a, b, k, s in zip(x.shape[2:], *geometry, strict=True)]
    if min(spatial, default=0) < 1:
        raise ValueError(f"window must fit into x with padding, {x.shape}; got {window!r}")
    return {"y": _like((*x.shape[:2], *spatial), x, dtype)}


def _check_statistic(name: str, spec: TensorSpec, x: TensorSpec) -> None:
    """Raise ValueError for a tensor that does not broadcast to x."""
    sizes = x.shape
    if len(spec.shape) != len(sizes) or any(s not in (1, n) for s, n in zip(spec.shape, sizes, strict=True)):
        raise ValueError(f"{name} must have {len(sizes)} axes of the sizes of x, {sizes}, or 1; got shape {spec.shape}")


def _normalization(options: Mapping[str, Any], given: Mapping[str, TensorSpec], dtype: ElementName) -> Any:
    x, scale, bias, mode = given["x"], given["scale"], given.get("bias"), options["mode"]
    _check_statistic("scale", scale, x)
    if bias is not None and bias.shape != scale.shape:
        raise ValueError(f"bias must have shape {scale.shape}, as scale; got shape {bias.shape}")
    found = {"y": _like(x.shape, x, dtype)}
    statistic = _like(tuple(statistics(mode, x.shape, scale.shape)), x, dtype)
    if options["phase"] == raw.CUDNN_NORM_FWD_TRAINING:
        found |= {"mean": statistic} if mode != raw.CUDNN_RMS_NORM else {}
        found["inv_variance"] = statistic
    if "input_running_mean" in given:
        found |= dict.fromkeys(("output_running_mean", "output_running_var"), statistic)
    return found


def _normalization_backward(options: Mapping[str, Any], given: Mapping[str, TensorSpec], dtype: ElementName) -> Any:
    x, scale, dy = given["x"], given["scale"], given["dy"]
    if dy.shape != x.shape:
        raise ValueError(f"dy must have shape {x.shape}, as x; got shape {dy.shape}")
    _check_statistic("scale", scale, x)
    names = ("dscale", "dbias") if options["bias"] else ("dscale",)
    return {"dx": _like(x.shape, x, dtype), **dict.fromkeys(names, _like(scale.shape, scale, dtype))}


# The table

_SCALES = {"alpha": Option("ALPHA", NUMBER, 1.0), "beta": Option("BETA", NUMBER, 0.0)}
_FORWARD = Kind(
    "CONVOLUTION_FORWARD",
    {"x": "X", "w": "W"},
    {"y": "Y"},
    _convolution,
    options=_SCALES,
    nested="CONVOLUTION",
    nested_attribute="CONV_DESC",
    nested_options={
        "compute_dtype": Option("COMP_TYPE", DTYPE),
        "mode": Option("CONV_MODE", raw.cudnnConvolutionMode_t, raw.CUDNN_CROSS_CORRELATION),
        "spatial_dims": Option("SPATIAL_DIMS", INTEGER),
        "pre_padding": Option("PRE_PADDINGS"),
        "post_padding": Option("POST_PADDINGS"),
        "stride": Option("FILTER_STRIDES", low=1),
        "dilation": Option("DILATIONS", low=1),
    },
    terms=lambda options, given, made: math.prod(given["w"].shape[1:]),
)
_CLIPS = ("relu_lower_clip", "relu_upper_clip", "relu_lower_clip_slope", "elu_alpha", "softplus_beta", "swish_beta")

KINDS: Mapping[str, Kind] = {
    "convolution_forward": _FORWARD,
    "convolution_backward_data": _FORWARD._replace(
        descriptor="CONVOLUTION_BACKWARD_DATA",
        operands={"dy": "DY", "w": "W"},
        results={"dx": "DX"},
        infer=lambda options, given, dtype: _gradient("w", "dx", options, given, dtype),
        options={**_SCALES, "shape": Option("", low=1)},
        prefix="CONVOLUTION_BWD_DATA",
        terms=lambda options, given, made: math.prod(given["w"].shape) // made["dx"].shape[1],
    ),
    "convolution_backward_filter": _FORWARD._replace(
        descriptor="CONVOLUTION_BACKWARD_FILTER",
        operands={"dy": "DY", "x": "X"},
        results={"dw": "DW"},
        infer=lambda options, given, dtype: _gradient("x", "dw", options, given, dtype),
        options={**_SCALES, "shape": Option("", low=1)},
        prefix="CONVOLUTION_BWD_FILTER",
        terms=lambda options, given, made: math.prod(given["dy"].shape) // given["dy"].shape[1],
    ),
    "pointwise": Kind(
        "POINTWISE",
        {"x": "XDESC?", "b": "BDESC?", "t": "TDESC?", "dy": "DYDESC?"},  # dy and x for a gradient
        {"y": "YDESC", "dx": "DXDESC"},
        _pointwise,
        nested="POINTWISE",
        nested_attribute="PW_DESCRIPTOR",
        nested_options={
            "mode": Option("MODE", raw.cudnnPointwiseMode_t),
            "compute_dtype": Option("MATH_PREC", DTYPE),
            **{name: Option(name.upper(), NUMBER) for name in _CLIPS},
        },
    ),
    "reduction": Kind(
        "REDUCTION",
        {"x": "XDESC"},
        {"y": "YDESC"},
        _reduction,
        options={"axes": Option("")},
        nested="REDUCTION",
        nested_options={
            "op": Option("OPERATOR", raw.cudnnReduceTensorOp_t),
            "compute_dtype": Option("COMP_TYPE", DTYPE),
        },
        terms=lambda options, given, made: share(given["x"].shape, made["y"].shape),
    ),
    "matmul": Kind(
        "MATMUL",
        {"a": "ADESC", "b": "BDESC"},
        {"c": "CDESC"},
        _matmul,
        nested="MATMUL",
        nested_options={"compute_dtype": Option("COMP_TYPE", DTYPE)},
        terms=lambda options, given, made: given["a"].shape[-1],
    ),
    "resample_fwd": Kind(
        "RESAMPLE_FWD",
        {"x": "XDESC"},
        {"y": "YDESC"},
        _resample,
        options=_SCALES,
        nested="RESAMPLE",
        nested_options={
            "mode": Option("MODE", raw.cudnnResampleMode_t),
            "compute_dtype": Option("COMP_TYPE", DTYPE),
            "spatial_dims": Option("SPATIAL_DIMS", INTEGER),
            "nan_propagation": Option("NAN_PROPAGATION", raw.cudnnNanPropagation_t, raw.CUDNN_PROPAGATE_NAN),
            "padding_mode": Option("PADDING_MODE", raw.cudnnPaddingMode_t),
            "pre_padding": Option("PRE_PADDINGS"),
            "post_padding": Option("POST_PADDINGS"),
            "stride": Option("STRIDES", low=1),
            "window": Option("WINDOW_DIMS", low=1),
        },
    ),
    "norm_forward": Kind(
        "NORM_FORWARD",
        {
            "x": "XDESC",
            "scale": "SCALE_DESC",
            "bias": "BIAS_DESC?",
            "epsilon": "EPSILON_DESC",
            "exp_avg_factor": "EXP_AVG_FACTOR_DESC?",
            "input_running_mean": "INPUT_RUNNING_MEAN_DESC?",
            "input_running_var": "INPUT_RUNNING_VAR_DESC?",
        },
        {
            "y": "YDESC",
            "mean": "MEAN_DESC",
            "inv_variance": "INV_VARIANCE_DESC",
            "output_running_mean": "OUTPUT_RUNNING_MEAN_DESC",
            "output_running_var": "OUTPUT_RUNNING_VAR_DESC",
        },
        _normalization,
        options={
            "mode": Option("MODE", raw.cudnnBackendNormMode_t),
            "phase": Option("PHASE", raw.cudnnBackendNormFwdPhase_t),
        },
        prefix="NORM_FWD",
        terms=lambda options, given, made: share(
            given["x"].shape, statistics(options["mode"], given["x"].shape, given["scale"].shape)
        ),
    ),
    "norm_backward": Kind(
        "NORM_BACKWARD",
        {
            "dy": "DYDESC",
            "x": "XDESC",
            "scale": "SCALE_DESC",
            "mean": "MEAN_DESC?",
            "inv_variance": "INV_VARIANCE_DESC",
        },
        {"dx": "DXDESC", "dscale": "DSCALE_DESC", "dbias": "DBIAS_DESC"},
        _normalization_backward,
        options={"mode": Option("MODE", raw.cudnnBackendNormMode_t), "bias": Option("", FLAG, True)},
        prefix="NORM_BWD",
        terms=lambda options, given, made: share(given["x"].shape, given["inv_variance"].shape),
    ),
}
