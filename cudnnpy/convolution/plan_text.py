"""Read the convolution problem of a serialized plan, as untrusted input (see cudnnpy._planning.plan_text)."""

from __future__ import annotations

from typing import Any

from cudnnpy._options.convolution import ConvolutionOptions
from cudnnpy._planning.plan_json import integers, invalid_text, names, spec_of
from cudnnpy.convolution.convolution_notation import words_of
from cudnnpy.convolution.problem import OPERATIONS, PLAIN, Problem, make_problem


def read_problem(given: dict[str, Any], device: int) -> Problem:
    """Return the problem from the JSON of Problem.plain, checked as a caller's arguments are. Raises ValueError otherwise."""
    if given.keys() != set(PLAIN):
        raise invalid_text(f"its problem has {names(given)}")
    x, w, y = (spec_of(name, given[name]) for name in ("x", "w", "y"))
    bias = None if given["bias"] is None else spec_of("bias", given["bias"])
    rank = len(x.shape) - 2
    geometry = given["geometry"]
    if not isinstance(geometry, list) or len(geometry) != 4:
        raise invalid_text("its geometry does not have four parts")
    before, after, stride, dilation = (integers("geometry", part, 0, rank) for part in geometry)
    for name in ("operation", "mode", "compute_dtype"):
        if not isinstance(given[name], str):
            raise invalid_text(f"{name!r} is not a name")
    if given["operation"] not in OPERATIONS:
        raise invalid_text(f"there is no operation {given['operation'][:60]!r}")
    (groups,) = integers("groups", [given["groups"]], 1)
    options = ConvolutionOptions(
        padding=tuple(zip(before, after, strict=True)),
        stride=stride,
        dilation=dilation,
        groups=groups,
        mode=given["mode"],
        compute_dtype=given["compute_dtype"],
    )
    try:
        problem = make_problem(
            options,
            given["operation"],
            x,
            w,
            y,
            alpha=given["alpha"],
            beta=given["beta"],
            bias=bias,
            activation=given["activation"],
            device=device,
        )
    except (TypeError, ValueError) as error:
        raise invalid_text(f"its problem is invalid: {error}") from error
    if problem.plain() != given:
        raise invalid_text(f"its problem is not in canonical form: {' '.join(words_of(problem))}")
    return problem
