"""Drawn problems of attention, and their results by loops over the queries."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from cudnnpy import Attention, Graph, TensorSpec
from cudnnpy._launch.dispatch import Call, Specs
from cudnnpy._layers.attention import AMAX, SCALES, _Composition, _for_engines, _lengths_of_queries, _on

Arrays = dict[str, Any]
NUMBERS = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16), "float64": np.dtype(np.float64)}


PACKING = ("offsets_q", "offsets_kv", "max_length_q", "max_length_kv")


class Drawn(NamedTuple):
    """A problem: options, and arrays by name, with dout."""

    options: dict[str, Any]
    arrays: Arrays

    def without_dout(self) -> Arrays:
        """Return the arguments of forward."""
        return {name: array for name, array in self.arrays.items() if name != "dout"}

    def others(self) -> Arrays:
        """Return the optional arguments of both operations."""
        names = "bias", "lengths_q", "lengths_kv", "mask", *PACKING
        return {name: self.arrays[name] for name in names if name in self.arrays}


def drawn(seed: int, dtype: str = "", sizes: tuple[int, ...] = (1, 2, 5, 16, 19, 33)) -> Drawn:
    """Return a problem: masks, windows, biases with -infinity, lengths of 0, heads that share keys."""
    random = np.random.default_rng(seed)
    choose = random.choice
    numbers = NUMBERS[dtype or str(choose(["float16", "bfloat16"]))]
    batch, kv_heads, shared = (int(number) for number in random.integers(1, 4, 3))
    shared = 12 if random.random() < 0.15 else shared
    heads, queries, keys = kv_heads * shared, int(choose(sizes)), int(choose(sizes))
    size, value_size = (8 * int(number) for number in random.integers(1, choose([6, 6, 6, 33]), 2))
    options: dict[str, Any] = {"causal": (False, True, "bottom_right")[random.integers(3)]}
    options["layout"] = str(choose(["BHSD", "BSHD"]))
    if random.random() < 0.4:
        options["window"] = tuple(None if random.random() < 0.3 else int(random.integers(8)) for _ in range(2))
    if random.random() < 0.3:
        options["scale"] = float(random.uniform(0.05, 1))

    def array(*shape: int) -> Any:
        b, h, s, d = shape
        shape = (b, s, h, d) if options["layout"] == "BSHD" else shape
        return random.uniform(-1, 1, shape).astype(numbers)

    arrays = {"q": array(batch, heads, queries, size), "k": array(batch, kv_heads, keys, size)}
    arrays |= {"v": array(batch, kv_heads, keys, value_size), "dout": array(batch, heads, queries, value_size)}
    if random.random() < 0.5:
        shape = (*(n if random.random() < 0.6 else 1 for n in (batch, heads, queries)), keys)
        bias = random.uniform(-1, 1, shape)
        if random.random() < 0.5:
            bias[random.random(shape) < 0.3] = -np.inf
        arrays["bias"] = bias.astype(numbers if random.random() < 0.7 else np.float32)
    for name, most in (("lengths_q", queries), ("lengths_kv", keys)):
        if random.random() < 0.4:
            arrays[name] = random.integers(0, most + 1, batch).astype(np.int32)
    if options["causal"] is True and random.random() < 0.5:  # one array
        lengths = random.integers(0, min(queries, keys) + 1, batch).astype(np.int32)
        arrays |= {"lengths_q": lengths, "lengths_kv": lengths}
    return Drawn(options, arrays)


def with_dropout(problem: Drawn, seed: int) -> Drawn:
    """Return the problem with a dropout and its mask."""
    random, dropout = np.random.default_rng(seed), float(np.random.default_rng(seed).choice([0.1, 0.5, 0.75]))
    b, h, queries, _ = in_order(problem.arrays["q"], problem.options["layout"]).shape
    mask = (random.random((b, h, queries, keys_of(problem))) >= dropout).astype(np.float32)
    return Drawn({**problem.options, "dropout": dropout}, {**problem.arrays, "mask": mask})


def in_float8(problem: Drawn, seed: int) -> Drawn:
    """Return forward's problem in float8, with factors, and head sizes of 16 to 128, without what is refused of it."""
    random = np.random.default_rng(seed)
    numbers = getattr(ml_dtypes, str(random.choice(["float8_e4m3fn", "float8_e5m2"], p=[0.75, 0.25])))
    arrays = {name: problem.arrays[name] for name in ("q", "k", "v", "lengths_kv") if name in problem.arrays}
    for name in "qkv":
        *axes, size = arrays[name].shape
        tensor = np.pad(arrays[name], [(0, 0)] * len(axes) + [(0, -size % 16)], "wrap")
        arrays[name] = np.ascontiguousarray(tensor[..., :128]).astype(numbers)
    factors = dict(zip(SCALES, random.uniform(0.25, 4, len(SCALES)), strict=True))
    factors["scale_s"] *= 64
    factors["descale_s"] /= 64
    options = {name: problem.options[name] for name in ("layout", "scale") if name in problem.options}
    options["causal"] = problem.options["causal"] is True
    return Drawn(options, {**arrays, **{n: np.array([x], np.float32) for n, x in factors.items()}})


