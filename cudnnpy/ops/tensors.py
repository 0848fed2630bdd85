"""Sums, multiples, copies and fills of tensors: cudnnOpTensor, cudnnScaleTensor, cudnnTransformTensor, cudnnSetTensor.

On an H200, where the memory bandwidth is the limit, the functions take 1.1 to 2.4 times as long as PyTorch and graphs that
see the memory as rows 0.4 to 1.1 times as long. Changes of layout by cudnnTransformTensor take 0.3 to 0.5 times as long.
cudnnSetTensor takes up to 35 times as long, so dense memory is filled by the driver (docs/benchmarks).
"""

from __future__ import annotations

import math

from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import (
    MEMORY_LAYOUTS,
    TensorSpec,
    byte_extent,
    channels_last_strides,
    is_dense,
    packed_strides,
    to_packed,
)
from cudnnpy._launch import dispatch
from cudnnpy._launch.dispatch import Call
from cudnnpy._launch.fill_executables import fill
from cudnnpy._launch.operands import (
    FLOATS,
    as_rows,
    check_input,
    check_like,
    check_no_overlaps,
    resolve_output,
    row_view_shape,
)
from cudnnpy._launch.program import Operand, Program
from cudnnpy._launch.step_builder import StepBuilder
from cudnnpy._launch.steps import (
    AliasSwitch,
    Executable,
    FunctionCall,
    OperandAddress,
    Step,
    copy,
    op_tensor,
    scaling_arguments,
    tensor_descriptor,
)
from cudnnpy._options.arguments import check_scales
from cudnnpy._options.checks import check_number, check_option, error_repr
from cudnnpy.graph.graph import Graph
from cudnnpy.typing import Array, ArrayT, Dtype, ElementName, MemoryLayout, Stream


def add_tensor(
    a: ArrayT,
    b: Array,
    out: ArrayT | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    stream: Stream | None = None,
) -> ArrayT:
    """Compute alpha * a + beta * b, where a is broadcast to the shape of b (cudnnAddTensor, cudnnOpTensor).

    Parameters
    ----------
    a : array
        float16, bfloat16, float32 or float64, with b's number of axes, each of b's size or of size 1.
    b : array
        Of a's dtype, with 1 to 5 axes of any size.
    out : array, optional
        The result, of b's shape and dtype; it may be b itself (in place), or a if it has b's shape.
    alpha, beta : float
        Factors of a and of b.
    stream : stream, optional
        Where the work is queued; the library's current stream by default.

    Returns
    -------
    array
        `out`, or a new array of a's library, of b's shape, dtype and memory format.

    Raises
    ------
    TypeError, ValueError
        Arguments do not fit.
    NotSupportedError
        cuDNN does not support the operation.

    Examples
    --------
    >>> # on a GPU
    >>> import numpy as np
    >>> import cudnnpy
    >>> bias, out = (cudnnpy.to_device(np.ones(shape, np.float32)) for shape in ((1, 3, 1, 1), (2, 3, 4, 4)))
    >>> cudnnpy.add_tensor(bias, out).shape
    (2, 3, 4, 4)
    """
    return dispatch.run("add_tensor", None, _add, ("a", "b", "out"), (a, b), (out,), stream, alpha, beta)


def scale_tensor(x: ArrayT, alpha: float, out: ArrayT | None = None, stream: Stream | None = None) -> ArrayT:
    """Compute alpha * x (cudnnScaleTensor).

    Parameters
    ----------
    x : array
        float16, bfloat16, float32 or float64, with 1 to 5 axes of any size.
    alpha : float
        The factor.
    out : array, optional
        The result, of x's shape and dtype; it may be x itself (in place).
    stream : stream, optional
        Where the work is queued; the library's current stream by default.

    Returns
    -------
    array
        `out`, or a new array of x's library, shape, dtype and memory format.

    Raises
    ------
    TypeError, ValueError
        Arguments do not fit.

    Examples
    --------
    >>> # on a GPU
    >>> import numpy as np
    >>> import cudnnpy
    >>> x = cudnnpy.to_device(np.array([1.0, 2.0], np.float32))
    >>> cudnnpy.to_numpy(cudnnpy.scale_tensor(x, 3.0)).tolist()
    [3.0, 6.0]
    """
    return dispatch.run("scale_tensor", None, _scale, ("x", "out"), (x,), (out,), stream, alpha)


