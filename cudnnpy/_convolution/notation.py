"""Write and parse convolutions in the problem notation (cudnnpy._planning.problem_notation).

    forward 128x64x56x56 64x64x3x3 pad=1 float16 channels_last

The first shape is x's and the second w's, for all three operations: (N, C, spatial...) and (K, C / groups, spatial...), in
this order whatever the memory format is. The shape of y (dy) follows from them, so that the same two shapes and the same
geometry describe a convolution and both of its gradients. The other words, with their defaults:

=====================================  =====================================================================
``forward``                            or ``backward_data``, ``backward_filter``
``pad=1``                              ``pad=1,2`` for each axis, ``pad=0:1,2:3`` before and after each, or
                                       ``pad=same``, ``valid``, ``half``, ``full``; 0
``stride=2``, ``dilation=2``           ``stride=2,1`` for each axis; 1
``groups=32``                          1
``mode=convolution``                   ``cross_correlation``
``float16``                            the data type of the tensors, or an alias such as ``fp16``; ``float32``
``y.dtype=float32``                    the data type of the result of int8 and float8 tensors; ``int32`` for
                                       int8, x's otherwise
``compute_dtype=float16``              the data type in which products are summed; a Convolution's default
``channels_last``                      the memory format of x, w and y; ``packed``, channels first
``w.strides=packed``                   the memory format of one tensor, or its strides: ``x.strides=4096,1,64,1``
``x.alignment=4``                      the alignment of an address in bytes, also of ``bias``; 16
``bias``                               a bias is added
``activation=relu``                    or ``relu`` alone
``alpha=0.5``, ``beta=1``              1 and 0
=====================================  =====================================================================

A transposed convolution is written as the convolution that it transposes: its forward is ``backward_data``, with its input as y
and its result as x.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from cudnnpy._checks.dtype_names import ALIASES, ELEMENT_NAMES
from cudnnpy._convolution.options import MODES, PADDINGS, ConvolutionOptions, compute_dtype_for
from cudnnpy._convolution.sizes import output_shape
from cudnnpy._convolution.specification import (
    ACTIVATIONS,
    OPERATIONS,
    ConvolutionSpec,
    bias_dtype,
    make_problem,
    with_normalized_strides,
)
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import (
    TensorSpec,
    byte_extent,
    canonical_spec,
    channels_last_strides,
    check_spec,
    is_format_ambiguous,
    packed_strides,
)
from cudnnpy._core.untrusted_json import LIMIT
from cudnnpy._planning.problem import Problem
from cudnnpy._planning.problem_notation import (
    ParsedText,
    ProblemSyntax,
    ProblemTextError,
    number_text,
    read_integer,
    read_number,
)
from cudnnpy.typing import ElementName

_TENSORS = ("x", "w", "y")
_ORDERS: dict[str, Callable[[tuple[int, ...]], tuple[int, ...]]] = {
    "packed": packed_strides,
    "channels_last": channels_last_strides,
}
_DTYPES = {**{name: name for name in ELEMENT_NAMES}, **ALIASES}
_LAST = "written as channels_last, with shapes that stay (N, C, spatial...)"


# Writing


def words_of(problem: ConvolutionSpec) -> list[str]:
    """Return the words of a problem, without defaults."""
    g, dtype, bias = problem.geometry, problem.x.dtype, problem.bias
    pads = [f"{b}" if b == a else f"{b}:{a}" for b, a in zip(g.pre_padding, g.post_padding, strict=True)]
    axes = {"pad": (pads, "0"), "stride": (map(str, g.stride), "1"), "dilation": (map(str, g.dilation), "1")}
    words = [problem.operation, _joined("x", problem.x.shape), _joined("x", problem.w.shape)]
    for name, (texts, default) in axes.items():
        values = list(texts)
        if set(values) != {default}:
            words.append(f"{name}={values[0] if len(set(values)) == 1 else ','.join(values)}")
    others = {
        f"groups={problem.groups}": problem.groups != 1,
        f"mode={problem.mode}": problem.mode != "cross_correlation",
        dtype: dtype != "float32",
        f"y.dtype={problem.y.dtype}": problem.y.dtype != _result_dtype(problem.operation, dtype),
        f"compute_dtype={problem.compute_dtype}": problem.compute_dtype != compute_dtype_for(None, dtype),
        **dict.fromkeys(_words_of_memory(problem), True),
        "bias": bias is not None,
        f"bias.alignment={bias and bias.alignment}": bias is not None and bias.alignment != 16,
        f"activation={problem.activation}": problem.activation is not None,
        f"alpha={number_text(problem.alpha)}": problem.alpha != 1,
        f"beta={number_text(problem.beta)}": problem.beta != 0,
    }
    return words + [word for word, is_needed in others.items() if is_needed]


def _words_of_memory(problem: ConvolutionSpec) -> list[str]:
    """Return the words of the tensors' memory format, and of the strides and alignments that differ from it."""
    order, others = _fewest_strides(problem)
    words = [] if order == "packed" else [order]
    for name in others:
        spec: TensorSpec = getattr(problem, name)
        alike = next((other for other, strides in _ORDERS.items() if strides(spec.shape) == spec.strides), None)
        words.append(f"{name}.strides={alike or _joined(',', spec.strides or ())}")
    alignments = {name: getattr(problem, name).alignment for name in _TENSORS}
    return words + [f"{name}.alignment={size}" for name, size in alignments.items() if size != 16]


