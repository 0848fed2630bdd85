"""How far a right result may be from the exact one, element by element; used by every comparison of the GPU tests.

An element of a convolution is z = alpha * sum of L products a_i b_i + beta * o + bias, and the result is f(z), with an
activation f or none. The inputs are exactly what the reference reads, so what may differ is what rounding does on the
way. With u(t) the unit roundoff of a type t (half the distance from 1 to the next number), S = |alpha| sum |a_i b_i|,
and v = u(float32), or u(float64) for float64, of the accumulator:

    products     4 u(tf32) S                     only for an engine whose notes say that it rounds float32 to tf32: two
                                                 operands, each rounded or cut off (twice the error)
    sum          2 (L + 4) v S                   the bound for any order of summation; twice, since tensor cores cut off,
                                                 and four more roundings for alpha, beta and the sum of parts
    unnoted      16 (L + 4) v times the largest S of the result: some Winograd and FFT engines carry no note
    other terms  4 v (|beta o| + |bias|)
    in between   2 u(stored) (|z| + |beta o| + |bias|)    where there is a beta, a bias or an activation: what
                                                 is not fused reads a result that was stored; and where alpha is not
                                                 1: some engines round the sum to the stored type before they scale it
    activation   1.1 times all of it (the steepest slope, swish's), and 2^-10 for sigmoid, tanh, elu and swish in
                                                 anything but float64: their fast approximations
    store        u(stored) |f(z)|, and the smallest subnormal

Winograd and FFT engines (told by their notes or names) do not sum these products: they transform tiles, and the error
of an element is that of its whole tile. For them S is the largest S of the result, and its share of the error is
64 ((L + 4) v + u(inputs)), with u(tf32) for float32 where tf32 is allowed: transforms are kept in the inputs' type.
Engines noted "reduced_precision_reduction", and the v7 algorithms that are not deterministic, add parts in the stored
type: 4 sqrt(L) u(stored) S more.

Data of small integers (`exact`) has exact products and sums: there the first two terms are nothing, except for those
engines. That leaves no room for a product that is missing, doubled or misplaced.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudnnpy._core.dtypes import ROUNDOFF

Float64 = NDArray[np.float64]

SMALLEST = {
    "float64": 2.0**-1074,
    "float32": 2.0**-126,  # the smallest normal number: subnormals may be flushed
    "float16": 2.0**-24,
    "bfloat16": 2.0**-126,
    "float8_e4m3fn": 2.0**-9,
    "float8_e5m2": 2.0**-16,
}
APPROXIMATE = ("winograd", "fft")
_TRANSFORM = 64.0
_STEEPEST = 1.1
_FAST_FUNCTION = 2.0**-10
_CURVED = ("sigmoid", "tanh", "elu", "swish")


def is_approximate(name: str, notes: Collection[str]) -> bool:
    """Whether an engine's notes, or a v7 algorithm's name, say that it transforms."""
    return any(word in text for word in APPROXIMATE for text in (name, *notes))


def allowed(
    z: Float64,
    result: Float64,
    products: Float64,
    added: Float64 | float,
    *,
    inputs: str,
    stored: str,
    length: int,
    tf32: bool = False,
    approximate: bool = False,
    reduced: bool = False,
    exact: bool = False,
    epilogue: bool = False,
    activation: str | None = None,
) -> Float64:
    """The error allowed in each element, by the formula above.

    `z` before and `result` after the activation, `products` S, `added` |beta o| + |bias|; `inputs` and `stored` dtypes.
    """
    u = ROUNDOFF[stored]
    v = ROUNDOFF["float64" if inputs == "float64" else "float32"]
    # some engines that fuse are off by a rounding to tf32 even of whole numbers (26 and 29; docs/known-issues.md)
    exact = exact and not (tf32 and epilogue)
    summed = 0.0 if exact else 2.0 * (length + 4) * v + (4.0 * ROUNDOFF["tf32"] if tf32 else 0.0)
    if approximate:
        products = np.full_like(products, products.max(initial=0.0))
        summed = _TRANSFORM * ((length + 4) * v + ROUNDOFF["tf32" if tf32 else inputs])
    if reduced:
        summed += 4.0 * math.sqrt(length) * u
    # engines that transform without a note: small against the largest sum of the result
    unnoted = 16.0 * (length + 4) * v * float(np.max(products, initial=0.0))
    error: Any = summed * products + unnoted + 4.0 * v * added
    if epilogue:
        error = error + 2.0 * u * (np.abs(z) + added)
    if activation is not None:
        error = _STEEPEST * error
        if activation in _CURVED:
            error = error + (_FAST_FUNCTION if stored != "float64" else 16.0 * u)
    return np.asarray((1.0 + u) * error + u * np.abs(result) * (1.0 + 2.0**-10) + SMALLEST[stored])


def difference(found: NDArray[Any], expected: Float64, error: Float64) -> str:
    """What is wrong with a result, "" if nothing is. NaN and infinity are never right."""
    if found.shape != expected.shape:
        return f"shape {found.shape}, expected {expected.shape}"
    values = found.astype(np.float64)
    with np.errstate(invalid="ignore"):
        wrong = ~(np.abs(values - expected) <= error)
    if not wrong.any():
        return ""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        excess = np.where(np.isfinite(values), np.abs(values - expected) / error, np.inf)
    worst = np.unravel_index(int(np.argmax(np.where(wrong, excess, -1.0))), wrong.shape)
    at = tuple(int(i) for i in worst)
    return (
        f"{int(wrong.sum())} of {wrong.size} elements wrong ({int(np.isnan(values).sum())} NaN); the worst at {at}: "
        f"{values[worst]!r}, expected {expected[worst]!r} within {error[worst]:.3g}"
    )
