"""Graph, which users build of cuDNN's operations. It is planned and run as Convolution is.

    from cudnnpy import Graph

    g = Graph(prefer="fastest")
    x, w = g.tensor("x", x_array), g.tensor("w", w_array)              # or cudnnpy.TensorSpec(shape, dtype, strides)
    bias = g.tensor("bias", cudnnpy.TensorSpec((1, 64, 1, 1), "float16"))
    y = g.pointwise("relu_fwd", g.pointwise("add", g.convolution(x, w, padding=1), bias))
    g.output("y", y)
    y_array = g.run(x=x_array, w=w_array, bias=bias_array)             # in the library of the first input
    plan = g.plan()                                                    # for plan.execute(*addresses, workspace, stream)

The kinds of operations that most graphs have are methods, and `add` adds an operation of any of cuDNN's kinds by its name. The
names of modes are cuDNN's in lower case (cudnnPointwiseMode_t, cudnnReduceTensorOp_t, ...). Intermediate results are never in
memory, and have the dtype compute_dtype unless they are indices, flags or copies. cuDNN determines which graphs an engine can
run: NoAlgorithmError has the table of the engines, with the reason why each was rejected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from operator import index
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, SupportsIndex, cast

from cudnnpy import raw
from cudnnpy._arrays.array_libraries import read_metadata, spec_of
from cudnnpy._arrays.device_array import empty
from cudnnpy._checks.option_values import (
    as_elements,
    bounded,
    check_flag,
    check_integer,
    check_number,
    check_padding,
    check_per_axis,
    check_shape,
    error_repr,
    expand_per_axis,
)
from cudnnpy._checks.preferences import TUNE_SECONDS
from cudnnpy._checks.public_dir import PublicDir
from cudnnpy._checks.suggestions import suggest_value
from cudnnpy._checks.unknown_names import missing_in_graph, suggest_keyword
from cudnnpy._core.cache_token import CacheToken
from cudnnpy._core.dtypes import dtype_of, numpy_dtype
from cudnnpy._core.layouts import (
    TensorSpec,
    check_distinct,
    check_spec,
    has_same_layout,
    normalize_unit_strides,
    packed_strides,
    suggests_channels_last,
    with_channels_last_strides,
)
from cudnnpy._launch import dispatch
from cudnnpy._launch.program import Operand, Program
from cudnnpy._layers.lowerings.convolution_candidates import ConvolutionProblem
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.choice import Engine
from cudnnpy._planning.chooser import OtherGpu, check_device
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.plan import Plan
from cudnnpy._planning.problem import CallerOperands
from cudnnpy._planning.selection import candidates_on, plan_for, plan_on
from cudnnpy.errors import NoAlgorithmError
from cudnnpy.graph.broken_rules import check_graph
from cudnnpy.graph.convolutions import as_convolution
from cudnnpy.graph.kinds import GRAPH_OPTIONS, HOW, KINDS, pointwise_name
from cudnnpy.graph.operation_graph import Operation, OperationGraph, Tensor, canonical_graph, number_of
from cudnnpy.graph.problem import GraphProblem
from cudnnpy.names import enumerator, short_name
from cudnnpy.typing import (
    Array,
    ArrayT,
    ConvolutionMode,
    Dtype,
    ElementName,
    GraphNormalization,
    PerAxis,
    PointwiseMode,
    Preference,
    ReduceOperation,
    ResampleMode,
    Shape,
    Stream,
)

_Reordering = raw.cudnnBackendTensorReordering_t
# Kinds whose tensors are (N, C, spatial...). In a graph of such kinds alone, axes of size 1 get strides in agreement.
_OF_IMAGES = {
    "convolution_forward",
    "convolution_backward_data",
    "convolution_backward_filter",
    "resample_fwd",
    "resample_bwd",
    "norm_forward",
    "norm_backward",
    "gen_stats",
    "bn_finalize",
    "bn_bwd_weights",
    "pointwise",
    "reduction",
}


@dataclass(eq=False)
class Node:
    """A tensor of a graph: an input, a number, or the result of an operation, which is virtual unless it is an output."""

    spec: TensorSpec
    name: str = ""
    virtual: bool = True
    number: float | None = None  # for a tensor by value
    uid: int = 0  # the unique id, which the graph sets
    ragged: Node | None = None  # the offsets of a ragged tensor's sequences
    reordering: str = ""
    vector: tuple[int, int] = (1, -1)
    has_own_dtype: bool = True  # False for an intermediate result of the graph's compute_dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes, in the graph's order (N, C, spatial...)."""
        return self.spec.shape

    if not TYPE_CHECKING:  # type checkers report unknown attributes

        def __getattr__(self, name):
            raise AttributeError(missing_in_graph(self, name), name=name, obj=self)

        def _refuse_operator(self, _other):
            raise TypeError(
                'nodes must be taken by methods of the graph; got an operator. Type g.pointwise("add", a, b)'
            )

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __matmul__ = _refuse_operator


if TYPE_CHECKING:
    from cudnnpy.reference.graph import OutputCheck
    from cudnnpy.tuning.profiles.device_profile import DeviceProfile


