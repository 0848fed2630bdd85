"""Serialize plans as JSON with a digest, and check every part of a text before any of it is used.

The digest detects a text that was truncated or changed. Redundant parts are compared and not trusted: the reader of the
kind of problem builds the problem again from the caller's arguments, the lowering must be one of the problem's lowerings,
and it checks the plan that cuDNN serialized.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cudnnpy import raw
from cudnnpy._launch.steps import Executable
from cudnnpy._options.limits import MAX_KNOBS
from cudnnpy._planning import known_issues, measurement_table
from cudnnpy._planning.candidates import Candidate, Engine, Lowering, candidate_for_engine, planned
from cudnnpy._planning.engines import Target, engine_name, load_plan
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.plan_json import LIMIT, integers, invalid_text, names, parsed, parsed_at_once
from cudnnpy._planning.problem import Problem
from cudnnpy.errors import LibraryVersionError

FORMAT = 4
FIELDS: dict[str, tuple[type, ...]] = {
    "format": (int,),
    "cudnn": (int,),
    "kind": (str,),
    "source": (str,),
    "name": (str,),
    "notes": (list,),
    "deterministic": (bool,),
    "milliseconds": (float, int, type(None)),
    "engine": (dict, type(None)),
    "problem": (dict,),
    "part": (dict, type(None)),
    "compiled_at_run_time": (bool,),
    "plan": (dict, type(None)),
    "strict": (bool,),
    "sha256": (str,),
}

# For each `kind` of problem, the function that builds a problem for a device from the JSON of its `plain`, and raises
# ValueError for anything else. The module that defines a kind of problem adds its reader.
READERS: dict[str, Callable[[dict[str, Any], int], Problem]] = {}


class Content(NamedTuple):
    """The content of a serialized plan.

    `plan` is the text that cuDNN serialized, or None for a lowering without one. `engine` is None for a C function, and
    `strict` means that it multiplies float32 as float32, not as tf32.
    """

    problem: Problem
    lowering: Lowering
    source: str
    name: str
    notes: tuple[str, ...]
    deterministic: bool
    milliseconds: float | None
    engine: Engine | None
    compiled_at_run_time: bool
    plan: str | None
    strict: bool


def written(content: Content) -> str:
    """Return the text of a plan, with its digest."""
    plain = {
        **content._asdict(),
        "format": FORMAT,
        "cudnn": raw.version(),
        "kind": content.problem.kind,
        "engine": _plain_engine(content.engine),
        "problem": content.problem.plain(),
        "part": content.lowering.plain(),
        "plan": None if content.plan is None else json.loads(content.plan),
    }
    del plain["lowering"]
    return json.dumps({**plain, "sha256": digest(plain)}, allow_nan=False)


def digest(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the content without its digest, independent of whitespace and order."""
    canonical = json.dumps(dict(content), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def read(text: str, device: int) -> Content:
    """Return the content of a text from `written`, for a device.

    Raises TypeError if it is not a str, ValueError if it is not such a text, and LibraryVersionError if another release of
    cuDNN made the plan.
    """
    content = _fields(text)
    if content["kind"] not in READERS:
        raise invalid_text(f"its kind is {content['kind'][:60]!r}; this version reads {', '.join(sorted(READERS))}")
    problem = READERS[content["kind"]](content["problem"], device)
    lowering = next((one for one in problem.lowerings() if one.plain() == content["part"]), None)
    if lowering is None:
        raise invalid_text(f"its part is not one of the lowerings of {problem}")
    time = _milliseconds(content)
    notes = content["notes"]
    if len(notes) > 100 or not all(
        isinstance(note, str) and re.fullmatch(r"[a-z0-9_ ]{1,100}", note) for note in notes
    ):
        raise invalid_text("'notes' are not names")
    found = Content(
        problem,
        lowering,
        content["source"],
        content["name"],
        tuple(notes),
        content["deterministic"],
        time,
        _engine(content["engine"], lowering),
        content["compiled_at_run_time"],
        None,
        content["strict"],
    )
    if found.engine is None:
        _check_function(found, content["plan"])
        return found
    return found._replace(plan=_checked_plan(found, found.engine, content["plan"], content["cudnn"]))


def candidate_of(content: Content, target: Target) -> Candidate:
    """Return the candidate that a text describes, not yet planned."""
    lowering, engine, saved = content.lowering, content.engine, content.plan
    if engine is None:
        made = _function(content, target)
    else:

        def make() -> Executable:
            if saved is None:
                return lowering.executable(planned(lowering, target, engine), target)
            return lowering.executable(load_plan(saved, target), target)

        made = Candidate(
            content.source,
            content.name + lowering.suffix,
            content.notes,
            content.deterministic,
            make,
            content.compiled_at_run_time,
            engine,
            lowering=lowering,
        )
    made.milliseconds = content.milliseconds
    return made


def rebuilt(text: str, problem: Problem, options: PlanningOptions, target: Target) -> Candidate:
    """Return the candidate that a text describes for a problem that is known, not yet planned.

    cuDNN does not read its part of the text, nor run code from it: the engine is configured again, with its knobs. That takes
    no longer than reading does, and what is known of the engine, its notes and its issues, holds as for any candidate. The
    digest is not compared, since the store has a checksum of the whole entry, and nothing of the text is built upon.

    Raises ValueError if the text is not of a plan for this problem, LibraryVersionError if another release of cuDNN made it.
    """
    try:
        content = _typed(text, parsed_at_once)
    except RecursionError as error:
        raise invalid_text("it is nested too deep") from error
    if (content["kind"], content["problem"]) != (problem.kind, problem.plain()):
        raise invalid_text(f"it is not a plan for {problem}")
    _check_version(content["cudnn"])
    lowering = next((one for one in problem.lowerings() if one.plain() == content["part"]), None)
    if lowering is None:
        raise invalid_text(f"its part is not one of the lowerings of {problem}")
    engine = _engine(content["engine"], lowering)
    if engine is None:
        found = problem.forced_candidate(options._replace(algorithm=content["name"]), target)
    else:
        _check_source(content["source"])
        found = candidate_for_engine(lowering, target, engine)
        found.source = content["source"]
        is_proposed = found.source in ("heuristics", "knobs")  # of the others, an issue may be known
        if not is_proposed and known_issues.requires_heuristics_proposal(lowering.traits, engine.index, found.notes):
            raise invalid_text(f"{found.name} may be wrong for {problem}, unless the heuristics propose it")
    given = content["name"] + lowering.suffix, content["source"], content["strict"]
    if given != (found.name, found.source, found.strict):
        raise invalid_text(f"it describes {found.name} wrongly")
    found.milliseconds = _milliseconds(content)
    return found


def _fields(text: str) -> dict[str, Any]:
    """Return the fields of a text, whose types and digest are checked."""
    content = _typed(text, parsed)
    if digest({name: value for name, value in content.items() if name != "sha256"}) != content["sha256"]:
        raise invalid_text("its digest does not match: the text was changed or truncated")
    return content


def _typed(text: str, parse: Callable[[str], Any]) -> dict[str, Any]:
    """Return the fields of a text, whose types are checked."""
    if not isinstance(text, str):
        raise TypeError(f"text must be a str from to_json; got a {type(text).__name__}")
    content = parse(text)
    if not isinstance(content, dict) or type(content.get("format")) is not int:
        raise invalid_text("it is not an object with a format")
    if content["format"] != FORMAT:
        raise invalid_text(f"its format is {_number(content['format'])}; this version reads {FORMAT}: plan anew")
    for name, kinds in FIELDS.items():
        if name not in content:
            raise invalid_text(f"it lacks {name!r}")
        if type(content[name]) not in kinds:
            raise invalid_text(f"{name!r} is a {type(content[name]).__name__}")
    if unknown := sorted(content.keys() - FIELDS.keys()):
        raise invalid_text(f"it has an unknown key, {unknown[0][:60]!r}")
    return content


def _milliseconds(content: Mapping[str, Any]) -> float | None:
    time = content["milliseconds"]
    if time is not None and not 0 <= time < 1e12:
        raise invalid_text("'milliseconds' is out of range")
    return None if time is None else float(time)


# The engine or C function


def _plain_engine(engine: Engine | None) -> dict[str, Any] | None:
    if engine is None:
        return None
    knobs = None if engine.knobs is None else [list(pair) for pair in dict(engine.knobs).items()]
    return {"index": engine.index, "knobs": knobs, "space_to_depth": engine.space_to_depth}


def _engine(given: dict[str, Any] | None, lowering: Lowering) -> Engine | None:
    if given is None:
        return None
    space_to_depth = lowering.lowering_options.get("space_to_depth", False)
    if given.keys() != {"index", "knobs", "space_to_depth"} or given["space_to_depth"] is not space_to_depth:
        raise invalid_text(f"its engine has {names(given)}")
    (index,) = integers("engine", [given["index"]], 0)
    knobs = given["knobs"]
    if knobs is not None:
        if not isinstance(knobs, list) or len(knobs) > MAX_KNOBS:
            raise invalid_text("its engine's knobs are not a list of pairs")
        knobs = tuple(integers("knobs", pair, -LIMIT, 2) for pair in knobs)
    engine = Engine(index, knobs, **lowering.lowering_options)
    if engine.knobs != knobs:
        raise invalid_text("its engine's knobs are not in order")
    return engine


def _function(content: Content, target: Target) -> Candidate:
    """Return the candidate of the C function that a text names. Raises ValueError if the problem has none of that name."""
    return content.problem.forced_candidate(PlanningOptions(algorithm=content.name, tf32=not content.strict), target)


def _check_function(found: Content, plan: Any) -> None:
    """Raise ValueError unless a text describes a C function as this version does."""
    try:
        made = _function(found, Target())
    except ValueError as error:
        raise invalid_text(f"{found.problem.operation} has no algorithm {found.name[:60]!r}") from error
    said = (found.source, found.name + found.lowering.suffix, found.notes, found.deterministic, found.strict)
    known = (made.source, made.name, made.notes, made.deterministic, made.strict)
    alike = said == known and made.lowering is not None and made.lowering.plain() == found.lowering.plain()
    if not alike or found.compiled_at_run_time or plan is not None:
        raise invalid_text(f"it describes the algorithm {found.name[:60]!r} wrongly")


def _checked_plan(found: Content, engine: Engine, plan: dict[str, Any] | None, version: int) -> str | None:
    """Return the text of cuDNN's serialized plan, which the lowering checks."""
    if found.strict:
        raise invalid_text("'strict' must be false for an engine")
    _check_source(found.source)
    notes = (*found.notes, *(["runtime_compilation"] if found.compiled_at_run_time else []))
    if found.deterministic != known_issues.is_deterministic(found.lowering.traits, engine.index, notes):
        raise invalid_text("'deterministic' and 'notes' disagree")
    if reason := known_issues.rejection(found.lowering.traits, engine.index, notes):
        raise invalid_text(f"{found.name[:200]} {reason}")
    _check_version(version)
    name = engine_name(engine.index, tuple(dict(engine.knobs or {}).items()))
    if found.name != name:
        raise invalid_text(f"its name must be {name!r}; got {found.name[:200]!r}")
    try:
        return found.lowering.checked(plan, engine, found.compiled_at_run_time)
    except ValueError as error:
        raise invalid_text(str(error)) from error


def _check_source(source: str) -> None:
    if source not in ("heuristics", "engines", "knobs") and not measurement_table.is_source(source):
        raise invalid_text(f"its source is {source[:60]!r}, which does not propose engines")


def _check_version(version: int) -> None:
    if version != raw.version():
        raise LibraryVersionError(
            f"text must be a plan of the loaded cuDNN, {raw.version_text(raw.version())}; got one of cuDNN "
            f"{_number(version)}. cuDNN reads only the plans of its own release: plan anew"
        )


def _number(value: int) -> str:
    return raw.version_text(value) if 90000 <= value < 100000 else str(value)
