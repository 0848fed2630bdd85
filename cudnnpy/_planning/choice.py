"""Choice: the record of one way to run a problem, which all rooms share; and the text of a plan, a line with its digest.

A serialized plan is a line of JSON: a choice with its problem in the notation, and the cuDNN and GPU that it was made for.

    {"choice":{...,"name":"engine 38 (tile_size=5)",...},"cudnn":91900,"gpu":"NVIDIA H200, compute capability 9.0, 132
     multiprocessors","problem":"forward 8x64x28x28 64x64x3x3 pad=1 float16","version":6,"sha256":"..."}

A text configures a plan and is never executed: cuDNN plans the engine again where the text is loaded
(plan.py). The digest detects a text that was changed or truncated.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, NamedTuple

from cudnnpy._checks.option_values import bounded, check_flag, error_repr, printable
from cudnnpy._checks.options import Options
from cudnnpy._checks.size_limits import MAX_KNOBS, MAX_PLAN_CHARACTERS
from cudnnpy._checks.suggestions import with_suggestions
from cudnnpy._core.untrusted_json import Knobs, parse_json, plain, reader

VERSION = 6  #: of serialized plans

# The options of an Engine that determine its lowering
LOWERING_OPTIONS = ("space_to_depth", "channels_last_copies", "flipped_forward", "accumulation")


@with_suggestions
@dataclass(frozen=True, repr=False)
class Engine(Options):
    """An engine of the graph API, which the option `algorithm` forces.

    Parameters
    ----------
    index : int
        The global index of the engine.
    knobs : mapping or pairs of ints, optional
        {cudnnBackendKnobType_t: value}; by default the engine's own.
    space_to_depth : bool
        Whether the engine runs on space-to-depth tensors, as candidates whose names end in "blocks" do (strided
        convolutions of few channels).
    channels_last_copies : bool
        Whether the engine runs on copies that are channels last, as candidates whose names end in "channels last" do.
    flipped_forward : bool
        Whether the engine computes the gradient with respect to x of a depthwise convolution as a forward convolution with the
        filter flipped, as candidates whose names end in "forward" do.
    accumulation : bool
        Whether the engine computes the gradient of attention with respect to q as sums in a buffer in float32, as candidates
        whose names end in "accumulation" do.

    Raises
    ------
    TypeError
        An index or knob is not an int.

    Examples
    --------
    >>> import cudnnpy
    >>> cudnnpy.Convolution(padding=1, algorithm=cudnnpy.Engine(0)).algorithm
    Engine(0)
    """

    index: int
    knobs: Mapping[int, int] | Iterable[tuple[int, int]] | None = None
    _: KW_ONLY
    space_to_depth: bool = False
    channels_last_copies: bool = False
    flipped_forward: bool = False
    accumulation: bool = False

    _json_fields: ClassVar = {"index": int, "knobs": Knobs | None, **dict.fromkeys(LOWERING_OPTIONS, bool)}
    _json_omitted: ClassVar = {"accumulation": False}  # so that texts of releases without it are read

    @property
    def _lowering_options(self) -> dict[str, bool]:
        """The options that select the lowering that it runs on (Lowering.lowering_options)."""
        return {name: True for name in LOWERING_OPTIONS if getattr(self, name)}

    def __repr__(self) -> str:
        knobs = [repr(dict(self.knobs))] if self.knobs else []
        return f"Engine({', '.join([str(self.index), *knobs, *(f'{name}=True' for name in self._lowering_options)])})"

    def _canonical(self) -> dict[str, Any]:
        try:
            pairs = self.knobs if isinstance(self.knobs, Mapping) else bounded(self.knobs or (), MAX_KNOBS)
            given = dict(pairs).items() if len(pairs) <= MAX_KNOBS else None
        except (TypeError, ValueError):
            given = None
        numbers: list[object] = (
            [None] if given is None else [self.index, *(number for pair in given for number in pair)]
        )
        if given is None or any(isinstance(number, bool) or not isinstance(number, int) for number in numbers):
            raise TypeError(
                f"index and knobs must be integers; got Engine({error_repr(self.index)}, {error_repr(self.knobs)})"
            )
        for name in LOWERING_OPTIONS:
            check_flag(name, getattr(self, name))
        ordered = tuple(sorted((int(kind), value) for kind, value in given))
        return {"knobs": ordered or None}  # a tuple, so that options can be hashed


class Choice(NamedTuple):
    """One way to run a problem: a candidate as data, which any process can read, print, compare and pickle.

    Attributes
    ----------
    name : str
        The engine with its knobs, or the v7 algorithm; and the suffix of its lowering.
    source : str
        What proposed it: "ranking" (the model of measurements), "heuristics", "engines" (all engines), "knobs" (autotune) or
        "legacy" (v7 algorithms); "" if that is not known.
    engine : Engine or None
        The engine, which `algorithm` takes; None for a v7 algorithm.
    lowering : str
        The notation of the part of the problem that the engine or the function computes; "" for the whole problem.
    notes : tuple of str
        cuDNN's numerical notes.
    deterministic : bool
        Whether the result has the same bits every time.
    compiled_at_run_time : bool
        Whether the engine is compiled when it is planned.
    strict : bool
        Whether a v7 function multiplies float32 as it is, not as tf32.
    workspace_size : int or None
        In bytes; None if it was not planned.
    milliseconds : float or None
        The time that autotune measured; None if it was not measured.
    spread : float or None
        (largest - smallest) / median of the times that autotune compared; None if there were fewer than two.
    error : float or None
        The largest error of its result, relative to float64 or another candidate, in units of the tolerance; None if it was not
        compared.
    expected : float or None
        The time over the fastest candidate's that the ranking model predicts; None without a model.
    store_layer : str
        The layer of the store that had the choice, "user" or "application PATH"; "" if it was made now.
    rejection_reason : str
        Why it cannot be used; "" if it can.

    Examples
    --------
    >>> from cudnnpy import store
    >>> store.Choice("engine 1", "heuristics", milliseconds=0.25).milliseconds
    0.25
    """

    name: str
    source: str
    engine: Engine | None = None
    lowering: str = ""
    notes: tuple[str, ...] = ()
    deterministic: bool = True
    compiled_at_run_time: bool = False
    strict: bool = False
    workspace_size: int | None = None
    milliseconds: float | None = None
    spread: float | None = None
    error: float | None = None
    expected: float | None = None
    store_layer: str = ""
    rejection_reason: str = ""

    @property
    def stored(self) -> Choice:
        """The choice as texts have it: without a layer, the reason in one printable line, and finite numbers alone."""
        changes: dict[str, Any] = {
            "store_layer": "",
            "rejection_reason": printable(" ".join(self.rejection_reason.split())),
        }
        for name in ("milliseconds", "spread", "error", "expected"):
            if not math.isfinite(getattr(self, name) or 0.0):
                changes[name] = None
        return self._replace(**changes)

    def plain(self) -> dict[str, Any]:
        """Return the choice as a JSON object, the inverse of `of`."""
        return dict(plain(self))

    @classmethod
    def of(cls, plain: object) -> Choice:
        """Return the choice of a JSON object from `plain`. Raises ValueError for a field that is not valid."""
        choice: Choice = _CHOICE("choice", plain)
        return choice


_CHOICE = reader(Choice)


class GpuKind(NamedTuple):
    """The name, the compute capability and the number of multiprocessors of a GPU; "" and 0 if they are unknown."""

    name: str
    capability: str
    multiprocessors: int

    def __str__(self) -> str:
        return f"{self.name}, compute capability {self.capability}, {self.multiprocessors} multiprocessors"


class NamedOperand(NamedTuple):
    """An operand of a plan: the caller's name, and the position among the problem's operands."""

    name: str
    position: int


class SerializedPlan(NamedTuple):
    """The fields of a serialized plan, without the version and the digest."""

    cudnn: int
    gpu: str
    problem: str
    choice: Choice
    operands: tuple[NamedOperand, ...] = ()  #: in the caller's order; none if names and order are the problem's own

    @property
    def text(self) -> str:
        """The text of the plan, with its digest."""
        body = _canonical({"version": VERSION, **plain(self)})
        return f'{body[:-1]},"sha256":"{_sha256(body)}"}}'


_PLAN = reader(SerializedPlan)


def invalid_text(reason: str) -> ValueError:
    """Return the error for a text that is not a serialized plan."""
    return ValueError(
        f"text must be a serialized cudnnpy plan; got invalid text: {reason if len(reason) <= 500 else reason[:500] + '...'}"
    )


def digest(fields: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the fields without the digest, independent of whitespace and order."""
    return _sha256(_canonical(fields))