def _fewest_strides(problem: ConvolutionSpec) -> tuple[str, Sequence[str]]:
    """Return the memory format that needs the fewest explicit strides, and the tensors that need them.

    The strides of axes of size 1 follow from all three tensors, so that one tensor's strides can depend on another's.
    """
    tensors_of = problem.x, problem.w, problem.y
    for order, strides_of in _ORDERS.items():  # a shortcut for most problems
        if all(spec.strides == strides_of(spec.shape) for spec in tensors_of) and (
            order == "packed" or not is_format_ambiguous(*tensors_of)
        ):
            return order, ()
    choices = [(order, names) for order in _ORDERS for count in range(4) for names in combinations(_TENSORS, count)]
    for order, names in sorted(choices, key=lambda choice: (len(choice[1]) + (choice[0] != "packed"), len(choice[1]))):
        tensors: dict[str, Any] = {}
        for name in _TENSORS:
            spec = getattr(problem, name)
            strides = spec.strides if name in names else _ORDERS[order](spec.shape)
            tensors[name] = canonical_spec(spec._replace(strides=strides), name)
        if with_normalized_strides(problem._replace(**tensors)) == problem:
            return order, names
    return "packed", _TENSORS


def _joined(mark: str, numbers: tuple[int, ...]) -> str:
    return mark.join(map(str, numbers))


def _result_dtype(operation: str, dtype: str) -> str:
    return "int32" if (operation, dtype) == ("forward", "int8") else dtype


# Reading


def read(given: ParsedText, device: int) -> ConvolutionSpec:
    """Return the problem of a parsed text. Raises ValueError or TypeError, which name the part."""
    x_shape, w_shape = _shapes(given)
    values = given.values
    names = ("padding", "stride", "dilation", "groups", "mode", "compute_dtype")
    options = ConvolutionOptions(**{name: values[name] for name in names if name in values})
    if isinstance(options.padding, tuple) and len(options.padding) == 1:
        options = replace(options, padding=options.padding * (len(x_shape) - 2))
    dtype = dtype_of(values.get("dtype", "float32")).name
    y_dtype = dtype_of(values.get("y.dtype", _result_dtype(given.operation, dtype)), "y.dtype").name
    x, w = _tensor(given, "x", x_shape, dtype), _tensor(given, "w", w_shape, dtype)
    y = _tensor(given, "y", output_shape(options, x_shape, w_shape), y_dtype)
    return make_problem(
        options,
        given.operation,
        x,
        w,
        y,
        alpha=values.get("alpha", 1.0),
        beta=values.get("beta", 0.0),
        bias=_bias(given, x if given.operation == "backward_data" else y),
        activation=values.get("activation"),
        device=device,
    )


