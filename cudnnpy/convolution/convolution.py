"""Convolution: forward, backward_data, backward_filter and backward_bias on device arrays of any library."""

from __future__ import annotations

from typing import Any

from cudnnpy._core.driver import check_not_capturing
from cudnnpy._core.layouts import TensorSpec, from_logical, to_logical
from cudnnpy._memory.arrays import library_of
from cudnnpy._memory.device_array import current_device
from cudnnpy._options.checks import check_option, check_shape, is_channels_last
from cudnnpy._options.convolution_methods import ConvolutionBase
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.device_profile import DeviceProfile
from cudnnpy._planning.plan import Plan
from cudnnpy._profile_planning import candidates_for_profile, plan_for_profile
from cudnnpy.convolution import problem as ask
from cudnnpy.convolution.candidates import ConvolutionProblem
from cudnnpy.convolution.layer_base import Layer
from cudnnpy.convolution.operation import Operation
from cudnnpy.convolution.planned_tensors import specs_and_device
from cudnnpy.convolution.problem import INPUTS, OPERATIONS
from cudnnpy.handle import on_device
from cudnnpy.typing import Array, ConvolutionActivation, ConvolutionOperation, Shape


class Convolution(ConvolutionBase, Layer):
    _operation: Operation

    def _derived(self) -> dict[str, Any]:
        operation = Operation(self._plain_options())
        # Bound once, so that a call needs no further Python frame.
        runs = {"_run_operation": operation.run, "_backward_bias": operation.run_bias}
        return {**super()._derived(), **runs, "_operation": operation}

    def _output_shape(self, x_shape: Shape, w_shape: Shape) -> tuple[int, ...]:
        last = is_channels_last(self.layout)
        x, w = check_shape("x_shape", x_shape, low=0), check_shape("w_shape", w_shape, low=0)
        logical = ask.output_shape(self, to_logical(x, last), to_logical(w, last))
        return from_logical(logical, last)

    def plan(
        self,
        operation: ConvolutionOperation,
        first: Array | TensorSpec,
        second: Array | TensorSpec,
        shape: Shape | None = None,
        *,
        bias: Array | TensorSpec | None = None,
        activation: ConvolutionActivation | None = None,
        out: Array | TensorSpec | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        device: int | DeviceProfile | None = None,
    ) -> Plan:
        """Choose the plan of an operation, to be executed with raw addresses.

        Each call plans again, and the plan is not cached, so hold on to it. Choices that autotune measured are in the store and
        are not measured again.

        Parameters
        ----------
        operation : {"forward", "backward_data", "backward_filter"}
            The operation.
        first, second : array or TensorSpec
            Its first two arguments: x and w, dy and w, or dy and x.
        shape : tuple of ints, optional
            x_shape or w_shape; None for "forward", and may be None if `out` is given.
        bias, activation, out, alpha, beta
            As for `forward`; "backward_data" with a bias or an activation is the forward of a transposed convolution.
        device : int or DeviceProfile, optional
            The ordinal, for TensorSpecs: by default the current device. Arrays have their own. For a `DeviceProfile` the plan
            is made without the GPU, and has a `profile`; it cannot run in this process.

        Returns
        -------
        Plan
            The plan.

        Raises
        ------
        TypeError, ValueError
            Arguments do not fit, or a tensor is empty, so that there is nothing to plan.
        NoAlgorithmError
            No algorithm can run; the message has the table of candidates.
        CaptureError
            The current stream is being captured into a CUDA graph.
        """
        problem = self._problem(operation, first, second, shape, bias, activation, out, alpha, beta, device)
        if isinstance(device, DeviceProfile):
            return plan_for_profile(problem, self._operation.planning, device)
        arrays = [array for array in (first, second, bias) if array is not None]
        real = not any(isinstance(array, TensorSpec) for array in (*arrays, out))
        with on_device(problem.device):
            stream = library_of(first).current_stream(problem.device) if real else 0
            check_not_capturing("plan", stream, "Plan before the capture, and keep the plan")
            return self._operation.choose_plan(problem, stream)

    def candidates(
        self,
        operation: ConvolutionOperation,
        first: Array | TensorSpec,
        second: Array | TensorSpec,
        shape: Shape | None = None,
        *,
        bias: Array | TensorSpec | None = None,
        activation: ConvolutionActivation | None = None,
        out: Array | TensorSpec | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        device: int | DeviceProfile | None = None,
    ) -> list[Candidate]:
        """Plan every candidate for an operation. `cudnnpy.candidates_table` makes a table of them.

        The parameters are the same as for `plan`.

        Returns
        -------
        list of Candidate
            All candidates. `rejection_reason` is "" for a candidate that can be used.
        """
        problem = self._problem(operation, first, second, shape, bias, activation, out, alpha, beta, device)
        if isinstance(device, DeviceProfile):
            return candidates_for_profile(problem, self._operation.planning, device)
        return self._operation.candidates(problem)

    def _problem(
        self,
        operation: ConvolutionOperation,
        first: object,
        second: object,
        shape: Shape | None,
        bias: object,
        activation: ConvolutionActivation | None,
        out: object,
        alpha: float,
        beta: float,
        device: int | DeviceProfile | None,
    ) -> ConvolutionProblem:
        check_option("operation", operation, OPERATIONS)
        names = INPUTS[operation]
        given = {names[0]: first, names[1]: second, "bias": bias, "out": out}
        specs, ordinal = specs_and_device(given, device)
        if not specs.keys() >= set(names):
            raise TypeError(f"{names[0]} and {names[1]} must be arrays or TensorSpecs; got None")
        problem = self._operation.problem(
            operation,
            specs[names[0]],
            specs[names[1]],
            shape,
            bias=specs.get("bias"),
            activation=activation,
            out=specs.get("out"),
            alpha=alpha,
            beta=beta,
            device=ordinal or 0,
        )
        if problem.is_empty:
            raise ValueError(f"a planned problem must have elements; got {problem}, for which nothing is computed")
        # The driver is called last, so that bad arguments are reported where there is none.
        return problem if ordinal is not None else problem._replace(device=current_device())
