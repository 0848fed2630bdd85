"""`run`, which evaluates a `cudnnpy.Graph` in NumPy, and `tolerance`, the difference that data types and rounding explain.

The kinds of operations are in _kinds.py, one function for each.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from cudnnpy import raw
from cudnnpy._checks.option_values import error_repr
from cudnnpy._core.dtypes import ROUNDOFF, numpy_dtype
from cudnnpy._core.layouts import TensorSpec
from cudnnpy._layers.graph import Graph
from cudnnpy.graph.kinds import KINDS, pointwise_name
from cudnnpy.graph.operation_graph import Operation, OperationGraph
from cudnnpy.reference._arrays import Array, Float64, check_array, rounded
from cudnnpy.reference._kinds import FUNCTIONS, Given, Made, Options, Specs


def run(graph: Graph, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Evaluate a graph in NumPy: in float64, with every tensor, in memory or not, rounded once at its data type.

    Parameters
    ----------
    graph : cudnnpy.Graph
        The graph, with one output or more.
    arrays : mapping
        A numpy.ndarray for each input by its name, of the input's shape and data type; the strides are free. Of a ragged
        tensor it has the full shape; elements outside the sequences are not read. Also the outputs, by their names, that
        random bits determine: the result of "rng", and "dropout_rng_dump" of attention. cuDNN does not document its random
        bits, so take these arrays from a run on the GPU.

    Returns
    -------
    dict
        New arrays by the names of the outputs, of the outputs' shapes and data types.

    Raises
    ------
    TypeError
        An argument is of another type, a name is missing or unknown, or an array has another data type.
    ValueError
        An array has another shape, the graph has no output, or an operation has no reference: random bits that are not
        given, a convolution that adds to its result (beta), or statistics of other GPUs (peer_stats).

    Examples
    --------
    >>> import numpy as np
    >>> import cudnnpy
    >>> g = cudnnpy.Graph()
    >>> x = g.tensor("x", cudnnpy.TensorSpec((1, 2, 2), "float16"))
    >>> y = g.output("y", g.reduction("add", g.pointwise("relu_fwd", x), (-1,)))
    >>> cudnnpy.reference.run(g, {"x": np.array([[[1, -2], [3, 4]]], np.float16)})["y"].tolist()
    [[[1.0], [7.0]]]
    """
    data, values = checked_arrays(graph, arrays)
    with np.errstate(all="ignore"):
        for _ in _steps(data, values):
            pass
    return {node.name: values[node.uid] for node in graph.outputs}


def tolerance(graph: Graph, arrays: Mapping[str, Array], notes: Collection[str] = ()) -> dict[str, Float64]:
    """Return the largest difference from `run` that a right result may have, for each element of each output.

    Each operation has an error of its own: the bound of a sum of n terms in its compute type in any order, 2 (n + 4) u S
    with S the sum of the absolute values of the terms (Higham, *Accuracy and Stability of Numerical Algorithms*, section
    3.1), with tf32 if the graph allows it, and chosen multiples of the unit roundoff u for functions. The errors of operands
    pass through an operation: through sums as absolute values, through elementwise operations by evaluating them at both
    ends of every operand's error, through normalizations and attention by random errors, four times their largest effect,
    through normalizations also by equal ones.
    Each stored value adds its rounding. An element where a comparison may go either way gets an infinite or a large
    tolerance, an integer that may be rounded either way 1. An output with a `reordering`, whose elements cuDNN has in an order
    that it does not document, has an infinite tolerance.

    Parameters
    ----------
    graph, arrays
        As for `run`.
    notes : collection of str
        The notes of the engine (`Candidate.notes`): "winograd" and "fft" enlarge the tolerance of convolutions to the error
        of a tile, "reduced_precision_reduction" that of sums.

    Returns
    -------
    dict
        float64 arrays by the names of the outputs. It is 0 for an infinite or NaN result, which must be equal.

    Raises
    ------
    TypeError, ValueError
        As for `run`; also for notes that are a str.

    Examples
    --------
    >>> import numpy as np
    >>> import cudnnpy
    >>> g = cudnnpy.Graph()
    >>> a = g.tensor("a", cudnnpy.TensorSpec((1, 1, 64), "float16"))
    >>> c = g.output("c", g.matmul(a, g.tensor("b", cudnnpy.TensorSpec((1, 64, 1), "float16"))))
    >>> ones = np.ones((1, 64), np.float16)
    >>> allowed = cudnnpy.reference.tolerance(g, {"a": ones[None], "b": ones.T[None]})["c"]
    >>> 0.06 < allowed.item() < 0.07  # of 64, in float16
    True
    """
    if isinstance(notes, str):
        raise TypeError(f"notes must be a collection of notes; got {notes!r}. Type ({notes!r},)")
    return evaluate(graph, arrays, notes)[1]


