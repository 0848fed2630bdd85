"""Explain the choice for a problem: on a GPU of this machine, or for a device profile in a child process."""

from __future__ import annotations

from cudnnpy import raw
from cudnnpy._planning import device_profile, problem_notation, selection
from cudnnpy._planning.candidate_filter import Measurer
from cudnnpy._planning.engines import Target
from cudnnpy._planning.options import PlanningOptions, checked, with_limit
from cudnnpy._planning.problem import Problem
from cudnnpy._planning.stored_choice import choice_text, key_of
from cudnnpy._planning.stored_tuner import StoredTuner
from cudnnpy._store import layers
from cudnnpy._store.entry import Entry
from cudnnpy.cli import devices
from cudnnpy.cli.explanation import Explanation, Gpu, Row, explained, name_or_none, row_of
from cudnnpy.cli.planner import Planner
from cudnnpy.typing import Preference


def for_profile(text: str, path: str, prefer: Preference | None, *, stub: bool) -> Explanation:
    """Return the explanation of the choice for the GPU of a profile's file."""
    problem, options = _parsed(text, prefer)
    device = device_profile.read(path)
    device_profile.check_release()
    canonical = problem_notation.text_of(problem, options)
    with Planner(device, stub=stub) as planner:
        rows = [Row.of(plain) for plain in planner.survey(canonical)]
    target = Target(profile=device.text)
    return _explained(problem, options, target, device.memory, rows, path)


def _measurer(device: int) -> Measurer:
    from cudnnpy._measuring.tuner import Tuner

    return Tuner(device)


def on_gpu(text: str, device: int, prefer: Preference | None, *, measure: bool) -> Explanation:
    """Return the explanation of the choice for a GPU of this machine; with `measure`, candidates are run on it."""
    from cudnnpy._memory import workspace
    from cudnnpy.handle import Handle, on_device

    problem, options = _parsed(text, prefer, device)
    devices.check_ordinal(device, "; or name the file of a device profile, --device FILE, to plan without a GPU")
    with on_device(device):
        target, free = Target(Handle.default(device)), workspace.free_bytes(device)
        entry = _measured(problem, options, target, free, _measurer(device)) if measure else None
        rows = [row_of(one) for one in selection.survey(problem, options, target, free)]
        return _explained(problem, options, target, free, rows, None, entry)


def _parsed(text: str, prefer: Preference | None, device: int = 0) -> tuple[Problem, PlanningOptions]:
    problem, options = problem_notation.parse_plannable(text, device)
    return problem, options if prefer is None else checked(options._replace(prefer=prefer))


def _measured(problem: Problem, options: PlanningOptions, target: Target, free: int, measurer: Measurer) -> Entry:
    """Return the result of measuring a problem. Faults that are found are stored. Raises RuntimeError if there is none."""
    asked = with_limit(options)._replace(prefer="autotune")
    left_out = StoredTuner(problem, options, target).left_out
    measurement = measurer.measure(problem, asked, selection.limit_of(options, free), left_out)
    if measurement.faults:
        key, text = key_of(problem, options, target), choice_text(problem, PlanningOptions())
        layers.current().add_faults(key, text, measurement.faults)
    if measurement.entry is None:
        raise RuntimeError(f"nothing was measured: {measurement.reason}")
    return measurement.entry


def _explained(
    problem: Problem,
    options: PlanningOptions,
    target: Target,
    free: int,
    rows: list[Row],
    path: str | None,
    measured: Entry | None = None,
) -> Explanation:
    key = key_of(problem, options, target)
    found = layers.current().get(key)
    tuner = StoredTuner(problem, options, target)
    memory = free if path is not None else devices.memory(problem.device)
    gpu = Gpu(key.gpu, key.capability, key.multiprocessors, memory, path)
    return explained(
        problem_notation.text_of(problem, options),
        options,
        gpu,
        raw.version_text(raw.version()),
        selection.limit_of(options, free),
        rows,
        found,
        "" if found is None else _why_not_taken(options, tuner, found.entry),
        tuner.left_out,
        measured,
    )


def _why_not_taken(options: PlanningOptions, tuner: StoredTuner, entry: Entry) -> str:
    """Return why a stored choice is not taken, whatever its workspace; "" if it is."""
    if fault := tuner.left_out.get(name_or_none(entry.plan) or ""):
        return f"what is stored is rejected: {fault}"
    if options.prefer == "autotune":
        return ""
    if not layers.serves_all_preferences():
        return f"what is stored is left to prefer='autotune' by {layers.PREFERENCES_VARIABLE}"
    return "" if tuner.is_confirmed(entry) else "what is stored was not measured with this driver"
