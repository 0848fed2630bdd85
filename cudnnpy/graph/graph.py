"""Graph, an operation graph that users build. Its engine is chosen as for Convolution.

    from cudnnpy.graph import Graph

    g = Graph(prefer="fastest")
    x, w = g.tensor("x", x_array), g.tensor("w", w_array)              # or cudnnpy.TensorSpec(shape, dtype, strides)
    bias = g.tensor("bias", cudnnpy.TensorSpec((1, 64, 1, 1), "float16"))
    y = g.pointwise("relu_fwd", g.pointwise("add", g.convolution(x, w, padding=1), bias))
    g.output("y", y)
    y_array = g.run(x=x_array, w=w_array, bias=bias_array)             # in the library of the first input
    plan = g.plan()                                                    # for plan.execute(*addresses, workspace, stream)

The names of modes are cuDNN's in lower case (cudnnPointwiseMode_t, cudnnReduceTensorOp_t, cudnnResampleMode_t,
cudnnBackendNormMode_t). Intermediate results have the dtype compute_dtype and are never in memory. cuDNN determines which
graphs an engine can run: NoAlgorithmError has the table of the engines, with the reason why each was rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from itertools import islice
from typing import TYPE_CHECKING, Self

from cudnnpy._core.cache_token import CacheToken
from cudnnpy._core.layouts import TensorSpec, has_same_layout
from cudnnpy._launch import dispatch
from cudnnpy._launch.program import Operand, Program
from cudnnpy._options.checks import error_repr
from cudnnpy._options.convolution import TUNE_SECONDS
from cudnnpy._planning import engines
from cudnnpy._planning.chooser import Chooser, OtherGpu, Request, check_device
from cudnnpy._planning.options import PlanningOptions, checked
from cudnnpy._planning.plan import Plan, executable_of
from cudnnpy._planning.selection import plan_elsewhere, plan_for
from cudnnpy.graph.frontend_names import with_frontend_keywords
from cudnnpy.graph.nodes import canonical_spec
from cudnnpy.graph.operations import GraphOperations
from cudnnpy.graph.problem import GraphProblem, graph_problem
from cudnnpy.handle import Handle, on_device
from cudnnpy.typing import ArrayT, Dtype, Preference, Stream

if TYPE_CHECKING:
    from cudnnpy._planning.device_profile import DeviceProfile


@with_frontend_keywords
class Graph(GraphOperations):
    """An operation graph with planning options.

    Parameters
    ----------
    compute_dtype : dtype-like
        The data type of computation and of intermediate results: float32 or float64.
    prefer : {"fastest", "limited_workspace", "no_workspace", "autotune"}
        How an engine is chosen, as for `Convolution`.
    workspace_limit : int, optional
        The largest workspace in bytes.
    deterministic : bool
        Whether the result must have the same bits every time.
    tf32 : bool
        Whether float32 may be rounded to tf32 for the tensor cores.
    tune_seconds : float
        The time limit of "autotune" for one signature.

    Raises
    ------
    TypeError, ValueError
        An option is of another type, or out of range.

    Notes
    -----
    `Plan.operands` has the tensors in the order of the calls of `tensor`, then of `output`. A copy is independent.

    Examples
    --------
    >>> import cudnnpy
    >>> g = cudnnpy.Graph()
    >>> x = g.tensor("x", cudnnpy.TensorSpec((8, 64, 56, 56), "float16", (200704, 1, 3584, 64)))  # channels last
    >>> w = g.tensor("w", cudnnpy.TensorSpec((64, 64, 3, 3), "float16", (576, 1, 192, 64)))
    >>> y = g.output("y", g.pointwise("relu_fwd", g.convolution(x, w, padding=1)))
    >>> [node.shape for node in g.outputs]  # g.run(x=..., w=...) runs it on a GPU
    [(8, 64, 56, 56)]
    """

    options: PlanningOptions  #: the options in canonical form

    def __init__(
        self,
        *,
        compute_dtype: Dtype = "float32",
        prefer: Preference = "fastest",
        workspace_limit: int | None = None,
        deterministic: bool = False,
        tf32: bool = True,
        tune_seconds: float = TUNE_SECONDS,
    ) -> None:
        super().__init__(compute_dtype)
        options = PlanningOptions(prefer, workspace_limit, deterministic, tf32, tune_seconds=tune_seconds)
        self.options = checked(options)
        self._token = CacheToken()

    def __copy__(self) -> Self:
        """Return an independent graph: nodes that are added to one are not added to the other."""
        return deepcopy(self)

    def problem(self, device: int = 0, specs: Mapping[str, TensorSpec] | None = None) -> GraphProblem:
        """Return the problem of the graph on a device. `specs` give the alignments of arrays by name."""
        given = {} if specs is None else specs
        if not isinstance(given, Mapping):
            raise TypeError(f"specs must be a dict of TensorSpecs by name, or None; got {error_repr(given)}")
        return graph_problem(self, device, {name: spec.alignment for name, spec in given.items()})

    def plan(self, device: int | DeviceProfile = 0) -> Plan:
        """Choose the plan of the graph, to be executed with raw addresses.

        Parameters
        ----------
        device : int or DeviceProfile
            The ordinal of the device. For a `DeviceProfile` the plan is made without the GPU, and has a `profile`; it cannot
            run in this process.

        Returns
        -------
        Plan
            The plan.

        Raises
        ------
        ValueError
            The graph has no output, or an input is empty.
        NoAlgorithmError
            No engine can run the graph; the message has the table of candidates.
        """
        if empty := self._empty():
            raise ValueError(f"a planned graph must have elements; got none in {', '.join(empty)}")
        check_device(device)
        if isinstance(device, OtherGpu):
            return plan_elsewhere(self.problem(), self.options, device)
        with on_device(device):
            return plan_for(self.problem(device), self.options)

    def executable(self, device: int, pick: int = 0) -> engines.GraphExecutable | None:
        """Return the executable of the first candidate that can be planned, or None if there is none.

        `pick` is the number of candidates to skip, if enough of them can be planned. The options are ignored. The executable
        takes the addresses of the inputs, then of the outputs.
        """
        target = engines.Target(Handle.default(device))
        chooser = Chooser(Request(self.problem(device), PlanningOptions(), target, 0))
        usable = (one for one in chooser.order() if one.prepare() is not None)
        found = list(islice(usable, pick + 1))
        if not found:
            return None
        executable = executable_of(found[-1])
        assert isinstance(executable, engines.GraphExecutable)
        return executable

    def run(self, stream: Stream | None = None, **arrays: ArrayT) -> ArrayT | tuple[ArrayT, ...]:
        """Run the graph on arrays (cudnnBackendExecute). The first call with a signature plans; later calls launch.

        Parameters
        ----------
        stream : stream, optional
            The stream; by default the current stream of the library of the first input.
        **arrays : array
            Every input by its name, and outputs to write to. Each has the shape, dtype and strides of its tensor.

        Returns
        -------
        array or tuple of arrays
            The output, or the outputs in the order of the calls of `output`; new arrays are of the library of the first
            input.

        Raises
        ------
        TypeError
            A name is missing or unknown, or an argument is not a device array.
        ValueError
            The graph has no output, or an array has another shape, dtype or strides than its tensor.
        NoAlgorithmError
            No engine can run the graph; the message has the table of candidates.
        """
        self._check_outputs()
        inputs = tuple(arrays.pop(node.name, None) for node in self.inputs)
        outs = tuple(arrays.pop(node.name, None) for node in self.outputs)
        missing = [node.name for node, array in zip(self.inputs, inputs, strict=True) if array is None]
        if missing or arrays:
            wrong = [f"{what} {names}" for what, names in (("no", missing), ("unknown", list(arrays))) if names]
            raise TypeError(f"arrays must be the graph's inputs, and may be its outputs; got {' and '.join(wrong)}")
        names, prepare = self._names(), Graph._prepare
        return dispatch.run("graph", self, prepare, names, inputs, outs, stream, len(self.operations))

    def _names(self) -> tuple[str, ...]:
        return tuple(node.name for node in (*self.inputs, *self.outputs))

    def _empty(self) -> list[str]:
        """Return the names of the empty inputs."""
        return [node.name for node in self.inputs if 0 in node.shape]

    def _prepare(self, call: dispatch.Call, _operations: int) -> tuple[Plan | Program, list[TensorSpec]]:
        for node in (*self.inputs, *self.outputs):
            given = call.specs.get(node.name)
            if given is None:
                continue
            there = canonical_spec(given, node.name)
            if there.dtype != node.spec.dtype or not has_same_layout(there, node.spec):
                raise ValueError(
                    f"{node.name} must have the graph's shape, dtype and strides, {node.spec[:3]}; got {given[:3]}"
                )
            if given.alignment < node.spec.alignment:  # engines that are compiled at run time misread other addresses
                raise ValueError(
                    f"{node.name} must be aligned to 16 bytes; got an address that is a multiple of {given.alignment}"
                )
        problem = self.problem(call.device, call.specs)
        if self._empty():
            return self._without_elements(call, problem), [node.spec for node in self.outputs]
        limit = call.memory_limit
        plan = plan_for(problem, self.options, stream=call.stream, memory_limit=limit, lists_candidates=False)
        return plan, [node.spec for node in self.outputs]

    def _without_elements(self, call: dispatch.Call, problem: GraphProblem) -> Program:
        """Return the program of a graph of empty tensors. Raises ValueError for an output that is not empty."""
        for node in self.outputs:
            if 0 not in node.shape:
                raise ValueError(
                    f"{node.name} must have no elements where {', '.join(self._empty())} has none; "
                    f"got shape {node.shape}. "
                    "For such inputs use Convolution, or fill the output without cuDNN"
                )
        operands = [Operand(name, spec) for name, spec in zip(problem.operands, problem.specs, strict=True)]
        return Program("graph of empty tensors", call.device, operands, [])
