"""The results of measuring candidates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

if TYPE_CHECKING:  # a first call needs no entries
    from cudnnpy.tuning.store.entry import Entry

Symptom = Literal["context lost", "limit exceeded", "access outside", "wrong result", "process ended", "not confirmed"]
SYMPTOMS: tuple[Symptom, ...] = get_args(Symptom)


#: the rejection reason of a candidate that autotune leaves out by its predicted time
UNPROMISING = "not measured: the ranking expects that it is slower"


class FoundFault(NamedTuple):
    """A fault of a candidate that repeated alone in a fresh process, or of a stored choice that was not confirmed."""

    candidate: str  #: its name: the engine with its knobs, and the suffix of its lowering
    symptom: Symptom
    detail: str  #: one line for people
    driver: str  #: the version of the CUDA driver


_NONE: Mapping[str, str] = {}


class Measurement(NamedTuple):
    """The result of measuring a problem."""

    entry: Entry | None  #: the choice with all candidates; None if nothing was measured
    reason: str = ""  #: why nothing was measured; "" with an entry
    #: whether at least as many candidates ran out of memory as ran: the choice is not stored
    was_memory_limited: bool = False
    faults: tuple[FoundFault, ...] = ()
    #: without an entry, the candidates that failed when they ran, each with the rejection reason: they are not chosen now
    rejected: Mapping[str, str] = _NONE
    #: the serialized plan of a choice that was compiled at run time, by the name of its candidate (engines.save_plan)
    compiled: Mapping[str, str] = _NONE
