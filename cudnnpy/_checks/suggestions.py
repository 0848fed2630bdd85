"""Suggestions at the ends of errors: what to type in place of another library's option, value or call of an object."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from difflib import get_close_matches
from functools import wraps
from types import FunctionType
from typing import Any, NoReturn, TypeAlias, TypeVar, cast

_ClassT = TypeVar("_ClassT", bound=type)
_FunctionT = TypeVar("_FunctionT", bound=Callable[..., Any])
Suggest: TypeAlias = Callable[[Any, str, tuple[str, ...]], str]

_SHOWN = 60  # characters of a name that are compared
_CUTOFF = 0.75  # of difflib's ratio, for names that are meant
_VARIABLE_KEYWORDS = 8  # inspect.CO_VARKEYWORDS

# Options of PyTorch, TensorFlow, JAX, Theano, SINGA, MXNet, CuPy and cudnn-frontend -> ours, if the operation has it.
_OPTIONS: dict[str, str] = {
    **dict.fromkeys(("pad", "pads", "border_mode", "pre_padding", "post_padding"), "padding"),
    **dict.fromkeys(("strides", "subsample", "window_strides", "filter_stride"), "stride"),
    **dict.fromkeys(("dilate", "dilations", "rhs_dilation", "dilation_rate", "filter_dilation"), "dilation"),
    **dict.fromkeys(("group", "num_group", "num_groups", "feature_group_count"), "groups"),
    **dict.fromkeys(("conv_mode", "convolution_mode", "pool_type", "pooling_mode", "act_type", "norm_mode"), "mode"),
    **dict.fromkeys(("data_format", "dimension_numbers", "d_layout", "w_layout", "tensor_format"), "layout"),
    **dict.fromkeys(("compute_type", "compute_data_type", "accumulate_dtype"), "compute_dtype"),
    **dict.fromkeys(("algo", "algo_fwd", "algo_bwd_data", "algo_bwd_filter", "workmem"), "algorithm"),
    **dict.fromkeys(("cudnn_prefer", "cudnn_tune", "preference", "auto_tune", "benchmark", "heur_mode"), "prefer"),
    **dict.fromkeys(("allow_tf32", "tensor_core", "math_type", "precision"), "tf32"),
    **dict.fromkeys(("kernel", "kernel_size", "kernel_shape", "ksize", "ws", "pool_size", "window_shape"), "window"),
    **dict.fromkeys(("eps", "variance_epsilon"), "epsilon"),
    **dict.fromkeys(("alpha", "coef", "slope", "negative_slope"), "coefficient"),
    **dict.fromkeys(("is_causal", "use_causal_mask"), "causal"),
    "adj": "output_padding",
    "workspace": "workspace_limit",
    "workspace_MB_limit": "workspace_limit",
    "max_workspace_size": "workspace_limit",
}

_FILTER = "The numbers of channels and the size of the filter are the shape of w, as in forward(x, w)"
_TARGET = "For each axis, output_padding = target - ((size - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1)"
# Options that have no counterpart of their own -> a sentence.
_SENTENCES: dict[str, str] = {
    **dict.fromkeys(("in_channels", "out_channels", "num_filter", "filters", "kernel", "kernel_size"), _FILTER),
    **dict.fromkeys(("kernel_shape", "weight", "w"), _FILTER),
    **dict.fromkeys(("num_features", "channels"), "The arrays' shapes have the number of channels"),
    **dict.fromkeys(("bias", "use_bias", "no_bias"), "A bias is an argument of forward"),
    "activation": "An activation is an argument of forward",
    "lhs_dilation": "It is the stride of cudnnpy.ConvolutionTranspose",
    **dict.fromkeys(("output_padding", "adj"), "It is an option of cudnnpy.ConvolutionTranspose"),
    **dict.fromkeys(
        ("momentum", "decay"), "Give average_factor to forward_training: 1 - momentum, or PyTorch's momentum"
    ),
    **dict.fromkeys(("affine", "fix_gamma"), "Scale and bias are arguments of the calls; None is 1 and 0"),
    **dict.fromkeys(("target_shape", "output_shape"), _TARGET),
    "padding_mode": "Padding is zeros; pad x yourself for another mode",
    "direction_hint": "Each direction is a method: forward, backward_data, backward_filter",
    "cudnn_off": "Compute with cudnnpy.reference, which has the same classes",
    **dict.fromkeys(
        ("alpha", "beta", "out", "stream"),
        "It is an argument of the calls: conv.forward(x, w, out=, alpha=, beta=, stream=)",
    ),
    **dict.fromkeys(("dim", "axis"), 'The channels are axis 1, or the last axis with layout="NHWC"'),
    **dict.fromkeys(
        ("ceil_mode", "ignore_border"),
        "Sizes are rounded down. To round up, pad x at the end until the last window fits: with -infinity for a maximum, and "
        "with zeros, which count, for an average",
    ),
    "count_include_pad": 'Give mode="average_include_padding" or "average_exclude_padding"',
    "inplace": "Give out=x to the call",
    **dict.fromkeys(("device", "dtype"), "The arrays of a call have them"),
    "layout": "The axes are (N, C, spatial...); strides= of (H * W * C, 1, W * C, C) are channels last",
    **dict.fromkeys(("dropout", "dropout_p"), "Attention with dropout is a kind of cudnnpy.Graph: docs/not-here.md"),
    **dict.fromkeys(
        ("attn_mask", "mask"), "Give bias=, -infinity where nothing is attended; or causal=True, window=, lengths_q="
    ),
}

_AVERAGES = "Did you mean 'average_include_padding' or 'average_exclude_padding'?"
# Values of options of other libraries -> sentences, each for options that accept the first word; "" is any option.
_VALUES: dict[str, dict[str, str]] = {
    "time_once": {"": 'Theano\'s time_once is prefer="autotune", policy="once"'},
    "time_on_shape_change": {"": 'Theano\'s time_on_shape_change is prefer="autotune"'},
    "guess_once": {"": 'Theano\'s guess_once is prefer="fastest", policy="once"'},
    "guess_on_shape_change": {"": 'Theano\'s guess_on_shape_change is prefer="fastest"'},
    "as_input": {"float16": 'Theano\'s as_input is compute_dtype=None, and for float16 arrays compute_dtype="float16"'},
    "as_input_f32": {"float16": "Theano's as_input_f32 is compute_dtype=None, the default"},
    "avg": {"average_include_padding": _AVERAGES, "avgpool": "Did you mean 'avgpool_include_padding'?"},
    "sum": {
        "average_include_padding": "Theano's sum is 'average_include_padding' with alpha= the number of elements of the window",
        "add": "Did you mean 'add'?",
    },
    "off": {"fastest": "MXNet's off is prefer='fastest'"},
    **{name: {"fastest": "cudnn-frontend's heur_mode.A is prefer='fastest'"} for name in ("heur_mode_a", "a")},
    "channels_last": {
        "NHWC": "Axes (N, H, W, C) are 'NHWC'; axes (N, C, H, W) that are channels last in memory need no option"
    },
    "channels_first": {"NCHW": "Axes (N, C, H, W) are 'NCHW'"},
    **{
        name: {ours: f"Did you mean {ours!r}?"}
        for ours, names in (
            ("forward", ("fwd", "fprop", "conv", "conv2d", "conv_fprop")),
            ("backward_data", ("bwd_data", "bprop", "dgrad", "conv_dgrad", "gradi", "backward_input", "backward_x")),
            ("backward_filter", ("bwd_filter", "wgrad", "conv_wgrad", "gradw", "backward_weight", "backward_w")),
        )
        for name in names
    },
    "relu6": {"clipped_relu": "It is 'clipped_relu' with coefficient=6"},
    "gelu": {"swish": "A gelu is an operation of graphs: cudnnpy.Graph().pointwise('gelu_fwd', x)"},
    "leaky_relu": {
        "swish": "A leaky relu is an operation of graphs: "
        "cudnnpy.Graph().pointwise('relu_fwd', x, how={'relu_lower_clip_slope': slope})"
    },
    **{name: {"int8x4": f"The memory format is format={name!r}, or strides="} for name in ("nhwc", "nchw")},
    "float": {"float64": "float in C is 'float32', and in NumPy 'float64'"},
    "silu": {"swish": "Did you mean 'swish'?", "swish_fwd": "Did you mean 'swish_fwd'?"},
    "mean": {"avg": "Did you mean 'avg'?"},
}


def suggest_value(value: str, allowed: Iterable[str]) -> str:
    """Return the end of an error about a value: another library's value in our words, or the names that may be meant, or ""."""
    name = value[:_SHOWN].lower().replace("-", "_")
    names = list(allowed)
    for accepted, sentence in _VALUES.get(name, {}).items():
        if not accepted or accepted in names:
            return f". {sentence}"
    in_another_case = [known for known in names if known.lower() == name]
    return did_you_mean(
        in_another_case or [known for known in names if name and known.startswith(name)] or near(name, names)
    )


