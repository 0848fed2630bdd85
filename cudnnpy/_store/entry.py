"""The records of a store, and their checks: keys, entries with their candidates, failed plans, and faults."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from cudnnpy._options.checks import error_repr

# The version of the content of rows. Keys of another schema have other digests, so that their entries are not found.
SCHEMA = 1
_MAX_INTEGER, _MAX_FLOAT = (1 << 63) - 1, sys.float_info.max

_Check = Callable[[str, Any], Any]  # returns a JSON value as a field of a name, or raises ValueError


class Key(NamedTuple):
    """The values that must be equal for an entry to be used.

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

    Examples
    --------
    >>> from cudnnpy import store
    >>> key = store.Key("{}", "{}", "NVIDIA H200", "9.0", 132, 91900)
    >>> key.gpu
    'NVIDIA H200'
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
        The engine with its knobs, and the source that proposed it.
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

    Examples
    --------
    >>> from cudnnpy import store
    >>> store.StoredCandidate("engine 1", "heuristics", 0, 0.25, (), True, "").milliseconds
    0.25
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
        The key that the choice is for.
    text : str
        The problem in the notation that people read, with the options of the key.
    plan : str
        The serialized plan.
    milliseconds : float or None
        The measured time of the choice; None if it was chosen without measuring.
    spread : float or None
        The difference of the largest and the smallest time of the choice, relative to the median.
    error : float or None
        The largest difference of the choice's result from another candidate's, in units of the tolerance. If it had no other,
        from its own at other addresses. None if it was not compared.
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
        The candidates that were considered.

    Examples
    --------
    >>> from cudnnpy import store
    >>> "workspace_size" in store.Entry._fields
    True
    >>> with store.Store("") as choices:
    ...     [(entry.text, entry.milliseconds) for entry in choices]
    []
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
        """Return the entry as a JSON object, the inverse of `of`."""
        candidates = [{**candidate._asdict(), "notes": list(candidate.notes)} for candidate in self.candidates]
        return {**self._asdict(), "key": self.key._asdict(), "candidates": candidates}

    @classmethod
    def of(cls, plain: Mapping[str, object]) -> Entry:
        """Return the entry of a JSON object from `plain`.

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
        entry: Entry = _ENTRY("entry", plain)
        return entry


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

    Examples
    --------
    >>> from cudnnpy import store
    >>> with store.Store("") as choices:
    ...     [(fault.candidate, fault.symptom) for fault in choices.faults()]
    []
    """

    key: Key
    text: str
    candidate: str
    symptom: str
    detail: str
    driver: str
    made_at: str

    def plain(self) -> dict[str, object]:
        """Return the fault as a JSON object, the inverse of `of`."""
        return {**self._asdict(), "key": self.key._asdict()}

    @classmethod
    def of(cls, plain: Mapping[str, object]) -> Fault:
        """Return the fault of a JSON object from `plain`. Raises ValueError for a field that is not valid."""
        fault: Fault = _FAULT("fault", plain)
        return fault._replace(key=without_options(fault.key))


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
        When it failed: ISO 8601, in UTC.

    Examples
    --------
    >>> from cudnnpy import store
    >>> with store.Store("") as choices:
    ...     [one.reason for one in choices.forgotten()]
    []
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


def _is_moment(value: Any) -> bool:
    try:
        return _VALUES[str][1](value) and datetime.fromisoformat(value).utcoffset() == timedelta(0)
    except ValueError:
        return False


# What a field of a type must be, and whether a value is; the field "made_at" has a rule of its own.
_VALUES: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    str: ("a str without control characters", lambda value: isinstance(value, str) and value.isprintable()),
    int: ("an int of 0 or more, in 63 bits", lambda value: type(value) is int and 0 <= value <= _MAX_INTEGER),
    float: ("a finite number of 0 or more", lambda value: type(value) in (int, float) and 0 <= value <= _MAX_FLOAT),
    bool: ("a bool", lambda value: isinstance(value, bool)),
    "made_at": ("a time in UTC such as '2026-01-31T12:00:00+00:00'", _is_moment),
}


def _value(kind: Any, name: str, value: Any) -> Any:
    expected, is_valid = _VALUES[kind]
    if not is_valid(value):
        raise ValueError(f"{name} must be {expected}; got {error_repr(value)}")
    return float(value) if kind is float else value


def _texts_by_name(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be an object of strings; got {error_repr(value)}")
    return {_value(str, name, key): _value(str, name, text) for key, text in value.items()}


def _or_none(check: _Check, name: str, value: Any) -> Any:
    return None if value is None else check(name, value)


def _items(check: _Check, name: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list; got {error_repr(value)}")
    return tuple(check(f"{name}[{index}]", item) for index, item in enumerate(value))


def _record(make: type, checks: Mapping[str, _Check], name: str, value: Any) -> Any:
    if not isinstance(value, Mapping) or value.keys() != checks.keys():
        actual = sorted(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
        raise ValueError(f"{name} must be an object of {', '.join(checks)}; got {str(actual)[:200]}")
    return make(**{field: check(f"{name}.{field}", value[field]) for field, check in checks.items()})


def _check_of(annotation: Any) -> _Check:
    """Return the function that checks a JSON value, and returns it as the annotated type."""
    if annotation in _VALUES:
        return partial(_value, annotation)
    if annotation == dict[str, str]:
        return _texts_by_name
    first = next(iter(get_args(annotation)), None)
    if first is not None:
        return partial(_items if get_origin(annotation) is tuple else _or_none, _check_of(first))
    checks = {field: _check_of(type_) for field, type_ in get_type_hints(annotation).items()}
    if "made_at" in checks:
        checks["made_at"] = partial(_value, "made_at")
    return partial(_record, annotation, checks)


_ENTRY, _FAULT = _check_of(Entry), _check_of(Fault)