def arguments(arrays: Arrays) -> Arrays:
    """Return the arguments of forward for arrays, among them those of float8 by their names."""
    given = {name: array for name, array in arrays.items() if name not in SCALES}
    return {**given, "scales": [arrays[name] for name in SCALES]} if SCALES[0] in arrays else given


def in_pages(problem: Drawn, seed: int) -> Drawn:
    """Return forward's problem with the keys in pages in any order. Pages that the table does not name are NaN."""
    random, layout, arrays = np.random.default_rng(seed), problem.options["layout"], problem.without_dout()
    q, k, v = (in_order(arrays[name], layout) for name in "qkv")
    batch, keys, page = len(q), k.shape[2], int(random.choice([1, 2, 4, 8, 16, 64]))
    count = -(-keys // 128) * 128 // page
    table = random.permutation(batch * count + 3)[: batch * count].astype(np.int32).reshape(batch, 1, count, 1)
    for name, dense in (("k", k), ("v", v)):
        container = np.full((batch * count + 3, dense.shape[1], page, dense.shape[3]), np.nan, dense.dtype)
        container[table.ravel()] = 0.5  # beyond the lengths
        for b, j in np.ndindex(batch, keys):
            container[table[b, 0, j // page, 0], :, j % page] = dense[b, :, j]
        arrays[name] = np.ascontiguousarray(in_order(container, layout))
    if "bias" in arrays:
        arrays["bias"] = np.pad(arrays["bias"], [(0, 0)] * 3 + [(0, count * page - keys)])
    arrays.setdefault("lengths_kv", np.full(batch, keys, np.int32))
    arrays.setdefault("lengths_q", np.full(batch, q.shape[2], np.int32))
    return problem._replace(arrays={**arrays, "page_table": table})


def out_of_pages(arrays: Arrays, layout: str) -> Arrays:
    """Return the problem with dense keys, a page after the other."""
    table, made = arrays["page_table"], {name: array for name, array in arrays.items() if name != "page_table"}
    for name in "kv":
        container = in_order(arrays[name], layout)
        rows = [np.concatenate([container[page] for page in pages[0, :, 0]], axis=1) for pages in table]
        made[name] = in_order(np.stack(rows), layout)
    return made


def in_sequences(problem: Drawn, seed: int) -> Drawn:
    """Return the problem with packed sequences, some with gaps between them, and one head size."""
    random, layout, arrays = np.random.default_rng(seed), problem.options["layout"], dict(problem.arrays)
    dense = {name: in_order(arrays[name], layout) for name in ("q", "k", "v", "dout")}
    size, batch = min(dense[name].shape[3] for name in "qv"), len(dense["q"])
    has_gaps, kind = random.random() < 0.5, random.choice(["int32", "int64"])
    for of, name in (("q", "q"), ("kv", "k")):
        _, heads, most, _ = dense[name].shape
        lengths = arrays.setdefault(f"lengths_{of}", np.full(batch, most, np.int32))
        room = lengths + (random.integers(0, 3, batch) if has_gaps else 0)
        arrays[f"offsets_{of}"] = (np.concatenate([[0], np.cumsum(room)]) * heads * size).astype(kind)
        arrays[f"max_length_{of}"] = most
    for name, array in dense.items():
        heads = array.shape[1]
        arrays[name] = np.full((arrays[_of(name, "offsets")][-1] // (heads * size), heads, size), 0.5, array.dtype)
        for tokens, sequence in zip(sequences(name, arrays), array, strict=True):
            arrays[name][tokens] = sequence[:, : tokens.stop - tokens.start, :size].swapaxes(0, 1)
    return Drawn(problem.options, arrays)


def sequences(name: str, arrays: Arrays) -> list[slice]:
    """Return the tokens of each packed sequence of a tensor."""
    _, heads, size = arrays[name].shape
    starts = arrays[_of(name, "offsets")][:-1] // (heads * size)
    return [slice(start, start + length) for start, length in zip(starts, arrays[_of(name, "lengths")], strict=True)]


def padded(arrays: Arrays, layout: str) -> Arrays:
    """Return arrays with packed sequences padded with zeros; the others as they are."""
    made = dict(arrays)
    for name, array in arrays.items() if "offsets_q" in arrays else ():
        if np.ndim(array) == 3:
            found = np.zeros(
                (len(arrays["lengths_q"]), array.shape[1], arrays[_of(name, "max_length")], array.shape[2])
            )
            for b, tokens in enumerate(sequences(name, arrays)):
                found[b, :, : tokens.stop - tokens.start] = array[tokens].swapaxes(0, 1)
            made[name] = in_order(found.astype(array.dtype), layout)
    return made


def _of(name: str, what: str) -> str:
    return f"{what}_{'q' if name in ('q', 'dq', 'out', 'dout') else 'kv'}"


def queries_of(problem: Drawn) -> int:
    """Return the number of queries."""
    if "max_length_q" in problem.arrays:
        return int(problem.arrays["max_length_q"])
    return int(problem.arrays["q"].shape[1 if problem.options["layout"] == "BSHD" else 2])


def keys_of(problem: Drawn) -> int:
    """Return the number of keys."""
    if "max_length_kv" in problem.arrays:
        return int(problem.arrays["max_length_kv"])
    return int(problem.arrays["k"].shape[1 if problem.options["layout"] == "BSHD" else 2])


def has_dbias(problem: Drawn) -> bool:
    """Return whether the bias of a problem has a gradient."""
    lengths = queries_of(problem), keys_of(problem)
    return "bias" in problem.arrays and problem.arrays["bias"].shape[2:] == lengths


def in_order(array: Any, layout: str) -> Any:
    """Return an array with the axes BHSD with those of a layout, or the reverse."""
    return array.swapaxes(1, 2) if layout == "BSHD" else array


def by_loops(options: dict[str, Any], arrays: Arrays) -> tuple[Any, Any]:
    """Return out and the statistics in float64: for each query a softmax of the scores of its keys, one after the other."""
    layout, causal, window = options["layout"], options["causal"], options.get("window", (None, None))
    q, k, v = (in_order(arrays[name].astype(np.float64), layout) for name in "qkv")
    batch, heads, queries, size = q.shape
    keys, shared = k.shape[2], heads // k.shape[1]
    scale = options.get("scale", 1 / math.sqrt(size))
    out, statistics = np.zeros((*q.shape[:3], v.shape[3])), np.full((*q.shape[:3], 1), -np.inf)
    bias = np.broadcast_to(arrays.get("bias", np.zeros((1, 1, 1, 1))).astype(np.float64), (batch, heads, queries, keys))
    for b, h, i in np.ndindex(batch, heads, queries):
        here, there = (
            int(arrays[n][b]) if n in arrays else m for n, m in (("lengths_q", queries), ("lengths_kv", keys))
        )
        diagonal = i + (there - here if causal == "bottom_right" else 0)
        scores: dict[int, float] = {}
        for j in range(there if i < here else 0):
            too_late = j > diagonal if causal else window[1] is not None and j > diagonal + window[1]
            too_early = window[0] is not None and j < diagonal - window[0]
            if not too_late and not too_early and bias[b, h, i, j] > -np.inf:
                scores[j] = scale * float(q[b, h, i] @ k[b, h // shared, j]) + bias[b, h, i, j]
        if scores:
            total = sum(math.exp(score) for score in scores.values())
            kept = {
                j: float(arrays["mask"][b, h, i, j]) / (1 - options["dropout"]) if "mask" in arrays else 1.0
                for j in scores
            }
            terms = ((math.exp(score) / total * kept[j], v[b, h // shared, j]) for j, score in scores.items())
            out[b, h, i] = sum(weight * row for weight, row in terms)
            statistics[b, h, i] = math.log(total)
    return in_order(out, layout), statistics


def graph_of(attention: Attention, operation: str, arrays: Arrays, *, dbias: bool = False) -> Graph:
    """Return the graph that the layer builds for arrays, which are packed. The mask of a dropout is an output."""
    given = {name: _spec(array) for name, array in arrays.items() if name != "mask" and np.ndim(array)}
    if attention.causal is True and "page_table" not in given and arrays.get("lengths_q") is arrays.get("lengths_kv"):
        given.pop("lengths_kv", None)
    if "mask" in arrays:
        given |= dict.fromkeys(("seed", "offset"), TensorSpec((1,), "int64", (1,)))
    has_last = operation == "forward" or dbias
    longest = arrays.get("max_length_q"), arrays.get("max_length_kv")
    sizes, operands = attention._operands(Call(Specs(given), {}, 0, 0, {}), operation, has_last, longest)
    operands = _on(operands, _for_engines(operands))
    if attention._lacks_lengths_q(sizes, given, has_node=False):
        operands.append(_lengths_of_queries(sizes))
    made = _Composition(attention, sizes, operands)
    if made.mask is not None:
        made.graph.output("mask", made.mask, "float32")
    return made.graph


def _spec(array: Any) -> TensorSpec:
    strides = tuple(stride // array.itemsize for stride in np.empty(array.shape, array.dtype).strides)
    return TensorSpec(array.shape, array.dtype.name, strides)


def for_graph(graph: Graph, arrays: Arrays, layout: str) -> Arrays:
    """Return arrays as the inputs of a graph, and the mask of a dropout, which its seed does not tell."""
    given = {**dict.fromkeys(("seed", "offset"), np.zeros(1, np.int64)), **padded(arrays, layout)}
    given.setdefault("lengths_q", np.full(np.shape(given.get("lengths_kv")), 2**20, np.int32))  # all
    found = {node.name: as_operand(node.name, given[node.name], layout) for node in graph.inputs}
    inputs = {node.name: np.broadcast_to(found[node.name], node.shape) for node in graph.inputs}  # along the queries
    return {**inputs, **({"mask": arrays["mask"]} if "mask" in arrays else {})}


def as_operand(name: str, array: Any, layout: str) -> Any:
    """Return an array as the operand of a graph, with the axes BHSD."""
    if name.startswith(("lengths", "offset")) or name in ("seed", *SCALES, *AMAX):
        return array.reshape(-1, 1, 1, 1)
    return array if name in ("bias", "dbias", "statistics", "page_table") else in_order(array, layout)
