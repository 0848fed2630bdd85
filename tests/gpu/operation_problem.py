"""A call of an operation beside the convolutions, as the GPU tests see it; and how far a right result may be off.

Operations compute in float32 for float16, bfloat16 and float32, and in float64 for float64, and round once at the end.
With u the unit roundoff of the result's type, v that of the arithmetic, f the exact value that the operation has before
alpha and beta, o what stood in out, and E the error of f that each kind below states, an element may be off by

    |alpha| E + 4 v (|alpha f| + |beta o|)             what happens in the arithmetic
    2 u (|alpha f| + |beta o|)                         where alpha is not 1 or beta not 0: f may be stored in between
    u |alpha f + beta o|, and the smallest subnormal   the one rounding at the end

A sum of L terms, in any order, is within sum(L) = 2 (L + 4) v of the sum of their sizes. cuDNN's fast functions get an
allowance that no analysis gives: FAST (2^-10, tanh's instruction has 2^-11) for the activations' curves, EXPONENTIAL
(2^-16, relative) for exp, log and powers elsewhere; both 2^-48 in float64. The share of its bound that each operation
uses is printed at the end of a run, so that a bound that is too wide can be seen.

NaN and infinities must stand where the exact result has them, and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from strategies import Memory
from tolerance import ROUNDOFF, SMALLEST

Float64 = NDArray[np.float64]
Arrays = dict[str, Float64]


@dataclass(frozen=True)
class Problem:
    """One call of one operation, on arrays that are made from `seed`. Its repr, pasted into a test, repeats it.

    `shape` is x's, (N, C, spatial...), whatever the layout; `other` is the shape of the filter of FusedConvolution.
    `other_dtype` is the type of parameters that may have x's own. `memory` is how the arrays of tensors lie, inputs
    first, then out. `given` names the optional arrays that the call gets, `without` those that it gets None for. `data`
    says what is in x: "nan", "infinity" (a few of them), "whole" numbers, or "after_in_place" (y in x's place).
    """

    call: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    other: tuple[int, ...] = ()
    other_dtype: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    keywords: dict[str, Any] = field(default_factory=dict)
    given: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    memory: tuple[Memory, ...] = ()
    with_out: bool = False
    in_place: bool = False
    alpha: float = 1.0
    beta: float = 0.0
    data: str = ""
    stream: str = "current"
    repeats: int = 1
    seed: int = 0

    @property
    def operation(self) -> str:
        return self.call.split(".")[0]

    @property
    def channels_last(self) -> bool:
        return str(self.options.get("layout", "NCHW")).endswith("C")

    @property
    def is_plain(self) -> bool:
        """Packed in one order, aligned."""
        last = {memory.channels_last for memory in self.memory}
        return len(last) < 2 and not any(memory.has_gaps or memory.offset for memory in self.memory)

    def in_layout(self, axes: Sequence[int]) -> tuple[int, ...]:
        """(N, C, spatial...) in the arrays' own axis order."""
        return (axes[0], *axes[2:], axes[1]) if self.channels_last and len(axes) > 2 else tuple(axes)

    def logical(self, axes: Sequence[int]) -> tuple[int, ...]:
        """The inverse of in_layout."""
        return (axes[0], axes[-1], *axes[1:-1]) if self.channels_last and len(axes) > 2 else tuple(axes)

    @property
    def channel_axis(self) -> int:
        """The channels' axis in the arrays."""
        return len(self.shape) - 1 if self.channels_last else 1

    def __str__(self) -> str:
        plain = Problem(self.call, self.shape)
        shown = [f.name for f in fields(self) if getattr(self, f.name) != getattr(plain, f.name)]
        return f"Problem({', '.join(f'{n}={getattr(self, n)!r}' for n in ['call', 'shape', *shown])})"


def run(package: Any, problem: Problem, arrays: dict[str, Any], keywords: dict[str, Any]) -> tuple[Any, ...]:
    """Call the operation of cudnnpy or of the reference: arrays that must be there by position, the rest by name.

    Of its results those that are None, as gradients of parameters that are not there, are left out.
    """
    name, _, method = problem.call.partition(".")
    function = getattr(package, name)
    if method:
        function = getattr(function(**problem.options), method)
    by_name = (*problem.given, *(arrays if problem.without else ()))  # what is left out may be in between
    positional = [array for name, array in arrays.items() if name not in by_name]
    named = {name: array for name, array in arrays.items() if name in by_name} | dict.fromkeys(problem.without)
    found = function(*positional, **named, **keywords)
    return tuple(one for one in found if one is not None) if isinstance(found, tuple) else (found,)


def rounded_to(values: Float64, dtype: str) -> Float64:
    """What is left of values that are stored in a type."""
    stored = torch.from_numpy(np.ascontiguousarray(values)).to(getattr(torch, dtype))
    return np.asarray(stored.to(torch.float64).numpy())


def arithmetic_roundoff(dtype: str) -> float:
    """v: the unit roundoff of what an operation computes in."""
    return ROUNDOFF["float64" if dtype == "float64" else "float32"]


def fast_function_error(dtype: str) -> float:
    return 2.0**-48 if dtype == "float64" else 2.0**-10


def exponential_error(dtype: str) -> float:
    return 2.0**-48 if dtype == "float64" else 2.0**-16


def sum_error(length: int, v: float) -> float:
    """A sum's error as a share of the sum of its terms' sizes."""
    return 2.0 * (length + 4) * v


def error_bound(f: Float64, error: Float64, dtype: str, alpha: float, beta: float, before: Float64 | None) -> Float64:
    """The error allowed in each element of a result, by the formula above."""
    u, v = ROUNDOFF[dtype], arithmetic_roundoff(dtype)
    scaled, added = np.abs(alpha * f), np.abs(beta * before) if before is not None and beta else np.zeros(())
    result = alpha * f + (beta * before if before is not None and beta else 0.0)
    inside = abs(alpha) * error + 4.0 * v * (scaled + added)
    if alpha != 1.0 or beta:
        inside = inside + 2.0 * u * (scaled + added)
    return np.asarray((1.0 + u) * inside + u * np.abs(result) * (1.0 + 2.0**-10) + SMALLEST[dtype])


class Kind:
    """What the tests know of a call: its arrays in the signature's order, its results, its error."""

    tensors = 1  # arrays of x's rank among the inputs, at most
    in_place = ""  # the input that out may be
    factors: tuple[str, ...] = ("alpha", "beta")  # those of them that the call takes
    is_bound = False  # whether `errors` gives the whole bound, not E alone
    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16", "float64")
    results: tuple[str, ...] = ("y",)

    def inputs(self, p: Problem, random: np.random.Generator) -> Arrays:
        """The values of the arrays, in the arrays' axis order, not yet rounded to their types."""
        return {"x": with_special_values(p, uniform(random, p.in_layout(p.shape)), random)}

    def results_of(self, p: Problem) -> tuple[str, ...]:
        """The results that the call gives, by name."""
        return self.results

    def is_tensor(self, p: Problem, name: str, values: Float64) -> bool:
        """Whether an array may lie in memory as it likes."""
        return values.ndim == len(p.shape)

    def updated(self, p: Problem) -> tuple[str, ...]:
        """The inputs that the call changes: results too."""
        return ()

    def dtype_of(self, p: Problem, name: str) -> str:
        """The type of an array, given or returned."""
        return p.dtype

    def reference_keywords(self, p: Problem) -> dict[str, Any]:
        """Return the keywords with which the reference computes f."""
        return dict(p.keywords)

    def outs(self, p: Problem) -> dict[str, str]:
        """The results that the caller gives an array for, and its keyword."""
        return {self.results[0]: "out"} if p.with_out or p.in_place else {}

    def blend(self, p: Problem, result: str) -> tuple[float, float]:
        """The alpha and beta of result = alpha f + beta out."""
        return (p.alpha, p.beta) if result == self.results[0] else (1.0, 0.0)

    def errors(self, p: Problem, a: Arrays, f: Arrays) -> Arrays:
        """E of each result, given the inputs' values and the exact results."""
        raise NotImplementedError

    def is_deterministic(self, p: Problem) -> bool:
        return True


def uniform(random: np.random.Generator, shape: Sequence[int], low: float = -1.0, high: float = 1.0) -> Float64:
    return np.asarray(random.uniform(low, high, shape))


def with_special_values(p: Problem, values: Float64, random: np.random.Generator) -> Float64:
    """With a few NaN or infinities, if the problem asks for them."""
    chosen = {"nan": [math.nan], "infinity": [math.inf, -math.inf]}.get(p.data)
    if chosen is not None and values.size:
        at = random.choice(values.size, max(1, values.size // 16), replace=False)
        values.reshape(-1)[at] = random.choice(chosen, at.size)
    return values


def no_error(f: Float64) -> Float64:
    return np.zeros(f.shape)
