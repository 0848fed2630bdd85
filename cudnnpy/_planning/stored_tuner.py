"""Use the stored choice of a problem if it is valid; otherwise, with prefer="autotune", measure and store the result.

A stored choice is planned again from its engine and knobs. The preferences that measure nothing take it only if it was measured
or confirmed in this environment (GPU, cuDNN and driver). With prefer="autotune" any other is confirmed first. A choice that
fails is marked as failed in the store, with the reason, and the problem is measured. The measurer runs candidates in a process
of its own and stores their faults. A candidate with a fault is not chosen for this problem again until the driver changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import NamedTuple

from cudnnpy._core.choice import Choice
from cudnnpy._planning import stored_choice
from cudnnpy._planning.candidate_filter import try_plan
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.engines import Target, load_plan
from cudnnpy._planning.measurement import Measurement, Measurer
from cudnnpy._planning.measurement_freeze import Freeze
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem import Problem
from cudnnpy._store.entry import Entry, Key
from cudnnpy._store.layers import Layers, current, serves_all_preferences
from cudnnpy.errors import CudnnError, StatusError


class _Choice(NamedTuple):
    """A stored choice: a planned candidate with its entry and store layer; no candidate if there is no valid choice.

    `fits` is False if there is a valid choice whose workspace exceeds the limit.
    """

    candidate: Candidate | None = None
    entry: Entry | None = None
    layer: str = ""
    fits: bool = True


class StoredTuner:
    """A tuner that returns the stored choice if it is valid and measures otherwise. Create one instance per problem.

    `store` is the store of the process by default. With `is_measured=False` nothing is run, neither to measure nor to confirm.
    """

    def __init__(
        self,
        problem: Problem,
        options: PlanningOptions,
        target: Target,
        measurer: Measurer | None = None,
        *,
        store: Layers | None = None,
        is_measured: bool = True,
    ) -> None:
        self._problem, self._options, self._target = problem, options, target
        self._measurer = measurer if is_measured else None
        self._store = current(strict=False) if store is None else store
        self._is_autotuned = options.prefer == "autotune"
        self._is_blank = self._store.is_blank and not (self._is_autotuned and measurer is not None)
        self._faults: dict[str, str] | None = None
        self._compiled: Mapping[str, str] = {}
        #: the rejection reasons of the candidates that failed when the problem was measured
        self.rejected: Mapping[str, str] = {}
        self.entry: Entry | None = None  #: the entry of the choice, if there is one

    @property
    def left_out(self) -> dict[str, str]:
        """The rejection reasons of the candidates with a fault, by the candidates' names."""
        if self._faults is None:
            self._look_up()
        return self._faults or {}

    def considered(self) -> list[Candidate]:
        """Return the candidates that were considered for the choice.

        They are read from the store only now, since most callers do not need them.
        """
        if self.entry is None:
            return []
        stored = None if self.entry.candidates else self._store.get(self.entry.key)
        is_same = stored is not None and stored.entry.choice == self.entry.choice
        entry = stored.entry if stored is not None and is_same else self.entry
        return [Candidate(choice) for choice in entry.candidates]

    def choice(self, limit: int) -> Candidate | None:
        """Return the choice, planned; None if the caller must choose as prefer="fastest" does."""
        if not self._is_autotuned:
            if self._is_blank or not serves_all_preferences():
                return None
            return self._taken(self._stored(limit))
        stored = self._stored(limit)
        if stored.candidate is not None and (Freeze.is_open() or not self._allows_more_tuning(stored.entry)):
            return self._taken(stored)
        if Freeze.note(self._problem, self._options) or self._measurer is None:
            return self._taken(stored)
        with stored_choice.single_flight(self._key):
            stored = self._stored(limit)  # another thread may have measured it meanwhile
            if stored.candidate is not None and not self._allows_more_tuning(stored.entry):
                return self._taken(stored)
            return self._measured(self._measurer, limit, stored)

    def _taken(self, choice: _Choice) -> Candidate | None:
        self.entry = choice.entry
        if choice.candidate is not None:
            choice.candidate.store_layer = choice.layer
        return choice.candidate

    def _allows_more_tuning(self, entry: Entry | None) -> bool:
        """Return whether the search of an entry ended early, and more time is allowed now."""
        if entry is None or entry.choice.milliseconds is None or entry.complete:
            return False
        return entry.tune_seconds < self._options.tune_seconds

    # The store

    @cached_property
    def _key(self) -> Key:
        return stored_choice.key_of(self._problem, self._options, self._target)

    def _look_up(self) -> tuple[Entry | None, str]:
        """Return the stored entry and its layer, and note the faults of the problem."""
        self._faults = self._faults or {}
        if self._is_blank:
            return None, ""
        found, faults = self._store.look_up(self._key)
        self._faults |= {
            fault.candidate: stored_choice.reason_of_fault(fault.symptom, fault.detail, fault.made_at)
            for fault in faults
            if fault.driver == stored_choice.driver()
        }
        return (None, "") if found is None else (found.entry, found.layer)

    def _stored(self, limit: int) -> _Choice:
        """Return the stored choice. With prefer="autotune", a choice that fails is marked as failed in the store."""
        failed: set[Choice] = set()
        while True:
            entry, layer = self._look_up()
            if entry is None or entry.choice in failed:
                return _Choice()
            choice, reason = self._restored(entry, layer, limit)
            if choice.candidate is not None or not choice.fits or not self._is_autotuned:
                return choice
            failed.add(entry.choice)
            self._store.forget(entry.key, reason)

    def _restored(self, entry: Entry, layer: str, limit: int, *, is_new: bool = False) -> tuple[_Choice, str]:
        """Return the choice of an entry, planned, or the reason why it fails. `is_new` means that it was measured just now."""
        too_large = _Choice(fits=False)
        if (entry.choice.workspace_size or 0) > limit:
            return too_large, ""
        is_confirmed = is_new or self.is_confirmed(entry)
        if not (is_confirmed or self._is_autotuned):
            return _Choice(), ""
        try:
            candidate = stored_choice.candidate_of(entry, self._problem, self._options, self._target)
        except (ValueError, CudnnError) as error:
            return _Choice(), str(error)
        candidate.rejection_reason = candidate.rejection_reason or self.left_out.get(candidate.name, "")
        if candidate.name in self._compiled:
            with suppress(StatusError):  # then it is compiled here
                candidate.plan = load_plan(self._compiled[candidate.name], self._target)
        if try_plan(candidate, self._problem, self._options, limit):
            reason = "" if is_confirmed else self._confirmed(entry, limit)
        elif candidate.executable is not None:
            return too_large, ""
        else:
            reason = candidate.rejection_reason
        return (_Choice(), reason) if reason else (_Choice(candidate, entry, layer), "")

    def is_confirmed(self, entry: Entry) -> bool:
        """Return whether an entry was measured or confirmed with this GPU, cuDNN and driver."""
        is_measured_here = stored_choice.was_measured_here(entry)
        return is_measured_here or self._store.is_checked(entry.key, stored_choice.environment_of(entry.key))

    def _confirmed(self, entry: Entry, limit: int) -> str:
        """Run a stored choice and return why its result is wrong; "" if it is right, or if it could not be run."""
        if self._measurer is None:
            return ""
        reason = self._measurer.confirm(self._problem, self._options, entry, limit)
        if reason == "":
            self._store.mark_checked(entry.key, stored_choice.environment_of(entry.key))
        return reason or ""

    # Measuring

    def _measured(self, measurer: Measurer, limit: int, before: _Choice) -> Candidate | None:
        """Tune the problem, with the stored choice as an additional candidate.

        Return the winner, or the choice that another process stored first.
        """
        measurement = measurer.measure(self._problem, self._options, limit, self.left_out)
        self._compiled = measurement.compiled
        entry = self._noted(measurement)
        if entry is None:
            is_rejected = before.candidate is not None and before.candidate.name in {*self.left_out, *self.rejected}
            return None if is_rejected else self._taken(before)
        entry = _faster(before, entry, measurement)
        if measurement.was_memory_limited or not before.fits:
            return self._taken(self._restored(entry, "", limit, is_new=True)[0])
        return self._taken(self._kept(entry, before.entry, limit))

    def _noted(self, measurement: Measurement) -> Entry | None:
        """Note rejected candidates, and store faults. Return the entry, or None if it has another key."""
        if measurement.faults:
            text = stored_choice.choice_text(self._problem, PlanningOptions())
            self._store.add_faults(self._key, text, measurement.faults)
            found = {
                one.candidate: stored_choice.reason_of_fault(one.symptom, one.detail) for one in measurement.faults
            }
            self._faults = {**self.left_out, **found}
        self.rejected, entry = measurement.rejected, measurement.entry
        return entry if entry is not None and entry.key == self._key else None

    def _kept(self, entry: Entry, before: Entry | None, limit: int) -> _Choice:
        """Store an entry, and return its choice; another process's choice if that was stored first and is valid here."""
        now, _ = (None, "") if before is None else self._look_up()
        current_entry = self._store.put(entry, replace=now is not None and now == before)
        if current_entry.choice != entry.choice:
            choice, reason = self._restored(current_entry, "user", limit)
            if choice.candidate is not None:
                return choice
            if not choice.fits:
                return self._restored(entry, "", limit, is_new=True)[0]
            self._store.forget(current_entry.key, reason)
            self._store.put(entry)
        choice, reason = self._restored(entry, "", limit, is_new=True)
        if reason:
            self._store.forget(entry.key, reason)
        return choice


def _faster(before: _Choice, entry: Entry, measurement: Measurement) -> Entry:
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
