"""Serialized plans: the problem in the notation, the engine with its knobs, and the cuDNN and GPU that it was planned for.

    {"format": 5, "cudnn": 91900, "gpu": "NVIDIA H200, compute capability 9.0, 132 multiprocessors",
     "problem": "forward 8x64x28x28 64x64x3x3 pad=1 float16", "part": "", "name": "engine 38 (tile_size=5)",
     "engine": 38, "knobs": [[2, 5]], "algorithm": null, "source": "heuristics", "milliseconds": null, "sha256": "..."}

`part` is the notation of the lowering that the engine runs, "" for the whole problem. The plan of a C function has its name as
`algorithm` instead of an engine, and the word tf32=False in its problem if float32 is not rounded.

A text configures a plan and is never executed: cuDNN plans the engine again where the text is loaded, and the known issues of
engines apply as to any candidate. The digest detects a text that was changed or truncated.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple

from cudnnpy import raw
from cudnnpy._options.limits import MAX_KNOBS, MAX_PLAN_CHARACTERS
from cudnnpy._planning.candidates import Candidate, Engine, Lowering, configured
from cudnnpy._planning.engines import Target
from cudnnpy._planning.gpu_kind import GpuKind, gpu_kind
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem import Problem, is_strict
from cudnnpy._planning.problem_notation import parse_plannable, text_of
from cudnnpy._planning.untrusted_json import LIMIT, integers, parse_json
from cudnnpy.errors import LibraryVersionError

FORMAT = 5
_SOURCES = ("ranking", "heuristics", "engines", "knobs", "legacy")
_TYPES: dict[str, tuple[type, ...]] = {
    "cudnn": (int,),
    "gpu": (str,),
    "problem": (str,),
    "part": (str,),
    "name": (str,),
    "engine": (int, type(None)),
    "knobs": (list,),
    "algorithm": (str, type(None)),
    "source": (str,),
    "milliseconds": (float, int, type(None)),
}


class SerializedPlan(NamedTuple):
    """The fields of a serialized plan, without the format and the digest."""

    cudnn: int
    gpu: str
    problem: str
    part: str
    name: str
    engine: int | None
    knobs: list[Any]  # pairs of integers; checked when they are used
    algorithm: str | None
    source: str
    milliseconds: float | None


def invalid_text(reason: str) -> ValueError:
    """Return the error for a text that is not a serialized plan."""
    return ValueError(
        f"text must be a serialized cudnnpy plan; got invalid text: {reason if len(reason) <= 500 else reason[:500] + '...'}"
    )


def serialize(content: SerializedPlan) -> str:
    """Return the text of a plan, with its digest."""
    fields = {"format": FORMAT, **content._asdict()}
    return json.dumps({**fields, "sha256": digest(fields)}, allow_nan=False)


def digest(fields: dict[str, Any]) -> str:
    """Return the SHA-256 of the fields without the digest, independent of whitespace and order."""
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def deserialize(text: str) -> SerializedPlan:
    """Return the fields of a serialized plan.

    Raises TypeError if the text is not a str, and ValueError if it is not a plan of this format or was changed.
    """
    if not isinstance(text, str):
        raise TypeError(f"text must be a str from to_json; got a {type(text).__name__}")
    if len(text) > MAX_PLAN_CHARACTERS:
        raise invalid_text(f"it must have {MAX_PLAN_CHARACTERS} characters at most; got {len(text)}")
    try:
        fields = parse_json(text)
    except ValueError as error:
        raise invalid_text(f"it is not JSON ({error})") from error
    if not isinstance(fields, dict) or type(fields.get("format")) is not int:
        raise invalid_text("it is not an object with a format")
    if fields["format"] != FORMAT:
        number = str(fields["format"])[:20]
        raise invalid_text(f"its format is {number}; this version reads {FORMAT}: plan again, or tune again")
    sha256 = fields.pop("sha256", None)
    if digest(fields) != sha256:
        raise invalid_text("its digest does not match: the text was changed or truncated")
    del fields["format"]
    if fields.keys() != _TYPES.keys():
        raise invalid_text(f"its fields must be {', '.join(_TYPES)}; got {', '.join(sorted(fields))[:200]}")
    for name, types in _TYPES.items():
        if type(fields[name]) not in types:
            raise invalid_text(f"{name!r} is a {type(fields[name]).__name__}")
    content = SerializedPlan(**fields)
    if content.source not in _SOURCES:
        raise invalid_text(f"its source is {content.source[:60]!r}, which proposes no plans")
    if (content.engine is None) == (content.algorithm is None):
        raise invalid_text("it must have either an engine or an algorithm")
    if content.milliseconds is not None and not 0 <= content.milliseconds < 1e12:
        raise invalid_text("'milliseconds' is out of range")
    return content


def parsed_problem(content: SerializedPlan, device: int) -> tuple[Problem, PlanningOptions]:
    """Return the problem of a serialized plan for a device, and its options. Raises ValueError if it is not a problem."""
    try:
        return parse_plannable(content.problem, device)
    except ValueError as error:
        raise invalid_text(f"its problem is invalid: {error}") from error


def check_problem(content: SerializedPlan, problem: Problem, options: PlanningOptions) -> None:
    """Raise ValueError unless a serialized plan is for a problem, and for the options if it is of a C function."""
    strict = content.engine is None and is_strict(problem, options)
    if content.problem != text_of(problem, PlanningOptions(tf32=not strict)):
        raise invalid_text(f"it is not a plan for {problem}")


def candidate_of(content: SerializedPlan, problem: Problem, options: PlanningOptions, target: Target) -> Candidate:
    """Return the candidate of a serialized plan, not yet planned.

    Raises LibraryVersionError if another release of cuDNN made the plan, ValueError if it was made for another GPU or its parts
    contradict each other, and StatusError if cuDNN does not support the engine here.
    """
    _check_origin(content, gpu_kind(target))
    if content.engine is None:
        try:
            candidate = problem.forced_candidate(options._replace(algorithm=content.algorithm), target)
        except (TypeError, ValueError) as error:
            raise invalid_text(f"its algorithm is invalid: {error}") from error
    else:
        lowering = lowering_of(content, problem)
        candidate = configured(lowering, target, engine_of(content, lowering))
        candidate.source = content.source
    if (candidate.name, candidate.source) != (content.name, content.source):
        raise invalid_text(
            f"its name and source must be {candidate.name!r} and {candidate.source!r}; got {content.name[:200]!r} and "
            f"{content.source!r}"
        )
    candidate.milliseconds = None if content.milliseconds is None else float(content.milliseconds)
    return candidate


def lowering_of(content: SerializedPlan, problem: Problem) -> Lowering:
    """Return the lowering that the engine of a serialized plan runs on. Raises ValueError if the problem does not have it."""
    lowering = next((one for one in problem.lowerings() if one.part_text == content.part), None)
    if lowering is None:
        raise invalid_text(f"its part is not one of the lowerings of {problem}")
    return lowering


def engine_of(content: SerializedPlan, lowering: Lowering) -> Engine:
    """Return the engine of a serialized plan. Raises ValueError if it is not one."""
    if len(content.knobs) > MAX_KNOBS:
        raise invalid_text(f"it has more than {MAX_KNOBS} knobs")
    try:
        (index,) = integers("engine", [content.engine], 0)
        knobs = [(kind, value) for kind, value in (integers("knobs", pair, -LIMIT, 2) for pair in content.knobs)]
    except ValueError as error:
        raise invalid_text(f"its engine is invalid: {error}") from error
    return Engine(index, knobs, **lowering.lowering_options)


def _check_origin(content: SerializedPlan, gpu: GpuKind) -> None:
    if content.cudnn != raw.version():
        release = raw.version_text(content.cudnn) if 90000 <= content.cudnn < 100000 else str(content.cudnn)[:20]
        raise LibraryVersionError(
            f"text must be a plan of the loaded cuDNN, {raw.version_text(raw.version())}; got one of cuDNN {release}, "
            "whose engines have other numbers: plan again"
        )
    if content.gpu != str(gpu):
        raise ValueError(f"text must be a plan for this GPU, {gpu}; got one for {content.gpu[:200]}: plan again")