def set_tensor(out: ArrayT, value: float, stream: Stream | None = None) -> ArrayT:
    """Fill an array with a value (cudnnSetTensor).

    Parameters
    ----------
    out : array
        The array, which is written: float16, bfloat16, float32 or float64, with 1 to 5 axes of any size.
    value : float
        The value, which is rounded to out's dtype.
    stream : stream, optional
        Where the work is queued; the library's current stream by default.

    Returns
    -------
    array
        `out`.

    Raises
    ------
    TypeError, ValueError
        Arguments do not fit.

    Examples
    --------
    >>> # on a GPU
    >>> import numpy as np
    >>> import cudnnpy
    >>> cudnnpy.to_numpy(cudnnpy.set_tensor(cudnnpy.empty((2,)), 5.0)).tolist()
    [5.0, 5.0]
    """
    number = value if value.__class__ is float else check_number("value", value, nan=True)
    # Plans are found by the number's text, since 0.0 equals -0.0 and NaN does not equal itself.
    return dispatch.run("set_tensor", None, _set, ("out", "out"), (out,), (out,), stream, number.hex())


def transform_tensor(
    x: ArrayT,
    out: ArrayT | None = None,
    layout: MemoryLayout | None = None,
    dtype: Dtype | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    stream: Stream | None = None,
) -> ArrayT:
    """Compute alpha * x + beta * out in another memory format or dtype; the axes keep their order (cudnnTransformTensor).

    Parameters
    ----------
    x : array
        float16, bfloat16, float32 or float64, with 1 to 5 axes of any size.
    out : array, optional
        The result, of x's shape; its memory format and dtype take precedence over layout and dtype.
    layout : {"C", "channels_last"}, optional
        The memory format of a new array: "C" (the last axis varies fastest) or "channels_last" (axis 1 varies fastest, then
        the last one; 3 to 5 axes); by default x's.
    dtype : str or numpy.dtype, optional
        The dtype of a new array: float16, bfloat16 or float32, or float64 if x is float64; by default x's.
    alpha, beta : float
        Factors of x and of `out`; out is not read if beta is 0.
    stream : stream, optional
        Where the work is queued; the library's current stream by default.

    Returns
    -------
    array
        `out`, or a new array of x's library and shape.

    Raises
    ------
    TypeError, ValueError
        Arguments do not fit.
    NotSupportedError
        cuDNN does not support the operation.

    Examples
    --------
    >>> # on a GPU
    >>> import numpy as np
    >>> import cudnnpy
    >>> x = cudnnpy.to_device(np.zeros((2, 3, 4, 5), np.float32))
    >>> cudnnpy.transform_tensor(x, layout="channels_last").strides  # in elements
    (60, 1, 15, 3)
    """
    name, names = "transform_tensor", ("x", "out")
    return dispatch.run(name, None, _transform, names, (x,), (out,), stream, layout, dtype, alpha, beta)


def _add(call: Call, alpha: float, beta: float) -> tuple[Program, list[TensorSpec]]:
    a, b = check_input(call, "a", empty=True), check_input(call, "b", empty=True)
    if a.dtype != b.dtype:
        raise TypeError(f"a must be {b.dtype}, as b; got {a.dtype}")
    if len(a.shape) != len(b.shape) or any(m not in (1, n) for m, n in zip(a.shape, b.shape, strict=True)):
        raise ValueError(f"a must have shape {b.shape}, as b, or 1 for any of its sizes; got shape {a.shape}")
    c = resolve_output(call, "out", b.shape, b.dtype, b)
    operands = check_no_overlaps(call, (Operand("a", a), Operand("b", b), Operand("out", c, True, ("a", "b"))))
    check_scales(alpha, beta)
    if not byte_extent(c):
        return Program("sum", call.device, operands, []), [c]
    step = _sum_by_graph(call, a, b, c) if (alpha, beta) == (1.0, 1.0) else None
    if step is None:
        dtype: ElementName = "float64" if b.dtype == "float64" else "float32"
        step = Step(op_tensor("add", dtype, (b, 1), (a, 0), (c, 2), factors=(beta, alpha, 0.0)), (0, 1, 2))
    return Program("sum", call.device, operands, [step]), [c]


def _sum_by_graph(call: Call, a: TensorSpec, b: TensorSpec, c: TensorSpec) -> Step | None:
    """A sum by a graph on rows: of tensors in one memory format, or of channels last and one value for each channel."""
    if a.shape != b.shape:
        return _bias_by_graph(call, a, b) if row_view_shape(b, c) else None
    shape = row_view_shape(b, c, a)
    if shape is None:
        return None
    graph = Graph()
    one, two = graph.tensor("a", as_rows(a, shape)), graph.tensor("b", as_rows(b, shape))
    graph.output("out", graph.pointwise("add", two, one), strides=as_rows(c, shape).strides)
    planned = graph.executable(call.device)
    return Step(planned, (0, 1, 2)) if planned else None


