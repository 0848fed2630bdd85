"""Node, a tensor of a graph; and GraphTensors, the base class of Graph, which adds nodes and builds their descriptors.

A call that raises leaves the graph unchanged: new nodes become part of the graph at the end of the call, in `_add`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import c_double, c_float
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, SupportsIndex, cast

from cudnnpy import raw
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import (
    TensorSpec,
    check_distinct,
    check_spec,
    has_same_layout,
    normalize_unit_strides,
    packed_strides,
    result_strides,
    suggests_channels_last,
)
from cudnnpy._memory.arrays import read, spec_of
from cudnnpy._options.checks import check_integer, check_number, error_repr
from cudnnpy._options.public_dir import PublicDir
from cudnnpy._planning import engines
from cudnnpy._planning.issue_conditions import ProblemTraits
from cudnnpy.backend import Descriptor
from cudnnpy.graph.frontend_names import missing, with_frontend_keywords
from cudnnpy.typing import Array, Dtype, ElementName

# Operands that must be positive so that the result is not NaN, operands that are flags, and operands that must be positive so
# that the result is; by the mode of an elementwise operation or the kind of another operation.
_POSITIVE = {
    **dict.fromkeys(("sqrt", "rsqrt", "log", "pow", "reciprocal"), ("XDESC",)),
    **dict.fromkeys(("div", "mod", "floor_mod"), ("BDESC",)),
    "OPERATION_NORM_FORWARD": ("INPUT_RUNNING_VAR_DESC",),
    "OPERATION_NORM_BACKWARD": ("INV_VARIANCE_DESC",),
}
_FLAGS = {
    **dict.fromkeys(("logical_and", "logical_or", "logical_not"), ("XDESC", "BDESC")),
    "binary_select": ("TDESC",),
}
_SAME_SIGN = {
    **dict.fromkeys(("add", "mul", "div", "max", "min", "identity", "add_square"), ("XDESC", "BDESC")),
    **dict.fromkeys(("OPERATION_REDUCTION", "OPERATION_RESAMPLE_FWD"), ("XDESC",)),
    "OPERATION_CONVOLUTION_FORWARD": ("X", "W"),
    "OPERATION_MATMUL": ("ADESC", "BDESC"),
}

RecordedCall = tuple[str, dict[str, Any]]  # a method of a graph, with its arguments in canonical form


@dataclass(eq=False)
class Node:
    """A tensor of a graph: an input, a number, or the result of an operation, which is virtual unless it is an output."""

    spec: TensorSpec
    name: str = ""
    virtual: bool = True
    number: c_float | c_double | None = None  # for a tensor by value
    uid: int = 0  # the unique id, which the graph sets

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes, in the graph's order (N, C, spatial...)."""
        return self.spec.shape

    if not TYPE_CHECKING:  # type checkers report unknown attributes

        def __getattr__(self, name):
            raise AttributeError(missing(type(self), name), name=name, obj=self)