def evaluate(
    graph: Graph, arrays: Mapping[str, Array], notes: Collection[str] = ()
) -> tuple[dict[str, Array], dict[str, Float64]]:
    """Return the results of `run` and of `tolerance`, by one evaluation of the graph."""
    data, values = checked_arrays(graph, arrays)
    errors: dict[int, Float64] = {uid: np.zeros(array.shape) for uid, array in values.items()}
    dtypes, virtual = [node.spec.dtype for node in graph.outputs], {one.uid for one in data.tensors if one.is_virtual}
    bounds = _Bounds(graph.compute_dtype, graph.options.tf32, notes, max(_ROUNDOFF.get(dtype, 0.0) for dtype in dtypes))
    with np.errstate(all="ignore"):
        for step in _steps(data, values):
            found = bounds.of(step, {name: _each(errors.__getitem__, uids) for name, uids in step.operation.operands})
            for name, uid in step.operation.results:
                dtype = step.specs[name].dtype
                stored = bounds.stored_roundoff(step.operation, dtype) if uid in virtual else _ROUNDOFF.get(dtype)
                errors[uid] = _rounded_error(found[name], step.made[name], _number(values[uid]), stored, dtype)
    results = {node.name: values[node.uid] for node in graph.outputs}
    for node in graph.outputs:
        if node.reordering:  # the places of its elements are not documented
            errors[node.uid] = np.full(node.shape, np.inf)
    return results, {
        node.name: np.where(np.isfinite(_number(values[node.uid])) | np.isinf(errors[node.uid]), errors[node.uid], 0.0)
        for node in graph.outputs
    }


class OutputCheck(NamedTuple):
    """The comparison of an output with `run`'s, at the element that is the farthest from it, measured by its tolerance."""

    is_right: bool  #: whether every element is within its tolerance
    error: float  #: the absolute difference, infinity if only one of them is NaN or infinite
    tolerance: float  #: of this element
    place: tuple[int, ...]  #: its index; () for an output without elements
    result: float  #: its value
    expected: float  #: `run`'s value
    unchecked: int  #: the number of elements with an infinite tolerance, where a comparison may go either way

    def __str__(self) -> str:
        where = f"at {self.place}: {self.result:.6g} for {self.expected:.6g}"
        return (
            f"{'right' if self.is_right else 'wrong'}; largest error {self.error:.3g} of {self.tolerance:.3g} {where}"
        )


def compare(result: Array, expected: Array, allowed: Float64) -> OutputCheck:
    """Compare an output with `run`'s and with its `tolerance`. NaN equals NaN, and infinities equal themselves."""
    if not result.size:
        return OutputCheck(True, 0.0, 0.0, (), 0.0, 0.0, 0)
    with np.errstate(all="ignore"):
        errors = _difference(result, expected)
        excess = errors / allowed
        excess = np.where(np.isnan(excess), 0.0, excess)  # both are infinite, or 0
    index = np.unravel_index(int(np.argmax(excess)), excess.shape)
    return OutputCheck(
        bool((excess <= 1).all()),
        float(errors[index]),
        float(allowed[index]),
        tuple(map(int, index)),
        float(result[index]),
        float(expected[index]),
        int(np.isinf(allowed).sum()),
    )


# Evaluation


class _Step(NamedTuple):
    """An operation that has been evaluated."""

    operation: Operation
    options: Options
    given: Given
    specs: Specs
    made: Made  # before rounding

    def again(self, given: Given) -> Made:
        """Evaluate the operation with other operands."""
        return FUNCTIONS[self.operation.kind](self.options, {**self.given, **given}, self.specs)


