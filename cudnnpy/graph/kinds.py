"""KINDS, the table of the kinds of operations of cuDNN's graph API: one row has all that the package knows of a kind.

A row names cuDNN's descriptor, the attributes of operands, results and options, and the rule that checks the operands and
infers the results. Graphs are built by it (descriptors.py), written and read (graph_json.py), and the methods of Graph check
their operands by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from enum import EnumMeta, IntEnum
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple, cast

from cudnnpy import raw
from cudnnpy._checks.option_values import bounded, check_flag, check_integer, check_number, error_repr
from cudnnpy._convolution.sizes import Geometry, output_sizes
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import TensorSpec, packed_strides, result_strides
from cudnnpy._core.untrusted_json import LIMIT
from cudnnpy.names import enumerator
from cudnnpy.typing import ElementName

# The rule of a kind: from the options, the operands by name (a tuple for a list) and the data type of intermediate results to
# all results that the operation can have, by name. Raises ValueError or TypeError, which names the argument, for operands that
# do not fit.
Operands = Mapping[str, Any]
Rule = Callable[[Mapping[str, Any], Operands, ElementName], dict[str, TensorSpec]]
# From the options, the operands and the results: the number of terms that are added for one element of a result
Terms = Callable[[Mapping[str, Any], Operands, Mapping[str, TensorSpec]], int]

DTYPE, INTEGERS, INTEGER, NUMBER, FLAG = "dtype", "integers", "integer", "number", "flag"
FRACTIONS = "fractions"  # integers, or (numerator, denominator) pairs

_FLOATS = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")
_FACTORS = (*_FLOATS, "int8", "uint8", "int32")  # of products
_INT32, _INT64 = ("int32",), ("int64",)
_INDICES = ("int32", "int64")
_COMPUTE = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "bool")  # what an operation may compute in


class Option(NamedTuple):
    """An option of an operation."""

    attribute: str  #: the end of the attribute's name, or all of it; "" for an option that only the rule reads
    type: EnumMeta | str = INTEGERS  #: cuDNN's enumeration, or DTYPE, INTEGERS, FRACTIONS, INTEGER, NUMBER or FLAG
    default: Any = None  #: None for an option that is required, or that cuDNN's own default stands in for
    low: int = 0  #: the least integer
    is_required: bool = False

    def attribute_name(self, prefix: str) -> str:
        """Return the name of the attribute, which begins with a prefix."""
        return self.attribute if self.attribute.startswith("CUDNN_ATTR_") else prefix + self.attribute

    def checked(self, name: str, value: Any) -> Any:
        """Return a value of the option in canonical form. Raises TypeError or ValueError, which names the option."""
        if isinstance(self.type, EnumMeta):
            return enumerator(cast("type[IntEnum]", self.type), value, name)
        if self.type == DTYPE:
            return dtype_of(value, name).name
        if self.type == FLAG:
            return check_flag(name, value)
        if self.type == NUMBER:
            return check_number(name, value)
        if self.type == INTEGER:
            return check_integer(name, value, self.low, LIMIT - 1)
        return _checked_integers(name, value, self.low, fractions=self.type == FRACTIONS)


def _checked_integers(name: str, value: Any, low: int, fractions: bool) -> tuple[Any, ...]:
    """Return integers, or integers and (numerator, denominator) pairs, as a tuple."""
    given = (
        bounded(value, raw.CUDNN_DIM_MAX) if isinstance(value, Iterable) and not isinstance(value, str | bytes) else ()
    )
    if not 1 <= len(given) <= raw.CUDNN_DIM_MAX:
        raise TypeError(f"{name} must be 1 to {raw.CUDNN_DIM_MAX} integers; got {error_repr(value)}")
    return tuple(
        (check_integer(name, one[0], low, LIMIT - 1), check_integer(name, one[1], 1, LIMIT - 1))
        if fractions and isinstance(one, tuple | list) and len(one) == 2
        else check_integer(name, one, low, LIMIT - 1)
        for one in given
    )


# The ends of the attributes of operands and results that have another name in cuDNN
_ATTRIBUTES = {
    **{f"{size}_override": f"GEMM_{size.upper()}_OVERRIDE_DESC" for size in "mnk"},
    "index": "IDXDESC",
    "peer_stats": "PEER_STAT_DESCS",
    "sq_sum": "SQSUMDESC",
    "exp_average_factor": "EXP_AVERATE_FACTOR_DESC",  # sic
    "inputs": "INPUT_DESCS",
    "do": "DODDESC",  # sic
}


@cache
def _attribute(prefix: str, name: str) -> str:
    known = raw.cudnnBackendAttributeName_t.__members__
    ends = (_ATTRIBUTES.get(name), *(f"{name.upper()}{end}" for end in ("DESC", "_DESC", "")))
    return next(found for end in ends if (found := f"{prefix}{end}") in known)


@cache
def _named(names: str) -> Mapping[str, str]:
    """Return the marks of operands or results, "?" and "*", by name: those at the ends of the words."""
    return {word.rstrip("?*"): word[len(word.rstrip("?*")) :] for word in names.split()}


class Kind(NamedTuple):
    """A kind of operation of the graph API."""

    descriptor: str  #: CUDNN_BACKEND_OPERATION_{descriptor}_DESCRIPTOR
    #: operands -> results: "x w bias? -> y". "?": optional, or made only when it is asked for; "*": a list
    signature: str
    infer: Rule
    options: Mapping[str, Option] = {}  #: attributes of the operation
    nested: str = ""  #: the name of a descriptor that has further options, CUDNN_BACKEND_{nested}_DESCRIPTOR
    nested_attribute: str = "DESC"  #: the end of the attribute that has this descriptor
    nested_options: Mapping[str, Option] = {}  #: attributes CUDNN_ATTR_{nested}_... of that descriptor
    prefix: str = ""  #: of the attributes' names; the descriptor's name by default
    terms: Terms = lambda options, given, made: 1
    dtypes: Mapping[str, tuple[str, ...]] = {}  #: the data types of operands; others may have any
    #: operands that are lengths or indices: name -> a valid first element and the step to the next, from the operands
    indices: Mapping[str, Callable[[Operands], tuple[int, int]]] = {}

    @property
    def operands(self) -> Mapping[str, str]:
        """The operands: name -> "?" if it is optional, "*" if it is a list."""
        return _named(self.signature.partition(" -> ")[0])

    @property
    def results(self) -> Mapping[str, str]:
        """The results: name -> "?" if an operation has it only when it is asked for."""
        return _named(self.signature.partition(" -> ")[2])

    @property
    def descriptor_name(self) -> str:
        """The enumerator of the descriptor."""
        return f"CUDNN_BACKEND_OPERATION_{self.descriptor}_DESCRIPTOR"

    @property
    def attribute_prefix(self) -> str:
        """The beginning of the attributes' names."""
        return f"CUDNN_ATTR_OPERATION_{self.prefix or self.descriptor}_"

    def attribute(self, name: str) -> str:
        """Return the attribute of an operand or a result, which mostly ends with its name and DESC."""
        return _attribute(self.attribute_prefix, name)

    @property
    def all_options(self) -> dict[str, Option]:
        """The options of the operation and of its nested descriptor, by name."""
        return {**self.options, **self.nested_options}

    def complete(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options with the defaults of those that are missing, in the order of the table."""
        given = {name: options.get(name, option.default) for name, option in self.all_options.items()}
        return {name: value for name, value in given.items() if value is not None}

    def check(self, options: Mapping[str, Any], given: Operands, dtype: ElementName) -> dict[str, TensorSpec]:
        """Return all results that an operation can have, by name. `options` are complete.

        Raises TypeError or ValueError, which names the argument, for operands and options that do not fit.
        """
        for name, option in self.all_options.items():
            if option.is_required and name not in options:
                raise TypeError(f"{name} must be given; got none")
        for name, end in self.operands.items():
            specs = given.get(name, ())
            if not specs and not end.endswith("?"):
                raise TypeError(f"{name} must be {'one node or more' if '*' in end else 'a node'}; got none")
            allowed = self.dtypes.get(name)
            for spec in (specs,) if isinstance(specs, TensorSpec) else specs:
                if allowed and spec.dtype not in allowed:
                    raise TypeError(f"{name} must be {' or '.join(allowed)}; got {spec.dtype}")
        if options.get("compute_dtype", "float32") not in _COMPUTE:
            raise TypeError(f"compute_dtype must be one of {', '.join(_COMPUTE)}; got {options['compute_dtype']}")
        return self.infer(options, given, dtype)


# Rules


def _like(shape: tuple[int, ...], like: TensorSpec, dtype: ElementName) -> TensorSpec:
    """Return the spec of a result in the memory format of an operand."""
    return TensorSpec(shape, dtype, result_strides(shape, like))


def _convolution(options: Mapping[str, Any], given: Mapping[str, TensorSpec], dtype: ElementName) -> Any:
    x, w = given["x"], given["w"]
    if len(x.shape) - 2 not in (2, 3) or len(w.shape) != len(x.shape):
        raise ValueError(
            f"x and w must both have 2 or 3 spatial axes; got shapes {x.shape} and {w.shape}. Append an axis of size 1 for one"
        )
    if 0 in (*x.shape[1:], *w.shape):
        raise ValueError(
            f"x and w must have sizes of 1 or more, except for a batch of 0; got shapes {x.shape} and {w.shape}"
        )
    geometry = [options[name] for name in ("pre_padding", "post_padding", "stride", "dilation")]
    _check_axes(options, len(x.shape) - 2, *geometry)
    if x.shape[1] % w.shape[1] or w.shape[0] % (x.shape[1] // w.shape[1]):
        raise ValueError(
            "w must have shape (K, C / groups, ...), where groups divides C and K; "
            f"got shape {w.shape} for {x.shape[1]} channels"
        )
    spatial = output_sizes(x.shape[2:], w.shape[2:], Geometry(*geometry))
    if min(spatial) < 1:
        raise ValueError(f"w must fit into x with padding, {x.shape}; got shape {w.shape}")
    return {"y": _like((x.shape[0], w.shape[0], *spatial), x, dtype)}


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
    if others := [operand for operand in given if operand not in arguments.values()]:
        raise TypeError(f"{others[0]} must be None for {name}; got a node")
    specs = [spec for spec in operands.values() if spec is not None]
    shapes = [spec.shape for spec in specs]
    if len(set(map(len, shapes))) > 1 or any(len({1, *sizes}) > 2 for sizes in zip(*shapes, strict=True)):
        raise ValueError(f"x, b and t must have the same size, or 1, on each axis; got shapes {shapes}")
    if name == "gen_index" and not 0 <= options.get("axis", -1) < len(shapes[0]):
        raise ValueError(f"axis must be one of 0 to {len(shapes[0]) - 1} for gen_index; got {options.get('axis')}")
    widest = max(specs, key=lambda spec: math.prod(spec.shape))
    shape = tuple(next((size for size in sizes if size != 1), 1) for sizes in zip(*shapes, strict=True))
    if name.startswith(("cmp_", "logical_")):
        dtype = "bool"
    elif name == "gen_index":
        dtype = "int32"
    return {"dx" if is_gradient else "y": _like(shape, widest, dtype)}


def _reduction(options: Mapping[str, Any], given: Mapping[str, TensorSpec], dtype: ElementName) -> Any:
    x, axes, shape = given["x"], options.get("axes", ()), options.get("shape")
    if shape is not None:  # groups of neighbours are reduced, such as the heads of grouped attention
        if axes or len(shape) != len(x.shape) or any(n % size for n, size in zip(x.shape, shape, strict=True)):
            raise ValueError(f"shape must have sizes that divide those of x, {x.shape}, without axes; got {shape}")
    elif not axes or not all(0 <= axis < len(x.shape) for axis in axes) or len(set(axes)) < len(axes):
        raise ValueError(f"axes must be some of 0 to {len(x.shape) - 1}, each once; got {axes}")
    else:
        shape = tuple(1 if axis in axes else size for axis, size in enumerate(x.shape))
    return {"y": _like(shape, x, dtype)}


def _matmul(options: Mapping[str, Any], given: Mapping[str, TensorSpec], dtype: ElementName) -> Any:
    a, b = given["a"].shape, given["b"].shape
    # Heads of grouped attention repeat: one size of a batch's axis is a multiple of the other.
    fit = len(a) == len(b) >= 2 and all(max(m, n) % max(min(m, n), 1) == 0 for m, n in zip(a[:-2], b[:-2], strict=True))
    if not fit or a[-1] != b[-2]:
        raise ValueError(f"a and b must have shapes (..., M, K) and (..., K, N); got {a} and {b}")
    for name in ("m_override", "n_override", "k_override"):
        if name in given:
            _check_shape(name, given[name], (max(a[0], b[0]), *(1 for _ in a[1:])))
    shape = (*(max(sizes) if 0 not in sizes else 0 for sizes in zip(a[:-2], b[:-2], strict=True)), a[-2], b[-1])
    return {"c": TensorSpec(shape, dtype, packed_strides(shape))}


def _resample(options: Mapping[str, Any], given: Mapping[str, TensorSpec], dtype: ElementName) -> Any:
    x, window = given["x"], options["window"]
    geometry = [options[name] for name in ("pre_padding", "post_padding", "window", "stride")]
    _check_axes(options, len(x.shape) - 2, *geometry)
    if 0 in x.shape[1:]:
        raise ValueError(f"x must have sizes of 1 or more, except for a batch of 0; got shape {x.shape}")
    before, after, sizes, strides = (map(as_fraction, numbers) for numbers in geometry)
    spatial = [
        (n + a + b - k) // s + 1 for n, a, b, k, s in zip(x.shape[2:], before, after, sizes, strides, strict=True)
    ]
    if min(spatial, default=0) < 1:
        raise ValueError(f"window must fit into x with padding, {x.shape}; got {window!r}")
    y = _like((*x.shape[:2], *spatial), x, dtype)
    return {"y": y} | ({"index": y._replace(dtype="int8")} if options["mode"] == raw.CUDNN_RESAMPLE_MAXPOOL else {})


def as_fraction(value: Any) -> Fraction:
    """Return an element of an option of the type FRACTIONS as a number."""
    return Fraction(*value) if isinstance(value, tuple) else Fraction(value)


def _resample_backward(options: Mapping[str, Any], given: Operands, dtype: ElementName) -> Any:
    dy, shape = given["dy"], tuple(options["shape"])
    forward = _resample(options, {"x": TensorSpec(shape, dtype)}, dtype)["y"]
    if forward.shape != dy.shape:
        raise ValueError(f"dy must have shape {forward.shape} for a dx of shape {shape}; got shape {dy.shape}")
    _check_equal("dy", given, "y", "index")
    if "x" in given:
        _check_shape("x", given["x"], shape)
    elif options["mode"] == raw.CUDNN_RESAMPLE_MAXPOOL and "index" not in given:
        raise TypeError("x or index must be a node for maxpool; got none")
    return {"dx": _like(shape, dy, dtype)}


def _check_statistic(name: str, spec: TensorSpec, x: TensorSpec, of: str = "x") -> None:
    """Raise ValueError for a tensor that does not broadcast to x, or to another tensor."""
    sizes = x.shape
    if len(spec.shape) != len(sizes) or any(s not in (1, n) for s, n in zip(spec.shape, sizes, strict=True)):
        raise ValueError(
            f"{name} must have {len(sizes)} axes of the sizes of {of}, {sizes}, or 1; got shape {spec.shape}"
        )


def _check_shape(name: str, spec: TensorSpec, shape: tuple[int, ...]) -> None:
    """Raise ValueError for an operand of another shape."""
    if spec.shape != shape:
        raise ValueError(f"{name} must have shape {shape}; got shape {spec.shape}")


def _check_equal(name: str, given: Operands, *others: str) -> None:
    """Raise ValueError for operands that are given and have another shape than the first."""
    for other in others:
        if other in given and given[other].shape != given[name].shape:
            raise ValueError(f"{other} must have shape {given[name].shape}, as {name}; got shape {given[other].shape}")


def _check_single(given: Operands, *names: str) -> None:
    """Raise ValueError for operands that are given and have several elements."""
    for name in names:
        if name in given and math.prod(given[name].shape) != 1:
            raise ValueError(f"{name} must have one element; got shape {given[name].shape}")


def _check_together(given: Operands, *names: str) -> None:
    """Raise TypeError unless all operands of these names are given, or none."""
    missing = [name for name in names if name not in given]
    if 0 < len(missing) < len(names):
        raise TypeError(f"{' and '.join(names)} must be given together; got no {missing[0]}")


def _statistics(kind: int, x: tuple[int, ...], scale: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the mean and of the inverse variance."""
    if kind == raw.CUDNN_BATCH_NORM:
        return scale
    if kind == raw.CUDNN_INSTANCE_NORM:
        return (*x[:2], *(1,) * (len(x) - 2))
    normalized = [1 if n == s else n for n, s in zip(x, scale, strict=True)]
    return (x[0] if kind == raw.CUDNN_ADA_LAYER_NORM else normalized[0], *normalized[1:])


def _share(whole: tuple[int, ...], part: tuple[int, ...]) -> int:
    """Return the number of elements of `whole` for each element of `part`."""
    return math.prod(whole) // max(math.prod(part), 1)


def _normalization(options: Mapping[str, Any], given: Mapping[str, TensorSpec], dtype: ElementName) -> Any:
    x, scale, mode = given["x"], given["scale"], options["mode"]
    _check_statistic("scale", scale, x)
    _check_single(given, "epsilon", "exp_avg_factor")
    is_training, statistics_names = options["phase"] == raw.CUDNN_NORM_FWD_TRAINING, ("mean", "inv_variance")
    _check_together(given, "input_running_mean", "input_running_var", *["exp_avg_factor"] * is_training)
    if is_training and not given.keys().isdisjoint(statistics_names):
        raise TypeError("mean and inv_variance must be None in training, which computes them; got a node")
    if "epsilon" not in given and "inv_variance" not in given:
        raise TypeError("epsilon must be a node; got none")
    _check_together(given, *statistics_names[mode == raw.CUDNN_RMS_NORM :])
    _check_equal("scale", given, "bias")
    found = {"y": _like(x.shape, x, dtype)}
    kind: ElementName = "float64" if x.dtype == "float64" else "float32"  # an inverse variance may overflow in float16
    statistic = _like(_statistics(mode, x.shape, scale.shape), x, kind)
    if mode in (raw.CUDNN_BATCH_NORM, raw.CUDNN_INSTANCE_NORM):
        _check_shape("scale", scale, tuple(size if axis == 1 else 1 for axis, size in enumerate(x.shape)))
    for name in ("input_running_mean", "input_running_var", *statistics_names):
        if name in given:
            _check_shape(name, given[name], statistic.shape)
    if is_training:
        found |= {"mean": statistic} if mode != raw.CUDNN_RMS_NORM else {}
        found["inv_variance"] = statistic
    if "input_running_mean" in given and "exp_avg_factor" in given:
        running = statistic._replace(dtype=given["input_running_mean"].dtype)
        found |= dict.fromkeys(("output_running_mean", "output_running_var"), running)
    return found


def _normalization_backward(options: Mapping[str, Any], given: Mapping[str, TensorSpec], dtype: ElementName) -> Any:
    x, scale, mode = given["x"], given["scale"], options["mode"]
    _check_equal("x", given, "dy")
    _check_statistic("scale", scale, x)
    _check_single(given, "epsilon")
    if "mean" not in given and mode != raw.CUDNN_RMS_NORM:
        raise TypeError("mean must be a node, except for rms_norm; got none")
    _check_shape("inv_variance", given["inv_variance"], _statistics(mode, x.shape, scale.shape))
    _check_equal("inv_variance", given, "mean")
    gradient = _like(scale.shape, scale, scale.dtype)  # engines write no other data type
    return {"dx": _like(x.shape, x, dtype), **dict.fromkeys(("dscale", "dbias"), gradient)}


def _packed(shape: tuple[int, ...], dtype: ElementName) -> TensorSpec:
    return TensorSpec(shape, dtype, packed_strides(shape))


def _check_channels(x: TensorSpec) -> None:
    if len(x.shape) < 2:
        raise ValueError(f"x must have shape (N, C, ...); got shape {x.shape}")


def _gen_stats(options: Mapping[str, Any], given: Operands, dtype: ElementName) -> Any:
    x = given["x"]
    _check_channels(x)
    return dict.fromkeys(("sum", "sq_sum"), _like((1, x.shape[1], *(1,) * (len(x.shape) - 2)), x, dtype))


def _bn_finalize(options: Mapping[str, Any], given: Operands, dtype: ElementName) -> Any:
    statistics = ("y_sq_sum", "scale", "bias", "prev_running_mean", "prev_running_var")
    _check_equal("y_sum", given, *statistics)
    _check_single(given, "epsilon", "exp_average_factor", "accum_count")
    _check_together(given, "prev_running_mean", "prev_running_var")
    if "prev_running_mean" not in given and options["mode"] == raw.CUDNN_BN_FINALIZE_STATISTICS_INFERENCE:
        raise TypeError("prev_running_mean must be a node for inference; got none")
    names = ["eq_scale", "eq_bias", "saved_mean", "saved_inv_std"]
    if {"prev_running_mean", "exp_average_factor"} <= given.keys():
        names += ["updated_running_mean", "updated_running_var"]
    return dict.fromkeys(names, _like(given["y_sum"].shape, given["y_sum"], dtype))


def _bn_bwd_weights(options: Mapping[str, Any], given: Operands, dtype: ElementName) -> Any:
    x = given["x"]
    _check_channels(x)
    _check_equal("x", given, "dy")
    _check_shape("mean", given["mean"], tuple(size if axis == 1 else 1 for axis, size in enumerate(x.shape)))
    _check_equal("mean", given, "invstd", "bn_scale")
    names = ("dbn_scale", "dbn_bias", "eq_dy_scale", "eq_x_scale", "eq_bias")
    return dict.fromkeys(names, _like(given["mean"].shape, given["mean"], dtype))


def _concat(options: Mapping[str, Any], given: Operands, dtype: ElementName) -> Any:
    first, *others = inputs = given["inputs"]
    axis = _checked_axis(options, first)
    shapes = [one.shape for one in inputs]
    if any(len(one.shape) != len(first.shape) for one in others) or any(
        len(set(sizes)) > 1 for at, sizes in enumerate(zip(*shapes, strict=True)) if at != axis
    ):
        raise ValueError(f"inputs must have the same sizes, except on axis {axis}; got shapes {shapes}")
    if not options.get("inplace_index", 0) < len(inputs):
        raise ValueError(f"inplace_index must be below {len(inputs)}; got {options['inplace_index']}")
    shape = [sum(sizes) if at == axis else sizes[0] for at, sizes in enumerate(zip(*shapes, strict=True))]
    return {"output": _like(tuple(shape), first, first.dtype)}


def _checked_axis(options: Mapping[str, Any], x: TensorSpec) -> int:
    axis: int = options["axis"]
    if axis >= len(x.shape):
        raise ValueError(f"axis must be one of 0 to {len(x.shape) - 1}; got {axis}")
    return axis


def _reshape(options: Mapping[str, Any], given: Operands, dtype: ElementName) -> Any:
    x, shape = given["x"], options["shape"]
    if math.prod(shape) != math.prod(x.shape):
        raise ValueError(f"shape must have as many elements as x, {x.shape}; got {shape}")
    return {"y": TensorSpec(shape, x.dtype, _checked_strides(options, shape))}


def _checked_strides(options: Mapping[str, Any], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a result; packed by default."""
    strides: tuple[int, ...] = options.get("strides", packed_strides(shape))
    if len(strides) != len(shape):
        raise ValueError(f"strides must be {len(shape)} integers; got {strides}")
    return strides


def _transpose(options: Mapping[str, Any], given: Operands, dtype: ElementName) -> Any:
    x, order = given["x"], options["permutation"]
    if sorted(order) != list(range(len(x.shape))):
        raise ValueError(f"permutation must have each of 0 to {len(x.shape) - 1} once; got {order}")
    return {"y": _packed(tuple(x.shape[axis] for axis in order), x.dtype)}


def _slice(options: Mapping[str, Any], given: Operands, dtype: ElementName) -> Any:
    x, start, limit = given["x"], options["start"], options["limit"]
    steps = options["stride"]
    if not len(start) == len(limit) == len(steps) == len(x.shape):
        raise ValueError(f"start, limit and stride must be {len(x.shape)} integers; got {start}, {limit}, {steps}")
    if not all(a < b <= size for a, b, size in zip(start, limit, x.shape, strict=True)):
        raise ValueError(f"start and limit must be a part of x, {x.shape}; got {start} and {limit}")
    shape = tuple(-(-(b - a) // step) for a, b, step in zip(start, limit, steps, strict=True))
    return {"y": _like(shape, x, x.dtype)}


def _rope(options: Mapping[str, Any], given: Operands, dtype: ElementName) -> Any:
    operand, result = ("x", "y") if "x" in given else ("dy", "dx")
    spec = given[operand]
    width = options.get("rope_dim") or spec.shape[-1]
    if len(spec.shape) != 4 or width > spec.shape[-1] or width % 2:
        raise ValueError(
            f"{operand} must have shape (B, H, S, D), where D is an even rope_dim or more; got {spec.shape}"
        )
    _check_shape("freqs", given["freqs"], (spec.shape[2], 1, 1, width))
    return {result: spec}


def _paged_cache_load(options: Mapping[str, Any], given: Operands, dtype: ElementName) -> Any:
    container, table, lengths = (given[name] for name in ("container", "page_table", "sequence"))
    if not len(container.shape) == len(table.shape) == 4:
        raise ValueError(f"container and page_table must have 4 axes; got shapes {container.shape} and {table.shape}")
    batch, _, pages, _ = table.shape
    _check_shape("sequence", lengths, (batch, 1, 1, 1))
    _check_shape("page_table", table, (batch, 1, pages, 1))
    heads, page, size = container.shape[1:]
    whole = (batch, heads, pages * page, size)
    shape = options.get("shape", whole)
    fits = len(shape) == 4 and shape[:2] == (batch, heads) and size in shape[2:]
    if not fits or math.prod(shape[2:]) > size * pages * page:
        raise ValueError(f"shape must be {whole}, with fewer rows at most, or its transpose; got {shape}")
    return {"y": TensorSpec(tuple(shape), container.dtype, _checked_strides(options, shape))}


def _block_scale_quantize(options: Mapping[str, Any], given: Operands, dtype: ElementName) -> Any:
    x, (block, *others) = given["x"], options["block_size"]
    if others:
        raise ValueError(f"block_size must be one integer; got {options['block_size']}")
    scale = (*x.shape[:-1], -(-x.shape[-1] // block))
    return {"y": _like(x.shape, x, "float8_e4m3fn"), "scale": _packed(scale, "float8_e8m0fnu")}


def _block_scale_dequantize(options: Mapping[str, Any], given: Operands, dtype: ElementName) -> Any:
    x, scale, sizes = given["x"].shape, given["scale"].shape, options["block_size"]
    if len(scale) != len(x) or not 1 <= len(sizes) <= min(len(x), 2):
        raise ValueError(
            f"scale must have {len(x)} axes, as x, and block_size one or two integers; got shape {scale} and {sizes}"
        )
    # one size is for the last axis, or for the last but one if the last has a scale for each element
    last = len(x) - (2 if len(sizes) == 2 or (len(x) > 1 and scale[-1] >= x[-1]) else 1)
    blocks = [sizes[axis - last] if 0 <= axis - last < len(sizes) else 1 for axis in range(len(x))]
    if any(
        count * block < size and (count, block) != (1, 1) for count, block, size in zip(scale, blocks, x, strict=True)
    ):
        raise ValueError(f"scale must have a number for each block of {sizes} in x, {x}; got shape {scale}")
    return {"y": _like(x, given["x"], dtype)}


def _band(options: Mapping[str, Any], given: Operands, dtype: ElementName) -> Any:
    """Infer a matrix whose band, lower + 1 + upper elements of each row, is stored along an axis, or the reverse."""
    x, axis = given["x"], _checked_axis(options, given["x"])
    if axis == 0:
        raise ValueError("axis must have the rows before it, so 1 or more; got 0")
    width = options["lower_bandwidth"] + options["upper_bandwidth"] + 1
    shape = options.get("shape")
    if shape is None and width > sum(x.shape[axis - 1 : axis + 1]):
        raise ValueError(f"the band must be within the matrix, {x.shape[axis - 1 : axis + 1]}; got a width of {width}")
    if shape is not None and x.shape[axis] != width:
        raise ValueError(f"x must have {width} elements on axis {axis}, the width of the band; got shape {x.shape}")
    if shape is not None and (*shape[:axis], 0, *shape[axis + 1 :]) != (*x.shape[:axis], 0, *x.shape[axis + 1 :]):
        raise ValueError(f"shape must be x's, {x.shape}, except on axis {axis}; got {shape}")
    return {"y": _packed(shape or (*x.shape[:axis], width, *x.shape[axis + 1 :]), dtype)}


def _softmax(options: Mapping[str, Any], given: Operands, dtype: ElementName) -> Any:
    x = given["x"]
    row = _packed((*x.shape[:-1], 1), "float32")
    if "sink" in given:
        _check_statistic("sink", given["sink"], row, "stats")
    return {"y": _like(x.shape, x, dtype), **dict.fromkeys(("stats", "max", "sum_exp"), row)}


def _check_lengths(given: Operands, batch: int) -> None:
    """Raise ValueError unless there is a length for each sequence, or one for all, or one sum more."""
    for name in _named(_LENGTHS):
        if name in given and (name.startswith("cu_") or math.prod(given[name].shape) != 1):
            _check_shape(name, given[name], (batch + name.startswith("cu_"), 1, 1, 1))


def _heads(options: Mapping[str, Any], given: Operands) -> tuple[int, int, int]:
    """Check the operands of attention; return the batch, the number of heads and the length of q."""
    q, k, v = (given[name].shape for name in "qkv")
    paged = "page_table_k" in given
    fit = len(q) == len(k) == len(v) == 4 and q[3] == k[3] and k[1:3] == v[1:3] and q[1] % max(k[1], 1) == 0
    if not fit or (not paged and not q[0] == k[0] == v[0]):
        raise ValueError(
            "q, k and v must have shapes (B, H, Sq, D), (B, Hkv, Skv, D) and (B, Hkv, Skv, Dv), where Hkv divides H; "
            f"got {q}, {k} and {v}"
        )
    _check_lengths(given, q[0])
    _check_single(given, "scale", *_named(_QUANTIZING), *_named(_DROPOUT))
    if not 0 <= options.get("dropout_probability", 0.0) < 1:
        raise ValueError(f"dropout_probability must be 0 or more, and below 1; got {options['dropout_probability']}")
    return q[0], q[1], q[2]


def _diagonal_band_mask(options: Mapping[str, Any], given: Operands, dtype: ElementName) -> Any:
    x, mode = given["x"], pointwise_name(options.get("comparison_mode", raw.CUDNN_POINTWISE_CMP_GE))
    if len(x.shape) != 4:
        raise ValueError(f"x must have shape (B, H, Sq, Skv); got shape {x.shape}")
    if not mode.startswith("cmp_"):
        raise ValueError(f"comparison_mode must be a comparison, such as cmp_ge; got {mode}")
    _check_lengths(given, x.shape[0])
    _check_single(given, "b", "left_bound", "shift_right_bound")
    return {"y": _like(x.shape, x, dtype)}


def _sdpa(options: Mapping[str, Any], given: Operands, dtype: ElementName) -> Any:
    batch, heads, rows = _heads(options, given)
    q, columns = given["q"], given["k"].shape[2]
    if "page_table_k" in given:
        columns *= given["page_table_k"].shape[2]
    if "block_mask" in given:
        blocks, mask = (batch, heads, -(-rows // 128), -(-columns // 128)), given["block_mask"].shape
        if mask not in (blocks, (*blocks[:3], -(-blocks[3] // 8))):
            raise ValueError(f"block_mask must have shape {blocks}, or a bit for each of these blocks; got {mask}")
    one = _packed((1, 1, 1, 1), "float32")
    return {
        "o": _like((batch, heads, rows, given["v"].shape[3]), q, q.dtype),
        "stats": _packed((batch, heads, rows, 1), "float32"),
        "dropout_rng_dump": _packed((batch, heads, rows, columns), "float32"),
        "amax_s": one,
        "amax_o": one,
    }


def _sdpa_backward(options: Mapping[str, Any], given: Operands, dtype: ElementName) -> Any:
    batch, heads, rows = _heads(options, given)
    q, k, v = (given[name] for name in "qkv")
    for name in ("o", "do"):
        _check_shape(name, given[name], (batch, heads, rows, v.shape[3]))
    _check_shape("stats", given["stats"], (batch, heads, rows, 1))
    found = {f"d{name}": _like(given[name].shape, given[name], q.dtype) for name in "qkv"}
    if "sink" in given:
        _check_shape("sink", given["sink"], (1, heads, 1, 1))
        found["dsink"] = _packed(given["sink"].shape, "float32")
    return {**found, "dbias": _packed((batch, heads, rows, k.shape[2]), q.dtype)}


def _moe(options: Mapping[str, Any], given: Operands, dtype: ElementName) -> Any:
    token, weight, first = given["token"], given["weight"], given["first_token_offset"]
    fit = len(token.shape) == len(weight.shape) == 3 and token.shape[0] == 1 and token.shape[2] == weight.shape[1]
    if not fit or not (experts := weight.shape[0]):
        raise ValueError(
            "token and weight must have shapes (1, T, K) and (E, K, N) for one expert or more; "
            f"got {token.shape} and {weight.shape}"
        )
    _check_shape("first_token_offset", first, (max(first.shape[0] // experts, 1) * experts, 1, 1))  # of each batch
    gather, scatter = raw.CUDNN_MOE_GROUPED_MATMUL_MODE_GATHER, raw.CUDNN_MOE_GROUPED_MATMUL_MODE_SCATTER
    for name, modes in {"token_index": (gather, scatter), "token_ks": (scatter,)}.items():
        if options["mode"] in modes and name not in given:
            raise TypeError(f"{name} must be a node for this mode; got none")
    rows = math.prod(given["token_index"].shape) if options["mode"] == gather else token.shape[1]
    for name in ("token_index", "token_ks"):
        if name in given:
            _check_shape(name, given[name], (1, rows, 1))
    return {"output": _packed((1, rows, weight.shape[2]), token.dtype)}


def _moe_backward(options: Mapping[str, Any], given: Operands, dtype: ElementName) -> Any:
    doutput, token = given["doutput"], given["token"]
    if (
        not len(token.shape) == len(doutput.shape) == 3
        or not (1, token.shape[1]) == token.shape[:2] == doutput.shape[:2]
    ):
        raise ValueError(
            f"doutput and token must have shapes (1, T, N) and (1, T, K); got {doutput.shape} and {token.shape}"
        )
    experts = max(given["first_token_offset"].shape[0], 1)
    _check_shape("first_token_offset", given["first_token_offset"], (experts, 1, 1))
    return {"dweight": _packed((experts, token.shape[2], doutput.shape[2]), token.dtype)}


def _lengths(given: Operands) -> tuple[int, int]:
    """Return the lengths of the rows and columns of attention's scores, from q and k or from the scores x."""
    if "x" in given:
        rows, columns = given["x"].shape[2:]
        return rows, columns
    pages = given["page_table_k"].shape[2] if "page_table_k" in given else 1
    return given["q"].shape[2], given["k"].shape[2] * pages


def _first(given: Operands) -> tuple[int, int]:
    """Return the values of indices: the first one in all places."""
    return 0, 0


def _first_tokens(given: Operands) -> tuple[int, int]:
    """Return the first row of the first expert, and the number of rows of each."""
    return 0, given["token"].shape[1] // given["first_token_offset"].shape[0]


# The table

_COMP_TYPE = {"compute_dtype": Option("COMP_TYPE", DTYPE)}
_MATH_PREC = {"compute_dtype": Option("MATH_PREC", DTYPE)}
_SCALES = {"alpha": Option("ALPHA", NUMBER, 1.0), "beta": Option("BETA", NUMBER, 0.0)}
_SHAPE = {"shape": Option("", low=1, is_required=True)}
_LENGTHS = "seq_len_q? seq_len_kv? cu_seq_len_q? cu_seq_len_kv?"
_LENGTH_INDICES: dict[str, Callable[[Operands], tuple[int, int]]] = {
    "seq_len_q": lambda given: (_lengths(given)[0], 0),
    "seq_len_kv": lambda given: (_lengths(given)[1], 0),
    "cu_seq_len_q": lambda given: (0, _lengths(given)[0]),
    "cu_seq_len_kv": lambda given: (0, _lengths(given)[1]),
}
_LENGTH_DTYPES = dict.fromkeys(_named(_LENGTHS), _INT32)
_DROPOUT = "dropout_seed? dropout_offset?"
_DROPOUT_DTYPES = dict.fromkeys(_named(_DROPOUT), _INDICES)
_QUANTIZING = "descale_q? descale_k? descale_v? descale_s? scale_s? scale_o?"
_ATTENTION = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")

_FORWARD = Kind(
    "CONVOLUTION_FORWARD",
    "x w -> y",
    _convolution,
    options=_SCALES,
    nested="CONVOLUTION",
    nested_attribute="CONV_DESC",
    nested_options={
        **_COMP_TYPE,
        "mode": Option("CONV_MODE", raw.cudnnConvolutionMode_t, raw.CUDNN_CROSS_CORRELATION),
        "spatial_dims": Option("SPATIAL_DIMS", INTEGER, is_required=True),
        "pre_padding": Option("PRE_PADDINGS", is_required=True),
        "post_padding": Option("POST_PADDINGS", is_required=True),
        "stride": Option("FILTER_STRIDES", low=1, is_required=True),
        "dilation": Option("DILATIONS", low=1, is_required=True),
    },
    terms=lambda options, given, made: math.prod(given["w"].shape[1:]),
    dtypes={"x": _FACTORS, "w": _FACTORS},
)
# The numbers of elementwise operations, which Graph.pointwise takes as `how`
HOW = ("relu_lower_clip", "relu_upper_clip", "relu_lower_clip_slope", "elu_alpha", "softplus_beta", "swish_beta")
_RESAMPLE = Kind(
    "RESAMPLE_FWD",
    "x -> y index?",
    _resample,
    options=_SCALES,
    nested="RESAMPLE",
    nested_options={
        "mode": Option("MODE", raw.cudnnResampleMode_t, is_required=True),
        **_COMP_TYPE,
        "spatial_dims": Option("SPATIAL_DIMS", INTEGER, is_required=True),
        "nan_propagation": Option("NAN_PROPAGATION", raw.cudnnNanPropagation_t, raw.CUDNN_PROPAGATE_NAN),
        "padding_mode": Option("PADDING_MODE", raw.cudnnPaddingMode_t, is_required=True),
        "pre_padding": Option("PRE_PADDINGS", FRACTIONS, is_required=True),
        "post_padding": Option("POST_PADDINGS", FRACTIONS, is_required=True),
        "stride": Option("STRIDES", FRACTIONS, low=1, is_required=True),
        "window": Option("WINDOW_DIMS", FRACTIONS, low=1, is_required=True),
    },
)
_ROPE = Kind(
    "ROPE_FWD",
    "x freqs -> y",
    _rope,
    options={"output_scale": Option("OUTPUT_SCALE", NUMBER), "rope_dim": Option("ROPE_DIM", INTEGER)},
)
_BAND_OPTIONS = {
    "lower_bandwidth": Option("LOWER_BANDWIDTH", INTEGER, is_required=True),
    "upper_bandwidth": Option("UPPER_BANDWIDTH", INTEGER, is_required=True),
    "axis": Option("AXIS", INTEGER, is_required=True),
    "pad_value": Option("PAD_VALUE", NUMBER),
}

KINDS: Mapping[str, Kind] = {
    "convolution_forward": _FORWARD,
    "convolution_backward_data": _FORWARD._replace(
        descriptor="CONVOLUTION_BACKWARD_DATA",
        signature="dy w -> dx",
        infer=lambda options, given, dtype: _gradient("w", "dx", options, given, dtype),
        options={**_SCALES, **_SHAPE},
        prefix="CONVOLUTION_BWD_DATA",
        terms=lambda options, given, made: math.prod(given["w"].shape) // made["dx"].shape[1],
        dtypes={"dy": _FACTORS, "w": _FACTORS},
    ),
    "convolution_backward_filter": _FORWARD._replace(
        descriptor="CONVOLUTION_BACKWARD_FILTER",
        signature="dy x -> dw",
        infer=lambda options, given, dtype: _gradient("x", "dw", options, given, dtype),
        options={**_SCALES, **_SHAPE},
        prefix="CONVOLUTION_BWD_FILTER",
        terms=lambda options, given, made: math.prod(given["dy"].shape) // given["dy"].shape[1],
        dtypes={"dy": _FACTORS, "x": _FACTORS},
    ),
    "pointwise": Kind(
        "POINTWISE",
        "x? b? t? dy? -> y dx",  # dy and x for a gradient
        _pointwise,
        options={"alpha1": Option("ALPHA1", NUMBER), "alpha2": Option("ALPHA2", NUMBER)},
        nested="POINTWISE",
        nested_attribute="PW_DESCRIPTOR",
        nested_options={
            "mode": Option("MODE", raw.cudnnPointwiseMode_t, is_required=True),
            **_MATH_PREC,
            **{name: Option(name.upper(), NUMBER) for name in HOW},
            "axis": Option("AXIS", INTEGER),
        },
    ),
    "reduction": Kind(
        "REDUCTION",
        "x -> y",
        _reduction,
        options={"axes": Option(""), "shape": Option("", low=1)},
        nested="REDUCTION",
        nested_options={
            "op": Option("OPERATOR", raw.cudnnReduceTensorOp_t, is_required=True),
            **_COMP_TYPE,
            "deterministic": Option("IS_DETERMINISTIC", FLAG),
        },
        terms=lambda options, given, made: _share(given["x"].shape, made["y"].shape),
    ),
    "matmul": Kind(
        "MATMUL",
        "a b m_override? n_override? k_override? -> c",
        _matmul,
        nested="MATMUL",
        nested_options={**_COMP_TYPE, "padding_value": Option("PADDING_VALUE", NUMBER)},
        terms=lambda options, given, made: given["a"].shape[-1],
        dtypes={"a": _FACTORS, "b": _FACTORS, **dict.fromkeys(("m_override", "n_override", "k_override"), _INT32)},
        indices={
            "m_override": lambda given: (given["a"].shape[-2], 0),
            "n_override": lambda given: (given["b"].shape[-1], 0),
            "k_override": lambda given: (given["a"].shape[-1], 0),
        },
    ),
    "resample_fwd": _RESAMPLE,
    "resample_bwd": _RESAMPLE._replace(
        descriptor="RESAMPLE_BWD",
        signature="dy index? x? y? -> dx",
        infer=_resample_backward,
        options={**_SCALES, **_SHAPE},
    ),
    "norm_forward": Kind(
        "NORM_FORWARD",
        "x scale bias? epsilon? mean? inv_variance? exp_avg_factor? input_running_mean? input_running_var? peer_stats*?"
        " -> y mean inv_variance output_running_mean output_running_var",  # mean and inv_variance of an inference
        _normalization,
        options={
            "mode": Option("MODE", raw.cudnnBackendNormMode_t, is_required=True),
            "phase": Option("PHASE", raw.cudnnBackendNormFwdPhase_t, is_required=True),
        },
        prefix="NORM_FWD",
        terms=lambda options, given, made: _share(
            given["x"].shape, _statistics(options["mode"], given["x"].shape, given["scale"].shape)
        ),
        dtypes={"x": _FLOATS, "scale": _FLOATS, "bias": _FLOATS},
    ),
    "norm_backward": Kind(
        "NORM_BACKWARD",
        "dy x scale mean? inv_variance epsilon? peer_stats*? -> dx dscale dbias?",
        _normalization_backward,
        options={"mode": Option("MODE", raw.cudnnBackendNormMode_t, is_required=True)},
        prefix="NORM_BWD",
        terms=lambda options, given, made: _share(given["x"].shape, given["inv_variance"].shape),
        dtypes={"dy": _FLOATS, "x": _FLOATS, "scale": _FLOATS},
    ),
    "gen_stats": Kind(
        "GEN_STATS",
        "x -> sum sq_sum",
        _gen_stats,
        options={"mode": Option("MODE", raw.cudnnGenStatsMode_t, raw.CUDNN_GENSTATS_SUM_SQSUM), **_MATH_PREC},
        prefix="GENSTATS",
        dtypes={"x": _FLOATS},
        terms=lambda options, given, made: _share(given["x"].shape, made["sum"].shape),
    ),
    "bn_finalize": Kind(
        "BN_FINALIZE_STATISTICS",
        "y_sum y_sq_sum scale bias prev_running_mean? prev_running_var? epsilon exp_average_factor? accum_count"
        " -> eq_scale eq_bias saved_mean? saved_inv_std? updated_running_mean? updated_running_var?",
        _bn_finalize,
        options={
            "mode": Option("STATS_MODE", raw.cudnnBnFinalizeStatsMode_t, raw.CUDNN_BN_FINALIZE_STATISTICS_TRAINING),
            **_MATH_PREC,
        },
        prefix="BN_FINALIZE",
        dtypes={"accum_count": _INT64},
        indices={"accum_count": lambda given: (1000, 0)},
    ),
    "bn_bwd_weights": Kind(
        "BN_BWD_WEIGHTS",
        "x dy mean invstd bn_scale -> dbn_scale dbn_bias eq_dy_scale eq_x_scale eq_bias",
        _bn_bwd_weights,
        options=_MATH_PREC,
        dtypes=dict.fromkeys(("x", "dy", "mean", "invstd", "bn_scale"), _FLOATS),
        terms=lambda options, given, made: _share(given["x"].shape, given["mean"].shape),
    ),
    "concat": Kind(
        "CONCAT",
        "inputs* -> output",
        _concat,
        options={"axis": Option("AXIS", INTEGER, is_required=True), "inplace_index": Option("INPLACE_INDEX", INTEGER)},
    ),
    "reshape": Kind(
        "RESHAPE",
        "x -> y",
        _reshape,
        options={**_SHAPE, "strides": Option(""), "mode": Option("MODE", raw.cudnnBackendReshapeMode_t)},
    ),
    "transpose": Kind(
        "TRANSPOSE",
        "x -> y",
        _transpose,
        options={"permutation": Option("PERMUTATION", is_required=True)},
    ),
    "slice": Kind(
        "SLICE",
        "x -> y",
        _slice,
        options={
            "start": Option("START_INDICES", is_required=True),
            "limit": Option("LIMIT_INDICES", low=1, is_required=True),
            "stride": Option("STRIDES", low=1, is_required=True),
        },
    ),
    "signal": Kind(
        "SIGNAL",
        "flag x? -> y",
        lambda options, given, dtype: {"y": given["x"]} if "x" in given else {},
        options={
            "mode": Option("MODE", raw.cudnnSignalMode_t, is_required=True),
            "value": Option("VALUE", INTEGER, is_required=True),
        },
        dtypes={"flag": _INT32},
    ),
    "rng": Kind(
        "RNG",
        "seed offset? -> y",
        lambda options, given, dtype: {"y": _packed(options["shape"], dtype)},
        options=_SHAPE,
        nested="RNG",
        nested_options={
            "distribution": Option("DISTRIBUTION", raw.cudnnRngDistribution_t, is_required=True),
            "mean": Option("NORMAL_DIST_MEAN", NUMBER),
            "standard_deviation": Option("NORMAL_DIST_STANDARD_DEVIATION", NUMBER),
            "maximum": Option("UNIFORM_DIST_MAXIMUM", NUMBER),
            "minimum": Option("UNIFORM_DIST_MINIMUM", NUMBER),
            "probability": Option("BERNOULLI_DIST_PROBABILITY", NUMBER),
        },
        dtypes={"seed": _INDICES, "offset": _INDICES},
    ),
    "paged_cache_load": Kind(
        "PAGED_CACHE_LOAD",
        "container sequence page_table -> y",
        _paged_cache_load,
        options={"shape": Option("", low=1), "strides": Option("")},
        dtypes={"sequence": _INT32, "page_table": _INT32},
        indices={
            "sequence": lambda given: (given["page_table"].shape[2] * given["container"].shape[2], 0),
            "page_table": _first,
        },
    ),
    "block_scale_quantize": Kind(
        "BLOCK_SCALE_QUANTIZE",
        "x -> y scale",
        _block_scale_quantize,
        options={**_MATH_PREC, "block_size": Option("BLOCK_SIZE", low=1, is_required=True)},
        dtypes={"x": _FLOATS},
    ),
    "block_scale_dequantize": Kind(
        "BLOCK_SCALE_DEQUANTIZE",
        "x scale -> y",
        _block_scale_dequantize,
        options={
            **_MATH_PREC,
            "block_size": Option("BLOCK_SIZE", low=1, is_required=True),
            "negative_scale": Option("NEG_SCALE", FLAG),
        },
    ),
    "expand_band_matrix": Kind(
        "EXPAND_BAND_MATRIX",
        "x kv_token_offset? speculative_mask? -> y",
        _band,
        options={**_BAND_OPTIONS, **_SHAPE},
        dtypes={"kv_token_offset": _INDICES},
        indices={"kv_token_offset": _first},
    ),
    "contract_band_matrix": Kind(
        "CONTRACT_BAND_MATRIX",
        "x -> y",
        _band,
        options={
            **_BAND_OPTIONS,
            "max_token_value": Option("CUDNN_ATTR_OPERATION_CONTRACT_BAND_MAX_TOKEN_VALUE", INTEGER),
        },
    ),
    "diagonal_band_mask": Kind(
        "DIAGONAL_BAND_MASK",
        f"x b {_LENGTHS} left_bound? shift_right_bound? -> y",
        _diagonal_band_mask,
        options={"comparison_mode": Option("COMPARISON_MODE", raw.cudnnPointwiseMode_t)},
        dtypes={**_LENGTH_DTYPES, "left_bound": ("float32", "int32"), "shift_right_bound": _INT32},
        indices=_LENGTH_INDICES,
    ),
    "softmax": Kind(
        "SOFTMAX",
        "x sink? -> y stats? max? sum_exp?",
        _softmax,
        options={"stats_log2": Option("STATS_LOG2", FLAG)},
        dtypes={"x": _FLOATS, "sink": _FLOATS},
        terms=lambda options, given, made: given["x"].shape[-1],
    ),
    "rope_fwd": _ROPE,
    "rope_bwd": _ROPE._replace(
        descriptor="ROPE_BWD",
        signature="dy freqs -> dx",
    ),
    "sdpa_fwd": Kind(
        "SDPA_FWD",
        f"q k v scale? block_mask? page_table_k? page_table_v? {_LENGTHS} {_DROPOUT} {_QUANTIZING}"
        " -> o stats? dropout_rng_dump? amax_s? amax_o?",
        _sdpa,
        options={
            "dropout_probability": Option("DROPOUT_PROBABILITY", NUMBER),
            "unfuse_fma": Option("UNFUSE_FMA", FLAG),
        },
        terms=lambda options, given, made: max(given["q"].shape[3], given["k"].shape[2]),
        dtypes={
            **dict.fromkeys("qkv", _ATTENTION),
            "block_mask": ("uint8", "int8", "int32", "int64", "bool"),
            **dict.fromkeys(("page_table_k", "page_table_v"), _INT32),
            **_LENGTH_DTYPES,
            **_DROPOUT_DTYPES,
        },
        indices={**_LENGTH_INDICES, **dict.fromkeys(("page_table_k", "page_table_v"), _first)},
    ),
    "sdpa_bwd": Kind(
        "SDPA_BWD",
        f"q k v o stats scale? do sink? {_LENGTHS} {_DROPOUT} -> dq dk dv dsink? dbias?",
        _sdpa_backward,
        options={
            "dropout_probability": Option("DROPOUT_PROBABILITY", NUMBER),
            "max_total_seq_len_q": Option("MAX_TOTAL_SEQ_LEN_Q", INTEGER),
            "max_total_seq_len_kv": Option("MAX_TOTAL_SEQ_LEN_KV", INTEGER),
        },
        terms=lambda options, given, made: max(given["q"].shape[2], given["k"].shape[2]),
        dtypes={**dict.fromkeys("qkv", _ATTENTION), "stats": ("float32",), **_LENGTH_DTYPES, **_DROPOUT_DTYPES},
        indices=_LENGTH_INDICES,
    ),
    "moe_grouped_matmul": Kind(
        "MOE_GROUPED_MATMUL",
        "token weight first_token_offset token_index? token_ks? -> output",
        _moe,
        options={
            "mode": Option("MODE", raw.cudnnMoeGroupedMatmulMode_t, raw.CUDNN_MOE_GROUPED_MATMUL_MODE_NONE),
            **_MATH_PREC,
            "top_k": Option("TOP_K", INTEGER),
        },
        terms=lambda options, given, made: given["token"].shape[2],
        dtypes={
            **dict.fromkeys(("token", "weight"), _FACTORS),
            **dict.fromkeys(("first_token_offset", "token_index", "token_ks"), _INT32),
        },
        indices={"first_token_offset": _first_tokens, **dict.fromkeys(("token_index", "token_ks"), _first)},
    ),
    "moe_grouped_matmul_bwd": Kind(
        "MOE_GROUPED_MATMUL_BWD",
        "doutput token first_token_offset -> dweight",
        _moe_backward,
        options=_MATH_PREC,
        terms=lambda options, given, made: given["token"].shape[1],
        dtypes={"first_token_offset": _INT32},
        indices={"first_token_offset": _first_tokens},
    ),
}

# The options of a whole graph: attributes CUDNN_ATTR_OPERATIONGRAPH_...
GRAPH_OPTIONS: Mapping[str, Option] = {
    "dynamic_shapes": Option("IS_DYNAMIC_SHAPE_ENABLED", FLAG),
    "override_shapes": Option("IS_OVERRIDE_SHAPE_ENABLED", FLAG),
    "mode": Option("MODE", raw.cudnnBackendOperationGraphMode_t),
}
