"""Attention and its gradients: graphs of two and of five products, which one engine computes without storing all scores.

The graphs are in the form that engines take (tests/host/layers/test_attention.py plans them), and compute right
(tests/gpu/test_attention_gpu.py). cuDNN 9.19 ignores or misreads others without an error:

- A mask is a selection of its own right before the softmax; engines know a window by its form. They ignore a conjunction of
  flags, and a selection after the softmax.
- Tensors that are broadcast along the queries are read right in the first row alone. The lengths and the bias are therefore
  described as tensors with all queries, whose stride is 0.
- Lengths of k alone are read in steps of 128 keys in forward of one query. The diagonal that ends at the last key is a mask of
  the same keys, which is read right beside them. For several queries the diagonal alone is that mask.
- Gradients with both lengths have the valid sizes of all products. Engines skip queries and keys beyond them, and leave results
  of empty sequences unwritten, which are filled before. The sizes mask the queries.
- The index of one query is read wrong in heads beyond the eighth that share keys. One query whose only masks are lengths is
  therefore the node of attention, which needs none, divides the keys among processors by lengths, and takes pages. It ignores
  that a query is masked: a graph makes its keys none before.
- Scores below LEAST become -infinity by two products, of which the first overflows; NaN stays. Forward takes two thirds of the
  time that it takes with a selection by a comparison (docs/dev/benchmarks.md).
- Masked scores are -infinity, which the engines of forward take for what it is. In backward, the difference of -infinity to the
  statistics of a query without any key, NaN, is selected away.
- dk and dv of heads that share keys are sums of numbers of q's type.
- dbias is a reduction, also of all scores to themselves.
- Pages are loaded by an operation before each product. Engines take it only beside the valid sizes of both products, one number
  for each sequence, in the memory of the lengths. Missing lengths_q are numbers that are written once.
- Packed sequences are ragged tensors, but for the statistics and a buffer of dq. Engines take them beside the valid sizes of
  all products.
- Graphs of float8 have all factors as numbers in memory, and the greatest magnitudes of the weights and of out as results.
  Lengths mask by one conjunction of both, beside the valid sizes; another mask of lengths gives NaN, and a bias other numbers.
- Sums with an operand that is broadcast along the keys are wrong for one query, and in dq. A bias therefore has all keys; one
  that is broadcast along them changes no result but the statistics.

Engines need the statistics in memory. Without `statistics`, forward has them in scratch memory. Engines for backward take k and
v twice, as they are and transposed: cudnnpy/graph/attention_lowerings.py.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, get_args

from cudnnpy import raw
from cudnnpy._arrays.array_libraries import read
from cudnnpy._arrays.copies import to_numpy
from cudnnpy._arrays.device_array import current_device, synchronize
from cudnnpy._arrays.workspace import constant
from cudnnpy._checks.option_values import check_flag, check_integer, check_number, check_option, error_repr
from cudnnpy._checks.preferences import PreferenceOptions
from cudnnpy._checks.suggestions import with_suggestions
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import TensorSpec, byte_extent, packed_strides, stride_order, strides_of, to_packed
from cudnnpy._launch.dispatch import ArrayOperation, Call, Specs, specs_of
from cudnnpy._launch.operands import check_input, check_no_overlaps, packed_like
from cudnnpy._launch.program import Operand, Program, is_converted, with_conversion_copies
from cudnnpy._launch.steps import Constant, ScratchBuffer, Step, StepSequence, fill, with_implicit_operands
from cudnnpy._layers.arguments import specs_and_device
from cudnnpy._layers.graph import Graph, Node
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.chooser import OtherGpu
from cudnnpy._planning.plan import Plan
from cudnnpy.errors import FunctionNotAvailableError, NoAlgorithmError
from cudnnpy.graph.graph_facts import EIGHTS, MAX_FLOAT8_HEAD_SIZE, VECTOR, rows_are_aligned
from cudnnpy.handle import stream_address
from cudnnpy.typing import Array, ArrayT, AttentionLayout, AttentionOperation, CausalMask, ElementName, Stream

if TYPE_CHECKING:
    from cudnnpy.tuning.profiles.device_profile import DeviceProfile

DTYPES: tuple[ElementName, ...] = ("float16", "bfloat16")
LAYOUTS: tuple[AttentionLayout, ...] = get_args(AttentionLayout)
OPERATIONS: tuple[AttentionOperation, ...] = get_args(AttentionOperation)
HEAD_SIZES = range(8, 257, 8)
FLOAT8_HEAD_SIZES = range(VECTOR, MAX_FLOAT8_HEAD_SIZE + 1, VECTOR)
_MASKS = 91000  # the first release whose engines take a score of -infinity for a mask
_DROPOUT = 91400  # the heuristics of releases from 9.11 on fail for a dropout (pytorch #163903)
_RAGGED = 91800  # gradients of earlier releases need a workspace of zeros for them (TransformerEngine #2186)
KEYS_AT_ONCE = 128  # engines read numbers of pages beyond a table's end, and skip keys, in multiples of it, cuDNN 9.19
LEAST = -(2.0**30)  # scores with a bias below are masked: engines give NaN for the softmax of many such numbers
LOWEST = -(2.0**100)  # a difference whose exponential is 0
_MEASURED = 91900  # the first release whose node for one query, valid sizes of gradients and fewer masks were measured
LONG_KEYS = 512  # of more, few queries are heads of one query

_MASKING = ("bias", "lengths_q", "lengths_kv")
PACKING = ("offsets_q", "offsets_kv")
_OPTIONAL = (*_MASKING, "seed", "offset", *PACKING)
_PAGED = (*_OPTIONAL, "page_table")
READ_LENGTHS = ("lengths_q", "lengths_kv")
READ_VALUES = (*READ_LENGTHS, "page_table", *PACKING)  # whose values the GPU alone reads
SCALES = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")  # of float8
AMAX = ("amax_s", "amax_o")  # results of float8
_INPUTS = {"forward": ("q", "k", "v"), "backward": ("dout", "q", "k", "v", "out", "statistics")}
_RESULTS = {"forward": ("out", "statistics"), "backward": ("dq", "dk", "dv", "dbias")}
_NAMES = {  # of the arguments of an operation, with the last of its results or without
    (operation, has_last): (*_INPUTS[operation], *optional, "mask", *(results if has_last else results[:-1]))
    for (operation, results), optional in zip(_RESULTS.items(), (_PAGED, _OPTIONAL), strict=True)
    for has_last in (False, True)
}
# whose stride order new arrays have
_LIKE = {"out": "q", "dout": "q", "dq": "q", "dk": "k", "dv": "v", "dbias": "bias"}
_INT32: dict[str, Any] = {"dtype": "int32", "compute_dtype": "int32"}
_BOOL: dict[str, Any] = {"dtype": "bool", "compute_dtype": "bool"}


Longest: TypeAlias = tuple[int | None, ...]  # the longest packed sequences of queries and keys


class Sizes(NamedTuple):
    """The sizes of attention."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_size: int
    value_size: int
    pages: tuple[int, int] | None = None  #: the number of pages, and the keys of a page, where k and v are pages
    tokens: tuple[int, int] | None = None  #: the number of tokens of q, and of k and v, of packed sequences

    @property
    def scores(self) -> tuple[int, ...]:
        """The shape of the scores."""
        return self.batch, self.heads, self.queries, self.keys

    @property
    def are_empty(self) -> bool:
        """Whether there are no scores, so that no engine runs."""
        return 0 in (*self.scores, self.kv_heads, *(self.tokens or ()))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes (batch, heads, sequence, head size) of the tensors by name, without the bias.

        Those of packed sequences are (tokens, heads, head size), but for the statistics. amax_s and amax_o are (1,).
        """
        batch, heads, kv_heads, queries, keys, head_size, value_size, pages, tokens = self
        blocks, rows = pages or (batch, keys)
        statistics = batch, heads, queries, 1
        q: tuple[int, ...] = (batch, heads, queries, head_size)
        k: tuple[int, ...] = (blocks, kv_heads, rows, head_size)
        if tokens is not None:
            q, k = (tokens[0], heads, head_size), (tokens[1], kv_heads, head_size)
        out, v = ((*shape[:-1], value_size) for shape in (q, k))
        gradients = {"dout": out, "dq": q, "dk": k, "dv": v}
        magnitudes = dict.fromkeys(AMAX, (1,))
        return {"q": q, "k": k, "v": v, "out": out, "statistics": statistics, **gradients, **magnitudes}


def side(name: str) -> str:
    """Return whether a tensor has the sequences of q, "q", or of k and v, "kv"."""
    return "q" if _LIKE.get(name, name) == "q" else "kv"


def in_layout(axes: Sequence[int], layout: AttentionLayout) -> tuple[int, ...]:
    """Return sizes or strides in the order BHSD in the order of a layout, or the reverse. Packed sequences have no layout."""
    if len(axes) != 4 or layout == "BHSD":
        return tuple(axes)
    b, h, s, d = axes
    return b, s, h, d


def sizes_of(layout: AttentionLayout, shapes: Mapping[str, Sequence[int]], longest: Longest = (None, None)) -> Sizes:
    """Return the sizes for the shapes of q, k, v, a bias, a page table and offsets, which may be missing, in a layout.

    `longest` are the lengths of the longest packed sequences. Raises ValueError for shapes that do not fit together.
    """
    given = {name: tuple(map(int, shapes[name])) for name in "qkv"}
    bias, table, offsets = (shapes.get(name) for name in ("bias", "page_table", "offsets_q"))
    axes = layout if offsets is None else ("tokens", "heads", "head size")
    for name, shape in given.items():
        if len(shape) != len(axes):
            raise ValueError(f"{name} must have the {len(axes)} axes {axes}; got shape {shape}")
    of_q, of_k, of_v = (in_layout(shape, layout) for shape in given.values())
    if offsets is None:
        batch, heads, queries, size = of_q
        sizes = Sizes(batch, heads, of_k[1], queries, of_k[2], size, of_v[3])
    else:
        if len(offsets) != 1 or not offsets[0]:
            raise ValueError(f"offsets_q must have shape (batch + 1,); got shape {tuple(offsets)}")
        tokens, heads, size = of_q
        queries, keys = (check_integer(f"max_length_{of}", n, 0) for of, n in zip(("q", "kv"), longest, strict=True))
        batch = offsets[0] - 1
        sizes = Sizes(batch, heads, of_k[1], queries, keys, size, size, tokens=(tokens, of_k[0]))
    if table is not None:
        blocks, _, rows, _ = of_k
        if len(table) != 4 or (*table[:2], table[3]) != (batch, 1, 1):
            raise ValueError(
                f"page_table must have shape ({batch}, 1, pages of a sequence, 1); got shape {tuple(table)}"
            )
        if not blocks or rows.bit_count() != 1:
            raise ValueError(
                "k must have one page or more, of a power of two of keys each, where page_table is given; "
                f"got {blocks} pages of {rows} keys"
            )
        if rows * table[2] % KEYS_AT_ONCE:
            raise ValueError(
                f"page_table must name pages of a multiple of {KEYS_AT_ONCE} keys for each sequence, since engines read so "
                f"many at once; got {table[2]} pages of {rows} keys: pad it with the number of any page"
            )
        sizes = sizes._replace(keys=rows * table[2], pages=(blocks, rows))
    for name in ("k", "v"):
        if given[name] != (expected := in_layout(sizes.shapes[name], layout)):
            raise ValueError(
                f"{name} must have shape {expected} for q of shape {given['q']} and k of shape {given['k']}; "
                f"got shape {given[name]}"
            )
    for name, number in (("q", size), ("v", sizes.value_size)):
        if number not in HEAD_SIZES:
            raise ValueError(f"{name} must have a head size of 8 to 256, a multiple of 8; got {number}")
    if heads % sizes.kv_heads if sizes.kv_heads else heads:
        raise ValueError(f"q must have a multiple of the {sizes.kv_heads} heads of k; got {heads} heads")
    if bias is not None:
        fits = len(bias) == 4 and all(n in (1, m) for n, m in zip(bias, sizes.scores, strict=True))
        fits = fits and bias[3] == sizes.keys
        if not fits:
            raise ValueError(
                f"bias must have shape {sizes.scores}, or 1 on some of the first three axes; got shape {tuple(bias)}"
            )
    return sizes


def check_lengths_of_pages(given: Mapping[str, object]) -> None:
    """Raise TypeError for pages without lengths. `given` has the names of the arrays of a call."""
    if "page_table" in given and "lengths_kv" not in given:
        raise TypeError("lengths_kv must be an array where page_table is given; got None")


def check_packing(given: Mapping[str, object], longest: Longest, causal: CausalMask) -> None:
    """Raise TypeError or ValueError for packed sequences without what they need, or for a part of that alone."""
    named = {name: n for name, n in zip(("max_length_q", "max_length_kv"), longest, strict=True) if n is not None}
    if not any(name in given for name in PACKING):
        for name, n in named.items():
            raise ValueError(f"{name} must be None without offsets_q and offsets_kv; got {error_repr(n)}")
        return
    lengths = READ_LENGTHS[:1] if causal is True else READ_LENGTHS  # those of queries are those of keys
    for name in (*PACKING, *lengths, "max_length_q", "max_length_kv"):
        if name not in given and name not in named:
            raise TypeError(f"{name} must be given with offsets_q and offsets_kv; got None")
    if "page_table" in given:
        raise ValueError("page_table must be None where offsets_q and offsets_kv are given; got an array")


def check_values(sizes: Sizes, values: Mapping[str, Sequence[int]]) -> None:
    """Raise ValueError for lengths, numbers of pages and offsets that do not fit, of those that are given."""
    limits = {"lengths_q": (sizes.queries, f"0 to {sizes.queries}"), "lengths_kv": (sizes.keys, f"0 to {sizes.keys}")}
    if sizes.pages is not None:
        limits["page_table"] = sizes.pages[0] - 1, f"the {sizes.pages[0]} pages"
    for name, (most, text) in limits.items():
        numbers = values.get(name) or (0,)
        if min(numbers) < 0 or max(numbers) > most:
            raise ValueError(f"{name} must have numbers of {text}; got {min(numbers)} to {max(numbers)}")
    if sizes.tokens is None:
        return
    for of, tokens, heads in zip(("q", "kv"), sizes.tokens, (sizes.heads, sizes.kv_heads), strict=True):
        row, offsets = heads * sizes.head_size, values[f"offsets_{of}"]
        for b, length in enumerate(values.get(f"lengths_{of}", values["lengths_q"])):
            start, end = offsets[b : b + 2]
            if start % max(row, 1) or not 0 <= start <= start + length * row <= end <= tokens * row:
                raise ValueError(
                    f"offsets_{of} must count elements, {row} for each token, from 0 to {tokens * row}, with room for each "
                    f"sequence before the next; got {start} and then {end} for sequence {b} of {length} tokens"
                )


def check_dropout(dropout: float, given: Mapping[str, object], drawn_from: Sequence[str]) -> None:
    """Raise TypeError or ValueError unless a dropout has what its mask is drawn from, or the mask, and no other call has it."""
    if not dropout and (others := [name for name in ("seed", "offset", "mask") if name in given]):
        raise ValueError(f"{others[0]} must be None where dropout is 0; got an array")
    if dropout and (missing := [name for name in drawn_from if name not in given]):
        raise TypeError(f"{missing[0]} must be an array where dropout is {dropout}; got None")
    if dropout and "page_table" in given:
        raise ValueError(f"dropout must be 0 where page_table is given; got {dropout}")


def check_dbias(sizes: Sizes, bias: tuple[int, ...] | None) -> None:
    """Raise ValueError if no engine computes the gradient of a bias of this shape."""
    if bias is None:
        raise ValueError("dbias must be False where there is no bias; got another value")
    if bias[2] != sizes.queries:
        raise ValueError(
            f"bias must have all queries, shape (..., {sizes.queries}, {sizes.keys}), where dbias is wanted; "
            f"got shape {bias}"
        )


@with_suggestions
@dataclass(frozen=True, kw_only=True)
class Attention(PreferenceOptions, ArrayOperation):
    """softmax(scale * q @ transpose(k) + bias) @ v for each head of each sequence, and its gradients.

    Parameters
    ----------
    causal : bool or "bottom_right"
        Whether query i has only the keys j <= i (True), or j <= i + keys - queries ("bottom_right"), so that the last query has
        the last key. With lengths, these are the numbers of keys and queries.
    window : tuple, optional
        (left, right): query i has only the keys from i - left to i + right, or from i + keys - queries on for "bottom_right".
        None in place of a number is no limit.
    scale : float, optional
        1 / sqrt(head size) by default.
    dropout : float
        The probability with which a weight of the softmax is dropped; others are divided by 1 - dropout.
    layout : {"BHSD", "BSHD"}
        The order of the axes of all arrays but `bias` and `statistics`: batch, heads, sequence, head size. Strides are free.
    prefer, workspace_limit, deterministic, tf32, tune_seconds
        As for `Convolution`.

    Raises
    ------
    TypeError, ValueError
        An option is of another type, or out of range.

    Notes
    -----
    q, k and v are float16 or bfloat16 with head sizes of 8 to 256, in steps of 8; v may have its own. `forward` also takes
    float8_e4m3fn and float8_e5m2, with head sizes of 16 to 128, in steps of 16. q has a multiple of the heads of k and v: heads
    in a row share one of theirs. Arrays, streams and errors are as for `Convolution`.

    Scores below -2**30 with a bias are masked, such as with -infinity. A query without any key has the result 0, no gradients,
    and the statistics -infinity. Elements of arrays beyond the lengths must be finite.

    `deterministic` rejects the forms of `backward` that add in any order: a dq in a buffer, and sums for dbias. A
    workspace of 256 bytes or more is needed, except by forward with one query, so that prefer="no_workspace" finds none.

    Masks need cuDNN 9.10 or later, and a dropout 9.14. `cudnnpy.reference` computes in float64 and rounds once.

    Examples
    --------
    >>> import numpy as np
    >>> from cudnnpy import reference
    >>> q = k = v = np.ones((2, 8, 128, 64), np.float16)
    >>> out, statistics = reference.Attention(causal=True).forward(q, k, v, statistics=True)
    >>> out.shape, statistics.shape
    ((2, 8, 128, 64), (2, 8, 128, 1))
    """

    causal: CausalMask = False
    window: tuple[int | None, int | None] | None = None
    scale: float | None = None
    dropout: float = 0.0
    layout: AttentionLayout = "BHSD"

    def _canonical(self) -> dict[str, Any]:
        causal: Any = self.causal
        if not isinstance(causal, bool) and not (isinstance(causal, str) and causal == "bottom_right"):
            kind = ValueError if isinstance(causal, str) else TypeError
            raise kind(f"causal must be a bool or 'bottom_right'; got {error_repr(causal)}")
        if self.window is not None and not (isinstance(self.window, tuple | list) and len(self.window) == 2):
            raise TypeError(f"window must be (left, right) or None; got {error_repr(self.window)}")
        expected = "two integers of 0 or more, or None for no limit"
        window = self.window and tuple(
            None if side is None else check_integer("window", side, 0, expected=expected) for side in self.window
        )
        scale = None if self.scale is None else check_number("scale", self.scale, finite=True)
        dropout = check_number("dropout", self.dropout, finite=True)
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be a probability of 0 or more, and less than 1; got {dropout}")
        layout = check_option("layout", self.layout, LAYOUTS)
        return super()._canonical() | {"window": window, "scale": scale, "dropout": dropout, "layout": layout}

    def forward(
        self,
        q: ArrayT,
        k: Array,
        v: Array,
        bias: Array | None = None,
        lengths_q: Array | None = None,
        lengths_kv: Array | None = None,
        page_table: Array | None = None,
        out: ArrayT | None = None,
        statistics: ArrayT | bool = False,
        stream: Stream | None = None,
        *,
        seed: Array | None = None,
        offset: Array | None = None,
        mask: Array | None = None,
        offsets_q: Array | None = None,
        offsets_kv: Array | None = None,
        max_length_q: int | None = None,
        max_length_kv: int | None = None,
        scales: Sequence[Array] | None = None,
    ) -> Any:
        """Compute softmax(scale * q @ transpose(k) + bias) @ v (cudnnBackendExecute).

        Parameters
        ----------
        q : array
            (batch, heads, queries, head size), in the order of `layout`. With offsets, q, k, v and out are packed sequences,
            one after the other: (tokens, heads, head size).
        k, v : array
            (batch, heads of k, keys, head size), of q's dtype; v's head size is out's. With a `page_table` pages of keys:
            (pages, heads of k, keys of a page, head size), where the keys of a page are a power of two.
        bias : array, optional
            (batch, heads, queries, keys), or 1 on some of the first three axes; of q's dtype or float32.
        lengths_q, lengths_kv : array, optional
            The number of queries, and of keys, of each sequence: (batch,), in int32. Others are masked. With causal=True one
            array for both, or `lengths_q` alone if they are equal, needs no mask of keys, and takes less time.
        page_table : array, optional
            (batch, 1, pages of a sequence, 1), in int32: which pages have the keys of each sequence, in order; the keys are a
            multiple of 128. Each number is a page's, also beyond the length; the GPU alone reads them. `lengths_kv` must be
            given.
        out : array, optional
            The result, (batch, heads, queries, head size of v), of q's dtype.
        statistics : bool or array
            Whether the statistics are a result, or an array for them.
        stream : stream, optional
            Where the work is queued; by default the library's current stream.
        seed, offset : array, optional
            What the weights that a dropout keeps are drawn from: (1,), in int64. The same numbers keep the same weights.
        mask : array, optional
            For `cudnnpy.reference` alone, since cuDNN does not document what it draws: 1 for each weight that the dropout
            keeps, else 0, (batch, heads, queries, keys), of q's dtype or float32.
        offsets_q, offsets_kv : array, optional
            For packed sequences: the element of q and out, and of k and v, with which each sequence begins, and the end,
            (batch + 1,), in int32 or int64: PyTorch's cu_seqlens times heads times head size. `max_length_q`, `max_length_kv`
            and the lengths must be given, with causal=True at least those of queries, and v has q's head size.
        max_length_q, max_length_kv : int, optional
            The lengths of the longest packed sequences, or more: the queries and keys in other shapes.
        scales : sequence of arrays, optional
            For float8, whose factors are numbers in device memory, each (1,) in float32: cuDNN's descale_q, descale_k,
            descale_v, descale_s, scale_s and scale_o. q, k and v are multiplied by the first three. The weights of the softmax
            are multiplied by scale_s before they are rounded to float8, and by descale_s afterwards; out by scale_o.

        Returns
        -------
        array or tuple of arrays
            `out`, or a new array of q's library, dtype and order of strides. With `statistics` also the logarithm of the sum of
            the exponentials of each query's scores, (batch, heads, queries, 1) in float32, which `backward` needs. Of float8,
            then also amax_s and amax_o, (1,) in float32: the greatest weight, and the greatest magnitude of out before scale_o.
        """
        is_wanted, array = _wanted("statistics", statistics)
        names = _NAMES["forward", is_wanted]
        if self.causal is True and lengths_kv is lengths_q and page_table is None:
            lengths_kv = None  # queries that are there have only keys that are there
        inputs: Any = (q, k, v, bias, lengths_q, lengths_kv, seed, offset, offsets_q, offsets_kv, page_table, mask)
        outs, numbers = (out, array)[: 1 + is_wanted], (is_wanted, max_length_q, max_length_kv)
        if scales is not None:
            if (got := len(scales) if isinstance(scales, tuple | list) else type(scales).__name__) != len(SCALES):
                raise TypeError(f"scales must be a sequence of {len(SCALES)} arrays, {', '.join(SCALES)}; got {got}")
            count = len(inputs)
            names = *names[:count], *SCALES, *names[count:], *AMAX
            inputs, outs = (*inputs, *scales), (*outs, None, None)
        return self._run("Attention.forward", self, type(self)._forward, names, inputs, outs, stream, *numbers)

    def backward(
        self,
        dout: ArrayT,
        q: Array,
        k: Array,
        v: Array,
        out: Array,
        statistics: Array,
        bias: Array | None = None,
        lengths_q: Array | None = None,
        lengths_kv: Array | None = None,
        dq: ArrayT | None = None,
        dk: ArrayT | None = None,
        dv: ArrayT | None = None,
        dbias: ArrayT | bool = False,
        stream: Stream | None = None,
        *,
        seed: Array | None = None,
        offset: Array | None = None,
        mask: Array | None = None,
        offsets_q: Array | None = None,
        offsets_kv: Array | None = None,
        max_length_q: int | None = None,
        max_length_kv: int | None = None,
    ) -> tuple[ArrayT, ...]:
        """Compute the gradients with respect to q, k, v and the bias (cudnnBackendExecute).

        Parameters
        ----------
        dout : array
            The gradient with respect to out, of its shape and dtype.
        q, k, v, bias, lengths_q, lengths_kv, seed, offset, mask, offsets_q, offsets_kv, max_length_q, max_length_kv
            The arguments of `forward`.
        out, statistics : array
            forward's results.
        dq, dk, dv : array, optional
            The results, of the shapes and the dtype of q, k and v.
        dbias : bool or array
            Whether the gradient with respect to the bias is a result, or an array for it, of the bias's shape and dtype. The
            bias must have all queries. The gradient is computed in q's dtype.
        stream : stream, optional
            Where the work is queued.

        Returns
        -------
        tuple of arrays
            dq, dk, dv, and dbias if it is wanted.
        """
        is_wanted, array = _wanted("dbias", dbias)
        names = _NAMES["backward", is_wanted]
        if self.causal is True and lengths_kv is lengths_q:
            lengths_kv = None
        packing = offsets_q, offsets_kv
        inputs = (dout, q, k, v, out, statistics, bias, lengths_q, lengths_kv, seed, offset, *packing, mask)
        outs, numbers = (dq, dk, dv, array)[: 3 + is_wanted], (is_wanted, max_length_q, max_length_kv)
        result: tuple[ArrayT, ...] = self._run(
            "Attention.backward", self, type(self)._backward, names, inputs, outs, stream, *numbers
        )
        return result

    def plan(
        self,
        operation: AttentionOperation,
        q: Array | TensorSpec,
        k: Array | TensorSpec,
        v: Array | TensorSpec,
        bias: Array | TensorSpec | None = None,
        lengths_q: Array | TensorSpec | None = None,
        lengths_kv: Array | TensorSpec | None = None,
        page_table: Array | TensorSpec | None = None,
        out: Array | TensorSpec | None = None,
        dout: Array | TensorSpec | None = None,
        *,
        seed: Array | TensorSpec | None = None,
        offset: Array | TensorSpec | None = None,
        offsets_q: Array | TensorSpec | None = None,
        offsets_kv: Array | TensorSpec | None = None,
        max_length_q: int | None = None,
        max_length_kv: int | None = None,
        dbias: bool = False,
        device: int | DeviceProfile | None = None,
    ) -> Plan:
        """Choose the plan of an operation, to be executed with raw addresses. Each call plans again.

        Parameters
        ----------
        operation : {"forward", "backward"}
            The operation.
        q, k, v, bias, lengths_q, lengths_kv, page_table, out, dout, seed, offset, offsets_q, offsets_kv : array or TensorSpec
            As for `forward` and `backward`, but aligned to 16 bytes, with strides that are multiples of 16 bytes, and 1 on the
            last axis, since a plan makes no copies. `out` and `dout` are packed in q's order of strides by default.
            Statistics are packed, and new results have the order of strides of q, k, v and the bias; rows of a dbias start at
            multiples of 16 bytes. Results of packed sequences must be cleared before, since engines write the sequences alone.
        max_length_q, max_length_kv : int, optional
            As for `forward`.
        dbias : bool
            Whether dbias is a result, which is of q's dtype.
        device : int or DeviceProfile, optional
            As for `Convolution.plan`.

        Returns
        -------
        Plan
            The plan. Its operands are q, k, v, the optional ones that are given, out and statistics; or dout, q, k, v, out,
            statistics, the optional ones, dq, dk, dv and dbias. Of float8 the optional ones end with the six `scales` of
            `forward`, and the results with amax_s and amax_o. With `page_table`, and from cuDNN 9.19 on with `lengths_kv` of
            one query, lengths_q is always one of them; if it is not passed here, it must be the number of queries.

        Raises
        ------
        TypeError, ValueError
            Arguments do not fit, or a tensor is empty.
        NoAlgorithmError
            No engine can run; the message has the table of candidates.
        """
        others = seed, offset, offsets_q, offsets_kv, page_table, out, dout
        given, longest = (q, k, v, bias, lengths_q, lengths_kv, *others), (max_length_q, max_length_kv)
        graphs, ordinal = self._planned_graphs(operation, given, longest, dbias, device)
        return _first(graphs, lambda graph: graph.plan(ordinal))

    def candidates(
        self,
        operation: AttentionOperation,
        q: Array | TensorSpec,
        k: Array | TensorSpec,
        v: Array | TensorSpec,
        bias: Array | TensorSpec | None = None,
        lengths_q: Array | TensorSpec | None = None,
        lengths_kv: Array | TensorSpec | None = None,
        page_table: Array | TensorSpec | None = None,
        out: Array | TensorSpec | None = None,
        dout: Array | TensorSpec | None = None,
        *,
        seed: Array | TensorSpec | None = None,
        offset: Array | TensorSpec | None = None,
        offsets_q: Array | TensorSpec | None = None,
        offsets_kv: Array | TensorSpec | None = None,
        max_length_q: int | None = None,
        max_length_kv: int | None = None,
        dbias: bool = False,
        device: int | DeviceProfile | None = None,
    ) -> list[Candidate]:
        """Plan every candidate for an operation. `cudnnpy.candidates_table` makes a table of them.

        The parameters are the same as for `plan`.

        Returns
        -------
        list of Candidate
            All candidates. `rejection_reason` is "" for a candidate that can be used.
        """
        others = seed, offset, offsets_q, offsets_kv, page_table, out, dout
        given, longest = (q, k, v, bias, lengths_q, lengths_kv, *others), (max_length_q, max_length_kv)
        graphs, ordinal = self._planned_graphs(operation, given, longest, dbias, device)
        return [candidate for graph in graphs for candidate in graph.candidates(ordinal)]

    def _planned_graphs(
        self,
        operation: AttentionOperation,
        tensors: Sequence[Any],
        longest: Longest,
        dbias: bool,
        device: int | DeviceProfile | None,
    ) -> tuple[list[Graph], int | DeviceProfile]:
        """Return the graphs of arrays and TensorSpecs, and the device. Raises ValueError for an empty or unsuitable tensor."""
        check_option("operation", operation, OPERATIONS)
        given = dict(zip((*_INPUTS["forward"], *_PAGED, "out", "dout"), tensors, strict=True))
        if operation == "forward" and (dbias or given["dout"] is not None):
            raise ValueError("dout and dbias must be those of backward; got one for forward")
        found, ordinal = specs_and_device(given, device)
        specs = Specs(found)
        call = Call(specs, {}, ordinal or 0, 0, {})
        if operation == "backward" and "page_table" in specs:
            raise ValueError("page_table must be None for backward, which no engine computes of pages; got one")
        if specs["q"].dtype in EIGHTS:
            specs |= dict.fromkeys(SCALES, TensorSpec((1,), "float32"))
        sizes, inputs = self._inputs(call, longest)
        has_node = operation == "forward" and self._has_node(sizes, specs) and "lengths_q" not in specs
        if operation == "backward":
            for name in ("dout", "out", "statistics"):
                if name not in specs:
                    new = self._new(name, sizes.shapes[name], inputs)
                    specs[name] = new if name == "statistics" else self._in_layout(new)
        has_last = True if operation == "forward" else dbias
        sizes, operands = self._operands(call, operation, has_last, longest)
        if self._lacks_lengths_q(sizes, specs, has_node):
            at = [operand.name for operand in operands].index("lengths_kv")
            operands.insert(at, _lengths_of_queries(sizes))
        if sizes.are_empty:
            raise ValueError(f"a planned problem must have elements; got scores of shape {sizes.scores}")
        wanted = _for_engines(operands)
        self._check_copies(sizes, operands, wanted, specs, "a plan makes no copies")
        in_graph = _on(operands, wanted)
        if operation == "forward" and "lengths_kv" not in specs:
            sizes, _, in_graph = self._of_one_query(sizes, operands, wanted, permits=lambda copies: not copies)
        graphs = self._graphs(sizes, in_graph, has_node)
        if isinstance(device, OtherGpu):
            return graphs, device
        return graphs, current_device() if ordinal is None else ordinal

    # Set-up, once for each call signature

    def _forward(self, call: Call, statistics: bool, *longest: Any) -> tuple[Program, list[TensorSpec]]:
        return self._program(call, "forward", statistics, longest)

    def _backward(self, call: Call, dbias: bool, *longest: Any) -> tuple[Program, list[TensorSpec]]:
        return self._program(call, "backward", dbias, longest)

    def _program(
        self, call: Call, operation: str, has_last: bool, longest: Any, few_as_heads: bool = True
    ) -> tuple[Program, list[TensorSpec]]:
        """Return the program of a call, and the results' specs. `has_last`: the last possible result is wanted."""
        sizes, operands = self._operands(call, operation, has_last, longest or (None, None))
        results = [
            o.spec if o.name in ("statistics", "dbias") else self._in_layout(o.spec) for o in operands if o.is_result
        ]
        if sizes.are_empty:
            return Program("attention of empty tensors", call.device, operands, _clearing(operands)), results
        wanted = _for_engines(operands)
        of_float8 = [name for name, spec in call.specs.items() if spec.dtype in EIGHTS]
        self._check_copies(sizes, operands, wanted, of_float8, "cuDNN copies no float8")
        in_graph = _on(operands, wanted)
        if operation == "forward" and few_as_heads:
            sizes, wanted, in_graph = self._of_one_query(sizes, operands, wanted, partial(self._permits, call))
        used: dict[Operand, int | ScratchBuffer | Constant] = {one: at for at, one in enumerate(in_graph)}
        if operation == "forward" and not has_last:
            made = Operand("statistics", self._new("statistics", sizes.shapes["statistics"], {}), True)
            used[made] = ScratchBuffer(byte_extent(made.spec))
        has_node = operation == "forward" and self._has_node(sizes, call.specs)
        if has_node and "lengths_q" in call.specs:
            if there := self._lengths_there(call, sizes, in_graph):
                used = {**{one: at for one, at in used.items() if one.name not in READ_LENGTHS}, **there}
            has_node = bool(there)
        if self._lacks_lengths_q(sizes, {one.name for one in used}, has_node):
            used[_lengths_of_queries(sizes)] = Constant(constant(sizes.queries, sizes.batch, call.device, call.stream))
        scratch = [byte_extent(spec) for o, spec in zip(operands, wanted, strict=True) if is_converted(o.spec, spec)]
        scratch += [one.size for one in used.values() if isinstance(one, ScratchBuffer)]
        try:
            plan = _first(self._graphs(sizes, [*used], has_node), lambda graph: graph._plan_in(call, *scratch))
        except NoAlgorithmError:
            if in_graph == _on(operands, wanted):
                raise
            return self._program(call, operation, has_last, longest, few_as_heads=False)
        sources = [used[one] for one in sorted(used, key=lambda one: one.is_result)]  # inputs come first
        executable = with_implicit_operands(plan.executable, sources, len(operands))
        if sizes.tokens:  # engines write the sequences alone
            cleared = _clearing(_on(operands, wanted))
            executable = StepSequence([*cleared, Step(executable, tuple(range(len(operands))))])
        return with_conversion_copies(plan.name, call.device, operands, executable, wanted, plan=plan), results

    def _check_copies(
        self, sizes: Sizes, operands: Sequence[Operand], wanted: list[TensorSpec], names: Collection[str], reason: str
    ) -> None:
        """Raise ValueError for a tensor with one of some names that engines take only as a copy."""
        for operand, needed in zip(operands, wanted, strict=True):
            if is_converted(operand.spec, needed) and operand.name in names:
                spec = self._in_layout(operand.spec) if operand.name in sizes.shapes else operand.spec
                raise ValueError(
                    f"{operand.name} must have strides that are multiples of 16 bytes, 1 on the last axis, and be aligned to "
                    f"16 bytes, since {reason}; got strides {spec.strides} and an alignment of {spec.alignment}"
                )

    def _has_few_queries(self, sizes: Sizes, operands: Sequence[Operand]) -> bool:
        """Return whether each query is a head: of many keys, with one mask for all, if the engine for one query is faster.

        It divides the keys among processors, and reads a head of k once for 64 rows of head size 128. The engine for several
        queries takes a processor for each head of q. The times are in keys of one processor (docs/dev/benchmarks.md).
        """
        shapes = {operand.name: operand.spec.shape for operand in operands}
        has_other_mask = self._band(sizes)[:2] != (None, None) or self.dropout or sizes.tokens
        if not {"lengths_kv", "page_table"}.isdisjoint(shapes) and (raw.version() < _MEASURED or "bias" in shapes):
            return False  # no node for one query
        is_equal = "lengths_q" not in shapes and shapes.get("bias", (0, 1, 1))[1:3] == (1, 1)
        if sizes.queries == 1 or sizes.keys <= LONG_KEYS or has_other_mask or not is_equal or "scale_s" in shapes:
            return False
        heads, kv_heads = sizes.batch * sizes.heads, sizes.batch * sizes.kv_heads
        passes = max(1.0, heads * sizes.queries / kv_heads * sizes.head_size / (64 * 128))
        as_heads = sizes.keys * kv_heads * passes / 90 + heads * sizes.queries
        return as_heads < sizes.keys * max(1.0, heads / 132)

    def _of_one_query(
        self, sizes: Sizes, operands: Sequence[Operand], wanted: list[TensorSpec], permits: Callable[[int], bool]
    ) -> tuple[Sizes, list[TensorSpec], list[Operand]]:
        """Return few queries of forward as one query of more heads, which share heads of k in the same order.

        The results are the sizes, the tensors that engines take and the operands of the graph, in the same memory. q and out
        are packed if their queries can only so be heads, and copies of that size are permitted. Other problems stay.
        """
        unchanged = sizes, wanted, _on(operands, wanted)
        if not self._has_few_queries(sizes, operands):
            return unchanged
        rows = [one.name in ("q", "out", "statistics") for one in operands]
        packed = [
            spec._replace(strides=packed_strides(spec.shape)) if is_of_rows and not _are_heads(spec) else spec
            for is_of_rows, spec in zip(rows, wanted, strict=True)
        ]
        if not permits(sum(byte_extent(new) for new, old in zip(packed, wanted, strict=True) if new != old)):
            return unchanged

        def merged(spec: TensorSpec) -> TensorSpec:
            (b, h, s, d), (batch, _, row, column) = spec.shape, strides_of(spec)
            return spec._replace(shape=(b, h * s, 1, d), strides=(batch, row, row, column))

        specs = [merged(spec) if is_of_rows else spec for is_of_rows, spec in zip(rows, packed, strict=True)]
        return sizes._replace(heads=sizes.heads * sizes.queries, queries=1), packed, _on(operands, specs)

    def _permits(self, call: Call, size: int) -> bool:
        """Return whether the preference and the memory of the GPU permit scratch memory of a size."""
        permitted = self._permitted_workspace()
        return (permitted is None or size <= permitted) and call.allows(size)

    def _has_node(self, sizes: Sizes, names: Collection[str]) -> bool:
        """Return whether a node computes forward, besides the graph of products: one query, with lengths as the only masks."""
        has_other_mask = self._band(sizes)[:2] != (None, None) or self.dropout or sizes.tokens or "bias" in names
        is_alone = "lengths_kv" in names and "scale_s" not in names and not has_other_mask
        return sizes.queries == 1 and is_alone and raw.version() >= _MEASURED

    def _lacks_lengths_q(self, sizes: Sizes, names: Collection[str], has_node: bool) -> bool:
        """Return whether engines need lengths of queries that are not among the names: all queries."""
        is_masked_float8 = "scale_s" in names and "lengths_kv" in names
        return "lengths_q" not in names and bool(has_node or sizes.pages or is_masked_float8)

    def _graphs(self, sizes: Sizes, operands: Sequence[Operand], has_node: bool) -> list[Graph]:
        """Return the graphs that compute a problem, the fastest first. The node takes every query for there."""
        forms = [True, False] if has_node else [False]
        return [_Composition(self, sizes, operands, is_node).graph for is_node in forms]

    def _lengths_there(
        self, call: Call, sizes: Sizes, operands: Sequence[Operand]
    ) -> dict[Operand, int | ScratchBuffer]:
        """Return the lengths of k, 0 without the query of a sequence, which a graph writes; nothing if no engine does.

        Engines compute integers only beside a product: of the first eight numbers of q and k, whose columns are 0.
        """
        names, b, n = [one.name for one in operands], sizes.batch, HEAD_SIZES.start
        (dtype,) = (one.spec.dtype for one in operands if one.name == "q")
        graph = Graph(workspace_limit=self._permitted_workspace())  # not measured
        rows = graph.tensor("q", TensorSpec((1, b, n), dtype, (n, 0, 1)))
        column = graph.tensor("k", TensorSpec((1, n, 1), dtype, (n, 1, 1)))
        zero = graph.pointwise("gen_index", graph.matmul(rows, column), axis=2)
        queries, keys = (graph.tensor(name, TensorSpec((1, b, 1), "int32")) for name in READ_LENGTHS)
        is_there = graph.pointwise("min", queries, graph.number(1, 3, "int32"), **_INT32)
        there = graph.pointwise("add", zero, graph.pointwise("mul", keys, is_there, **_INT32), **_INT32)
        graph.output("lengths", there, "int32", (b, 1, 1))
        if (plan := graph._plan_if_supported(call)) is None:
            return {}
        made = Operand("lengths_kv", TensorSpec((b,), "int32", (1,)))
        reads = tuple(map(names.index, ("q", "k", *READ_LENGTHS)))
        return {made: ScratchBuffer(byte_extent(made.spec), plan.executable, reads)}

    def _operands(
        self, call: Call, operation: str, has_last: bool, longest: Longest = (None, None)
    ) -> tuple[Sizes, list[Operand]]:
        """Check the arrays of a call; return the sizes, and the operands with the axes BHSD, the results last."""
        sizes, tensors = self._inputs(call, longest)
        is_masked = self.causal or self.window or any(name in tensors for name in _MASKING)
        parts = (
            ("masks and a bias", is_masked, _MASKS),
            ("dropouts", self.dropout, _DROPOUT),
            ("packed sequences", sizes.tokens, _RAGGED),
            ("float8 tensors", tensors["q"].dtype in EIGHTS, _MEASURED),
        )
        for what, needed, since in parts:
            if needed and raw.version() < since:
                raise FunctionNotAvailableError(
                    f"{what} of Attention need cuDNN {raw.version_text(since)} or later; "
                    f"the loaded release is {raw.version_text(raw.version())}"
                )
        q = tensors["q"]
        if operation == "backward" and "bias" in tensors and sizes.keys == 1:
            raise ValueError(
                "bias must be None in backward of one key, for which cuDNN computes a wrong dq; got a bias"
            )
        if operation == "backward" and q.dtype in EIGHTS:
            raise TypeError(f"q must be {' or '.join(DTYPES)} in backward; got {q.dtype}")
        if has_last and operation == "backward":
            check_dbias(sizes, tensors["bias"].shape if "bias" in tensors else None)
        results = _RESULTS[operation][: None if has_last else -1] + (AMAX if q.dtype in EIGHTS else ())
        for name in dict.fromkeys((*_INPUTS[operation], *results)):
            if name in tensors:
                continue
            if name == "dbias":
                dtype, shape = tensors["bias"].dtype, tensors["bias"].shape
                tensors[name] = (
                    self._checked(call, name, shape, dtype) if name in call.specs else self._new(name, shape, tensors)
                )
            elif name not in results or name in call.specs:
                tensors[name] = (
                    packed_like(call, name, sizes.shapes[name], "float32")
                    if name == "statistics"
                    else self._checked(call, name, sizes.shapes[name], q.dtype)
                )
            else:
                tensors[name] = self._new(name, sizes.shapes[name], tensors)
        present = [name for name in (*_PAGED, *SCALES) if name in tensors]
        operands = [Operand(name, tensors[name]) for name in (*_INPUTS[operation], *present)]
        operands += [Operand(name, tensors[name], True) for name in results]
        check_no_overlaps(call, operands)
        return sizes, operands

    def _inputs(self, call: Call, longest: Longest) -> tuple[Sizes, dict[str, TensorSpec]]:
        """Check q, k, v, the bias and the lengths; return the sizes and the tensors, with the axes BHSD."""
        bias = call.specs.get("bias")
        shapes = {name: call.specs[name].shape for name in "qkv"}
        shapes |= {name: call.specs[name].shape for name in ("bias", "page_table", "offsets_q") if name in call.specs}
        check_packing(call.specs, longest, self.causal)
        sizes = sizes_of(self.layout, shapes, longest)
        q = check_input(call, "q", range(3, 5), (*DTYPES, *EIGHTS), empty=True)
        self._check_float8(q.dtype, sizes, call.specs)
        check_lengths_of_pages(call.specs)
        if "mask" in call.specs:
            raise ValueError("mask must be None on a GPU, where seed and offset give it; got an array")
        check_dropout(self.dropout, call.specs, ("seed", "offset"))
        tensors = {name: self._checked(call, name, sizes.shapes[name], q.dtype) for name in "qkv"}
        if bias is not None:
            tensors["bias"] = check_input(call, "bias", range(4, 5), (q.dtype, "float32"), empty=True)
        numbers: dict[str, tuple[Any, ...]] = {
            **dict.fromkeys(READ_LENGTHS, ((sizes.batch,), "int32")),
            **dict.fromkeys(("seed", "offset"), ((1,), "int64")),
            **dict.fromkeys(SCALES, ((1,), "float32")),
            **dict.fromkeys(PACKING, ((sizes.batch + 1,), "int32", "int64")),
            "page_table": (shapes.get("page_table"), "int32"),
        }
        given = {name: wanted for name, wanted in numbers.items() if name in call.specs}
        tensors |= {name: packed_like(call, name, shape, *dtypes) for name, (shape, *dtypes) in given.items()}
        return sizes, tensors

    def _check_float8(self, dtype: str, sizes: Sizes, given: Collection[str]) -> None:
        """Raise TypeError or ValueError for float8 without its scales or with what engines compute wrong, and the reverse."""
        if dtype not in EIGHTS:
            if "scale_s" in given:
                raise ValueError(f"scales must be None for {dtype}; got arrays")
            return
        if missing := [name for name in SCALES if name not in given]:
            raise TypeError(f"scales must have {', '.join(SCALES)} for {dtype}; got None for {missing[0]}")
        if self.causal == "bottom_right" or self.window or self.dropout:
            got = f"causal={self.causal!r}, window={self.window}, dropout={self.dropout}"
            raise ValueError(f"{dtype} must have no mask but lengths_kv and causal=True, and no dropout; got {got}")
        if others := [name for name in ("bias", "lengths_q", "page_table", "offsets_q") if name in given]:
            raise ValueError(f"{others[0]} must be None for {dtype}; got an array")
        for name, size in (("q", sizes.head_size), ("v", sizes.value_size)):
            if size not in FLOAT8_HEAD_SIZES:
                raise ValueError(
                    f"{name} must have a head size of 16 to 128, a multiple of 16, for {dtype}; got {size}"
                )

    def _checked(self, call: Call, name: str, shape: tuple[int, ...], dtype: str) -> TensorSpec:
        """Return an array of a call, whose shape with the axes BHSD and dtype must be these. A dbias has no layout."""
        layout: AttentionLayout = "BHSD" if name == "dbias" else self.layout
        if call.specs[name].shape != (expected := in_layout(shape, layout)):
            raise ValueError(f"{name} must have shape {expected}; got shape {tuple(call.specs[name].shape)}")
        spec = check_input(call, name, range(len(shape), len(shape) + 1), (dtype,), empty=True)
        return spec if layout == "BHSD" else self._in_layout(spec)

    def _new(self, name: str, shape: tuple[int, ...], tensors: Mapping[str, TensorSpec]) -> TensorSpec:
        """Return a new array: packed statistics or magnitudes, or a result in the order of strides of an input."""
        if name in ("statistics", *AMAX):
            return TensorSpec(shape, "float32", packed_strides(shape))
        like = tensors[_LIKE[name]]
        assert like.strides is not None
        return TensorSpec(shape, like.dtype, packed_strides(shape, stride_order(like.strides)))

    def _in_layout(self, spec: TensorSpec) -> TensorSpec:
        """Return a BHSD tensor in the axis order of the layout, or the reverse."""
        assert spec.strides is not None
        return spec._replace(shape=in_layout(spec.shape, self.layout), strides=in_layout(spec.strides, self.layout))

    def _band(self, sizes: Sizes) -> tuple[int | None, int | None, int]:
        """Return the limits of the window beside the diagonal, and the key on it for query 0, of sequences of full length."""
        left, right = self.window or (None, None)
        if self.causal == "bottom_right":
            # one query has all keys; engines read its limit to the left alone wrong
            return left, None if sizes.queries == 1 and left is None else 0, sizes.keys - sizes.queries
        return left, 0 if self.causal else right, 0

    def _may_lack_keys(self, sizes: Sizes, given: Mapping[str, object]) -> bool:
        """Return whether there may be a query without keys."""
        left, right, diagonal = self._band(sizes)
        is_right = left is not None and sizes.queries - 1 + diagonal - left >= sizes.keys
        is_left = right is not None and diagonal + right < 0
        return is_left or is_right or any(name in given for name in _MASKING)