def checked_arrays(graph: Graph, arrays: Mapping[str, Array]) -> tuple[OperationGraph, dict[int, Array]]:
    """Return the graph as data, and the values of its inputs and numbers by unique id."""
    if not isinstance(graph, Graph):
        raise TypeError(f"graph must be a cudnnpy.Graph; got {error_repr(graph)}")
    if not isinstance(arrays, Mapping):
        raise TypeError(f"arrays must be a dict of NumPy arrays by name; got {error_repr(arrays)}")
    graph._check_outputs()
    data = graph._operation_graph({})
    random = random_results(data)
    nodes = {node.name: node for node in (*graph.inputs, *(node for node in graph.outputs if node.uid in random))}
    missing = [node.name for node in graph.inputs if node.name not in arrays]
    unknown = [str(name) for name in arrays if name not in nodes]
    if missing or unknown:
        wrong = [f"{what} {', '.join(names)}" for what, names in (("no", missing), ("unknown", unknown)) if names]
        raise TypeError(f"arrays must be the graph's inputs, by name; got {' and '.join(wrong)}")
    if any(one.option("beta") for one in data.operations):
        raise ValueError("beta must be 0 for the reference, where results have no old values; got another number")
    values: dict[int, Array] = {}
    for tensor in data.tensors:
        if tensor.number is not None:
            values[tensor.uid] = rounded(np.full(tensor.spec.shape, tensor.number), numpy_dtype(tensor.spec.dtype))
    for name, array in arrays.items():
        spec = nodes[name].spec
        checked = check_array(name, array, (spec.dtype,))
        if checked.shape != spec.shape:
            raise ValueError(f"{name} must have the graph's shape, {spec.shape}; got shape {checked.shape}")
        values[nodes[name].uid] = checked
    return data, values


def random_results(graph: OperationGraph) -> set[int]:
    """Return the unique ids of the results that random bits determine."""
    return {uid for one in graph.operations for name, uid in one.results if (one.kind, name) in _RANDOM}


_RANDOM = (("rng", "y"), ("sdpa_fwd", "dropout_rng_dump"))  # the kinds and names of results that random bits determine


def _steps(graph: OperationGraph, values: dict[int, Array]) -> Iterator[_Step]:
    """Evaluate the operations in order, and put their results, rounded, into `values`."""
    specs = graph.specs
    for operation in graph.operations:
        given = {name: _each(lambda uid: _number(values[uid]), uids) for name, uids in operation.operands}
        given |= {name: _number(values[uid]) for name, uid in operation.results if uid in values}  # random ones
        of_all = {name: _each(specs.__getitem__, uids) for name, uids in operation.tensors.items()}
        made = FUNCTIONS[operation.kind](dict(operation.options), given, of_all)
        for name, uid in operation.results:
            assert made[name].shape == specs[uid].shape, (
                f"{operation.kind} {name}: {made[name].shape} {specs[uid].shape}"
            )
            values[uid] = rounded(made[name], numpy_dtype(specs[uid].dtype))
        yield _Step(operation, dict(operation.options), given, of_all, made)


def _number(array: Array) -> Array:
    """Return float64 for floating-point numbers, int64 for integers; bool is unchanged."""
    return array if array.dtype.kind == "b" else array.astype(np.int64 if array.dtype.kind in "iu" else np.float64)


# Tolerances

_ROUNDOFF: Mapping[str, float] = {**ROUNDOFF, "float8_e8m0fnu": 0.5}
# The smallest number of each data type; the smallest normal one where subnormals may be flushed
_SMALLEST: Mapping[str, float] = {
    "float64": 2.0**-1074,
    "float32": 2.0**-126,
    "float16": 2.0**-24,
    "bfloat16": 2.0**-126,
    "float8_e4m3fn": 2.0**-9,
    "float8_e5m2": 2.0**-16,
    "float8_e8m0fnu": 2.0**-127,
}
_CONVOLUTIONS = ("convolution_forward", "convolution_backward_data", "convolution_backward_filter")
_PRODUCTS = (*_CONVOLUTIONS, "matmul", "moe_grouped_matmul", "moe_grouped_matmul_bwd")
_BANDS = ("expand_band_matrix", "contract_band_matrix")
# kinds without arithmetic
_MOVES = (*_BANDS, "diagonal_band_mask", "concat", "reshape", "transpose", "slice", "signal", "rng", "paged_cache_load")
_SUMS = (*_PRODUCTS, *_MOVES, "reduction", "resample_fwd", "resample_bwd", "gen_stats", "block_scale_dequantize")
_SELECTIONS = (raw.CUDNN_REDUCE_TENSOR_MIN, raw.CUDNN_REDUCE_TENSOR_MAX)
_ATTENTION = ("sdpa_fwd", "sdpa_bwd")
_FUNCTION = 64.0  # the errors of functions in unit roundoffs: chosen, not confirmed on a GPU
# The errors of fast approximations of these functions, relative to the result, to x or to 1; of gradients, to dy
_FAST = 2.0**-10
_CURVED: Mapping[str, str] = {
    **dict.fromkeys(("tanh", "erf", "elu", "softplus"), "y"),
    **dict.fromkeys(("swish", "gelu", "gelu_approx_tanh"), "x"),
    "sigmoid": "1",
}
# functions whose errors do not vanish with the result
_ABSOLUTE = ("log", "sin", "cos", "tan", "atan2", "pow", "mod", "floor_mod")
_REMAINDERS = ("mod", "floor_mod")
_EXACT = ("identity", "abs", "neg", "max", "min", "ceil", "floor", "gen_index", "binary_select", "relu_fwd", "relu_bwd")
_TRANSFORM, _UNNOTED = 64.0, 16.0  # of Winograd and FFT algorithms, as in docs/test-your-convolution.md


