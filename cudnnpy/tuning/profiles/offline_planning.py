"""The choice for a device profile instead of a GPU (`cudnnpy plan`, `cudnnpy explain --device`), and candidates as JSON."""

from __future__ import annotations

from cudnnpy._planning.chooser import Chooser
from cudnnpy._planning.plan import Plan
from cudnnpy._planning.selection import no_algorithm, survey
from cudnnpy.tuning.store.entry import Entry
from cudnnpy.tuning.stored_choice import entry_of


def entry_for_profile(chooser: Chooser) -> Entry:
    """Return the choice for a request, with all candidates.

    Every candidate is planned, which takes milliseconds, but for engines that are compiled at run time: they are compiled only
    until one can be used. Nothing is measured: the choice has neither a time nor an error. Raises NoAlgorithmError, with the
    table of candidates, if none can be used.
    """
    request, considered = chooser.request, survey(chooser, compiles=0)
    found = next((candidate for candidate in considered if not candidate.rejection_reason), None)
    if found is None:
        raise no_algorithm(request, considered)
    plan = Plan(request.problem, found)
    return entry_of(request.problem, request.options, request.target, plan, considered, complete=True)