def _canonical(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def deserialize(text: str) -> SerializedPlan:
    """Return the fields of a serialized plan.

    Raises TypeError if the text is not a str, and ValueError if it is not a plan of this version or was changed.
    """
    if not isinstance(text, str):
        raise TypeError(f"text must be a str from to_json; got a {type(text).__name__}")
    if len(text) > MAX_PLAN_CHARACTERS:
        raise invalid_text(f"it must have {MAX_PLAN_CHARACTERS} characters at most; got {len(text)}")
    try:
        fields = parse_json(text)
    except ValueError as error:
        raise invalid_text(f"it is not JSON ({error})") from error
    version = fields.get("version", fields.get("format")) if isinstance(fields, dict) else None  # "format" up to 5
    if type(version) is not int:
        raise invalid_text("it is not an object with a version")
    if version != VERSION or "version" not in fields:
        raise invalid_text(
            f"its version is {str(version)[:20]}; this release reads {VERSION}: plan again, or tune again"
        )
    sha256 = fields.pop("sha256", None)
    if digest(fields) != sha256:
        raise invalid_text("its digest does not match: the text was changed or truncated")
    del fields["version"]
    try:
        content: SerializedPlan = _PLAN("it", fields)
    except ValueError as error:
        raise invalid_text(str(error)) from error
    return content