def _bias_by_graph(call: Call, a: TensorSpec, b: TensorSpec) -> Step | None:
    """The sum of a channels-last tensor and one value for each channel. No engine takes this channels first.

    The graph has four axes: three-axes-bias in docs/known-issues.md.
    """
    n, channels, *spatial = b.shape if len(b.shape) > 2 else (0, 0)
    if (
        not channels
        or a.alignment < 16
        or math.prod(a.shape) != a.shape[1]
        or a.shape[1] != channels
        or not is_dense(a)
    ):
        return None
    if b.strides != channels_last_strides(b.shape):
        return None
    graph = Graph()
    one = graph.tensor("a", as_rows(a, (1, channels)))
    two = graph.tensor("b", as_rows(b, (n * math.prod(spatial), channels)))
    graph.output("out", graph.pointwise("add", two, one), strides=two.spec.strides)
    planned = graph.executable(call.device)
    return Step(planned, (0, 1, 2)) if planned else None


def _scale(call: Call, alpha: float) -> tuple[Program, list[TensorSpec]]:
    x = check_input(call, "x", empty=True)
    y = resolve_output(call, "out", x.shape, x.dtype, x)
    operands = check_no_overlaps(call, (Operand("x", x), Operand("out", y, True, ("x",))))
    factor = scaling_arguments(alpha, 0.0, x.dtype)[0]
    if not byte_extent(y):
        return Program("multiple", call.device, operands, []), [y]
    shape = row_view_shape(x, y)
    executable: Executable | None = None
    if shape is not None:
        graph = Graph()
        scaled = graph.pointwise("mul", graph.tensor("x", as_rows(x, shape)), graph.number(alpha))
        graph.output("out", scaled, strides=as_rows(y, shape).strides)
        executable = graph.executable(call.device)
    if executable is None:
        in_place = FunctionCall("cudnnScaleTensor", tensor_descriptor(x), OperandAddress(0), factor)
        executable = AliasSwitch(0, 1, in_place, copy(x, y, alpha))
    return Program("multiple", call.device, operands, [Step(executable, (0, 1))]), [y]


def _set(call: Call, text: str) -> tuple[Program, list[TensorSpec]]:
    out, value = check_input(call, "out", empty=True), float.fromhex(text)
    operands = Operand("out", out, True, ("out",)), Operand("out", out)
    return Program("fill", call.device, operands, [Step(fill(out, value), (0,))] if byte_extent(out) else []), [out]


def _transform(
    call: Call, layout: MemoryLayout | None, dtype: Dtype | None, alpha: float, beta: float
) -> tuple[Program, list[TensorSpec]]:
    x = check_input(call, "x", empty=True)
    if layout is not None:
        check_option("layout", layout, MEMORY_LAYOUTS)
    kind = x.dtype if dtype is None else dtype_of(dtype).name
    if kind not in FLOATS:
        raise TypeError(f"dtype must be {' or '.join(FLOATS)}; got {error_repr(dtype)}")
    if layout == "channels_last" and len(x.shape) < 3:
        raise ValueError(f"x must have 3, 4 or 5 axes; got shape {x.shape} (layout='channels_last')")
    if "out" in call.specs:
        y = check_input(call, "out", empty=True)
        y = check_like(call, "out", x.shape, y.dtype)
    else:
        y = resolve_output(call, "out", x.shape, kind, x, beta)
        strides = {"C": packed_strides(x.shape), None: y.strides}.get(layout) or channels_last_strides(x.shape)
        y = y._replace(strides=strides)
    if y.dtype == "float64" != x.dtype:  # transform-to-float64 in docs/known-issues.md
        name = "out" if "out" in call.specs else "dtype"
        raise TypeError(
            f"{name} must be {', '.join(FLOATS[:3])} for x of {x.dtype}; got float64. cudnnTransformTensor takes its "
            "factors as float for some such shapes and as double for others"
        )
    scaling_arguments(alpha, beta, x.dtype)
    operands = check_no_overlaps(call, (Operand("x", x), Operand("out", y, True)))
    if not byte_extent(y):
        return Program("copy", call.device, operands, []), [y]
    shape = row_view_shape(x, y) if (alpha, beta) == (1.0, 0.0) else None
    executable: Executable | None = None
    if shape is not None:
        graph = Graph()
        graph.output("out", graph.pointwise("identity", graph.tensor("x", as_rows(x, shape))), y.dtype)
        # The heuristics' second proposal takes 0.9 of the time of the first.
        executable = graph.executable(call.device, 1)
    if executable is None and {x.dtype, y.dtype} == {"float16", "bfloat16"}:  # transform-half-to-bfloat16, also there
        builder = StepBuilder({"x": x, "out": y})
        wide = builder.scratch(to_packed(x, "float32"))
        builder.copy(builder.operands["x"], wide)
        builder.copy(wide, builder.operands["out"], alpha, beta)
        executable = builder.sequence()
    executable = executable or copy(x, y, alpha, beta)
    return Program("copy", call.device, operands, [Step(executable, (0, 1))]), [y]