class _Bounds(NamedTuple):
    """The bounds of the errors of operations, for a compute type and the notes of an engine."""

    compute_dtype: str
    tf32: bool
    notes: Collection[str]
    outputs: float  # the largest unit roundoff of an output

    def stored_roundoff(self, operation: Operation, dtype: str) -> float | None:
        """Return the roundoff of a virtual result; engines that do not fuse store a convolution's in the output's type."""
        roundoff = _ROUNDOFF.get(dtype)
        return max(roundoff, self.outputs) if roundoff and operation.kind in _CONVOLUTIONS else roundoff

    def of(self, step: _Step, errors: Given) -> dict[str, Any]:
        """Return the error of each result before it is stored, from the errors of the operands."""
        kind, options = step.operation.kind, step.options
        roundoff = _ROUNDOFF.get(options.get("compute_dtype", self.compute_dtype), 0.0)
        if not any(one.dtype.kind == "f" for one in _arrays_of(step.given)):
            roundoff = 0.0  # integers are exact
        if kind == "pointwise":
            return {name: self._at_the_ends(step, errors, name, roundoff) for name in dict(step.operation.results)}
        is_maximum = options.get("op") in _SELECTIONS or options.get("mode") == raw.CUDNN_RESAMPLE_MAXPOOL
        if kind in _SUMS and not (is_maximum and kind in ("reduction", "resample_fwd")):
            return self._of_absolute_values(step, errors, roundoff)
        own = 0.0 if is_maximum and kind in ("reduction", "resample_fwd") else _FUNCTION * roundoff
        if kind in _ATTENTION:
            # the softmax is an operand of a product, in the inputs' type
            own += 2 * _ROUNDOFF.get(step.specs["q"].dtype, 0.0)
        return _by_random_errors(step, errors, own, alike=kind.startswith("norm_"))

    def _of_absolute_values(self, step: _Step, errors: Given, roundoff: float) -> dict[str, Any]:
        """Return the errors of sums of products: how the sums of absolute values grow with the errors, and the sums' own."""
        kind = step.operation.kind
        sizes = {name: _each(_size, one) for name, one in step.given.items()}
        sums = step.again(sizes)
        grown = step.again({name: _each(_plus, sizes[name], one, step.given[name]) for name, one in errors.items()})
        if kind in _MOVES:
            return {name: _difference(grown[name], sums[name]) for name in sums}
        terms = KINDS[kind].terms(step.options, step.specs, step.specs)
        own = 2 * (terms + 4) * roundoff
        inputs = [spec.dtype for spec in map(step.specs.get, errors) if isinstance(spec, TensorSpec)]
        if kind in _PRODUCTS and self.tf32 and "float32" in inputs:
            own += 4 * _ROUNDOFF["tf32"] * bool(roundoff)
        if "reduced_precision_reduction" in self.notes:
            own += 4 * sqrt(terms) * max(self.outputs, roundoff)
        found = {}
        for name in dict(step.operation.results):
            tile, size = 0.0, _size(np.asarray(sums[name], np.float64))  # a padding may be negative or infinite
            if kind in _CONVOLUTIONS:  # some engines transform tiles without a note
                transformed = any(word in note for note in self.notes for word in ("winograd", "fft"))
                widest = max(_ROUNDOFF.get(dtype, 0.0) for dtype in (*inputs, "tf32" if self.tf32 else "float64"))
                own_tile = (
                    _TRANSFORM * ((terms + 4) * roundoff + widest) if transformed else _UNNOTED * (terms + 4) * roundoff
                )
                tile = own_tile * float(np.max(size, initial=0.0))
            found[name] = _difference(grown[name], sums[name]) + own * size + tile
        return found

    def _at_the_ends(self, step: _Step, errors: Given, name: str, roundoff: float) -> Float64:
        """Return an elementwise operation's error: the largest change at the ends of the operands' errors, and its own."""
        mode, y = pointwise_name(step.options["mode"]), step.made[name]
        uncertain = [operand for operand, error in errors.items() if np.any(error)]
        error = np.zeros(y.shape)
        for signs in itertools.product((-1.0, 1.0), repeat=len(uncertain)):
            moved = {
                operand: step.given[operand] + s * errors[operand] for operand, s in zip(uncertain, signs, strict=True)
            }
            error = np.maximum(error, _difference(step.again(moved)[name], y))
            if mode in _REMAINDERS:  # where the quotient may pass a whole number, any remainder is right
                passes = np.trunc(_quotient(step, moved)) != np.trunc(_quotient(step, step.given))
                error = np.where(passes, np.inf, error)
        if mode in _EXACT or mode.startswith(("cmp", "logical")):
            return error
        curve = mode.removesuffix("_fwd").removesuffix("_bwd")
        if curve in _CURVED and roundoff > _ROUNDOFF["float64"]:
            factors = {"x": step.given["x"], "y": y, "1": np.ones_like(y)}
            error = error + _FAST * _size(step.given.get("dy", factors[_CURVED[curve]]))
        return error + _FUNCTION * roundoff * (_size(y) + (curve in _ABSOLUTE or curve in _CURVED))


