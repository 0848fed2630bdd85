"""The tensors of a call of a layer, and the problem that a convolution's call asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cudnnpy._arrays.array_libraries import read, spec_of
from cudnnpy._checks.call_arguments import check_scales, gradient_shape
from cudnnpy._checks.option_values import check_shape, error_repr, in_array_order, is_channels_last
from cudnnpy._convolution.options import ConvolutionOptions, algorithm_named
from cudnnpy._convolution.sizes import output_shape
from cudnnpy._convolution.specification import OPERANDS, ROLES, make_problem
from cudnnpy._core.layouts import CHANNELS_FIRST, TensorSpec, canonical_spec, check_spec, result_strides, to_logical
from cudnnpy._launch.dispatch import Call
from cudnnpy._launch.operands import in_logical_order
from cudnnpy._layers.lowerings.convolution_candidates import ConvolutionProblem
from cudnnpy._planning.chooser import OtherGpu, check_device
from cudnnpy.typing import Layout


class OperationRequest(NamedTuple):
    """An operation on the arrays of a call.

    `names` are the names of the two inputs in the call, which may also have a bias and an out. `shape` is the shape of a
    gradient, which may be None if there is an out.
    """

    call: Call
    operation: str
    names: tuple[str, str]
    activation: str | None = None
    alpha: float = 1.0
    beta: float = 0.0
    shape: Any = None


def problem_of_call(options: ConvolutionOptions, request: OperationRequest) -> ConvolutionProblem:
    """Return the problem of an operation. Raises ValueError or TypeError, which name the argument."""
    call, operation, names, activation, alpha, beta, shape = request
    first, second, out = call.specs[names[0]], call.specs[names[1]], call.specs.get("out")
    if isinstance(options.algorithm, str):
        algorithm_named(operation, options.algorithm)
    check_scales(alpha, beta, out=out)
    if operation == "forward" and shape is not None:
        raise ValueError(f"shape must be None for forward, where it follows from x and w; got {error_repr(shape)}")
    one, two = logical_spec(first, names[0], options.layout), logical_spec(second, names[1], options.layout)
    result = None if out is None else logical_spec(out, "out", options.layout)
    if operation == "forward":
        expected = output_shape(options, one.shape, two.shape)
    else:
        name = "x_shape" if operation == "backward_data" else "w_shape"
        given = check_shape(name, gradient_shape(name, shape, out and out.shape), len(one.shape), low=0)
        expected = to_logical(given, is_channels_last(options.layout))
    if result is None:
        dtype = "int32" if one.dtype == "int8" else one.dtype
        like = canonical_spec(one, names[0]), canonical_spec(two, names[1])
        result = TensorSpec(expected, dtype, result_strides(expected, *like, last=call.suggests_channels_last))
    elif result.shape != expected:
        expected = in_array_order(expected, options.layout)
        raise ValueError(f"out must have shape {expected}; got shape {call.specs['out'].shape}")
    roles = (ROLES[name] for name in OPERANDS[operation])
    problem = make_problem(
        options,
        operation,
        **dict(zip(roles, (one, two, result), strict=True)),
        alpha=alpha,
        beta=beta,
        bias=call.specs.get("bias"),
        activation=activation,
        device=call.device,
        called=names,
    )
    return ConvolutionProblem(*problem)


def logical_spec(spec: TensorSpec, name: str, layout: Layout) -> TensorSpec:
    """Return a tensor with its axes as (N, C, spatial...). Raises ValueError if it does not have 3, 4 or 5 axes."""
    rank = len(spec.shape)
    if rank not in CHANNELS_FIRST:
        raise ValueError(f"{name} must have 3, 4 or 5 axes; got shape {tuple(spec.shape)}")
    return in_logical_order(spec, name, layout)


def specs_and_device(
    given: Mapping[str, object], device: int | OtherGpu | None
) -> tuple[dict[str, TensorSpec], int | None]:
    """Return the specs of arrays and TensorSpecs by name, and the ordinal of their device; None if no device is given.

    The ordinal for a profile is 0. Raises TypeError and ValueError for arguments that do not fit together.
    """
    specs: dict[str, TensorSpec] = {}
    devices: dict[str, int] = {}
    check_device(device, {name: one for name, one in given.items() if not isinstance(one, TensorSpec | None)})
    for name, array in given.items():
        if isinstance(array, TensorSpec):
            specs[name] = check_spec(name, array)
        elif array is not None:
            pointer, signature = read(array, name)
            devices[name] = signature[3]
            specs[name] = spec_of(signature, min(pointer & -pointer, 16))
    if isinstance(device, OtherGpu):
        return specs, 0
    ordinals = set(devices.values()) | ({device} if device is not None else set())
    if len(ordinals) > 1:
        raise ValueError(f"device must be the device of the arrays, {devices}; got {device}")
    return specs, ordinals.pop() if ordinals else None
