"""Run the v7 convolution algorithms by name. Their calls take longer on the host, since cuDNN plans again in each."""

from __future__ import annotations

from ctypes import byref, c_size_t

from cudnnpy import raw
from cudnnpy._convolution.specification import ROLES, ConvolutionSpec
from cudnnpy._core.layouts import TensorSpec, is_packed, packed_strides, with_two_spatial_axes
from cudnnpy._launch.steps import WORKSPACE, FunctionCall, OperandAddress, scaling_arguments, tensor_descriptor
from cudnnpy.descriptors import ConvolutionDescriptor, FilterDescriptor, TensorDescriptor
from cudnnpy.descriptors.choosing import FUNCTIONS, permitted_math
from cudnnpy.handle import Handle
from cudnnpy.names import short_names


def is_deterministic(operation: str, name: str) -> bool:
    """Return whether an algorithm gives bitwise the same result every time."""
    return name not in FUNCTIONS[operation].nondeterministic


class LegacyExecutable(FunctionCall):
    """The call of a v7 algorithm. Raises StatusError, with cuDNN's reason, if cuDNN does not support it here.

    `strict`: float32 is multiplied as float32, not as tf32 (CUDNN_FMA_MATH).
    """

    def __init__(self, problem: ConvolutionSpec, name: str, strict: bool, handle: Handle | None) -> None:
        if handle is None:
            raise ValueError("the v7 functions need a GPU")
        functions, g = FUNCTIONS[problem.operation], problem.geometry
        if g.pre_padding != g.post_padding:
            raise ValueError("the v7 functions need the same padding before and after")
        alpha, beta = scaling_arguments(problem.alpha, problem.beta, problem.compute_dtype)
        tensors: dict[str, TensorDescriptor | FilterDescriptor]
        tensors = {"x": tensor_descriptor(problem.x), "w": _filter(problem.w), "y": tensor_descriptor(problem.y)}
        one = len(g.stride) == 1
        convolution = ConvolutionDescriptor(
            (0, *g.pre_padding) if one else g.pre_padding,
            (1, *g.stride) if one else g.stride,
            (1, *g.dilation) if one else g.dilation,
            mode=problem.mode,
            compute_dtype=problem.compute_dtype,
            groups=problem.groups,
            math_type=permitted_math(problem.x.dtype, tf32=not strict),
        )
        first, second, last = (tensors[role] for role in functions.operands)
        given = [ROLES[operand] for operand in problem.operands if operand != "bias"]
        x, y, z = (OperandAddress(given.index(role)) for role in functions.operands)
        algorithm = short_names(functions.algorithms)[name]
        size = c_size_t()
        function = functions.function("cudnnGetConvolution{}WorkspaceSize")
        raw.call(function, handle, first, second, convolution, last, algorithm, byref(size))
        super().__init__(
            functions.function("cudnnConvolution{}"), alpha, first, x, second, y, convolution, algorithm,
            WORKSPACE, size.value, beta, last, z, workspace_size=size.value,
        )  # fmt: skip
        self.strict = strict


def _filter(spec: TensorSpec) -> FilterDescriptor:
    if not is_packed(spec):
        raise ValueError("the v7 functions need packed filters")
    return FilterDescriptor(
        with_two_spatial_axes(spec)[0],
        spec.dtype,
        format="nchw" if spec.strides == packed_strides(spec.shape) else "nhwc",
    )
