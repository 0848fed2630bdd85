"""Convert a convolution to an operation graph and back (`as_convolution`), with its bias and activation."""

from __future__ import annotations

from typing import Any, cast

from cudnnpy import raw
from cudnnpy._convolution.options import ConvolutionOptions
from cudnnpy._convolution.specification import OPERANDS, ROLES, ConvolutionSpec, make_problem
from cudnnpy._core.layouts import (
    TensorSpec,
    has_same_layout,
    result_strides,
    with_channels_last_strides,
    with_two_spatial_axes,
)
from cudnnpy.graph.kinds import KINDS, pointwise_name
from cudnnpy.graph.operation_graph import Operation, OperationGraph, Tensor, canonical_graph
from cudnnpy.names import enumerator, short_name
from cudnnpy.typing import ConvolutionMode, ElementName

# The unique ids of the tensors in a graph; "biased" is the result before the activation.
_UIDS = {"x": 1, "w": 2, "y": 3, "bias": 4, "convolved": 5, "biased": 6}
_KIND = "convolution_"  # the kind of an operation in a graph begins so


def uids(operands: tuple[str, ...]) -> tuple[int, ...]:
    """Return the unique ids of operands by name."""
    return tuple(_UIDS[ROLES.get(name, name)] for name in operands)


def convolution_graph(problem: ConvolutionSpec) -> OperationGraph:
    """Return the operation graph of a problem: the convolution, then its bias and activation."""
    x, w, y = problem.x, problem.w, problem.y
    if problem.bias is None and problem.activation is None:
        return _graph({"x": x, "w": w, "y": y}, [_convolution(problem, "y")])
    x, w, y = with_channels_last_strides(x, w, y)
    wide = _wide(problem.compute_dtype)
    specs, operations = _epilogue(y, problem.bias, problem.activation, wide)
    before = {"x": x, "w": w, "convolved": y._replace(dtype=wide)}
    return _graph({**before, **specs}, [_convolution(problem, "convolved"), *operations], ("convolved", "biased"))


def epilogue_graph(y: TensorSpec, bias: TensorSpec | None, activation: str | None) -> OperationGraph:
    """Return the operation graph of a bias and an activation on a convolution's result in memory, in place."""
    specs, operations = _epilogue(y, bias, activation, _wide(y.dtype))
    return _graph({"convolved": y, **specs}, operations, ("biased",))


def _graph(specs: dict[str, TensorSpec], operations: list[Operation], virtual: tuple[str, ...] = ()) -> OperationGraph:
    """Return the graph of operations on tensors, which have at least two spatial axes then."""
    tensors = []
    for name, spec in specs.items():
        shape, strides = with_two_spatial_axes(spec)
        tensors.append(Tensor(_UIDS[name], spec._replace(shape=shape, strides=strides), name in virtual))
    return OperationGraph(tuple(tensors), tuple(operations))


def _convolution(problem: ConvolutionSpec, result: str) -> Operation:
    """Return the convolution or gradient. `result` is the tensor in the place of y."""
    g = problem.geometry
    options = {
        "alpha": problem.alpha,
        "beta": problem.beta,
        "compute_dtype": problem.compute_dtype,
        "mode": enumerator(raw.cudnnConvolutionMode_t, problem.mode, "mode"),
        "spatial_dims": max(len(g.stride), 2),
        "pre_padding": _spatial(g.pre_padding, 0),
        "post_padding": _spatial(g.post_padding, 0),
        "stride": _spatial(g.stride, 1),
        "dilation": _spatial(g.dilation, 1),
    }
    if problem.operation != "forward":
        options["shape"] = with_two_spatial_axes(problem.specs[-1])[0]
    tensors = {name: result if ROLES[name] == "y" else ROLES[name] for name in OPERANDS[problem.operation]}
    return _operation(_KIND + problem.operation, options, tensors)