@with_frontend_keywords
class GraphTensors(PublicDir):
    """Tensors and operations, in the order in which they were added."""

    compute_dtype: ElementName  #: the data type of intermediate results
    inputs: list[Node]  #: in the order of tensor()
    outputs: list[Node]  #: in the order of output()
    operations: list[str]  #: the operations as text, in order

    if not TYPE_CHECKING:  # type checkers report unknown attributes

        def __getattr__(self, name):
            raise AttributeError(missing(type(self), name), name=name, obj=self)

    def __init__(self, compute_dtype: Dtype = "float32") -> None:
        self.compute_dtype = dtype_of(compute_dtype, "compute_dtype").name
        self.inputs = []
        self.outputs = []
        self.operations = []
        self._nodes: list[tuple[str, str, dict[str, Any]]] = []  # descriptor kind, attributes' prefix, attributes
        self._constants: list[Node] = []
        self._by_uid: dict[int, Node] = {}  # every tensor
        self._calls: list[RecordedCall] = []
        self._max_reduction_length = 1
        self._convolutions: list[tuple[Node, Node, Node]] = []

    def tensor(self, name: str, like: Array | TensorSpec) -> Node:
        """Add an input.

        Parameters
        ----------
        name : str
            Its name in `run` and in the operands of a plan.
        like : array or TensorSpec
            Its shape, dtype, strides and alignment.

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
        spec = like if isinstance(like, TensorSpec) else spec_of(read(like, name)[1])
        node = Node(canonical_spec(spec, name), name, virtual=False)
        self._keep(node)
        self.inputs.append(node)
        self._record("tensor", name=name, like=node.spec)
        return node

    def number(self, value: float, rank: int = 4) -> Node:
        """Add a constant as a tensor of `rank` axes of size 1.

        Raises TypeError and ValueError for a value that is not a number, or that does not fit compute_dtype.
        """
        node = self._number_of("value", value, check_integer("rank", rank, 1, raw.CUDNN_DIM_MAX))
        self._keep(node)
        assert node.number is not None
        self._record("number", value=node.number.value, rank=len(node.shape))
        return node

    def output(
        self, name: str, node: Node, dtype: Dtype | None = None, strides: Sequence[SupportsIndex] | None = None
    ) -> Node:
        """Make the result of an operation an output, which is in memory.

        Parameters
        ----------
        name : str
            Its name in `run` and in the operands of a plan.
        node : Node
            The result of an operation.
        dtype : dtype-like, optional
            By default the dtype of the first input.
        strides : tuple of ints, optional
            In elements; by default the memory format of the operation's first input.

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
        if dtype is None and not self.inputs:
            raise ValueError("dtype must be a data type where the graph has no input to take it from; got None")
        kind = dtype_of(self.inputs[0].spec.dtype if dtype is None else dtype).name
        if strides is not None:
            there = canonical_spec(TensorSpec(node.shape, kind, cast(Any, strides)), name)
            check_distinct(there, name)
            if not has_same_layout(node.spec, there):  # otherwise the strides of axes of size 1 stay
                node.spec = node.spec._replace(strides=there.strides)
        node.spec, node.name, node.virtual = node.spec._replace(dtype=kind), name, False
        self.outputs.append(node)
        self._record("output", name=name, node=node, dtype=kind, strides=node.spec.strides)
        return node

    @property
    def traits(self) -> ProblemTraits:
        """The properties that known issues of engines depend on. Each output of a convolution's shape counts as its y."""
        specs = self.described()
        return ProblemTraits(
            "graph",
            tuple(
                (specs[x.uid], specs[w.uid], specs[result.uid])
                for x, w, y in self._convolutions
                for result in (y, *(node for node in self.outputs if node.shape == y.shape))
            ),
            self._modes("POINTWISE", "MODE", "CUDNN_POINTWISE_"),
            self._modes("REDUCTION", "OPERATOR", "CUDNN_REDUCE_TENSOR_"),
        )

    def restricted(self) -> tuple[set[int], set[int]]:
        """Return the unique ids of tensors that must be positive so that no result is NaN, and of tensors that are flags."""
        positive: set[int] = set()
        flags: set[int] = set()
        for kind, _, attributes in reversed(self._nodes):  # from the results on
            name = kind
            if kind == "OPERATION_POINTWISE":
                name = attributes["PW_DESCRIPTOR"][1]["MODE"].name.removeprefix("CUDNN_POINTWISE_").lower()
            tensors = {name: node.uid for name, node in attributes.items() if isinstance(node, Node)}
            needed = set(_POSITIVE.get(name, ()))
            if not positive.isdisjoint(tensors.get(result, 0) for result in ("Y", "YDESC", "CDESC")):
                needed.update(_SAME_SIGN.get(name, ()))
            positive.update(uid for operand, uid in tensors.items() if operand in needed)
            flags.update(uid for operand, uid in tensors.items() if operand in _FLAGS.get(name, ()))
        return positive, flags

    def _modes(self, kind: str, attribute: str, prefix: str) -> frozenset[str]:
        """Return the values of an attribute in the descriptors of a kind, by name: "tanh" for CUDNN_POINTWISE_TANH_FWD."""
        values = (value for *_, attributes in self._nodes for value in attributes.values())
        given = (value[1] for value in values if isinstance(value, tuple) and value[0] == kind)
        return frozenset(what[attribute].name.removeprefix(prefix).removesuffix("_FWD").lower() for what in given)

    # Checks

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
                raise TypeError(f"{name} must be a node of this graph; got {error_repr(node)}")
            if self._by_uid.get(node.uid) is not node:
                what = f"{node.name!r}, a node" if node.name else f"a node of shape {node.shape}"
                raise ValueError(f"{name} must be a node of this graph; got {what} of another graph")

    # Additions

    def _made(self, shape: Sequence[int], like: Node) -> Node:
        shape = tuple(shape)
        return Node(TensorSpec(shape, self.compute_dtype, result_strides(shape, like.spec)))

    def _number_of(self, name: str, value: float, rank: int) -> Node:
        number = check_number(name, value)
        held = (c_double if self.compute_dtype == "float64" else c_float)(number)
        if isfinite(number) and not isfinite(held.value):
            raise ValueError(f"{name} must be a number that fits {self.compute_dtype}; got {error_repr(value)}")
        return Node(TensorSpec((1,) * rank, self.compute_dtype, (1,) * rank), virtual=False, number=held)

    def _keep(self, *nodes: Node) -> None:
        for node in nodes:
            node.uid = len(self._by_uid) + 1
            self._by_uid[node.uid] = node
            if node.number is not None:
                self._constants.append(node)

    def _record(self, method: str, **arguments: Any) -> None:
        """Record a call of one of the graph's methods, with its arguments in canonical form, for serialized plans."""
        self._calls.append((method, arguments))

    def _add(self, kind: str, prefix: str, made: Sequence[Node], **attributes: Any) -> None:
        """Add an operation and the nodes that it makes.

        An attribute of None is omitted; (kind, {...}) is a descriptor that is created with the graph. All arguments have
        been checked.
        """
        self._keep(*made)
        self.operations.append(kind.lower())
        self._nodes.append((f"OPERATION_{kind}", f"OPERATION_{prefix}", attributes))

    def described(self) -> dict[int, TensorSpec]:
        """Return the tensors by unique id with normalized strides (layouts.normalize_unit_strides), for cuDNN's descriptors.

        If all memory formats are ambiguous, the tensors are channels last, as engines that fuse need it. Matrices, and tensors
        with fewer than four axes, have no channels and positions, and their strides are unchanged.
        """
        specs = {uid: node.spec for uid, node in self._by_uid.items()}
        if "matmul" not in self.operations:
            first = dict.fromkeys(node.uid for node in (*self.inputs, *self.outputs))
            images = [uid for uid in {**first, **dict.fromkeys(specs)} if len(specs[uid].shape) >= 4]
            last = "resample_fwd" not in self.operations
            specs.update(zip(images, normalize_unit_strides(*map(specs.__getitem__, images), last=last), strict=True))
        return specs

    def _check_outputs(self) -> None:
        if not self.outputs:
            raise ValueError("a graph must have an output; got none. Call output(name, node)")

    def build_graph(self, target: engines.Target, alignment: Mapping[str, int] | None = None) -> Descriptor:
        """Return the finalized operation graph. Raises StatusError if cuDNN rejects it."""
        self._check_outputs()
        made: dict[int, Descriptor] = {}
        specs = self.described()

        def of(value: Any) -> Any:
            if isinstance(value, Node):
                if value.uid not in made:
                    spec = specs[value.uid]
                    spec = spec._replace(alignment=(alignment or {}).get(value.name, spec.alignment))
                    by_value = value.number is not None
                    made[value.uid] = engines.tensor(value.uid, spec, virtual=value.virtual, by_value=by_value)
                return made[value.uid]
            if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], dict):
                return _descriptor(value[0], value[0], value[1])
            return value

        nodes = [_descriptor(kind, prefix, {n: of(v) for n, v in given.items()}) for kind, prefix, given in self._nodes]
        return engines.graph_of(nodes, target)


@dataclass(frozen=True)
class TypedValue:
    """A value for an attribute that accepts several types."""

    value: float
    kind: int


def _descriptor(kind: str, prefix: str, attributes: Mapping[str, Any]) -> Descriptor:
    made = Descriptor(getattr(raw, f"CUDNN_BACKEND_{kind}_DESCRIPTOR"))
    for name, value in attributes.items():
        if value is None:
            continue
        attribute = getattr(raw, f"CUDNN_ATTR_{prefix}_{name}")
        if isinstance(value, TypedValue):
            made.set(attribute, value.value, value.kind)
        else:
            made[attribute] = value
    made.finalize()
    return made


def canonical_spec(spec: TensorSpec, name: str) -> TensorSpec:
    """Return a spec in canonical form, with strides. Axes of size 1 get the strides that its memory format implies."""
    spec = check_spec(name, spec)
    spec = spec._replace(strides=packed_strides(spec.shape) if spec.strides is None else spec.strides)
    return normalize_unit_strides(spec, last=suggests_channels_last(spec))[0]