def near(name: str, known: Iterable[str]) -> list[str]:
    """Return the name that a misspelled name may mean, if there is one, in a list."""
    return get_close_matches(name[:_SHOWN], sorted(known), 1, _CUTOFF)


def did_you_mean(names: list[str]) -> str:
    """Return the end of an error that names one or two candidates for a misspelled name; "" for none."""
    return f". Did you mean {' or '.join(map(repr, names[:2]))}?" if names else ""


def suggest_option(_object: object, option: str, names: Collection[str]) -> str:
    """Return the end of the error for an unknown option, which may be another library's, or ""."""
    ours = our_option(option)
    if ours in names:
        unit = ", in bytes" if ours == "workspace_limit" else ""
        return f". Did you mean {ours}={unit}?"
    if option in _SENTENCES:
        return f". {_SENTENCES[option]}"
    return "".join(f". Did you mean {name}=?" for name in near(option, names))


def with_suggestions(options_class: _ClassT) -> _ClassT:
    """Make the constructor of a dataclass explain unknown arguments: other libraries' names, and numbers of channels.

    `__init__` stays the constructor of the dataclass for help, signatures and type checkers.
    """
    options_class.__init__ = explained(options_class.__init__)  # type: ignore[misc]
    return options_class


def explain_keywords(kind: type, suggest: Suggest) -> None:
    """Make the public methods that a class defines explain calls that do not fit, except those that take any keyword.

    `suggest` returns the end of the error from the object, the unknown keyword and the names of the arguments.
    """
    for name, attribute in list(vars(kind).items()):
        wrap = type(attribute) if isinstance(attribute, classmethod | staticmethod) else lambda function: function
        method: Any = getattr(attribute, "__func__", attribute)
        is_public = name == "__init__" or not name.startswith("_")
        if is_public and isinstance(method, FunctionType) and not method.__code__.co_flags & _VARIABLE_KEYWORDS:
            setattr(kind, name, wrap(explained(method, suggest)))


