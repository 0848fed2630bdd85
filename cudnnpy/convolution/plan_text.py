"""A convolution problem as the text of a plan has it (see cudnnpy._planning.plan_text), read with care."""

from __future__ import annotations

from typing import Any

from cudnnpy._planning.plan_json import integers, names, refusal, spec_of
from cudnnpy.convolution.problem import OPERATIONS, PLAIN, Options, Problem, checked, make_problem


def read_problem(given: dict[str, Any], device: int) -> Problem:
    """The problem of what Problem.plain gave, made again from what a caller gives. Raises ValueError for other."""
    if given.keys() != set(PLAIN):
        raise refusal(f"its problem has {names(given)}")
    x, w, y = (spec_of(name, given[name]) for name in ("x", "w", "y"))
    bias = None if given["bias"] is None else spec_of("bias", given["bias"])
    rank = len(x.shape) - 2
    geometry = given["geometry"]
    if not isinstance(geometry, list) or len(geometry) != 4:
        raise refusal("its geometry is not of four parts")
    before, after, stride, dilation = (integers("geometry", part, 0, rank) for part in geometry)
    for name in ("operation", "mode", "compute_dtype"):
        if not isinstance(given[name], str):
            raise refusal(f"{name!r} is no name")
    if given["operation"] not in OPERATIONS:
        raise refusal(f"there is no operation {given['operation'][:60]!r}")
    (groups,) = integers("groups", [given["groups"]], 1)
    options = Options(
        padding=tuple(zip(before, after, strict=True)),
        stride=stride,
        dilation=dilation,
        groups=groups,
        mode=given["mode"],
        compute_dtype=given["compute_dtype"],
    )
    try:
        problem = make_problem(
            checked(options),
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
        raise refusal(f"its problem is invalid: {error}") from error
    if problem.plain() != given:
        raise refusal(f"its problem is written otherwise than that of {problem}")
    return problem