def _shapes(given: ParsedText) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of x and w, and note their positions in the text for errors about dy and y."""
    if len(given.operands) != 2:
        got = " ".join(word.text for word in given.operands[:9]) or "no shape"
        column = given.operands[2].column if len(given.operands) > 2 else given.columns["operation"]
        raise ProblemTextError(
            f"shapes must be two, of x and of w, such as 8x3x32x32 16x3x5x5; got {got[:200]}", column
        )
    x, w = given.operands
    given.columns = {"w": w.column, **dict.fromkeys(("x", "y", "dy", "out", "inputs"), x.column), **given.columns}
    for names, cause in (
        (("inputs", "out"), "dtype"),
        (("out",), "y.dtype"),
        *((name, f"{name}.strides") for name in "xwy"),
    ):
        given.columns.update(dict.fromkeys(names, given.columns[cause]) if cause in given.columns else {})
    first, second = (tuple(int(size) for size in word.text.split("x")) for word in (x, w))
    return first, second


def _tensor(given: ParsedText, name: str, shape: tuple[int, ...], dtype: ElementName) -> TensorSpec:
    if math.prod(shape) >= LIMIT:
        raise ValueError(f"{name} must fit into memory; got shape {shape}")
    strides = given.values.get(f"{name}.strides", given.values.get("memory format", "packed"))
    if strides in _ORDERS:
        strides = _ORDERS[strides](shape)
    elif isinstance(strides, str):
        raise ValueError(
            f"{name}.strides must be 'packed', 'channels_last' or {len(shape)} integers; got {strides[:60]!r}"
        )
    spec = check_spec(name, TensorSpec._make((shape, dtype, strides, given.values.get(f"{name}.alignment", 16))))
    whole = canonical_spec(spec, name)
    if byte_extent(whole) >= LIMIT:
        raise ValueError(f"{name} must fit into memory; got shape {shape}, strides {whole.strides}")
    return whole


def _bias(given: ParsedText, result: TensorSpec) -> TensorSpec | None:
    alignment = given.values.get("bias.alignment", 16)
    if not given.values.get("bias"):
        if "bias.alignment" in given.values:
            raise ValueError(f"bias.alignment must come with the word bias; got {alignment} without it")
        return None
    return check_spec("bias", TensorSpec._make(((result.shape[1],), bias_dtype(result.dtype), None, alignment)))


def _read_dtype(text: str) -> str:
    return _DTYPES.get(text, text)


def _read_axes(text: str) -> Any:
    """Return an integer, or a tuple of one for each axis."""
    found = tuple(map(read_integer, text.split(",")))
    return found[0] if len(found) == 1 else found


def _read_padding(text: str) -> Any:
    """Return a name, an integer, or a tuple of an integer or a pair for each axis."""
    if ":" not in text:
        return _read_axes(text)
    sides = (tuple(map(read_integer, axis.split(":"))) for axis in text.split(","))
    return tuple(axis if len(axis) > 1 else axis[0] for axis in sides)


def _read_strides(text: str) -> Any:
    found = tuple(map(read_integer, text.split(",")))
    return text if any(isinstance(stride, str) for stride in found) else found


def kind(read: Callable[[ParsedText, int], Problem]) -> ProblemSyntax:
    """Return the syntax of convolutions. `read` adds the candidates to the problem that the function `read` here returns."""
    return ProblemSyntax(
        OPERATIONS,
        re.compile(r"[0-9]{1,30}(x[0-9]{1,30}){1,12}$"),
        {
            "padding": _read_padding,
            "stride": _read_axes,
            "dilation": _read_axes,
            "groups": read_integer,
            "mode": str,
            "dtype": _read_dtype,
            "y.dtype": _read_dtype,
            "compute_dtype": _read_dtype,
            **{f"{name}.strides": _read_strides for name in _TENSORS},
            **{f"{name}.alignment": read_integer for name in (*_TENSORS, "bias")},
            "activation": str,
            "alpha": read_number,
            "beta": read_number,
        },
        {"pad": "padding"},
        {
            **{name: ("dtype", dtype) for name, dtype in _DTYPES.items()},
            **{order: ("memory format", order) for order in _ORDERS},
            **{mode: ("mode", mode) for mode in MODES},
            **{name: ("activation", name) for name in ACTIVATIONS},
            "bias": ("bias", True),
        },
        {
            **dict.fromkeys(("NWC", "NHWC", "NDHWC"), _LAST),
            **dict.fromkeys(("NCW", "NCHW", "NCDHW"), "left out, or written as packed"),
            **{name: f"written as pad={name}" for name in PADDINGS},
            **dict.fromkeys(
                ("kernel", "kernel_size", "window"), "left out: the size of the filter is in the shape of w"
            ),
        },
        words_of,
        read,
    )