def explained(function: _FunctionT, suggest: Suggest = suggest_option) -> _FunctionT:
    """Make a function or method explain unknown keywords, and arguments that are missing or too many."""

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        try:
            return function(*given, **named)
        except TypeError:
            _check_call(call, given, named, suggest)
            raise

    return cast(_FunctionT, call)


def _check_call(function: Any, given: tuple[Any, ...], named: dict[str, Any], suggest: Suggest) -> None:
    """Raise TypeError for arguments that the signature of a function does not take."""
    from inspect import Signature, signature  # importing cudnnpy.raw would take a tenth longer

    accepted, called = signature(function), function.__qualname__
    is_method = next(iter(accepted.parameters), "") in ("self", "cls") and bool(given)
    if called.endswith((".__init__", ".__new__")) and is_method:
        called = (given[0] if isinstance(given[0], type) else type(given[0])).__name__
    parameters = list(accepted.parameters.values())[is_method:]
    known = tuple(one.name for one in parameters)
    takes_any = any(one.kind == one.VAR_KEYWORD for one in parameters)
    if unknown := next((name for name in named if name not in known and not takes_any), ""):
        raise TypeError(
            f"an argument of {called} must be one of {', '.join(known)}; got {unknown!r:.80}"
            f"{suggest(given[0] if given else None, unknown, known)}"
        ) from None
    try:
        accepted.bind(*given, **named)
    except TypeError as error:
        bare = [one.replace(annotation=one.empty) for one in parameters]
        named_only = next((one.name for one in parameters if one.kind == one.KEYWORD_ONLY), "")
        advice = f". {_FILTER if 'dilation' in known else f'The arguments after * have names, as {named_only}='}"
        texts = ", ".join((*map(shown, given[is_method:]), *(f"{name}={shown(one)}" for name, one in named.items())))
        raise TypeError(
            f"the arguments of {called} must be {Signature(bare)}; got ({texts:.200}): {error}"
            f"{advice if named_only and 'too many' in str(error) else ''}"
        ) from None


def shown(argument: object) -> str:
    """Return an argument as an error about a call shows it: a number or text by its value, any other by its type."""
    return repr(argument) if isinstance(argument, int | float | str | None) else type(argument).__name__


def suggest_argument(operation: object, unknown: str, known: tuple[str, ...]) -> str:
    """Return the end of the error for an unknown keyword of a layer's method, which may be an option of the layer."""
    from dataclasses import fields

    kind: Any = type(operation)
    options = [option.name for option in fields(kind) if option.init]
    ours = unknown if unknown in options else our_option(unknown)
    if ours in options:
        return f". It is an option of the operation: {kind.__name__}({ours}=...)"
    guess = did_you_mean(near(unknown, known))
    return guess or (f". {_SENTENCES[unknown]}" if unknown in _SENTENCES else "")


def our_option(option: str) -> str:
    """Return our name of another library's option, or ""."""
    return _OPTIONS.get(option, "")


def refuse_call(operation: object, *arguments: object, **options: object) -> NoReturn:
    """Raise the TypeError of a call of an operation itself, which layers of frameworks permit: it names the methods."""
    kind = type(operation)
    methods = [name for name in dir(kind) if name.startswith(("forward", "backward"))]
    methods.sort(key=lambda name: not name.startswith("forward"))
    raise TypeError(
        f"a call of {kind.__name__} must name a method ({', '.join(methods)}); got a call of the object itself"
    )
