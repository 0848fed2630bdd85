"""The chooser of tuning: the stored choice of a problem if it is valid; else, with prefer="autotune", a measured one.

A stored choice is planned again from its engine and knobs. The preferences that measure nothing take it only if it was measured
or confirmed in this environment (GPU, cuDNN and driver). With prefer="autotune" any other is confirmed first. If it fails, the
problem is measured. The measurer runs candidates in a process of its own. Their faults are stored, as is one of a stored choice
that is not confirmed. A candidate with a fault is not chosen for this problem again until the driver changes.

The layer imports this module by `cudnnpy._planning.chooser.tuning`, and nothing else of tuning.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from cudnnpy._planning.candidates import Candidate, try_plan
from cudnnpy._planning.chooser import Chosen, Rejection, Request
from cudnnpy._planning.engines import gpu_kind, load_plan
from cudnnpy._planning.options import PlanningOptions
from cudnnpy.errors import CudnnError, StatusError
from cudnnpy.tuning import recording, stored_choice
from cudnnpy.tuning.measurement import FoundFault, Measurement
from cudnnpy.tuning.ranking import model
from cudnnpy.tuning.ranking.candidate_order import RankedChooser
from cudnnpy.tuning.recording import Freeze
from cudnnpy.tuning.store.entry import Entry, Key
from cudnnpy.tuning.store.levels import Layers, current

if TYPE_CHECKING:
    from cudnnpy.tuning.measuring.gpu_worker import Tuner


class _Stored(NamedTuple):
    """A stored choice: a planned candidate with its entry and store layer; no candidate if there is no valid choice.

    `fits` is False if there is a valid choice whose workspace exceeds the limit.
    """

    candidate: Candidate | None = None
    entry: Entry | None = None
    layer: str = ""
    fits: bool = True


def measurer_of(request: Request) -> Tuner | None:
    """Return the measurer for a request; None for the preferences that measure nothing, and where nothing may be run."""
    if request.options.prefer != "autotune" or not request.may_run:
        return None
    from cudnnpy.tuning.measuring.gpu_worker import Tuner

    return Tuner(request.problem.device, request.stream)


class TuningChooser(RankedChooser):
    """A chooser that takes the stored choice if it is valid, and measures otherwise.

    `store` is the store of the process by default.
    """

    source_text = staticmethod(model.source_text)

    def __init__(self, request: Request, *, store: Layers | None = None) -> None:
        super().__init__(request)
        self._problem, self._options, self._target, self._limit = request[:4]
        self._measurer = measurer_of(request)
        self._store = current(strict=False) if store is None else store
        self._is_autotuned = self._options.prefer == "autotune"
        self._is_blank = self._store.is_blank and self._measurer is None
        self._faults: dict[str, str] | None = None
        self._compiled: Mapping[str, str] = {}
        # the rejection reasons of the candidates that failed when the problem was measured
        self._failed: Mapping[str, str] = {}
        self._is_frozen = False  # whether a freeze forbade to measure the problem

    @property
    def left_out(self) -> dict[str, str]:
        """The rejection reasons of the candidates with a fault, by the candidates' names."""
        return self._read_faults() if self._faults is None else self._faults

    def rejections(self) -> Mapping[str, Rejection]:
        """Return the candidates with a stored fault, and those that failed when the problem was measured."""
        faults = {name: Rejection(reason, is_final=False) for name, reason in self.left_out.items()}
        return faults | {name: Rejection(reason, is_final=True) for name, reason in self._failed.items()}

    def known(self) -> Chosen | None:
        """Return the stored or measured choice; None if the caller must choose as prefer="fastest" does."""
        found = self._autotuned() if self._is_autotuned else self._stored()
        if found.candidate is None or found.entry is None:
            return None
        entry = found.entry
        found.candidate.store_layer = found.layer
        # The candidates are read from the store when they are asked for, since most callers do not need them.
        return Chosen(found.candidate, lambda: [*map(Candidate, self._whole(entry).candidates)])

    def chosen(self) -> bool:
        """Add the problem to the open recordings. Return whether the choice is a guess, since a freeze forbids measuring."""
        recording.note(self._problem, self._options)
        return self._is_frozen

    def _whole(self, entry: Entry) -> Entry:
        """Return an entry of the store with its candidates."""
        whole = (found.entry for found in self._store.entries(entry.key) if found.entry.choice == entry.choice)
        return entry if entry.candidates else next(whole, entry)

    def _autotuned(self) -> _Stored:
        """Return the stored choice, or the measured one if there is none, or if it allows more tuning."""
        stored = self._stored()
        if self._is_enough(stored, in_freeze=Freeze.is_open()):
            return stored
        self._is_frozen = Freeze.note(self._problem, self._options)
        if self._is_frozen or self._measurer is None:
            return stored
        with stored_choice.single_flight(self._key):
            stored = self._stored()  # another thread may have measured it meanwhile
            return stored if self._is_enough(stored) else self._measured(self._measurer, stored)

    def _is_enough(self, stored: _Stored, *, in_freeze: bool = False) -> bool:
        """Return whether a stored choice is taken without measuring: in a freeze, any one.

        More tuning is allowed if the search of its entry ended early, and more time is allowed now.
        """
        entry = stored.entry
        if entry is None or in_freeze or entry.choice.milliseconds is None or entry.complete:
            return entry is not None
        return entry.tune_seconds >= self._options.tune_seconds

    # The store

    @cached_property
    def _key(self) -> Key:
        return stored_choice.key_of(self._problem, self._options, gpu_kind(self._target))

    def _read_faults(self) -> dict[str, str]:
        """Add the faults that the store has now to the known ones, and return all."""
        self._faults = self._faults or {}
        if not self._is_blank:
            self._faults |= {
                fault.candidate: stored_choice.reason_of_fault(fault.symptom, fault.detail, fault.made_at)
                for fault in self._store.faults_of(self._key)
                if fault.driver == stored_choice.driver()
            }
        return self._faults

    def _add_faults(self, faults: Sequence[FoundFault]) -> None:
        """Store faults, whose candidates are not chosen from now on."""
        if faults:
            text = stored_choice.choice_text(self._problem, PlanningOptions())
            self._store.add_faults(self._key, text, faults)
            found = {fault.candidate: stored_choice.reason_of_fault(fault.symptom, fault.detail) for fault in faults}
            self._faults = {**self.left_out, **found}

    def _stored(self) -> _Stored:
        """Return the first stored choice that is valid here, or that is too large at the moment."""
        self._read_faults()
        if not self._is_blank:
            for entry, layer in self._store.entries(self._key, without_candidates=True):
                choice = self._restored(entry, layer)
                if choice.candidate is not None or not choice.fits:
                    return choice
        return _Stored()

    def _restored(self, entry: Entry, layer: str, *, is_new: bool = False) -> _Stored:
        """Return the choice of an entry, planned; no candidate if it fails. `is_new` means that it was measured just now."""
        too_large = _Stored(fits=False)
        if (entry.choice.workspace_size or 0) > self._limit:
            return too_large
        is_confirmed = is_new or stored_choice.is_confirmed(entry)
        if not (is_confirmed or self._is_autotuned):
            return _Stored()
        try:
            candidate = stored_choice.stored_candidate(entry, self._problem, self._options, self._target)
        except (ValueError, CudnnError) as error:
            return _failed(entry, str(error))
        candidate.rejection_reason = candidate.rejection_reason or self.left_out.get(candidate.name, "")
        if candidate.name in self._compiled:
            with suppress(StatusError):  # then it is compiled here
                candidate.plan = load_plan(self._compiled[candidate.name], self._target)
        if try_plan(candidate, self._problem, self._options, self._limit):
            reason = "" if is_confirmed else self._confirmed(entry)
        elif candidate.executable is not None:
            return too_large
        else:
            reason = candidate.rejection_reason
        return _failed(entry, reason) if reason else _Stored(candidate, entry, layer)

    def _confirmed(self, entry: Entry) -> str:
        """Run a stored choice, and store that it is right, or its fault.

        Return why its result is wrong; "" if it is right, or if it could not be run.
        """
        if self._measurer is None:
            return ""
        reason = self._measurer.confirm(self._problem, self._options, entry.choice, self._limit)
        if reason:
            detail = " ".join(reason.split())
            self._add_faults([FoundFault(entry.choice.name, "not confirmed", detail, stored_choice.driver())])
        elif reason == "" and self._store.writable.get(entry.key, without_candidates=True) in (None, entry):
            made_with = {**entry.made_with, "confirmed_with_driver": stored_choice.driver()}
            self._store.writable.put(self._whole(entry)._replace(made_with=made_with), replace=True)
        return reason or ""

    # Measuring

    def _measured(self, measurer: Tuner, before: _Stored) -> _Stored:
        """Tune the problem, with the stored choice as an additional candidate.

        Return the winner, or the choice that another process stored first.
        """
        measurement = measurer.measure(self._problem, self._options, self._limit, self.left_out)
        self._add_faults(measurement.faults)
        self._compiled, self._failed, entry = measurement.compiled, measurement.rejected, measurement.entry
        if entry is None or entry.key != self._key:
            is_rejected = before.candidate is not None and before.candidate.name in {*self.left_out, *self._failed}
            return _Stored() if is_rejected else before
        entry = _faster(before, entry, measurement)
        choice = self._restored(entry, "", is_new=True)
        if choice.candidate is None or measurement.was_memory_limited or not before.fits:
            return choice
        return self._kept(entry, before.entry, choice)

    def _kept(self, entry: Entry, before: Entry | None, choice: _Stored) -> _Stored:
        """Store an entry, and return its choice; another process's choice if that was stored first and is valid here."""
        store = self._store.writable
        now = None if before is None else store.get(entry.key, without_candidates=True)
        current = store.put(entry, replace=now is not None and now == before)
        if current.choice == entry.choice:
            return choice
        other = self._restored(current, "user")
        if other.candidate is not None:
            return other
        if other.fits:
            store.put(entry, replace=True)
        return choice


def _faster(before: _Stored, entry: Entry, measurement: Measurement) -> Entry:
    """Return the new entry, with the choice of the earlier one if that was faster and was not run again.

    So more time never leads to a slower choice, and the next process does not spend it again.
    """
    if before.candidate is None or before.entry is None:
        return entry
    name, earlier, time = before.candidate.name, before.entry.choice.milliseconds, entry.choice.milliseconds
    row = next((row for row in entry.candidates if row.name == name), None)
    was_run = row is not None and not row.rejection_reason.startswith("not measured")
    has_fault = any(fault.candidate == name for fault in measurement.faults)
    if was_run or has_fault or earlier is None or (time is not None and time <= earlier):
        return entry
    return entry._replace(choice=before.entry.choice)


def _failed(entry: Entry, reason: str) -> _Stored:
    logging.getLogger("cudnnpy").info("a stored choice is not used: %s: %s: %s", entry.text, entry.choice.name, reason)
    return _Stored()


def profile_planner() -> ModuleType:
    """Return the module that plans for device profiles, which a first call on a GPU does not need."""
    from cudnnpy.tuning.profiles import planner_process

    return planner_process
