"""Plan the candidates for a problem, on a GPU or in a child process for a device profile, and explain the choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cudnnpy import raw
from cudnnpy._arrays.workspace import total_bytes
from cudnnpy._planning import problem_notation, selection
from cudnnpy._planning.choice import Choice
from cudnnpy._planning.chooser import Request, check_device
from cudnnpy._planning.engines import Target
from cudnnpy._planning.options import PlanningOptions, with_limit
from cudnnpy._planning.problem import Problem
from cudnnpy.cli import devices
from cudnnpy.cli.explain.explanation import Explanation, Gpu, Stored
from cudnnpy.tuning.chooser import TuningChooser
from cudnnpy.tuning.profiles import device_profile
from cudnnpy.tuning.profiles.device_profile import DeviceProfile
from cudnnpy.tuning.profiles.planner_process import planner_for
from cudnnpy.tuning.ranking.model import source_text
from cudnnpy.tuning.store import levels
from cudnnpy.tuning.store.entry import Entry
from cudnnpy.tuning.stored_choice import key_of
from cudnnpy.typing import Preference

_NOTHING_STORED = "nothing is stored for this problem"


def explain(
    problem: str, *, device: int | DeviceProfile = 0, prefer: Preference | None = None, measure: bool = False
) -> dict[str, Any]:
    """Explain the choice for a problem in the notation, as ``cudnnpy explain --json`` does.

    Parameters
    ----------
    problem : str
        The problem with its options, such as ``"forward 8x64x28x28 64x64x3x3 pad=1 float16"``.
    device : int or DeviceProfile
        The ordinal of a GPU of this machine, or the profile of a GPU that need not be here.
    prefer : {"fastest", "limited_workspace", "no_workspace", "autotune"}, optional
        The preference in place of the problem's own.
    measure : bool
        Whether the candidates are run on the GPU, timed and verified.

    Returns
    -------
    dict
        The choice, the reason, the stored choice and the candidates as JSON, of format 2.

    Raises
    ------
    ValueError
        The text is not a problem, cuDNN rejects the profile, or `measure` is True for a profile.
    CudnnError
        cuDNN cannot be used, or there is no such GPU.

    Examples
    --------
    >>> import cudnnpy
    >>> h200 = cudnnpy.DeviceProfile.load("h200")
    >>> cudnnpy.explain("forward 8x64x28x28 64x64x3x3 pad=1 float16", device=h200)["choice"]["name"]
    'engine ...'
    """
    check_device(device)
    if not isinstance(device, DeviceProfile):
        return on_gpu(problem, device, prefer, measure=measure).plain()
    if measure:
        raise ValueError(f"measure must be False for a device profile; got {measure!r}")
    return for_profile(problem, device, prefer).plain()


def for_profile(text: str, profile: DeviceProfile, prefer: Preference | None) -> Explanation:
    """Return the explanation of the choice for the GPU of a profile."""
    problem, options = _parsed(text, prefer)
    device_profile.check_release()
    canonical = problem_notation.text_of(problem, options)
    with planner_for(profile) as planner:
        rows = planner.survey(canonical)
    limit = selection.limit_of(options, profile.memory)
    request = Request(problem, options, Target(profile=profile.text), limit, may_run=False)
    return _explain(request, profile.memory, rows, profile.source)


def on_gpu(text: str, device: int, prefer: Preference | None, *, measure: bool, advice: str = "") -> Explanation:
    """Return the explanation of the choice for a GPU of this machine; with `measure`, candidates are run on it.

    `advice` ends the error for a GPU that is not here.
    """
    from cudnnpy.handle import on_device

    problem, options = _parsed(text, prefer, device)
    devices.check_ordinal(device, advice)
    with on_device(device):
        request = selection.request_for(problem, options)
        entry = _measured(request) if measure else None
        rows = [candidate.choice.stored for candidate in selection.survey(TuningChooser(request))]
        return _explain(request, total_bytes(device), rows, None, entry)


def _parsed(text: str, prefer: Preference | None, device: int = 0) -> tuple[Problem, PlanningOptions]:
    problem, options = problem_notation.parse_plannable(text, device)
    levels.current()  # raises ValueError for a variable that names no store, before a planner warns of it
    return problem, options if prefer is None else options._replace(prefer=prefer)


def _measured(request: Request) -> Entry:
    """Measure a problem and return its entry. Faults are stored. Raises RuntimeError if no candidate could be measured."""
    from cudnnpy.tuning.measuring.gpu_worker import Tuner

    problem, chooser = request.problem, TuningChooser(request)
    options = with_limit(request.options)._replace(prefer="autotune")
    measurement = Tuner(problem.device).measure(problem, options, request.limit, chooser.left_out)
    chooser.noted(measurement)
    if measurement.entry is None:
        raise RuntimeError(f"nothing was measured: {measurement.reason}")
    return measurement.entry


def _explain(
    request: Request,
    memory: int,
    rows: Sequence[Choice],
    path: str | None,
    measured: Entry | None = None,
) -> Explanation:
    """Return the explanation of the choice among planned candidates. `measured` is the result of measuring them now.

    `memory` is the GPU's in bytes, and `path` the source of its profile.
    """
    problem, options, target, limit = request[:4]
    key, chooser = key_of(problem, options, target), TuningChooser(request)
    found = levels.current().get(key)
    stored = None if found is None else Stored(found.layer, found.entry)
    source = measured if measured is not None else None if stored is None else stored.entry
    merged = tuple(rows) if source is None else _with_times(rows, source, has_reasons=measured is not None)
    if measured is not None:
        count = sum(row.milliseconds is not None for row in measured.candidates)
        name: str | None = measured.choice.name
        why = f"the fastest of {count} that were measured now"
    else:
        name, why = _choice(rows, options, stored, limit, chooser)
    chosen = measured or stored
    known = merged if chosen is None else (chosen.choice, *merged)
    choice = next((one for one in known if one.name == name), None)
    gpu = Gpu(key.gpu, key.capability, key.multiprocessors, memory, path)
    text, release = problem_notation.text_of(problem, options), raw.version_text(raw.version())
    return Explanation(text, gpu, release, limit, choice, why, stored, merged)


def _choice(
    rows: Sequence[Choice], options: PlanningOptions, stored: Stored | None, limit: int, chooser: TuningChooser
) -> tuple[str | None, str]:
    """Return the name of the choice without measuring, and the reason for it."""
    not_stored = _why_not_stored(options, stored, limit, chooser)
    if stored is not None and not not_stored:
        return stored.choice.name, _why_stored(stored, options)
    default = next((row for row in rows if not row.rejection_reason), None)
    if default is not None:
        return default.name, _why_default(default, rows, options, not_stored)
    for row in rows:
        if row.rejection_reason == chooser.left_out.get(row.name):
            return row.name, f"no other candidate can be used, in spite of its fault: {row.rejection_reason}"
    return None, "no candidate can be used: see the rejection reasons"


def _why_not_stored(options: PlanningOptions, stored: Stored | None, limit: int, chooser: TuningChooser) -> str:
    """Return why no stored choice is taken, or ""."""
    if stored is None:
        return _NOTHING_STORED
    if fault := chooser.left_out.get(stored.choice.name):
        return f"the stored choice is rejected: {fault}"
    if options.prefer != "autotune":
        if not levels.serves_all_preferences():
            return f"the stored choice is left to autotune by {levels.PREFERENCES_VARIABLE}"
        if not chooser.is_confirmed(stored.entry):
            return "the stored choice was not measured with this driver"
    if not stored.fits(limit):
        size = stored.choice.workspace_size
        return f"the stored choice needs {size:,} bytes of workspace, more than the limit of {limit:,}"
    return ""


def _why_default(row: Choice, rows: Sequence[Choice], options: PlanningOptions, not_stored: str) -> str:
    """Return why a candidate is the default choice, and why no stored choice is taken."""
    before = next(number for number, other in enumerate(rows) if other is row)
    passed = f", after {before} that {'was' if before == 1 else 'were'} rejected" if before else ""
    source = source_text(row.source)
    if row.source == "ranking":
        why = f"the {source} predicts the shortest time for it{passed}"
    elif row.source == "heuristics":
        why = f"the first of cuDNN's {source} that can be used{passed}"
    elif row.source == "legacy":
        why = f"no engine can be used{passed}: an algorithm of the v7 functions"
    else:
        why = f"the first engine that can be used{passed}"
    if options.prefer == "autotune":
        return f"{why}; {not_stored}, so autotune will measure it and the others on the GPU"
    return why if not_stored == _NOTHING_STORED else f"{why}; {not_stored}"


def _why_stored(stored: Stored, options: PlanningOptions) -> str:
    entry = stored.entry
    date, release = entry.made_at[:10], entry.made_with.get("cudnnpy", "?")
    if entry.choice.milliseconds is None:
        return f"planned without measuring on {date} with cudnnpy {release}; from the store's layer: {stored.layer}"
    extent = "" if entry.complete else ", before all candidates were measured"
    why = f"tuned on {date} with cudnnpy {release}{extent}; from the store's layer: {stored.layer}"
    if options.prefer == "autotune" and not entry.complete and entry.tune_seconds < options.tune_seconds:
        why += f"; more than its {entry.tune_seconds:g} s are allowed now, so it is measured again with the others"
    return why


def _with_times(rows: Sequence[Choice], entry: Entry, *, has_reasons: bool) -> tuple[Choice, ...]:
    """Return the rows with the times of an entry, its rejection reasons if requested, and the candidates that only it has.

    A measured candidate can be used, although the survey that made the rows did not compile it.
    """
    measured = {candidate.name: candidate for candidate in entry.candidates}
    merged = []
    for row in rows:
        found = measured.pop(row.name, row)
        if row.rejection_reason == selection.NOT_COMPILED and found.milliseconds is not None:
            row = row._replace(rejection_reason="", workspace_size=found.workspace_size)
        reason = row.rejection_reason or (found.rejection_reason if has_reasons else "")
        times = {name: getattr(found, name) for name in ("milliseconds", "spread", "error")}
        merged.append(row._replace(rejection_reason=reason, **times))
    return (*merged, *measured.values())
