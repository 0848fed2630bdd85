"""The v7 functions of the convolutions: which address each of their parameters gets, and under which math type."""

from __future__ import annotations

from typing import Any

import pytest
from stand_in_device import STREAM, StandInDevice
from stand_in_library import LibcudnnFixture

from cudnnpy import TensorSpec
from cudnnpy._convolution.options import ConvolutionOptions, algorithm_names
from cudnnpy._convolution.specification import ConvolutionSpec, make_problem
from cudnnpy._layers.lowerings.convolution_candidates import LegacyExecutable
from cudnnpy.handle import Handle

X, W, Y = (2, 4, 8, 8), (6, 4, 3, 3), (2, 6, 6, 6)
# C's parameters by the problem's operands
PARAMETERS = {
    "forward": {"x": "x", "w": "w", "y": "y"},
    "backward_data": {"dy": "dy", "w": "w", "dx": "dx"},
    "backward_filter": {"dy": "dy", "x": "x", "dw": "dw"},
}


def problem(operation: str, dtype: str = "float32", y: tuple[int, ...] = Y, **options: Any) -> ConvolutionSpec:
    specs = (TensorSpec(shape, dtype) for shape in (X, W, y))
    return make_problem(ConvolutionOptions(**options), operation, *specs, alpha=2.0, beta=0.5)


@pytest.mark.parametrize("space", [0, 4096])
@pytest.mark.parametrize("operation", PARAMETERS)
def test_each_address_reaches_the_parameter_that_it_is_for(stand_in: StandInDevice, operation: str, space: int) -> None:
    stand_in.workspace_size = space
    asked, handle = problem(operation), Handle.default(0)
    executable = LegacyExecutable(asked, algorithm_names(operation)[0], False, handle)
    assert executable.workspace_size == space
    handle.set_stream(STREAM)
    for addresses, workspace in (((1 << 20, 2 << 20, 3 << 20), 4 << 20), ((5 << 20, 6 << 20, 7 << 20), 8 << 20)):
        assert executable.bind(handle, addresses, workspace if space else 0)() == 0
        launch = stand_in.launches[-1]
        expected = {PARAMETERS[operation][name]: a for name, a in zip(asked.operands, addresses, strict=True)}
        assert launch.addresses == expected | ({"workSpace": workspace} if space else {})
        assert launch.stream == STREAM
        assert [number._obj.value for number in launch.arguments if hasattr(number, "_obj")] == [2.0, 0.5]
        assert space in launch.arguments


def test_float32_is_multiplied_as_tf32_only_where_that_is_allowed(libcudnn: LibcudnnFixture) -> None:
    """C's own descriptors, of which the query of the workspace, which needs a GPU, takes one."""
    asked: list[Any] = []

    def call(name: str, *arguments: Any) -> int | None:
        if name != "cudnnGetConvolutionForwardWorkspaceSize":
            return None
        asked.append(arguments[3])
        return 0

    libcudnn(call, real=True)

    def math_type(dtype: str, strict: bool) -> str:
        handle: Any = object()
        LegacyExecutable(problem("forward", dtype), "implicit_gemm", strict, handle)
        return str(asked[-1].math_type)

    assert math_type("float32", True) == "fma_math"
    assert math_type("float32", False) == "default_math"
    assert math_type("float16", False) == "tensor_op_math"


@pytest.mark.usefixtures("stand_in")
def test_padding_that_differs_before_and_after_is_refused() -> None:
    asked = problem("forward", y=(2, 6, 8, 8), padding=((0, 2), (2, 0)))
    with pytest.raises(ValueError, match="padding"):
        LegacyExecutable(asked, "gemm", False, Handle.default(0))
