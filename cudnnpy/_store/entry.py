"""The contents of a store: keys, entries with their candidates, failed plans and faults; and their checks."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar

from cudnnpy._options.checks import shown

# Of the content of entries. Entries of another schema have other digests, so that they are not found.
SCHEMA = 1
_MOST = (1 << 63) - 1  # of numbers of bytes and of other counts

_T = TypeVar("_T")
_Fields = dict[str, Callable[[str, Any], Any]]  # the names of the fields, and what checks each


class Key(NamedTuple):
    """What must be equal for an entry to be used.

    Attributes
    ----------
    problem : str
        Canonical JSON of the problem: its kind, tensors and parameters.
    options : str
        Canonical JSON of the options that change the choice.
    gpu : str
        The name of the GPU, such as "NVIDIA H200".
    capability : str
        Its compute capability, such as "9.0".
    multiprocessors : int
        The number of its streaming multiprocessors, such as 132.
    cudnn : int
        The release of cuDNN as `raw.version` returns it, such as 91900.
    """

    problem: str
    options: str
    gpu: str
    capability: str
    multiprocessors: int
    cudnn: int

    @property
    def digest(self) -> str:
        """The SHA-256 of the six parts and of the number of the schema, as hexadecimal digits."""
        return hashlib.sha256(canonical([SCHEMA, *self]).encode()).hexdigest()


class StoredCandidate(NamedTuple):
    """A candidate that was considered for an entry.

    Attributes
    ----------
    name, source : str
        The engine with its knobs, and what proposed it.
    workspace_size : int or None
        In bytes; None if it is not known.
    milliseconds : float or None
        The measured time; None if the candidate was not measured.
    notes : tuple of str
        The numerical notes of cuDNN.
    deterministic : bool
        Whether the result has the same bits every time.
    refused : str
        The rejection reason; "" if the candidate was not rejected.
    """

    name: str
    source: str
    workspace_size: int | None
    milliseconds: float | None
    notes: tuple[str, ...]
    deterministic: bool
    refused: str


class Entry(NamedTuple):
    """The choice for one key.

    Attributes
    ----------
    key : Key
        What it is the choice for.
    text : str
        The problem in the notation that people read, with the options of the key.
    plan : str
        The serialized plan.
    milliseconds : float or None
        The measured time of the choice; None if it was chosen without measuring.
    spread : float or None
        The difference of the largest and the smallest time of the choice, relative to the median.
    error : float or None
        The largest error of the choice against float64, in units of the tolerance; None if it was not compared.
    workspace_size : int
        The workspace of the choice in bytes.
    tune_seconds : float
        The time that was allowed for tuning.
    complete : bool
        Whether every candidate that was to be measured was measured.
    made_at : str
        When the choice was made: ISO 8601, in UTC.
    made_with : dict of str to str
        The versions of the software that made the choice.
    candidates : tuple of StoredCandidate
        All that was considered.
    """

    key: Key
    text: str
    plan: str
    milliseconds: float | None
    spread: float | None
    error: float | None
    workspace_size: int
    tune_seconds: float
    complete: bool
    made_at: str
    made_with: dict[str, str]
    candidates: tuple[StoredCandidate, ...]

    def plain(self) -> dict[str, object]:
        """Return the entry as a JSON object, which `of` reads."""
        candidates = [{**one._asdict(), "notes": list(one.notes)} for one in self.candidates]
        return {**self._asdict(), "key": self.key._asdict(), "candidates": candidates}

    @classmethod
    def of(cls, plain: Mapping[str, object]) -> Entry:
        """Return the entry of a JSON object that `plain` returned.

        Parameters
        ----------
        plain : mapping
            The JSON object. Every field is checked.

        Returns
        -------
        Entry
            The entry.

        Raises
        ------
        ValueError
            A field is missing, unknown or of another type.
        """
        return _built(cls, "entry", plain, _ENTRY)


class Fault(NamedTuple):
    """A fault of a candidate, which repeated alone in a fresh process.

    Attributes
    ----------
    key : Key
        The problem, the GPU and the release of cuDNN. Its options are "{}": a fault does not depend on them.
    text : str
        The problem in the notation that people read.
    candidate : str
        The engine with its knobs.
    symptom : str
        "context lost", "limit exceeded", "access outside", "wrong result" or "process ended".
    detail : str
        One line for people.
    driver : str
        The version of the CUDA driver. With another driver the fault is not applied.
    made_at : str
        When the fault was found: ISO 8601, in UTC.
    """

    key: Key
    text: str
    candidate: str
    symptom: str
    detail: str
    driver: str
    made_at: str

    def plain(self) -> dict[str, object]:
        """Return the fault as a JSON object, which `of` reads."""
        return {**self._asdict(), "key": self.key._asdict()}

    @classmethod
    def of(cls, plain: Mapping[str, object]) -> Fault:
        """Return the fault of a JSON object from `plain`. Raises ValueError for a field that is not valid."""
        return _built(cls, "fault", plain, _FAULT)


class Forgotten(NamedTuple):
    """A plan that failed, and that is not stored again for its key.

    Attributes
    ----------
    key : Key
        The key.
    text : str
        The problem in the notation that people read.
    plan : str
        The SHA-256 of the serialized plan.
    reason : str
        Why it failed.
    made_at : str
        When it was forgotten: ISO 8601, in UTC.
    """

    key: Key
    text: str
    plan: str
    reason: str
    made_at: str


def without_options(key: Key) -> Key:
    """Return the key of the faults of a problem."""
    return key._replace(options="{}")


def canonical(value: Any) -> str:
    """Return the JSON text of a value: one text for equal values, in ASCII. Raises ValueError for NaN and infinities."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest_of(text: str) -> str:
    """Return the SHA-256 of a text as hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _built(kind: Callable[..., _T], name: str, given: Any, fields: _Fields) -> _T:
    """Return an object of the fields of a JSON object, each checked by the function of its name."""
    if not isinstance(given, Mapping) or given.keys() != fields.keys():
        found = sorted(map(str, given)) if isinstance(given, Mapping) else type(given).__name__
        raise ValueError(f"{name} must be an object of {', '.join(fields)}; got {str(found)[:200]}")
    return kind(**{field: check(f"{name}.{field}", given[field]) for field, check in fields.items()})


def _candidate(name: str, given: Any) -> StoredCandidate:
    return _built(StoredCandidate, name, given, _CANDIDATE)


def _text(name: str, given: Any) -> str:
    if not isinstance(given, str) or not given.isprintable():
        raise ValueError(f"{name} must be a str without control characters; got {shown(given)}")
    return given


def _integer(name: str, given: Any) -> int:
    if type(given) is not int or not 0 <= given <= _MOST:
        raise ValueError(f"{name} must be an int of 0 or more, in 63 bits; got {shown(given)}")
    return given


def _number(name: str, given: Any) -> float:
    if type(given) not in (int, float) or not 0 <= given <= sys.float_info.max:
        raise ValueError(f"{name} must be a finite number of 0 or more; got {shown(given)}")
    return float(given)


def _flag(name: str, given: Any) -> bool:
    if not isinstance(given, bool):
        raise ValueError(f"{name} must be a bool; got {shown(given)}")
    return given


def _or_none(check: Callable[[str, Any], _T], name: str, given: Any) -> _T | None:
    return None if given is None else check(name, given)


def _items(check: Callable[[str, Any], _T], name: str, given: Any) -> tuple[_T, ...]:
    if not isinstance(given, list):
        raise ValueError(f"{name} must be a list; got {shown(given)}")
    return tuple(check(f"{name}[{place}]", one) for place, one in enumerate(given))


def _texts_by_name(name: str, given: Any) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise ValueError(f"{name} must be an object of strings; got {shown(given)}")
    return {_text(name, key): _text(name, value) for key, value in given.items()}


def _moment(name: str, given: Any) -> str:
    try:
        if datetime.fromisoformat(_text(name, given)).utcoffset() == timedelta(0):
            return str(given)
    except ValueError:
        pass
    raise ValueError(f"{name} must be a time in UTC such as '2026-01-31T12:00:00+00:00'; got {shown(given)}")


_KEY: _Fields = {
    "problem": _text,
    "options": _text,
    "gpu": _text,
    "capability": _text,
    "multiprocessors": _integer,
    "cudnn": _integer,
}
_CANDIDATE: _Fields = {
    "name": _text,
    "source": _text,
    "workspace_size": partial(_or_none, _integer),
    "milliseconds": partial(_or_none, _number),
    "notes": partial(_items, _text),
    "deterministic": _flag,
    "refused": _text,
}


def _key(name: str, given: Any) -> Key:
    return _built(Key, name, given, _KEY)


_FAULT: _Fields = {
    "key": lambda name, given: without_options(_key(name, given)),
    **dict.fromkeys(("text", "candidate", "symptom", "detail", "driver"), _text),
    "made_at": _moment,
}
_ENTRY: _Fields = {
    "key": _key,
    "text": _text,
    "plan": _text,
    "milliseconds": partial(_or_none, _number),
    "spread": partial(_or_none, _number),
    "error": partial(_or_none, _number),
    "workspace_size": _integer,
    "tune_seconds": _number,
    "complete": _flag,
    "made_at": _moment,
    "made_with": _texts_by_name,
    "candidates": partial(_items, _candidate),
}