def _quotient(step: _Step, given: Given) -> Any:
    """Return the quotient whose whole part the remainder of a step depends on."""
    return FUNCTIONS["pointwise"]({**step.options, "mode": raw.CUDNN_POINTWISE_DIV}, {**step.given, **given}, {})["y"]


def _arrays_of(given: Given) -> Iterator[Array]:
    for one in given.values():
        yield from one if isinstance(one, tuple) else (one,)


def _each(function: Any, *several: Any) -> Any:
    """Apply a function to operands, or to each of their elements where they are lists."""
    return tuple(map(function, *several)) if isinstance(several[0], tuple) else function(*several)


def _size(array: Array) -> Array:
    """Return the absolute values of floating-point numbers, 0 for infinity and NaN; integers are positions or exact."""
    return np.where(np.isfinite(array), np.abs(array), 0.0) if array.dtype.kind == "f" else array


def _plus(size: Array, error: Float64, given: Array) -> Array:
    return size + error if given.dtype.kind == "f" else size


def _difference(found: Array, expected: Array) -> Float64:
    """Return the absolute difference: 0 for equal infinities and two NaN, infinity for one of them."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    difference = np.where(same, 0.0, np.abs(found - expected))
    return np.where(np.isnan(difference), np.inf, difference)


def _by_random_errors(step: _Step, errors: Given, own: float, *, alike: bool) -> dict[str, Any]:
    """Return four times the largest change of the results by random errors of the operands, and the mean change besides.

    With `alike`, equal errors of all elements count, too: the errors of a long sum of positive numbers do not cancel.
    """
    random = np.random.default_rng(0)
    changes: dict[str, Any] = dict.fromkeys(dict(step.operation.results), 0.0)
    for signs in (*[partial(random.choice, (-1.0, 1.0))] * 4, *[np.ones] * alike):
        moved = {
            name: _each(lambda one, error, signs=signs: _shaken(signs, one, error, own), one, errors[name])
            for name, one in step.given.items()
            if name in errors
        }
        made = step.again(moved)
        changes = {name: np.maximum(c, _difference(made[name], step.made[name])) for name, c in changes.items()}
    return {name: 4 * change + _mean_of_finite(change) for name, change in changes.items()}


def _shaken(signs: Callable[[tuple[int, ...]], Array], array: Array, error: Float64, own: float) -> Array:
    if array.dtype.kind != "f":
        return array
    return array + signs(array.shape) * (error + own * np.where(np.isfinite(array), np.abs(array), 0.0))


def _mean_of_finite(change: Any) -> float:
    finite = np.asarray(change)[np.isfinite(change)]
    return float(finite.mean()) if finite.size else 0.0


def _rounded_error(error: Any, exact: Array, stored: Array, roundoff: float | None, dtype: str) -> Float64:
    """Add the error of storing a result; there is none if its exact value is known and stored."""
    error = np.broadcast_to(np.asarray(error, np.float64), stored.shape)
    if roundoff is None:  # integers may be rounded either way
        return np.where((error == 0) & (stored == exact), 0.0, error + 1.0)
    size = np.where(np.isfinite(exact), np.abs(exact), 0.0)
    return np.where((error == 0) & (stored == exact), 0.0, error + 2 * roundoff * (size + error) + _SMALLEST[dtype])