def _run_checked(
    name: str,
    attention: Attention,
    implementation: Any,
    names: Sequence[str],
    inputs: Sequence[Any],
    outs: Sequence[Any],
    stream: Stream | None,
    *arguments: Any,
) -> Any:
    """Run a call after the lengths, numbers of pages and offsets are checked, for which the host waits."""
    device = read(inputs[0], names[0])[1][3]
    arrays = {argument: array for argument, array in zip(names, inputs, strict=False) if array is not None}
    specs = specs_of({argument: read(array, argument) for argument, array in arrays.items()}, device, names[0])
    sizes, _ = attention._inputs(Call(specs, {}, device, 0, {}), arguments[1:])
    if stream is not None:
        synchronize(stream_address(stream), device)
    values = {argument: to_numpy(arrays[argument]).ravel().tolist() for argument in READ_VALUES if argument in arrays}
    check_values(sizes, values)
    return ArrayOperation._run(name, attention, implementation, names, inputs, outs, stream, *arguments)


if os.environ.get("CUDNNPY_CHECK_VALUES", "0") not in ("", "0"):
    Attention._run = staticmethod(_run_checked)


def _first(graphs: Sequence[Graph], planned: Callable[[Graph], Plan]) -> Plan:
    """Return the plan of the first graph that an engine computes. Raises NoAlgorithmError."""
    *others, last = graphs
    for graph in others:
        with suppress(NoAlgorithmError):
            return planned(graph)
    return planned(last)