class Graph(PublicDir):
    """An operation graph with planning options.

    Parameters
    ----------
    compute_dtype : dtype-like
        The data type of computation and of intermediate results, where an operation states no other: float32 or float64.
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
    algorithm : Engine or Plan, optional
        The engine to run with, or a plan of this graph, in place of a choice. A graph that is a convolution takes the names of
        v7 algorithms, too.
    dynamic_shapes, override_shapes : bool
        Whether an engine must serve other shapes without compiling again (CUDNN_ATTR_OPERATIONGRAPH_IS_DYNAMIC_SHAPE_ENABLED,
        CUDNN_ATTR_OPERATIONGRAPH_IS_OVERRIDE_SHAPE_ENABLED).
    mode : str, optional
        A name of cudnnBackendOperationGraphMode_t, since cuDNN 9.23.

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
    compute_dtype: ElementName  #: the data type of intermediate results
    inputs: list[Node]  #: in the order of tensor()
    outputs: list[Node]  #: in the order of output()
    _suggest = staticmethod(suggest_keyword)

    if not TYPE_CHECKING:  # type checkers report unknown attributes

        def __getattr__(self, name):
            advice = f": type g.add({name!r}, ...), as docs/graph-kinds.md shows"
            text = (
                f"'Graph' object has no attribute {name!r}{advice}" if name in KINDS else missing_in_graph(self, name)
            )
            raise AttributeError(text, name=name, obj=self)

    def __init__(
        self,
        *,
        compute_dtype: Dtype = "float32",
        prefer: Preference = "fastest",
        workspace_limit: int | None = None,
        deterministic: bool = False,
        tf32: bool = True,
        tune_seconds: float = TUNE_SECONDS,
        algorithm: Engine | Plan | str | None = None,
        dynamic_shapes: bool = False,
        override_shapes: bool = False,
        mode: str | raw.cudnnBackendOperationGraphMode_t | None = None,
    ) -> None:
        self.compute_dtype = dtype_of(compute_dtype, "compute_dtype").name
        given = {"dynamic_shapes": dynamic_shapes, "override_shapes": override_shapes, "mode": mode}
        checked = {name: GRAPH_OPTIONS[name].checked(name, value) for name, value in given.items() if value is not None}
        self._graph_options = tuple((name, value) for name, value in checked.items() if value is not False)
        if not (algorithm is None or isinstance(algorithm, str | Engine | Plan)):
            raise TypeError(f"algorithm must be a cudnnpy.Engine or a Plan of this graph; got {error_repr(algorithm)}")
        self.inputs = []
        self.outputs = []
        self._operations: list[Operation] = []
        self._by_uid: dict[int, Node] = {}  # every tensor
        self.options = PlanningOptions(
            prefer=prefer,
            workspace_limit=workspace_limit,
            deterministic=deterministic,
            tf32=tf32,
            tune_seconds=tune_seconds,
            algorithm=algorithm,
        )
        self._token = CacheToken()

    @property
    def operations(self) -> list[str]:
        """The kinds of the operations, in order."""
        return [operation.kind for operation in self._operations]

    def __repr__(self) -> str:
        tensors = (f"{node.name} {node.spec.dtype}{list(node.shape)}" for node in (*self.inputs, *self.outputs))
        return f"<Graph of {', '.join(self.operations) or 'no operation'}: {', '.join(tensors) or 'no tensor'}>"

    def __copy__(self) -> Self:
        """Return an independent graph: nodes that are added to one are not added to the other."""
        return deepcopy(self)

    def tensor(
        self,
        name: str,
        like: Array | TensorSpec,
        *,
        ragged: Node | None = None,
        reordering: str | raw.cudnnBackendTensorReordering_t | None = None,
        vector: tuple[int, int] | None = None,
    ) -> Node:
        """Add an input.

        Parameters
        ----------
        name : str
            Its name in `run` and in the operands of a plan.
        like : array or TensorSpec
            Its shape, dtype, strides and alignment. The array may be on the host, since its elements are not read.
        ragged : Node, optional
            For sequences of several lengths one after the other: their first elements' offsets, (B + 1, 1, 1, 1) in int32 or
            int64, where B is the size of axis 0 (CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC).
        reordering : str, optional
            A name of cudnnBackendTensorReordering_t.
        vector : (int, int), optional
            The number of elements of a vector, and the axis that has the vectors (CUDNN_ATTR_TENSOR_VECTOR_COUNT).

        Returns
        -------
        Node
            The input.

        Raises
        ------
        TypeError, ValueError
            The name is not a str or is taken, or cuDNN does not support such a tensor.
        """
        self._check_name(name)
        spec = like if isinstance(like, TensorSpec) else spec_of(read_metadata(like, name))
        node = Node(_in_graph_form(spec, name), name, virtual=False)
        self._set_layout(node, ragged, reordering, vector)
        self._keep(node)
        self.inputs.append(node)
        return node

    def number(self, value: float, rank: int = 4, dtype: Dtype | None = None) -> Node:
        """Add a constant as a tensor of `rank` axes of size 1, by default of the dtype compute_dtype.

        Raises TypeError and ValueError for a value that is not a number, or that does not fit the dtype.
        """
        node = self._number_of("value", value, check_integer("rank", rank, 1, raw.CUDNN_DIM_MAX), dtype)
        self._keep(node)
        return node

    def output(
        self,
        name: str,
        node: Node,
        dtype: Dtype | None = None,
        strides: Sequence[SupportsIndex] | None = None,
        *,
        ragged: Node | None = None,
        reordering: str | raw.cudnnBackendTensorReordering_t | None = None,
    ) -> Node:
        """Make the result of an operation an output, which is in memory.

        Parameters
        ----------
        name : str
            Its name in `run` and in the operands of a plan.
        node : Node
            The result of an operation.
        dtype : dtype-like, optional
            By default the result's own dtype if its operation states one (indices, copies, statistics, and where `dtype` was
            given), else the dtype of the first floating-point input, or of the first input.
        strides : tuple of ints, optional
            In elements; by default the memory format of the operation's first input.
        ragged, reordering
            As for `tensor`.

        Returns
        -------
        Node
            The same node.

        Raises
        ------
        TypeError, ValueError
            The name is not a str or is taken, or the node, dtype or strides do not fit.
        """
        self._check_name(name)
        self._check_nodes(node=node)
        if not node.virtual:
            raise ValueError(
                f"node must be the result of an operation; got {node.name or 'a number'}, which is in memory already"
            )
        kind, there = self._usual_dtype(node) if dtype is None else dtype_of(dtype).name, node.spec
        if strides is not None:
            there = _in_graph_form(TensorSpec(node.shape, kind)._replace(strides=cast(Any, strides)), name)
            check_distinct(there, name)
        self._set_layout(node, ragged, reordering, None)
        if not has_same_layout(node.spec, there):  # otherwise the strides of axes of size 1 stay
            node.spec = node.spec._replace(strides=there.strides)
        node.spec, node.name, node.virtual = node.spec._replace(dtype=kind), name, False
        self.outputs.append(node)
        return node

    def _usual_dtype(self, node: Node) -> ElementName:
        """Return the data type of an output for which none is given."""
        if node.has_own_dtype and (node.spec.dtype != "bool" or not self.inputs):
            return node.spec.dtype
        if not self.inputs:
            raise ValueError("dtype must be a data type where the graph has no input to take it from; got None")
        # also for flags, which cuDNN before 9.25 does not have in memory
        floats = (node.spec.dtype for node in self.inputs if "float" in node.spec.dtype)
        return next(floats, self.inputs[0].spec.dtype)

    def _set_layout(self, node: Node, ragged: Node | None, reordering: Any, vector: Any) -> None:
        """Check and set the properties that few tensors have. Nothing is set if one does not fit."""
        order = "" if reordering is None else short_name(enumerator(_Reordering, reordering, "reordering"))
        if ragged is not None:
            self._check_nodes(ragged=ragged)
            expected = (node.shape[0] + 1, *(1,) * (len(node.shape) - 1))
            if ragged.shape != expected or ragged.spec.dtype not in ("int32", "int64"):
                raise ValueError(
                    f"ragged must have shape {expected} and dtype int32 or int64; "
                    f"got {ragged.shape} and {ragged.spec.dtype}"
                )
        if vector is not None:
            if not isinstance(vector, tuple) or len(vector) != 2:
                raise TypeError(
                    f"vector must be two integers, a number of elements and an axis; got {error_repr(vector)}"
                )
            vector = check_integer("vector", vector[0], 1), check_integer("vector", vector[1], 0, len(node.shape) - 1)
        node.ragged, node.reordering, node.vector = ragged, order, vector or node.vector

    # Operations: each returns its results, whose shapes and memory formats follow from its operands.

    def add(
        self,
        kind: str,
        *positional: object,
        results: Sequence[str] = (),
        dtype: Dtype | None = None,
        **arguments: Any,
    ) -> dict[str, Node]:
        """Add an operation of any kind, by the names of cuDNN's attributes in lower case.

        Parameters
        ----------
        kind : str
            The kind, such as "softmax": docs/graph-kinds.md has the kinds with their operands and options.
        results : sequence of str
            The optional results that are wanted.
        dtype : dtype-like, optional
            The data type of the first result.
        **arguments : Node, number, sequence of Nodes, or option
            The operands and the options of the kind by name; a number for an operand is a tensor by value. None stands for one
            that is not given.

        Returns
        -------
        dict of str to Node
            The results by name.

        Raises
        ------
        TypeError, ValueError
            The kind or a name is unknown, or the operands or options do not fit. The graph is unchanged.

        Examples
        --------
        >>> import cudnnpy
        >>> g = cudnnpy.Graph()
        >>> x = g.tensor("x", cudnnpy.TensorSpec((2, 8, 64, 64), "float16"))
        >>> found = g.add("softmax", x=x, results=("stats",))
        >>> found["stats"].shape
        (2, 8, 64, 1)
        """
        if not isinstance(kind, str):
            raise TypeError(
                f"kind must be the name of a kind; got {error_repr(kind)}. The sum of two nodes is g.pointwise("
                '"add", a, b)'
            )
        if positional:
            raise TypeError(f"operands must be given by name, such as x=; got {error_repr(positional[0])} by position")
        if kind not in KINDS:
            raise ValueError(
                f"kind must be one of {', '.join(KINDS)}; got {error_repr(kind)}{suggest_value(kind, KINDS)}"
            )
        row, options, nodes = KINDS[kind], dict[str, Any](), dict[str, Any]()
        known = {**row.operands, **row.all_options}
        for name, value in arguments.items():
            if name not in known:
                raise TypeError(f"arguments of {kind} must be some of {', '.join(known)}; got {name!r}")
            if value is None:
                continue
            if name in row.all_options:
                options[name] = row.all_options[name].checked(name, value)
            elif "*" not in row.operands[name]:
                nodes[name] = value
            elif isinstance(value, Node) or (listed := as_elements(value)) is None:
                raise TypeError(f"{name} must be a sequence of nodes; got {error_repr(value)}")
            else:
                nodes[name] = listed
        given = [one for value in nodes.values() for one in (value if isinstance(value, tuple) else (value,))]
        rank = next((len(one.shape) for one in given if isinstance(one, Node)), 4)
        for name, value in nodes.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                allowed = row.dtypes.get(name, (self.compute_dtype,))
                is_index = isinstance(value, int) and allowed[-1].startswith("int")
                dtype_of_number = allowed[-1] if is_index or self.compute_dtype not in allowed else self.compute_dtype
                nodes[name] = self._number_of(name, value, rank, cast(Any, dtype_of_number))
            else:
                for one in value if "*" in row.operands[name] else (value,):
                    self._check_nodes(**{name: one})
        wanted = as_elements(results)
        if wanted is None:
            raise TypeError(f"results must be a sequence of names; got {error_repr(results)}")
        optional = [name for name, end in row.results.items() if end.endswith("?")]
        if unknown := [name for name in wanted if name not in optional]:
            raise ValueError(f"results of {kind} must be some of {', '.join(optional) or 'none'}; got {unknown[0]!r}")
        return self._add(kind, options, wanted, dtype, **nodes)

    def convolution(
        self,
        x: Node,
        w: Node,
        *,
        padding: PerAxis | Sequence[SupportsIndex | Sequence[SupportsIndex]] = 0,
        stride: PerAxis = 1,
        dilation: PerAxis = 1,
        groups: int = 1,
        mode: ConvolutionMode | raw.cudnnConvolutionMode_t = "cross_correlation",
        dtype: Dtype | None = None,
        compute_dtype: Dtype | None = None,
    ) -> Node:
        """Add a convolution (CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR).

        Parameters
        ----------
        x : Node
            (N, C, spatial...), with 2 or 3 spatial axes.
        w : Node
            (K, C / groups, spatial...).
        padding : int or tuple
            An int; or one int or one (before, after) pair for each spatial axis.
        stride, dilation : int or tuple of ints
            An int, or one int for each spatial axis.
        groups : int
            The number of groups of channels.
        mode : {"cross_correlation", "convolution"}
            "convolution" flips the filter.
        dtype, compute_dtype : dtype-like, optional
            The data types of the result and of the sums.

        Returns
        -------
        Node
            (N, K, spatial...).
        """
        how = padding, stride, dilation, groups, mode, compute_dtype
        return self._add_convolution("convolution_forward", how, dtype, x=x, w=w)

    def convolution_backward_data(
        self,
        dy: Node,
        w: Node,
        shape: Shape,
        *,
        padding: PerAxis | Sequence[SupportsIndex | Sequence[SupportsIndex]] = 0,
        stride: PerAxis = 1,
        dilation: PerAxis = 1,
        groups: int = 1,
        mode: ConvolutionMode | raw.cudnnConvolutionMode_t = "cross_correlation",
        dtype: Dtype | None = None,
        compute_dtype: Dtype | None = None,
    ) -> Node:
        """Add the gradient of a convolution with respect to x (CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR).

        Parameters
        ----------
        dy : Node
            The gradient with respect to y, (N, K, spatial...).
        w : Node
            (K, C / groups, spatial...).
        shape : tuple of ints
            The shape of x.
        padding, stride, dilation, groups, mode, dtype, compute_dtype
            As for `convolution`.

        Returns
        -------
        Node
            The gradient, of shape `shape`.
        """
        how = padding, stride, dilation, groups, mode, compute_dtype
        return self._add_convolution("convolution_backward_data", how, dtype, shape, dy=dy, w=w)

    def convolution_backward_filter(
        self,
        dy: Node,
        x: Node,
        shape: Shape,
        *,
        padding: PerAxis | Sequence[SupportsIndex | Sequence[SupportsIndex]] = 0,
        stride: PerAxis = 1,
        dilation: PerAxis = 1,
        groups: int = 1,
        mode: ConvolutionMode | raw.cudnnConvolutionMode_t = "cross_correlation",
        dtype: Dtype | None = None,
        compute_dtype: Dtype | None = None,
    ) -> Node:
        """Add the gradient of a convolution with respect to w (CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR).

        Parameters
        ----------
        dy : Node
            The gradient with respect to y, (N, K, spatial...).
        x : Node
            (N, C, spatial...).
        shape : tuple of ints
            The shape of w.
        padding, stride, dilation, groups, mode, dtype, compute_dtype
            As for `convolution`.

        Returns
        -------
        Node
            The gradient, of shape `shape`.
        """
        how = padding, stride, dilation, groups, mode, compute_dtype
        return self._add_convolution("convolution_backward_filter", how, dtype, shape, dy=dy, x=x)

    def pointwise(
        self,
        mode: PointwiseMode | raw.cudnnPointwiseMode_t,
        x: Node,
        b: Node | float | None = None,
        t: Node | None = None,
        how: Mapping[str, float] | None = None,
        *,
        axis: int | None = None,
        dtype: Dtype | None = None,
        compute_dtype: Dtype | None = None,
    ) -> Node:
        """Add an elementwise operation (CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR).

        Parameters
        ----------
        mode : str
            A name of cudnnPointwiseMode_t.
        x, b, t : Node
            One, two or three tensors, as the mode requires; axes of size 1 are broadcast. For a gradient ("relu_bwd", ...), x
            is the gradient with respect to the result and b the input of the forward operation. For "binary_select" t is the
            flag: x where it is true, b elsewhere. A number for b is a tensor by value, as of `number`.
        how : mapping, optional
            Numbers by name: relu_lower_clip, relu_upper_clip, relu_lower_clip_slope, elu_alpha, softplus_beta, swish_beta.
        axis : int, optional
            The axis whose indices "gen_index" gives; negative ones count from the last.
        dtype, compute_dtype : dtype-like, optional
            The data types of the result and of the computation. Comparisons give flags ("bool"), and "gen_index" int32.

        Returns
        -------
        Node
            The result, of the shape that the operands broadcast to.
        """
        number = enumerator(raw.cudnnPointwiseMode_t, mode, "mode")
        self._check_nodes(x=x)
        if isinstance(b, int | float):
            b = self._number_of("b", b, len(x.shape))
        elif b is not None:
            self._check_nodes(b=b)
        if t is not None:
            self._check_nodes(t=t)
        options = {"mode": number, **_compute_option(compute_dtype), **_checked_how(how)}
        if axis is not None:
            (options["axis"],) = _checked_axes((axis,), len(x.shape))
        if pointwise_name(number).endswith("_bwd"):
            return self._add("pointwise", options, dtype=dtype, dy=x, x=b, t=t)["dx"]
        return self._add("pointwise", options, dtype=dtype, x=x, b=b, t=t)["y"]

    def reduction(
        self,
        op: ReduceOperation | raw.cudnnReduceTensorOp_t,
        x: Node,
        axes: Iterable[SupportsIndex],
        *,
        deterministic: bool | None = None,
        dtype: Dtype | None = None,
        compute_dtype: Dtype | None = None,
    ) -> Node:
        """Add a reduction over axes, which remain with size 1 (CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR).

        Parameters
        ----------
        op : str
            A name of cudnnReduceTensorOp_t.
        x : Node
            The tensor.
        axes : tuple of ints
            One or more axes, each once; negative ones count from the last.
        deterministic : bool, optional
            CUDNN_ATTR_REDUCTION_IS_DETERMINISTIC.
        dtype, compute_dtype : dtype-like, optional
            The data types of the result and of the computation.

        Returns
        -------
        Node
            The result.
        """
        self._check_nodes(x=x)
        found = sorted(_checked_axes(axes, len(x.shape)))
        return self.add(
            "reduction", x=x, op=op, axes=found, deterministic=deterministic, dtype=dtype, compute_dtype=compute_dtype
        )["y"]

    def matmul(
        self,
        a: Node,
        b: Node,
        *,
        m: Node | None = None,
        n: Node | None = None,
        k: Node | None = None,
        padding_value: float | None = None,
        dtype: Dtype | None = None,
        compute_dtype: Dtype | None = None,
    ) -> Node:
        """Add a matrix product (CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR).

        Parameters
        ----------
        a, b : Node
            (batch..., M, K) and (batch..., K, N). Where the sizes of an axis of the batch differ, one is a multiple of the
            other, whose matrices repeat, each for several in a row, as the heads of grouped attention do.
        m, n, k : Node, optional
            The sizes that are valid in each product of the batch, (batch, 1, 1) or, in attention, (batch, 1, 1, 1) in int32.
        padding_value : float, optional
            The value of the other elements.
        dtype, compute_dtype : dtype-like, optional
            The data types of the result and of the sums.

        Returns
        -------
        Node
            (batch..., M, N).
        """
        how: dict[str, Any] = {"padding_value": padding_value, "dtype": dtype, "compute_dtype": compute_dtype}
        return self.add("matmul", a=a, b=b, m_override=m, n_override=n, k_override=k, **how)["c"]

    def resample(
        self,
        mode: ResampleMode | raw.cudnnResampleMode_t,
        x: Node,
        window: PerAxis,
        *,
        padding: PerAxis = 0,
        stride: PerAxis | None = None,
        dtype: Dtype | None = None,
        compute_dtype: Dtype | None = None,
    ) -> Node:
        """Add a pooling (CUDNN_BACKEND_OPERATION_RESAMPLE_FWD_DESCRIPTOR). `add` has fractions and the indices of maxima.

        Parameters
        ----------
        mode : {"maxpool", "avgpool_include_padding", "avgpool_exclude_padding"}
            A name of cudnnResampleMode_t.
        x : Node
            (N, C, spatial...).
        window, padding, stride : int or tuple of ints
            An int, or one int for each spatial axis; the stride is the window by default.
        dtype, compute_dtype : dtype-like, optional
            The data types of the result and of the computation.

        Returns
        -------
        Node
            (N, C, spatial...).
        """
        self._check_nodes(x=x)
        options = _resample_options(mode, len(x.shape) - 2, window, padding, stride, compute_dtype)
        return self._add("resample_fwd", options, dtype=dtype, x=x)["y"]

    def resample_backward(
        self,
        mode: ResampleMode | raw.cudnnResampleMode_t,
        dy: Node,
        shape: Shape,
        window: PerAxis,
        *,
        x: Node | None = None,
        y: Node | None = None,
        index: Node | None = None,
        padding: PerAxis = 0,
        stride: PerAxis | None = None,
        dtype: Dtype | None = None,
        compute_dtype: Dtype | None = None,
    ) -> Node:
        """Add the gradient of a pooling (CUDNN_BACKEND_OPERATION_RESAMPLE_BWD_DESCRIPTOR).

        Parameters
        ----------
        mode, window, padding, stride, dtype, compute_dtype
            As for `resample`.
        dy : Node
            The gradient with respect to y.
        shape : tuple of ints
            The shape of x.
        x, y : Node, optional
            The input and the result: of a maximum, and in every mode of tensors that are not channels last.
        index : Node, optional
            The indices of the maxima, in place of x and y.

        Returns
        -------
        Node
            The gradient with respect to x.
        """
        self._check_nodes(
            dy=dy, **{name: node for name, node in (("x", x), ("y", y), ("index", index)) if node is not None}
        )
        options = _resample_options(mode, len(dy.shape) - 2, window, padding, stride, compute_dtype)
        options["shape"] = check_shape("shape", shape, len(dy.shape))
        return self._add("resample_bwd", options, dtype=dtype, dy=dy, x=x, y=y, index=index)["dx"]

    def normalization(
        self,
        mode: GraphNormalization | raw.cudnnBackendNormMode_t,
        x: Node,
        scale: Node,
        bias: Node | None,
        epsilon: float,
        *,
        training: bool = True,
        running: tuple[Node, Node] | None = None,
        average_factor: float = 1.0,
    ) -> tuple[Node, ...]:
        """Add a normalization (CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR).

        Parameters
        ----------
        mode : {"batch_norm", "layer_norm", "instance_norm", "rms_norm"}
            A name of cudnnBackendNormMode_t.
        x, scale, bias : Node
            The tensor and its parameters, with the same number of axes as x; bias may be None.
        epsilon : float
            Added to the variance; 0 or more.
        training : bool
            Whether the statistics are results.
        running : tuple of Nodes, optional
            The running mean and variance.
        average_factor : float
            The weight of the new statistics in the running ones.

        Returns
        -------
        tuple of Nodes
            y; with `training` also the mean (except for "rms_norm") and the inverse variance; with `running` also the new
            running mean and variance.
        """
        self._check_nodes(x=x, scale=scale, **({} if bias is None else {"bias": bias}))
        phase = "training" if check_flag("training", training) else "inference"
        self._check_running(running)
        how: dict[str, Any] = {"epsilon": check_number("epsilon", epsilon, 0.0, finite=True)}
        factor = check_number("average_factor", average_factor, finite=True)
        if running is not None:
            how |= {"exp_avg_factor": factor, "input_running_mean": running[0], "input_running_var": running[1]}
        return tuple(self.add("norm_forward", mode=mode, phase=phase, x=x, scale=scale, bias=bias, **how).values())

    def normalization_backward(
        self,
        mode: GraphNormalization | raw.cudnnBackendNormMode_t,
        dy: Node,
        x: Node,
        scale: Node,
        mean: Node | None,
        inverse: Node,
        *,
        bias: bool = True,
    ) -> tuple[Node, ...]:
        """Add the gradients of a normalization (CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR).

        Parameters
        ----------
        mode : str
            As for `normalization`.
        dy : Node
            The gradient with respect to y.
        x, scale : Node
            The tensor and its scale.
        mean, inverse : Node
            The statistics of the normalization; mean is None for "rms_norm".
        bias : bool
            Whether dbias is a result.

        Returns
        -------
        tuple of Nodes
            dx and dscale; with `bias` also dbias.
        """
        self._check_nodes(dy=dy, x=x, scale=scale, **({} if mean is None else {"mean": mean}), inverse=inverse)
        results = ("dbias",) if check_flag("bias", bias) else ()
        nodes: dict[str, Any] = {"dy": dy, "x": x, "scale": scale, "mean": mean, "inv_variance": inverse}
        return tuple(self.add("norm_backward", results=results, mode=mode, **nodes).values())

    # Planning and running

    def problem(
        self, device: int = 0, specs: Mapping[str, TensorSpec] | None = None
    ) -> ConvolutionProblem | GraphProblem:
        """Return the problem of the graph on a device. `specs` give the alignments of arrays by name."""
        given = {} if specs is None else specs
        if not isinstance(given, Mapping):
            raise TypeError(f"specs must be a dict of TensorSpecs by name, or None; got {error_repr(given)}")
        return self._problem(device, given)[0]

    def _problem(
        self, device: int, specs: Mapping[str, TensorSpec] = MappingProxyType({})
    ) -> tuple[ConvolutionProblem | GraphProblem, CallerOperands]:
        """Return the problem of the graph on a device, and the graph's tensors among its operands.

        A graph that is a convolution, with a bias and an activation or without, is the problem of Convolution.
        """
        self._check_outputs()
        graph, uids = canonical_graph(self._operation_graph({name: spec.alignment for name, spec in specs.items()}))
        nodes = (*self.inputs, *self.outputs)
        if unused := [node.name for node in nodes if node.uid not in uids]:
            raise ValueError(
                f"the inputs of a graph must be taken by operations that an output depends on; got {', '.join(unused)}, "
                "which none takes"
            )
        names = {uids[node.uid]: node.name for node in nodes}
        check_graph(graph, names)
        found, order = as_convolution(graph, device) or (None, graph.in_memory)
        caller = CallerOperands(tuple(names.values()), tuple(map([*names].index, order)))
        if found is None:
            return GraphProblem(graph, device, names=tuple(map(names.__getitem__, order))), caller
        return ConvolutionProblem(*found), caller

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
            The graph has no output, an input is empty, or cuDNN would end the process (docs/known-issues.md).
        NoAlgorithmError
            No engine can run the graph; the message has the table of candidates.
        """
        problem, operands = self._plannable(device)
        return plan_on(device, problem, self.options, operands)

    def candidates(self, device: int | DeviceProfile = 0) -> list[Candidate]:
        """Plan every candidate for the graph. `cudnnpy.candidates_table` makes a table of them.

        Parameters
        ----------
        device : int or DeviceProfile
            As for `plan`.

        Returns
        -------
        list of Candidate
            All candidates. `rejection_reason` is "" for a candidate that can be used.

        Raises
        ------
        ValueError
            As for `plan`.
        """
        return candidates_on(device, self._plannable(device)[0], self.options)

    def _plannable(self, device: Any) -> tuple[ConvolutionProblem | GraphProblem, CallerOperands]:
        """Return the problem of the graph on a device, as `_problem` does. Raises ValueError if there is nothing to plan."""
        self._check_outputs()
        if empty := self._empty():
            raise ValueError(f"a planned graph must have elements; got none in {', '.join(empty)}")
        check_device(device)
        return self._problem(0 if isinstance(device, OtherGpu) else device)

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
            wrong = [f"{what} {', '.join(names)}" for what, names in (("no", missing), ("unknown", arrays)) if names]
            raise TypeError(
                f"arrays must be the graph's inputs, and may be its outputs, by name; got {' and '.join(wrong)}"
            )
        names, prepare = self._names(), Graph._prepare
        return dispatch.run("graph", self, prepare, names, inputs, outs, stream, len(self._operations))

    def check(self, arrays: Mapping[str, Array], device: int = 0) -> dict[str, OutputCheck]:
        """Run the graph on a GPU and in NumPy (`cudnnpy.reference.run`), and compare the outputs.

        The outputs' memory is filled with NaN before. Masks of random bits are taken from the GPU's outputs.

        Parameters
        ----------
        arrays : mapping
            A NumPy array, or an array of another library, for each input by its name, of the input's shape and data type; the
            strides are free.
        device : int
            The ordinal of the GPU.

        Returns
        -------
        dict of str to OutputCheck
            For each output its largest error, by the tolerance of its data types (`cudnnpy.reference.tolerance`), its place,
            and whether all elements are right.

        Raises
        ------
        TypeError, ValueError
            As for `cudnnpy.reference.run` and `plan`.
        NoAlgorithmError
            No engine can run the graph; the message has the table of candidates.
        """
        import numpy as np

        from cudnnpy._arrays.copies import copy_with_strides, to_numpy
        from cudnnpy.reference.graph import checked_arrays, compare, evaluate, random_results

        if not isinstance(arrays, Mapping):
            raise TypeError(f"arrays must be a dict of arrays by name; got {error_repr(arrays)}")
        given = {name: one if isinstance(one, np.ndarray) else to_numpy(one) for name, one in arrays.items()}
        data, _ = checked_arrays(self, given)
        plan = self.plan(device)

        def placed(node: Node, values: Any) -> Any:
            assert node.spec.strides is not None
            return copy_with_strides(values, dtype_of(node.spec.dtype), node.spec.strides, device)

        inputs = [placed(node, given[node.name]) for node in self.inputs]
        outputs = []
        for node in self.outputs:
            kind = numpy_dtype(node.spec.dtype)
            poison = np.full(node.shape, -1 if kind.kind in "iu" else np.nan).astype(kind)
            outputs.append(placed(node, poison))
        workspace = empty((max(plan.workspace_size, 1),), "uint8", device=device)
        addresses = [array.pointer for array in (*inputs, *outputs)]
        plan.execute(*addresses, workspace.pointer if plan.workspace_size else 0, 0)
        results = {node.name: to_numpy(array) for node, array in zip(self.outputs, outputs, strict=True)}
        random = random_results(data)
        masks = {node.name: results[node.name] for node in self.outputs if node.uid in random}
        expected, allowed = evaluate(self, {**given, **masks}, plan.notes)
        return {name: compare(results[name], expected[name], allowed[name]) for name in results}

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
            there = _in_graph_form(given, node.name)
            if there.dtype != node.spec.dtype or not has_same_layout(there, node.spec):
                raise ValueError(
                    f"{node.name} must have the graph's shape, dtype and strides, {node.spec[:3]}; got {given[:3]}"
                )
            if given.alignment < node.spec.alignment:  # engines that are compiled at run time misread other addresses
                raise ValueError(
                    f"{node.name} must be aligned to 16 bytes; got an address that is a multiple of {given.alignment}"
                )
        if self._empty():
            return self._without_elements(call), [node.spec for node in self.outputs]
        return self._plan_in(call, specs=call.specs), [node.spec for node in self.outputs]

    def _plan_in(
        self,
        call: dispatch.Call,
        *scratch: int,
        specs: Mapping[str, TensorSpec] = MappingProxyType({}),
        preferred_engine: Engine | None = None,
    ) -> Plan:
        """Return the plan of a call of a layer, beside scratch memory of these sizes in bytes. Raises NoAlgorithmError."""
        problem, operands = self._problem(call.device, specs)
        return plan_for(
            problem,
            self.options,
            stream=call.stream,
            preferred_engine=preferred_engine,
            memory_limit=call.memory_limit_with_scratch(*scratch),
            lists_candidates=False,
            operands=operands,
        )

    def _plan_if_supported(self, call: dispatch.Call, preferred_engine: Engine | None = None) -> Plan | None:
        """Return the plan of a call of a layer; None if no engine can run the graph."""
        try:
            return self._plan_in(call, preferred_engine=preferred_engine)
        except NoAlgorithmError:
            return None

    def _without_elements(self, call: dispatch.Call) -> Program:
        """Return the program of a graph of empty tensors. Raises ValueError for an output that is not empty."""
        for node in self.outputs:
            if 0 not in node.shape:
                raise ValueError(
                    f"{node.name} must have no elements where {', '.join(self._empty())} has none; "
                    f"got shape {node.shape}. "
                    "For such inputs use Convolution, or fill the output without cuDNN"
                )
        operands = [Operand(node.name, node.spec) for node in (*self.inputs, *self.outputs)]
        return Program("graph of empty tensors", call.device, operands, [])

    # Checks and additions

    def _check_name(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise TypeError(f"name must be a str that is not empty; got {error_repr(name)}")
        if name in ("self", "stream"):
            raise ValueError(f"name must differ from the arguments of run(); got {error_repr(name)}")
        if name in [node.name for node in (*self.inputs, *self.outputs)]:
            raise ValueError(f"name must differ from the other names of the graph; got {error_repr(name)}")

    def _check_nodes(self, **given: Any) -> None:
        """Raise TypeError for an argument that is not a node, ValueError for a node of another graph."""
        for name, node in given.items():
            if not isinstance(node, Node):
                advice = ""
                if isinstance(node, int | float) and not isinstance(node, bool):
                    advice = ". Type g.number(value, rank)"
                elif hasattr(node, "shape"):
                    advice = ". Type g.tensor(name, array)"
                raise TypeError(f"{name} must be a node of this graph; got {error_repr(node)}{advice}")
            if self._by_uid.get(node.uid) is not node:
                what = f"{node.name!r}, a node" if node.name else f"a node of shape {node.shape}"
                raise ValueError(f"{name} must be a node of this graph; got {what} of another graph")

    def _check_running(self, running: Any) -> None:
        if running is None:
            return
        if not isinstance(running, tuple | list) or len(running) != 2:
            raise TypeError(
                f"running must be two nodes, the mean and the variance, or None; got a {type(running).__name__}"
            )
        for node in running:
            self._check_nodes(running=node)

    def _number_of(self, name: str, value: float, rank: int, dtype: Dtype | None = None) -> Node:
        kind = self.compute_dtype if dtype is None else dtype_of(dtype).name
        held = number_of(name, value, kind)
        return Node(TensorSpec((1,) * rank, kind, (1,) * rank), virtual=False, number=held)

    def _keep(self, *nodes: Node) -> None:
        for node in nodes:
            node.uid = len(self._by_uid) + 1
            self._by_uid[node.uid] = node

    def _add(
        self,
        kind: str,
        given: Mapping[str, Any],
        wanted: Iterable[str] = (),
        dtype: Dtype | None = None,
        **operands: Node | Sequence[Node] | None,
    ) -> dict[str, Node]:
        """Add an operation of the table KINDS; return its results by name.

        The nodes and the values of the options have been checked, and options that are None are left out. `wanted` are the
        optional results, and `dtype` is the first result's. If the operands do not fit, the graph is unchanged.
        """
        row = KINDS[kind]
        nodes = {name: node for name in row.operands if (node := operands.get(name)) is not None}
        options = {name: value for name, value in given.items() if value is not None}
        if "compute_dtype" in row.all_options:
            options.setdefault("compute_dtype", self.compute_dtype)
        options = row.complete(options)
        specs = {
            name: node.spec if isinstance(node, Node) else tuple(n.spec for n in node) for name, node in nodes.items()
        }
        found = row.check(options, specs, self.compute_dtype)
        if missing := [name for name in wanted if name not in found]:
            raise ValueError(f"results must be some of {', '.join(found)}; got {', '.join(missing)}")
        other = row.infer(options, specs, "float64" if self.compute_dtype == "float32" else "float32")
        made = {
            name: Node(found[name], has_own_dtype=other[name].dtype == found[name].dtype)
            for name, end in row.results.items()
            if name in found and (name in wanted or not end.endswith("?"))
        }
        if dtype is not None and made:
            first = next(iter(made.values()))
            first.spec, first.has_own_dtype = first.spec._replace(dtype=dtype_of(dtype).name), True
        flat = [one for node in nodes.values() for one in ((node,) if isinstance(node, Node) else node)]
        self._keep(*made.values(), *(node for node in flat if not node.uid))
        taken = tuple(
            (name, node.uid if isinstance(node, Node) else tuple(one.uid for one in node))
            for name, node in nodes.items()
        )
        results = tuple((name, node.uid) for name, node in made.items())
        self._operations.append(Operation(kind, tuple(options.items()), taken, results))
        return made

    def _add_convolution(
        self, kind: str, how: tuple[Any, ...], dtype: Dtype | None, shape: Shape | None = None, **given: Any
    ) -> Node:
        """Check the options of a convolution, or of a gradient of this shape, add it, and return its result.

        Axes of size 1 of its tensors get the strides that channels last means, if some are so in memory.
        """
        self._check_nodes(**given)
        padding, stride, dilation, groups, mode, compute_dtype = how
        number, axes = enumerator(raw.cudnnConvolutionMode_t, mode, "mode"), len(next(iter(given.values())).shape)
        rank = max(axes - 2, 0)
        sides = expand_per_axis("padding", check_padding(padding), rank)
        pairs = [side if isinstance(side, tuple) else (side, side) for side in sides]
        options = {
            "mode": number,
            "spatial_dims": rank,
            "pre_padding": tuple(before for before, _ in pairs),
            "post_padding": tuple(after for _, after in pairs),
            "stride": _each_axis("stride", stride, 1, rank),
            "dilation": _each_axis("dilation", dilation, 1, rank),
            **_compute_option(compute_dtype),
        }
        if shape is not None:
            options["shape"] = check_shape("shape", shape, axes)
        _check_groups(groups, *(given[name].shape if name in given else options["shape"] for name in "xw"))
        ((name, result),) = self._add(kind, options, dtype=dtype, **given).items()
        nodes = {of.removeprefix("d"): node for of, node in {**given, name: result}.items()}
        tensors = [nodes[role] for role in "xwy"]
        for node, spec in zip(tensors, with_channels_last_strides(*(node.spec for node in tensors)), strict=True):
            node.spec = spec
        return result

    def _check_outputs(self) -> None:
        if not self.outputs:
            raise ValueError("a graph must have an output; got none. Call output(name, node)")

    def _operation_graph(self, alignment: Mapping[str, int]) -> OperationGraph:
        """Return the graph as data, with normalized strides. `alignment` gives the alignment of tensors by name.

        If all memory formats are ambiguous, the tensors are channels last, as engines that fuse need it. Matrices, sequences,
        and tensors with fewer than four axes have no channels and positions, and their strides are unchanged.
        """
        specs = {uid: node.spec for uid, node in self._by_uid.items()}
        kinds = self.operations
        if _OF_IMAGES.issuperset(kinds):
            first = dict.fromkeys(node.uid for node in (*self.inputs, *self.outputs))
            images = [uid for uid in {**first, **dict.fromkeys(specs)} if len(specs[uid].shape) >= 4]
            last = "resample_fwd" not in kinds
            specs.update(zip(images, normalize_unit_strides(*map(specs.__getitem__, images), last=last), strict=True))
        tensors = tuple(
            Tensor(
                uid,
                specs[uid]._replace(alignment=alignment.get(node.name, node.spec.alignment)),
                node.virtual,
                node.number,
                node.ragged.uid if node.ragged else 0,
                node.reordering,
                node.vector,
            )
            for uid, node in self._by_uid.items()
        )
        return OperationGraph(tensors, tuple(self._operations), self._graph_options)


def _compute_option(dtype: Dtype | None) -> dict[str, Any]:
    return {} if dtype is None else {"compute_dtype": dtype_of(dtype, "compute_dtype").name}


def _check_groups(groups: int, x: tuple[int, ...], w: tuple[int, ...]) -> None:
    """Raise ValueError for filters of other groups. Shapes of other ranks are left to the rule of the kind."""
    check_integer("groups", groups, 1)
    if min(len(x), len(w)) > 1 and x[1] != groups * w[1]:
        inferred = f", as groups={x[1] // w[1]} would give" if w[1] and x[1] % w[1] == 0 else ""
        raise ValueError(
            f"w must have shape (K, C / groups, ...) for {x[1]} channels and groups={groups}; got shape {w}{inferred}"
        )


def _resample_options(
    mode: Any, rank: int, window: PerAxis, padding: PerAxis, stride: PerAxis | None, compute_dtype: Dtype | None
) -> dict[str, Any]:
    """Check the options of a pooling with `rank` spatial axes; return them by name."""
    number = enumerator(raw.cudnnResampleMode_t, mode, "mode")
    size, pads = _each_axis("window", window, 1, rank), _each_axis("padding", padding, 0, rank)
    return {
        "mode": number,
        "spatial_dims": rank,
        "padding_mode": raw.CUDNN_NEG_INF_PAD if number == raw.CUDNN_RESAMPLE_MAXPOOL else raw.CUDNN_ZERO_PAD,
        "pre_padding": pads,
        "post_padding": pads,
        "stride": size if stride is None else _each_axis("stride", stride, 1, rank),
        "window": size,
        **_compute_option(compute_dtype),
    }


def _each_axis(name: str, given: Any, low: int, rank: int) -> tuple[int, ...]:
    """Return one int for each of `rank` spatial axes."""
    return expand_per_axis(name, check_per_axis(name, given, low), rank)


def _checked_axes(axes: Iterable[SupportsIndex], rank: int) -> set[int]:
    """Return the axes of a tensor, counted from the first. Raises for an axis that is out of range or occurs twice."""
    expected = f"one or more of {-rank} to {rank - 1}, each axis once"
    given: Any = axes if isinstance(axes, str | bytes) or not isinstance(axes, Iterable) else bounded(axes)
    try:
        numbers = [index(axis) for axis in given if not isinstance(axis, bool)]
        if len(numbers) != len(given):
            raise TypeError
    except TypeError:
        raise TypeError(f"axes must be a tuple of integers, {expected}; got {error_repr(given)}") from None
    found = {axis % rank for axis in numbers}
    if not numbers or len(found) != len(numbers) or any(not -rank <= axis < rank for axis in numbers):
        raise ValueError(f"axes must be {expected}; got {error_repr(given)}")
    return found


def _checked_how(how: Mapping[str, float] | None) -> dict[str, float]:
    """Check the options of an elementwise operation, which may be infinite; return them by name."""
    if how is None:
        return {}
    if not isinstance(how, Mapping):
        raise TypeError(f"how must be a mapping with keys among {', '.join(HOW)}; got {error_repr(how)}")
    if unknown := [name for name in how if name not in HOW]:
        raise ValueError(f"how must have keys among {', '.join(HOW)}; got {unknown[0]!r}")
    return {name: check_number(f"how[{name!r}]", value) for name, value in how.items()}


def _in_graph_form(spec: TensorSpec, name: str) -> TensorSpec:
    """Return a spec in canonical form, with strides. Axes of size 1 get the strides that its memory format implies."""
    spec = check_spec(name, spec)
    if not spec.shape:
        raise ValueError(f"{name} must have 1 to {raw.CUDNN_DIM_MAX} axes; got none, shape ()")
    spec = spec._replace(strides=packed_strides(spec.shape) if spec.strides is None else spec.strides)
    return normalize_unit_strides(spec, last=suggests_channels_last(spec))[0]