def _epilogue(
    y: TensorSpec, bias: TensorSpec | None, activation: str | None, wide: ElementName
) -> tuple[dict[str, TensorSpec], list[Operation]]:
    """Return a bias and an activation on the tensor "convolved", computed in the dtype `wide`, with their other tensors."""
    specs, last = {"y": y}, "convolved"
    steps: list[tuple[str, dict[str, str]]] = []
    if bias is not None:
        shape = (1, y.shape[1], *(1 for _ in y.shape[2:]))
        specs["bias"] = bias._replace(shape=shape, strides=result_strides(shape, y))
        steps.append(("add", {"x": last, "b": "bias", "y": "y" if activation is None else "biased"}))
        if activation is not None:
            specs["biased"], last = y._replace(dtype=wide), "biased"
    if activation is not None:
        steps.append((f"{activation}_fwd", {"x": last, "y": "y"}))
    modes = ((enumerator(raw.cudnnPointwiseMode_t, mode, "mode"), tensors) for mode, tensors in steps)
    return specs, [_operation("pointwise", {"mode": mode, "compute_dtype": wide}, tensors) for mode, tensors in modes]


def _operation(kind: str, options: dict[str, Any], tensors: dict[str, str]) -> Operation:
    row = KINDS[kind]
    operands, results = (
        tuple((name, _UIDS[tensors[name]]) for name in names if name in tensors)
        for names in (row.operands, row.results)
    )
    return Operation(kind, tuple(row.complete(options).items()), operands, results)


def _wide(dtype: ElementName) -> ElementName:
    """Return the dtype of values between two operations: float64 for float64, else float32."""
    return "float64" if dtype == "float64" else "float32"


def _spatial(values: tuple[int, ...], first: int) -> tuple[int, ...]:
    """Return the values for at least two spatial axes; `first` is the value of an added axis."""
    return (first, *values) if len(values) == 1 else values


def as_convolution(graph: OperationGraph, device: int) -> tuple[ConvolutionSpec, tuple[int, ...]] | None:
    """Return the convolution that a canonical graph is, and the unique ids of its operands in their order.

    Return None for any other graph. The convolution's own graph is compared with it, so that a doubtful graph is planned as
    a graph.
    """
    first, *epilogue = graph.operations
    operation = first.kind.removeprefix(_KIND)
    if operation not in OPERANDS or len(epilogue) > 2 or len(graph.outputs) != 1:
        return None
    if any(one.kind != "pointwise" for one in epilogue):
        return None
    at: dict[str, Any] = {ROLES[name]: uid for name, uid in first.tensors.items()}
    result = ROLES[first.results[0][0]]
    at[result] = graph.outputs[0]
    modes = [pointwise_name(one.option("mode")) for one in epilogue]
    activation = modes[-1].removesuffix("_fwd") if modes and modes[-1] != "add" else None
    specs = graph.specs
    x, w, y = (specs[at[role]] for role in ("x", "w", "y"))
    bias = None
    if modes[:1] == ["add"]:
        at["bias"] = dict(epilogue[0].operands)["b"]
        bias = specs[at["bias"]]._replace(shape=(specs[at[result]].shape[1],), strides=(1,))
    options = ConvolutionOptions(
        padding=list(zip(first.option("pre_padding"), first.option("post_padding"), strict=True)),
        stride=first.option("stride"),
        dilation=first.option("dilation"),
        groups=max(x.shape[1] // w.shape[1], 1),
        mode=cast(ConvolutionMode, short_name(first.option("mode"))),
        compute_dtype=first.option("compute_dtype"),
    )
    try:
        found = make_problem(
            options,
            operation,
            x,
            w,
            y,
            alpha=first.option("alpha"),
            beta=first.option("beta"),
            bias=bias,
            activation=activation,
            device=device,
        )
    except (TypeError, ValueError):  # such as a data type of the result that convolutions do not offer
        return None
    whole, numbers = canonical_graph(convolution_graph(found))
    order = tuple(numbers[uid] for uid in uids(found.operands))
    return (found, order) if _is_same(whole, graph) else None


def _is_same(a: OperationGraph, b: OperationGraph) -> bool:
    """Return whether two canonical graphs compute the same, on tensors of the same layouts."""
    return a.operations == b.operations and all(
        (one.is_virtual, one.number, one.spec.dtype, one.spec.shape)
        == (two.is_virtual, two.number, two.spec.dtype, two.spec.shape)
        and (one.is_virtual or (one.spec.alignment == two.spec.alignment and has_same_layout(one.spec, two.spec)))
        for one, two in zip(a.tensors, b.tensors, strict=True)
    )