def _wanted(name: str, given: Any) -> tuple[bool, Any]:
    """Return whether a result is wanted, and the array for it, of an argument that is a bool or an array."""
    if given is None or isinstance(given, bool):
        return check_flag(name, given), None
    return True, given


def _for_engines(operands: Sequence[Operand]) -> list[TensorSpec]:
    """Return the tensors that engines take in place of operands: aligned, and with strides that they load well.

    Engines plan for any strides, but vectors of 16 bytes are loaded at multiples of 16 bytes only. A dbias has q's dtype.
    """
    (dtype,) = (operand.spec.dtype for operand in operands if operand.name == "q")
    wanted = []
    for name, spec, *_ in operands:
        if name == "dbias":
            spec = spec._replace(dtype=dtype)
        if not spec.dtype.startswith("int"):
            spec = _in_rows_of_16_bytes(spec)
        wanted.append(spec)
    return wanted


def _in_rows_of_16_bytes(spec: TensorSpec) -> TensorSpec:
    """Return a tensor whose rows start at multiples of 16 bytes, where they have several elements."""
    assert spec.strides is not None
    fits = spec.shape[-1] == 1 or (spec.strides[-1] == 1 and rows_are_aligned(spec))
    if len(spec.shape) == 3:  # of packed sequences, whose offsets are those of packed tokens
        fits = spec.strides == packed_strides(spec.shape)
    if spec.alignment >= VECTOR and fits:
        return spec
    *rest, columns = spec.shape
    per_row = VECTOR // dtype_of(spec.dtype).itemsize
    columns = columns if columns == 1 else -(-columns // per_row) * per_row
    return to_packed(spec)._replace(strides=packed_strides((*rest, columns)))


def _lengths_of_queries(sizes: Sizes) -> Operand:
    """Return the operand of the lengths of queries that a caller leaves out."""
    return Operand("lengths_q", TensorSpec((sizes.batch,), "int32", (1,)))


def _are_heads(spec: TensorSpec) -> bool:
    """Return whether the queries of all heads have equal distances, so that each may be a head."""
    _, head, query, _ = strides_of(spec)
    return spec.shape[1] == 1 or head == spec.shape[2] * query


def _clearing(operands: Sequence[Operand]) -> list[Step]:
    """Return the steps that fill the results with those of queries and keys that are not there."""
    return [
        Step(fill(spec, -math.inf if name == "statistics" else 0.0), (at,))
        for at, (name, spec, is_result, *_) in enumerate(operands)
        if is_result and byte_extent(spec)
    ]


def _on(operands: Sequence[Operand], specs: Sequence[TensorSpec]) -> list[Operand]:
    """Return operands with other specs."""
    return [operand._replace(spec=spec) for operand, spec in zip(operands, specs, strict=True)]


class _Composition:
    """The graph of attention, or of its gradients if dout is an operand."""

    def __init__(self, options: Attention, sizes: Sizes, operands: Sequence[Operand], is_node: bool = False) -> None:
        self.options, self.sizes = options, sizes
        self.scale = 1 / math.sqrt(sizes.head_size) if options.scale is None else options.scale
        self.has_dbias = any(operand.name == "dbias" for operand in operands)
        self.graph = graph = Graph(**options._preferences())
        self.tensors: dict[str, Node] = {}
        self.mask: Node | None = None  # of a dropout
        for name, spec, is_result, *_ in operands:
            if name == "bias":
                self.bias_shape = spec.shape
            if not is_result:
                self.tensors[name] = graph.tensor(name, self.along_queries(name, spec))
        ragged = {name: self.offsets_of(name, spec) for name, spec, *_ in operands}
        for name, node in self.tensors.items():
            node.ragged = ragged[name]
        self.dtype = self.tensors["q"].spec.dtype
        self.is_float8 = self.dtype in EIGHTS
        self.each = {} if is_node else self.valid()
        made = self.node() if is_node else self.gradients() if "dout" in self.tensors else self.attention()
        for name, spec, is_result, *_ in operands:
            if is_result:
                strides = self.along_queries(name, spec).strides
                graph.output(name, made[name], spec.dtype, strides, ragged=ragged[name])

    def along_queries(self, name: str, spec: TensorSpec) -> TensorSpec:
        """Return lengths, or a bias that is broadcast along the queries, as a tensor with all queries, with stride 0.

        Numbers get four axes. Each packed sequence gets the greatest length.
        """
        if name in ("seed", "offset", *PACKING, *SCALES, *AMAX):
            return spec._replace(shape=(*spec.shape, 1, 1, 1), strides=(1, 1, 1, 1))
        if len(spec.shape) == 3:
            _, h, d = spec.shape
            rows = self.sizes.queries if side(name) == "q" else self.sizes.keys
            return spec._replace(shape=(self.sizes.batch, h, rows, d), strides=(rows * h * d, d, h * d, 1))
        if name.startswith("lengths"):
            return spec._replace(shape=(self.sizes.batch, 1, self.sizes.queries, 1), strides=(1, 1, 0, 1))
        if name == "bias" and spec.shape[2] == 1:
            assert spec.strides is not None
            (b, h, _, k), (*outer, _, key) = spec.shape, spec.strides
            return spec._replace(shape=(b, h, self.sizes.queries, k), strides=(*outer, 0, key))
        return spec

    def offsets_of(self, name: str, spec: TensorSpec) -> Node | None:
        """Return the offsets of packed sequences; None for another tensor."""
        return self.tensors[f"offsets_{side(name)}"] if len(spec.shape) == 3 else None

    def node(self) -> dict[str, Node]:
        """Add the one operation of forward; return the results by name."""
        tensors = self.tensors
        given: dict[str, Any] = {name: tensors[name] for name in "qkv"} | {"scale": self.scale}
        given |= {f"seq_len_{side(name)}": tensors[f"lengths_{side(name)}"] for name in "qk"}
        if self.sizes.pages:
            given |= dict.fromkeys(("page_table_k", "page_table_v"), tensors["page_table"])
        made = self.graph.add("sdpa_fwd", results=("stats",), **given)
        return {"out": made["o"], "statistics": made["stats"]}

    def attention(self) -> dict[str, Node]:
        """Add the operations of forward; return the results by name."""
        g, scores = self.graph, self.scores()
        largest = g.reduction("max", scores, (3,))
        powers = g.pointwise("exp", g.pointwise("sub", scores, largest))
        total = g.reduction("add", powers, (3,))
        statistics = g.pointwise("add", largest, g.pointwise("log", total))
        dropout = self.options.dropout
        weights = whole = g.pointwise("div", powers, total, dtype=None if dropout or self.is_float8 else self.dtype)
        if dropout:
            weights = g.pointwise("mul", self.kept(weights), self.number(1 / (1 - dropout)), dtype=self.dtype)
        if self.is_float8:
            weights = g.pointwise("mul", weights, self.tensors["scale_s"], dtype=self.dtype)
        queries, keys = self.each.get("lengths_q"), self.each.get("lengths_kv")
        made = {"out": g.matmul(weights, self.loaded("v"), m=queries, k=keys), "statistics": statistics}
        if self.is_float8:
            out = self.scaled(made["out"], "descale_s", "descale_v")
            made |= {name: g.reduction("amax", x, range(4)) for name, x in zip(AMAX, (whole, out), strict=True)}
            made["out"] = self.scaled(out, "scale_o")
        return made

    def scaled(self, x: Node, *names: str) -> Node:
        """Add the products with the factors of float8 that are given."""
        for name in names:
            x = self.graph.pointwise("mul", x, self.tensors[name]) if name in self.tensors else x
        return x

    def gradients(self) -> dict[str, Node]:
        """Add the operations of backward; return the results by name."""
        g, tensors = self.graph, self.tensors
        dout, dropout = tensors["dout"], self.options.dropout
        share = self.number(1 - dropout)  # kept weights are divided by it; so are the gradients of scores, at the end
        factor = self.number(1 / (1 - dropout)) if dropout else share
        sums = g.pointwise("mul", g.reduction("add", g.pointwise("mul", dout, tensors["out"]), (3,)), share)
        differences = g.pointwise("sub", self.scores(), tensors["statistics"])
        if self.options._may_lack_keys(self.sizes, tensors):  # -infinity less -infinity is NaN
            is_number = g.pointwise("cmp_ge", differences, self.number(LOWEST))
            differences = g.pointwise("binary_select", differences, self.number(LOWEST), is_number)
        weights = g.pointwise("exp", differences)
        stored = g.pointwise("mul", self.kept(weights), factor, dtype=self.dtype)
        queries, keys = self.each.get("lengths_q"), self.each.get("lengths_kv")
        of_weights = self.kept(g.matmul(dout, self.transposed(tensors["v"]), m=queries, n=keys))
        of_scores = g.pointwise("mul", g.pointwise("sub", of_weights, sums), weights)
        if dropout:
            of_scores = g.pointwise("mul", of_scores, factor)
        scaled = g.pointwise("mul", of_scores, self.number(self.scale), dtype=self.dtype)
        return {
            "dq": g.matmul(scaled, tensors["k"], m=queries, k=keys),
            "dk": self.of_heads(self.transposed(scaled), tensors["q"]),
            "dv": self.of_heads(self.transposed(stored), dout),
            **({"dbias": self.of_bias(of_scores)} if self.has_dbias else {}),
        }

    def kept(self, weights: Node) -> Node:
        """Add what a dropout keeps of weights or of their gradients: a product with a mask that is drawn."""
        if not self.options.dropout:
            return weights
        if self.mask is None:
            numbers: dict[str, Any] = {name: self.tensors[name] for name in ("seed", "offset")}
            how: dict[str, Any] = {"distribution": "bernoulli", "probability": 1 - self.options.dropout}
            self.mask = self.graph.add("rng", shape=self.sizes.scores, **numbers, **how)["y"]
        return self.graph.pointwise("mul", weights, self.mask)

    def scores(self) -> Node:
        """Add the scores with the bias and the masks. Each mask generates its own indices of the tensor that it masks."""
        g, tensors = self.graph, self.tensors
        left, right, diagonal = self.options._band(self.sizes)
        lengths_q, lengths_kv = (tensors.get(name) for name in ("lengths_q", "lengths_kv"))
        is_bottom_right = self.options.causal == "bottom_right"
        is_alone = lengths_kv is not None and left is right is None and not self.is_float8
        if is_alone and self.sizes.queries == 1 and "dout" not in tensors:
            is_bottom_right, right = True, 0  # the same keys

        def query(x: Node) -> Node:
            return g.pointwise("gen_index", x, axis=2)

        def key(x: Node) -> Node:
            return g.pointwise("gen_index", x, axis=3)

        def selected(x: Node, allowed: Node) -> Node:
            return g.pointwise("binary_select", x, self.number(-math.inf), allowed)

        valid_q, valid_kv = (self.each.get(name) for name in ("lengths_q", "lengths_kv"))
        products = g.matmul(tensors["q"], self.loaded("k", is_transposed=True), m=valid_q, n=valid_kv)
        x = self.scaled(g.pointwise("mul", products, self.number(self.scale)), "descale_q", "descale_k")
        if "bias" in tensors:
            x = g.pointwise("add", x, tensors["bias"])
            large = math.ldexp(1, 128) / -LEAST  # a product of it and numbers below LEAST is -infinity in float32
            x = g.pointwise("mul", g.pointwise("mul", x, self.number(large)), self.number(1 / large))
        is_measured = raw.version() >= _MEASURED
        has_diagonal = is_measured and is_bottom_right and right == 0  # which has no keys beyond the lengths
        sizes_mask_queries = is_measured and "dout" in tensors and self.each and not has_diagonal and not self.has_dbias
        if self.is_float8 and lengths_q is not None and lengths_kv is not None:
            has_query, has_key = (
                g.pointwise("cmp_lt", g.pointwise("gen_index", x, axis=axis, **_INT32), lengths, **_BOOL)
                for axis, lengths in ((2, lengths_q), (3, lengths_kv))
            )
            x = selected(x, g.pointwise("logical_and", has_query, has_key, **_BOOL))
        elif lengths_q is not None and not sizes_mask_queries:
            x = selected(x, g.pointwise("cmp_lt", query(x), lengths_q))
        if lengths_kv is not None and not self.is_float8 and not (has_diagonal and self.sizes.queries > 1):
            x = selected(x, g.pointwise("cmp_lt", key(x), lengths_kv))
        if is_bottom_right and not lengths_q is lengths_kv is None:
            keys = g.number(self.sizes.keys, dtype="int32") if lengths_kv is None else lengths_kv
            queries = g.number(self.sizes.queries, dtype="int32") if lengths_q is None else lengths_q

            def row(x: Node) -> Node:
                """Return the keys on the diagonal."""
                return g.pointwise("sub", g.pointwise("add", query(x), keys, **_INT32), queries, **_INT32)

            if right is not None:
                x = selected(x, g.pointwise("cmp_ge", self.moved(row(x), right), key(x)))
            if left is not None:
                x = selected(x, g.pointwise("cmp_gt", self.moved(key(x), left + 1), row(x)))
            return x
        if right is not None:
            x = selected(x, g.pointwise("cmp_ge", self.moved(query(x), diagonal + right), key(x)))
        if left is not None:
            column = g.pointwise("add", key(x), self.number(float(left + 1 - diagonal)))
            x = selected(x, g.pointwise("cmp_gt", column, query(x)))
        return x

    def moved(self, indices: Node, by: int) -> Node:
        """Add a sum of indices and a number, if that is not 0."""
        if by == 0:
            return indices
        return self.graph.pointwise("add", indices, self.graph.number(by, dtype="int32"), **_INT32)

    def valid(self) -> dict[str, Node]:
        """Add the lengths as one number for each sequence: the same memory. Engines skip queries and keys beyond them.

        Pages and packed sequences need them. Long gradients gain more time than the filling of their results takes.
        """
        part: dict[str, Any] = {"start": (0, 0, 0, 0), "limit": (self.sizes.batch, 1, 1, 1), "stride": (1, 1, 1, 1)}
        tensors, sizes = self.tensors, self.sizes
        # no query has keys beyond its own place
        is_own = self.options.causal is True and sizes.queries <= sizes.keys
        has_both = "dout" in tensors and tensors.keys() >= {*READ_LENGTHS[: 1 if is_own else 2]}
        skips = has_both and max(sizes.queries, sizes.keys) > KEYS_AT_ONCE and raw.version() >= _MEASURED
        is_masked_float8 = self.is_float8 and "lengths_q" in tensors
        names = READ_LENGTHS if skips or sizes.pages or sizes.tokens or is_masked_float8 else ()
        return {name: self.graph.add("slice", x=tensors.get(name, tensors["lengths_q"]), **part)["y"] for name in names}

    def loaded(self, name: str, is_transposed: bool = False) -> Node:
        """Return k or v, or its transpose, where they are pages as what is loaded from them."""
        tensor, (batch, _, heads, _, keys, *_) = self.tensors[name], self.sizes
        if not self.sizes.pages:
            return self.transposed(tensor) if is_transposed else tensor
        shape = batch, heads, keys, tensor.shape[3]
        axes = (0, 1, 3, 2) if is_transposed else range(4)
        there: dict[str, Any] = {
            "shape": [shape[axis] for axis in axes],
            "strides": [packed_strides(shape)[axis] for axis in axes],
        }
        operands: dict[str, Any] = {"sequence": self.each["lengths_kv"], "page_table": self.tensors["page_table"]}
        return self.graph.add("paged_cache_load", container=tensor, **operands, **there)["y"]

    def transposed(self, x: Node) -> Node:
        """Add a transposition of the last two axes: the same memory with other strides."""
        b, h, s, d = x.shape
        strides = x.spec.strides or packed_strides(x.shape)
        strides = (*strides[:2], strides[3], strides[2])
        return self.graph.add("reshape", x=x, shape=(b, h, d, s), strides=strides)["y"]

    def of_heads(self, a: Node, b: Node) -> Node:
        """Add a product, and its sum over the heads that share a head of k and v. Engines sum numbers of q's type alone."""
        valid: dict[str, Any] = {"m": self.each.get("lengths_kv"), "k": self.each.get("lengths_q")}
        if self.sizes.heads == self.sizes.kv_heads:
            return self.graph.matmul(a, b, **valid)
        gradient = self.graph.matmul(a, b, dtype=self.dtype, **valid)
        batch, _, *rest = gradient.shape
        return self.graph.add("reduction", op="add", x=gradient, shape=(batch, self.sizes.kv_heads, *rest))["y"]

    def of_bias(self, of_scores: Node) -> Node:
        """Add the sum of the gradient of the scores over the axes that the bias is broadcast along."""
        return self.graph.add("reduction", op="add", x=of_scores, shape=self.bias_shape)["y"]

    def number(self, value: float) -> Node:
        """Add a number."""
        return self.graph.number(value)
