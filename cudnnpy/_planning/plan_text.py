"""A plan's text: JSON with a digest, of which nothing is used before all of it has been checked.

The digest finds a text that was cut or changed. What can be worked out of something else is compared with it rather than
believed: the problem is made again from what a caller gives (by the reader of its kind), the lowering that was planned is
looked up among the problem's own, and a lowering checks what cuDNN itself wrote of the plan.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cudnnpy import raw
from cudnnpy._planning import known_issues
from cudnnpy._planning.candidates import Candidate, Engine, Lowering, planned
from cudnnpy._planning.engines import Target, engine_name, load_plan
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.plan_json import LIMIT, integers, names, parsed, refusal
from cudnnpy._planning.problem import Problem
from cudnnpy._runtime.executables import Executable
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

# Makes a problem again from what its `plain` gave, for a device; ValueError for anything else. By the problems' `kind`.
# A module that defines a kind of problem adds its reader.
READERS: dict[str, Callable[[dict[str, Any], int], Problem]] = {}


class Content(NamedTuple):
    """What a text says of a plan.

    `plan` is cuDNN's own text, where the lowering has one. `engine` is None for a C function, and `strict` says that it
    multiplies float32 as it is, not as tf32.
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
    """The text of a plan, with its digest."""
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
    """SHA-256 of a text's content without its digest, however it is spaced and ordered."""
    canonical = json.dumps(dict(content), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def read(text: str, device: int) -> Content:
    """The content of a text from `written`, for a device.

    Raises ValueError for any other text, TypeError for what is no text, LibraryVersionError for a plan that another release
    of cuDNN made.
    """
    content = _fields(text)
    if content["kind"] not in READERS:
        raise refusal(f"its kind is {content['kind'][:60]!r}; this version reads {', '.join(sorted(READERS))}")
    problem = READERS[content["kind"]](content["problem"], device)
    lowering = next((one for one in problem.lowerings() if one.plain() == content["part"]), None)
    if lowering is None:
        raise refusal(f"none of the layouts of {problem} is the part that was planned")
    time = content["milliseconds"]
    if time is not None and not 0 <= time < 1e12:
        raise refusal("'milliseconds' is out of range")
    notes = content["notes"]
    if len(notes) > 100 or not all(
        isinstance(note, str) and re.fullmatch(r"[a-z0-9_ ]{1,100}", note) for note in notes
    ):
        raise refusal("'notes' are not names")
    found = Content(
        problem,
        lowering,
        content["source"],
        content["name"],
        tuple(notes),
        content["deterministic"],
        None if time is None else float(time),
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
    """The candidate that a text says, to be planned."""
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


def _fields(text: str) -> dict[str, Any]:
    """The fields of a text, each of its type, once their digest is right."""
    if not isinstance(text, str):
        raise TypeError(f"text must be a str from to_json; got a {type(text).__name__}")
    content = parsed(text)
    if not isinstance(content, dict) or type(content.get("format")) is not int:
        raise refusal("it is not an object with a format")
    if content["format"] != FORMAT:
        raise refusal(f"its format is {_number(content['format'])}; this version reads {FORMAT}: plan anew")
    for name, kinds in FIELDS.items():
        if name not in content:
            raise refusal(f"it lacks {name!r}")
        if type(content[name]) not in kinds:
            raise refusal(f"{name!r} is a {type(content[name]).__name__}")
    if unknown := sorted(content.keys() - FIELDS.keys()):
        raise refusal(f"it has an unknown key, {unknown[0][:60]!r}")
    if digest({name: value for name, value in content.items() if name != "sha256"}) != content["sha256"]:
        raise refusal("its digest is of another content: the text was changed or cut")
    return content


# What computes it


def _plain_engine(engine: Engine | None) -> dict[str, Any] | None:
    if engine is None:
        return None
    knobs = None if engine.knobs is None else [list(pair) for pair in dict(engine.knobs).items()]
    return {"index": engine.index, "knobs": knobs, "in_blocks": engine.in_blocks}


def _engine(given: dict[str, Any] | None, lowering: Lowering) -> Engine | None:
    if given is None:
        return None
    if given.keys() != {"index", "knobs", "in_blocks"} or given["in_blocks"] is not lowering.in_blocks:
        raise refusal(f"its engine has {names(given)}")
    (index,) = integers("engine", [given["index"]], 0)
    knobs = given["knobs"]
    if knobs is not None:
        if not isinstance(knobs, list) or len(knobs) > 100:
            raise refusal("its engine's knobs are no list of pairs")
        knobs = tuple(integers("knobs", pair, -LIMIT, 2) for pair in knobs)
    engine = Engine(index, knobs, in_blocks=lowering.in_blocks)
    if engine.knobs != knobs:
        raise refusal("its engine's knobs are not in order")
    return engine


def _function(content: Content, target: Target) -> Candidate:
    """The C function that a text names. Raises ValueError where the problem has none of that name."""
    return content.problem.forced(PlanningOptions(algorithm=content.name, tf32=not content.strict), target)


def _check_function(found: Content, plan: Any) -> None:
    """What a text says of a C function has to be what is known of that function."""
    try:
        made = _function(found, Target())
    except ValueError as error:
        raise refusal(f"{found.problem.operation} has no algorithm {found.name[:60]!r}") from error
    said = (found.source, found.name + found.lowering.suffix, found.notes, found.deterministic, found.strict)
    known = (made.source, made.name, made.notes, made.deterministic, made.strict)
    alike = said == known and made.lowering is not None and made.lowering.plain() == found.lowering.plain()
    if not alike or found.compiled_at_run_time or plan is not None:
        raise refusal(f"it says of the algorithm {found.name[:60]!r} what is not so")


def _checked_plan(found: Content, engine: Engine, plan: dict[str, Any] | None, version: int) -> str | None:
    """What cuDNN wrote of a plan, checked by the lowering, as text."""
    if found.strict or found.source not in ("heuristics", "engines", "knobs"):
        raise refusal(f"its source is {found.source[:60]!r}, with an engine of cuDNN's")
    notes = (*found.notes, *(["runtime_compilation"] if found.compiled_at_run_time else []))
    if found.deterministic != known_issues.is_deterministic(found.lowering.facts, engine.index, notes):
        raise refusal("'deterministic' and 'notes' disagree")
    if version != raw.version():
        raise LibraryVersionError(
            f"text must be a plan of the loaded cuDNN, {raw.version_text(raw.version())}; got one of cuDNN "
            f"{_number(version)}. cuDNN reads only the plans of its own release: plan anew"
        )
    name = engine_name(engine.index, tuple(dict(engine.knobs or {}).items()))
    if found.name != name:
        raise refusal(f"its name must be {name!r}; got {found.name[:200]!r}")
    try:
        return found.lowering.checked(plan, engine, found.compiled_at_run_time)
    except ValueError as error:
        raise refusal(str(error)) from error


def _number(value: int) -> str:
    return raw.version_text(value) if 90000 <= value < 100000 else str(value)
