"""A plan's text: JSON with a digest, of which nothing is used before all of it has been checked.

The digest finds a text that was cut or changed. What can be worked out of something else is compared with it rather than
believed: the problem is made again from its options and tensors, the part that was planned is looked up among the problem's
own, and cuDNN's text has to describe that part (cudnn_text.py).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from cudnnpy import raw
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import TensorSpec, extent
from cudnnpy._planning.candidates import Engine
from cudnnpy.convolution import cudnn_text, legacy
from cudnnpy.convolution.lowering import Form, forms
from cudnnpy.convolution.problem import OPERATIONS, Options, Problem, checked, make_problem
from cudnnpy.errors import LibraryVersionError

FORMAT = 3
_LONGEST = 16 << 20  # characters: compiled code may be in it
_DEEPEST = 16
_LIMIT = 1 << 62  # of sizes, strides and extents in bytes, so that no sum of two is beyond 64 bits
_TOKENS = 50_000  # strings, brackets and colons
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{}:]', re.DOTALL)
_PROBLEM = tuple(name for name in Problem._fields if name != "device")
FIELDS: dict[str, tuple[type, ...]] = {
    "format": (int,),
    "cudnn": (int,),
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


class Content(NamedTuple):
    """What a text says of a plan; `plan` is cuDNN's own text, None for a v7 algorithm."""

    problem: Problem
    form: Form
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
        "engine": _plain_engine(content.engine),
        "problem": _plain(content.problem),
        "part": None if content.form.is_whole else _plain(content.form.part),
        "plan": None if content.plan is None else json.loads(content.plan),
    }
    del plain["form"]
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
    if not isinstance(text, str):
        raise TypeError(f"text must be a str from to_json; got a {type(text).__name__}")
    content = _parsed(text)
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
    problem = _problem(content["problem"], device)
    form = _form(problem, content["part"])
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
        form,
        content["source"],
        content["name"],
        tuple(notes),
        content["deterministic"],
        None if time is None else float(time),
        _engine(content["engine"], form),
        content["compiled_at_run_time"],
        None,
        content["strict"],
    )
    if content["plan"] is None:
        _check_legacy(found)
        return found
    return found._replace(plan=_checked_plan(found, content["plan"], content["cudnn"]))


def refusal(why: str) -> ValueError:
    """The error for a text that is none of a plan's."""
    return ValueError(
        f"text must be a serialized cudnnpy plan; got invalid text: {why if len(why) <= 500 else why[:500] + '...'}"
    )


# Reading JSON


def _parsed(text: str) -> Any:
    """What a text says, once it is neither long nor deep; without infinities, huge integers and keys that come twice."""
    if len(text) > _LONGEST:
        raise refusal(f"it must have {_LONGEST} characters at most; got {len(text)}")
    depth = 0
    for number, token in enumerate(_TOKEN.finditer(text)):
        mark = text[token.start()]
        depth += (mark in "[{") - (mark in "]}")
        if depth > _DEEPEST or number > _TOKENS:
            raise refusal("it is nested too deep" if depth > _DEEPEST else "it has too many parts")
    try:
        return json.loads(
            text, parse_constant=_refused, parse_int=_as_int, parse_float=_as_float, object_pairs_hook=_as_object
        )
    except (json.JSONDecodeError, RecursionError) as error:
        raise refusal(f"it is no JSON ({error})") from error


def _refused(constant: str) -> Any:
    raise refusal(f"it has the number {constant}")


def _as_int(digits: str) -> int:
    if len(digits) > 20:
        raise refusal("it has an integer beyond 64 bits")
    return int(digits)


def _as_float(digits: str) -> float:
    number = float(digits) if len(digits) < 400 else math.inf
    if not math.isfinite(number):
        raise refusal("it has a number beyond every float")
    return number


def _as_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise refusal("it has a key twice")
    return found


# The problem


def _plain(problem: Problem) -> dict[str, Any]:
    """A problem as JSON has it, without the device."""
    return json.loads(json.dumps({name: getattr(problem, name) for name in _PROBLEM}))  # type: ignore[no-any-return]


def _problem(given: dict[str, Any], device: int) -> Problem:
    """The problem, made again from what a caller would have given."""
    if given.keys() != set(_PROBLEM):
        raise refusal(f"its problem has {_names(given)}")
    x, w, y = (_spec(name, given[name]) for name in ("x", "w", "y"))
    bias = None if given["bias"] is None else _spec("bias", given["bias"])
    rank = len(x.shape) - 2
    geometry = given["geometry"]
    if not isinstance(geometry, list) or len(geometry) != 4:
        raise refusal("its geometry is not of four parts")
    before, after, stride, dilation = (_integers("geometry", part, 0, rank) for part in geometry)
    for name in ("operation", "mode", "compute_dtype"):
        if not isinstance(given[name], str):
            raise refusal(f"{name!r} is no name")
    if given["operation"] not in OPERATIONS:
        raise refusal(f"there is no operation {given['operation'][:60]!r}")
    (groups,) = _integers("groups", [given["groups"]], 1)
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
    if _plain(problem) != given:
        raise refusal(f"its problem is written otherwise than that of {problem}")
    return problem


