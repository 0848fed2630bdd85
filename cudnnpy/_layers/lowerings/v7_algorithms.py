"""Run the v7 convolution algorithms by name. Their calls take longer on the host, since cuDNN plans again in each."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_double, c_float, c_size_t
from functools import partial

from cudnnpy import raw
from cudnnpy._convolution.specification import ROLES, ConvolutionSpec
from cudnnpy._core.layouts import TensorSpec, is_packed, packed_strides, with_two_spatial_axes
from cudnnpy._launch.steps import tensor_descriptor
from cudnnpy.descriptors import ConvolutionDescriptor, FilterDescriptor, TensorDescriptor
from cudnnpy.descriptors.choosing import FUNCTIONS, permitted_math
from cudnnpy.handle import Handle
from cudnnpy.names import short_names


def is_deterministic(operation: str, name: str) -> bool:
    """Return whether an algorithm gives bitwise the same result every time."""
    return name not in FUNCTIONS[operation].nondeterministic


class LegacyExecutable:
    """A v7 algorithm with its descriptors. Raises StatusError, with cuDNN's reason, if cuDNN does not support it here.

    `strict`: float32 is multiplied as float32, not as tf32 (CUDNN_FMA_MATH).
    """

    def __init__(self, problem: ConvolutionSpec, name: str, strict: bool, handle: Handle | None) -> None:
        if handle is None:
            raise ValueError("the v7 functions need a GPU")
        self._operation = FUNCTIONS[problem.operation]
        self.strict = strict
        g = problem.geometry
        if g.pre_padding != g.post_padding:
            raise ValueError("the v7 functions need the same padding before and after")
        self._scales = tuple(
            (c_double if problem.compute_dtype == "float64" else c_float)(s) for s in (problem.alpha, problem.beta)
        )
        tensors: dict[str, TensorDescriptor | FilterDescriptor]
        tensors = {"x": tensor_descriptor(problem.x), "w": _filter(problem.w), "y": tensor_descriptor(problem.y)}
        one = len(g.stride) == 1
        self._convolution = ConvolutionDescriptor(
            (0, *g.pre_padding) if one else g.pre_padding,
            (1, *g.stride) if one else g.stride,
            (1, *g.dilation) if one else g.dilation,
            mode=problem.mode,
            compute_dtype=problem.compute_dtype,
            groups=problem.groups,
            math_type=permitted_math(problem.x.dtype, tf32=not strict),
        )
        self._tensors = [tensors[role] for role in self._operation.operands]
        given = [ROLES[operand] for operand in problem.operands if operand != "bias"]
        self._positions = tuple(given.index(role) for role in self._operation.operands)
        self._algorithm = short_names(self._operation.algorithms)[name]
        size = c_size_t()
        first, second, last = self._tensors
        function = self._operation.function("cudnnGetConvolution{}WorkspaceSize")
        raw.call(function, handle, first, second, self._convolution, last, self._algorithm, byref(size))
        self.workspace_size = size.value

    def bind(self, handle: Handle, addresses: tuple[int, ...], workspace: int) -> Callable[[], int]:
        """Return the launch of the algorithm on these addresses."""
        alpha, beta = (byref(scale) for scale in self._scales)
        first, second, last = (t.pointer for t in self._tensors)
        a, b, c = (addresses[at] for at in self._positions)
        launch = partial(
            raw.bound(self._operation.function("cudnnConvolution{}")),
            handle.pointer,
            alpha,
            first,
            a,
            second,
            b,
            self._convolution.pointer,
            self._algorithm,
            workspace or None,
            self.workspace_size,
            beta,
            last,
            c,
        )
        launch.owners = (self, handle)  # type: ignore[attr-defined]  # alive as long as the call
        return launch


def _filter(spec: TensorSpec) -> FilterDescriptor:
    if not is_packed(spec):
        raise ValueError("the v7 functions need packed filters")
    return FilterDescriptor(
        with_two_spatial_axes(spec)[0],
        spec.dtype,
        format="nchw" if spec.strides == packed_strides(spec.shape) else "nhwc",
    )
