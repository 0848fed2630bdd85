"""The results of measuring candidates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cudnnpy._core.untrusted_json import plain, reader
from cudnnpy.tuning.store.entry import Entry

SYMPTOMS = ("context lost", "limit exceeded", "access outside", "wrong result", "process ended", "not confirmed")
_MAX_FAULTS = 100  # of one problem: each ends two processes

#: the rejection reason of a candidate that autotune leaves out by its predicted time
UNPROMISING = "not measured: the ranking expects that it is slower"


class FoundFault(NamedTuple):
    """A fault of a candidate that repeated alone in a fresh process, or of a stored choice that was not confirmed."""

    candidate: str  #: its name: the engine with its knobs, and the suffix of its lowering
    symptom: str  #: one of SYMPTOMS
    detail: str  #: one line for people
    driver: str  #: the version of the CUDA driver


_NONE: dict[str, str] = {}


class Measurement(NamedTuple):
    """The result of measuring a problem."""

    entry: Entry | None  #: the choice with all candidates; None if nothing was measured
    reason: str = ""  #: why nothing was measured; "" with an entry
    #: whether at least as many candidates ran out of memory as ran: the choice is not stored
    was_memory_limited: bool = False
    faults: tuple[FoundFault, ...] = ()
    #: without an entry, the candidates that failed when they ran, each with the rejection reason: they are not chosen now
    rejected: dict[str, str] = _NONE
    #: the serialized plan of a choice that was compiled at run time, by the name of its candidate (engines.save_plan)
    compiled: dict[str, str] = _NONE

    def plain(self) -> dict[str, Any]:
        """Return the measurement as a JSON object, the inverse of `of`."""
        return dict(plain(self))

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Measurement:
        """Return the measurement of a JSON object from another process. Raises ValueError for a field that is not valid."""
        found: Measurement = _MEASUREMENT("measurement", {**given, "compiled": {}})
        if len(found.faults) > _MAX_FAULTS or not all(fault.symptom in SYMPTOMS for fault in found.faults):
            actual = f"{len(found.faults)}, the first {str(found.faults[:1])[:200]}"
            raise ValueError(f"faults must be at most {_MAX_FAULTS}, of known symptoms; got {actual}")
        # with the line breaks that cuDNN writes
        compiled = {name: str(text) for name, text in given["compiled"].items()}
        return found._replace(compiled=compiled)


_MEASUREMENT = reader(Measurement)
