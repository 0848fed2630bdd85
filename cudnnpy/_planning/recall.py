"""Look a choice up in the store before it is measured, and keep what was measured there.

`Recall` stands in front of a tuner. A choice that the store has is used if it can be: it is planned again, and what was not
measured in this environment is run once and checked. A choice that fails is forgotten with its reason, and measuring starts
as if it had not been there. One that needs more workspace than the limit allows now stays in the store for others, and what
is measured instead is not kept; neither is a choice for which memory was missing for as many candidates as ran. Of several
processes that measure a problem at once, all take the choice of the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from cudnnpy._planning import frozen_choices, remembered
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.engines import Target
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.plan import Plan
from cudnnpy._planning.problem import Problem
from cudnnpy._planning.usable import Tune, is_usable
from cudnnpy._store.entry import Entry, Key
from cudnnpy._store.layers import Layers, current
from cudnnpy.errors import CudnnError


class _Asked(NamedTuple):
    """What is chosen for, and where it is looked up."""

    problem: Problem
    options: PlanningOptions
    target: Target
    limit: int
    key: Key
    store: Layers


class _Found(NamedTuple):
    """What the store has: a candidate that can be used, planned, with its entry and layer.

    `fits` is false if it has one that needs more workspace than the limit.
    """

    candidate: Candidate | None = None
    entry: Entry | None = None
    layer: str = ""
    fits: bool = True


class Recall:
    """The `tune` of selection.choose that asks the store first. One serves one choice.

    `is_kept` is false if what is measured is not to be kept, since it is chosen for a shortage of memory.
    """

    def __init__(self, tune: Tune, *, is_kept: bool = True) -> None:
        self._tune, self._is_kept = tune, is_kept
        self.layer = ""  #: the layer of the store that had the choice; "" if it was made now
        self.entry: Entry | None = None  #: the choice in the store, if it was taken from there

    @property
    def is_complete(self) -> bool:
        """Whether the last search measured all that it was to measure."""
        return self._tune.is_complete

    @property
    def lacked_memory(self) -> bool:
        """Whether in the last search memory was missing for as many candidates as ran."""
        return self._tune.lacked_memory

    def considered(self) -> list[Candidate]:
        """Return the candidates that were considered for the choice that was taken from the store.

        They are read now, since most callers have no need of them.
        """
        if self.entry is None:
            return []
        there = current().get(self.entry.key)
        is_same = there is not None and there.entry.plan == self.entry.plan
        return remembered.considered(there.entry if there is not None and is_same else self.entry)

    def confirm(self, problem: Problem, options: PlanningOptions, target: Target, given: Candidate, limit: int) -> None:
        """Run a planned candidate once, and reject it if its result is wrong."""
        self._tune.confirm(problem, options, target, given, limit)

    def __call__(
        self, problem: Problem, options: PlanningOptions, target: Target, candidates: Iterable[Candidate], limit: int
    ) -> Candidate | None:
        """Return the choice of the store, or else that of the tuner. In a freeze, return the first that can be used."""
        asked = _Asked(problem, options, target, limit, remembered.key_of(problem, options, target), current())
        found = self._look_up(asked)
        if found.candidate is not None and (frozen_choices.is_frozen() or not _is_open(found.entry, options)):
            return self._taken(found)
        if frozen_choices.note_unknown(problem, options):
            return next((one for one in candidates if is_usable(one, problem, options, limit)), None)
        with remembered.one_thread(asked.key):
            found = self._look_up(asked)  # another thread may have measured it meanwhile
            if found.candidate is not None and not _is_open(found.entry, options):
                return self._taken(found)
            return self._measured(asked, candidates, found)

    def _taken(self, found: _Found) -> Candidate | None:
        self.layer, self.entry = found.layer, found.entry
        return found.candidate

    # The store

    def _look_up(self, asked: _Asked) -> _Found:
        """Return what the store has for a key. Choices that fail are forgotten."""
        failed: set[str] = set()
        while (there := asked.store.get(asked.key, brief=True)) is not None and there.entry.plan not in failed:
            found = self._opened(asked, there.entry, there.layer)
            if found.candidate is not None or not found.fits:
                return found
            failed.add(there.entry.plan)
        return _Found()

    def _opened(self, asked: _Asked, entry: Entry, layer: str) -> _Found:
        """Return what can be used of an entry, which is forgotten if it fails."""
        too_large = _Found(fits=False)
        if entry.workspace_size > asked.limit:
            return too_large
        try:
            candidate = remembered.candidate_of(entry, asked.problem, asked.options, asked.target)
        except (ValueError, CudnnError) as error:
            reason = str(error)
        else:
            if is_usable(candidate, asked.problem, asked.options, asked.limit):
                reason = self._rejection(asked, entry, candidate)
            elif candidate.executable is not None:
                return too_large
            else:
                reason = candidate.refused
            if not reason:
                return _Found(candidate, entry, layer)
        asked.store.forget(asked.key, reason)
        return _Found()

    def _rejection(self, asked: _Asked, entry: Entry, candidate: Candidate) -> str:
        """Return why the result of a choice is wrong; "" if it is right, or was measured or confirmed in this environment.

        Without memory to run it beside the caller's arrays it is used as it is, as the first guess would be.
        """
        environment = remembered.environment_of(asked.key)
        is_confirmed = remembered.is_of_this_environment(entry)
        if is_confirmed or asked.store.is_checked(asked.key, environment):
            return ""
        try:
            self.confirm(asked.problem, asked.options, asked.target, candidate, asked.limit)
        except MemoryError:
            return _planned_again(candidate)
        if not candidate.refused:
            asked.store.mark_checked(asked.key, environment)
        return candidate.refused

    # Measuring

    def _measured(self, asked: _Asked, candidates: Iterable[Candidate], found: _Found) -> Candidate | None:
        """Return the choice of the tuner, of which what the store has is one candidate, or that of another process."""
        tried: list[Candidate] = []
        known = found.candidate

        def noted() -> Iterator[Candidate]:
            if known is not None:
                tried.append(known)
                yield known
            for candidate in candidates:
                if known is None or candidate.name != known.name:
                    tried.append(candidate)
                    yield candidate

        try:
            chosen = self._tune(asked.problem, asked.options, asked.target, noted(), asked.limit)
        except MemoryError:
            if known is None or _planned_again(known):
                raise
            return self._taken(found)
        if chosen is None or chosen.milliseconds is None or not (found.fits and self._is_kept) or self.lacked_memory:
            return chosen
        if all(candidate is not chosen for candidate in tried):
            tried.append(chosen)
        return self._kept(asked, chosen, tried, found.entry)

    def _kept(self, asked: _Asked, chosen: Candidate, tried: list[Candidate], before: Entry | None) -> Candidate | None:
        """Put a choice into the store. If another process was first, return its choice, unless that fails here."""
        problem, options, target, *_ = asked
        try:
            plan = Plan(problem, chosen)
            entry = remembered.entry_of(problem, options, target, plan, tried, complete=self.is_complete)
        except TypeError:  # a candidate without a text
            return chosen
        now = None if before is None else asked.store.get(asked.key, brief=True)
        is_replaced = now is not None and now.entry == before
        standing = asked.store.put(entry, replace=is_replaced)
        if standing.plan == entry.plan:
            return chosen
        found = self._opened(asked, standing, "user")
        if found.candidate is not None:
            return self._taken(found)
        if found.fits:
            asked.store.put(entry)
        return chosen


def _planned_again(candidate: Candidate) -> str:
    """Plan a candidate for which there was no memory to run it; return the rejection reason."""
    candidate.refused = ""
    candidate.prepare()
    return candidate.refused


def _is_open(entry: Entry | None, options: PlanningOptions) -> bool:
    """Return whether a choice was measured in too little time for all candidates, and more time is allowed now."""
    if entry is None or entry.milliseconds is None or entry.complete:
        return False
    return entry.tune_seconds < options.tune_seconds