def _spec(name: str, given: Any) -> TensorSpec:
    if not isinstance(given, list) or len(given) != 4:
        raise refusal(f"{name} must be a shape, dtype, strides and alignment; got something else")
    shape, dtype, strides, alignment = given
    sizes = _integers(f"{name}.shape", shape, 1)
    steps = _integers(f"{name}.strides", strides, 0, len(sizes))
    try:
        size = dtype_of(dtype, name).itemsize if isinstance(dtype, str) else 0
    except TypeError as error:
        raise refusal(str(error)) from error
    (alignment,) = _integers(f"{name}.alignment", [alignment], size)
    spec = TensorSpec(sizes, dtype, steps, alignment)
    if not size or dtype_of(dtype).name != dtype or alignment & (alignment - 1):
        raise refusal(f"{name} must have a known dtype, and its alignment; got {str(dtype)[:60]!r}, {alignment}")
    if extent(spec) >= _LIMIT or math.prod(sizes) >= _LIMIT:
        raise refusal(f"{name} must fit into memory; got shape {sizes}, strides {steps}")
    return spec


def _integers(name: str, given: Any, low: int, count: int | None = None) -> tuple[int, ...]:
    good = isinstance(given, list) and 1 <= len(given) <= 5 and count in (None, len(given))
    if not good or not all(type(number) is int and low <= number < _LIMIT for number in given):
        raise refusal(
            f"{name} must be {'' if count is None else f'{count} '}integers of {low} or more; got other values"
        )
    return tuple(given)


def _form(problem: Problem, part: dict[str, Any] | None) -> Form:
    """How the problem was laid out for the part that was planned."""
    wanted = _plain(problem) if part is None else part
    for form in forms(problem):
        if _plain(form.part) == wanted and form.is_whole == (part is None):
            return form
    raise refusal(f"none of the layouts of {problem} is the part that was planned")


# What computes it


def _plain_engine(engine: Engine | None) -> dict[str, Any] | None:
    if engine is None:
        return None
    knobs = None if engine.knobs is None else [list(pair) for pair in engine.knobs]
    return {"index": engine.index, "knobs": knobs, "in_blocks": engine.in_blocks}


def _engine(given: dict[str, Any] | None, form: Form) -> Engine | None:
    if given is None:
        return None
    if given.keys() != {"index", "knobs", "in_blocks"} or given["in_blocks"] is not form.in_blocks:
        raise refusal(f"its engine has {_names(given)}")
    (index,) = _integers("engine", [given["index"]], 0)
    knobs = given["knobs"]
    if knobs is not None:
        if not isinstance(knobs, list) or len(knobs) > 100:
            raise refusal("its engine's knobs are no list of pairs")
        knobs = tuple(_integers("knobs", pair, -_LIMIT, 2) for pair in knobs)
    engine = Engine(index, knobs, form.in_blocks)
    if engine.knobs != knobs:
        raise refusal("its engine's knobs are not in order")
    return engine


def _check_legacy(found: Content) -> None:
    operation, part = found.problem.operation, found.form.part
    if found.name not in legacy.algorithm_names(operation):
        raise refusal(f"{operation} has no algorithm {found.name[:60]!r}")
    plain = ("legacy", None, (), False, legacy.is_deterministic(operation, found.name), None, None, False)
    given = (found.source, found.engine, found.notes, found.compiled_at_run_time, found.deterministic)
    if (*given, part.bias, part.activation, found.form.in_blocks) != plain:
        raise refusal(f"it says of the algorithm {found.name!r} what is not so")
    if found.strict and part.x.dtype != "float32":
        raise refusal(f"'strict' is given for {part.x.dtype}")


def _checked_plan(found: Content, plan: dict[str, Any], version: int) -> str:
    """cuDNN's text of a plan."""
    engine = found.engine
    if engine is None or found.strict or found.source not in ("heuristics", "engines"):
        raise refusal(f"its source is {found.source[:60]!r}, with a plan of cuDNN's")
    if not re.fullmatch(rf"engine {engine.index}( \([a-z0-9_ =,-]{{1,2000}}\))?", found.name):
        raise refusal(f"its name must be that of engine {engine.index}; got {found.name[:60]!r}")
    if found.deterministic != ("nondeterministic" not in found.notes):
        raise refusal("'deterministic' and 'notes' disagree")
    if plan.get("cudnnVersion") != version or type(plan["cudnnVersion"]) is not int:
        raise refusal("'cudnn' and its plan's cudnnVersion disagree")
    if version != raw.version():
        raise LibraryVersionError(
            f"text must be a plan of the loaded cuDNN, {raw.version_text(raw.version())}; got one of cuDNN "
            f"{_number(version)}. cuDNN reads only the plans of its own release: plan anew"
        )
    try:
        return cudnn_text.check(plan, found.form.part, engine, found.compiled_at_run_time)
    except cudnn_text.Mismatch as error:
        raise refusal(str(error)) from error


def _names(given: Mapping[str, Any]) -> str:
    return ", ".join(sorted(given))[:200] or "nothing"


def _number(value: int) -> str:
    return raw.version_text(value) if 90000 <= value < 100000 else str(value)
