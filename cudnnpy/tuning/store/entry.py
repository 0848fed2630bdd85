"""The records of a store: keys, entries with their candidates, and faults."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from cudnnpy._core.untrusted_json import plain, reader
from cudnnpy._planning.choice import Choice, GpuKind, SerializedPlan


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
        """The SHA-256 of the six parts, as hexadecimal digits."""
        return hashlib.sha256(canonical_json(self).encode()).hexdigest()


class Entry(NamedTuple):
    """The choice for one key.

    Attributes
    ----------
    key : Key
        The key that the choice is for.
    text : str
        The problem in the notation that people read, with the options of the key.
    choice : Choice
        The chosen candidate, with its measured time; without one if it was chosen without measuring.
    tune_seconds : float
        The time that was allowed for tuning.
    complete : bool
        Whether every candidate that was to be measured was measured.
    made_at : str
        When the choice was made: ISO 8601, in UTC.
    made_with : dict of str to str
        The versions of the software that made the choice.
    candidates : tuple of Choice
        The candidates that were considered.

    Examples
    --------
    >>> from cudnnpy import store
    >>> "choice" in store.Entry._fields
    True
    >>> with store.Store("") as choices:
    ...     [(entry.text, entry.choice.milliseconds) for entry in choices]
    []
    """

    key: Key
    text: str
    choice: Choice
    tune_seconds: float
    complete: bool
    made_at: str
    made_with: dict[str, str]
    candidates: tuple[Choice, ...]

    @property
    def serialized(self) -> SerializedPlan:
        """The plan, which is the choice with the problem, the GPU and the release of the key."""
        key = self.key
        gpu = str(GpuKind(key.gpu, key.capability, key.multiprocessors))
        return SerializedPlan(key.cudnn, gpu, key.problem, self.choice)

    @property
    def plan(self) -> str:
        """The plan as text, which `Plan.from_json` reads."""
        return self.serialized.text

    def plain(self) -> dict[str, object]:
        """Return the entry as a JSON object, the inverse of `of`."""
        return dict(plain(self))

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
    """A fault of a candidate, which repeated alone in a fresh process, or in the run that was to confirm a stored choice.

    Attributes
    ----------
    key : Key
        The problem, the GPU and the release of cuDNN. Its options are "{}": a fault does not depend on them.
    text : str
        The problem in the notation that people read.
    candidate : str
        The engine with its knobs.
    symptom : str
        "context lost", "limit exceeded", "access outside", "wrong result" or "process ended"; "not confirmed" for a stored
        choice that failed when it was run to be confirmed.
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
        return dict(plain(self))

    @classmethod
    def of(cls, plain: Mapping[str, object]) -> Fault:
        """Return the fault of a JSON object from `plain`. Raises ValueError for a field that is not valid."""
        fault: Fault = _FAULT("fault", plain)
        return fault._replace(key=without_options(fault.key))


def without_options(key: Key) -> Key:
    """Return the key of the faults of a problem."""
    return key._replace(options="{}")


def canonical_json(value: Any) -> str:
    """Return the JSON text of a value: one text for equal values, in ASCII. Raises ValueError for NaN and infinities."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


_ENTRY, _FAULT = reader(Entry), reader(Fault)
