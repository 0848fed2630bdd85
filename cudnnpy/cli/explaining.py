"""Explain the choice for a problem: on a GPU of this machine, or for a device profile in a child process."""

from __future__ import annotations

import cudnnpy.convolution.plans  # noqa: F401 - the kinds of problems register what reads them
from cudnnpy import raw
from cudnnpy._planning import notation, profile, selection
from cudnnpy._planning.engines import Target
from cudnnpy._planning.options import PlanningOptions, checked, with_limit
from cudnnpy._planning.problem import Problem
from cudnnpy._planning.remembered import key_of
from cudnnpy._store import layers
from cudnnpy._store.layers import Found
from cudnnpy.cli import devices
from cudnnpy.cli.explanation import Explanation, Gpu, Row, explained, row_of
from cudnnpy.cli.planner import Planner
from cudnnpy.typing import Preference


def for_profile(text: str, path: str, prefer: Preference | None, *, stub: bool) -> Explanation:
    """Return the explanation of the choice for the GPU of a profile's file."""
    problem, options = _parsed(text, prefer)
    device = profile.read(path)
    profile.check_release()
    canonical = notation.text_of(problem, options)
    with Planner(device, stub=stub) as planner:
        rows = [Row.of(plain) for plain in planner.survey(canonical)]
    target = Target(profile=device.text)
    return _explained(problem, options, target, device.memory, rows, path)


def on_gpu(text: str, device: int, prefer: Preference | None, *, measure: bool) -> Explanation:
    """Return the explanation of the choice for a GPU of this machine; with `measure`, candidates are run on it."""
    from cudnnpy._memory import workspace
    from cudnnpy.handle import Handle, on_device

    problem, options = _parsed(text, prefer, device)
    devices.check_ordinal(device, "; or name the file of a device profile, --device FILE, to plan without a GPU")
    with on_device(device):
        target, free = Target(Handle.default(device)), workspace.free_bytes(device)
        if measure:
            choice, rows = _measured(problem, options, target, free)
        else:
            choice, rows = None, [row_of(one) for one in selection.survey(problem, options, target, free)]
        return _explained(problem, options, target, free, rows, None, choice)


def _parsed(text: str, prefer: Preference | None, device: int = 0) -> tuple[Problem, PlanningOptions]:
    problem, options = notation.parse_to_plan(text, device)
    return problem, options if prefer is None else checked(options._replace(prefer=prefer))


def _measured(problem: Problem, options: PlanningOptions, target: Target, free: int) -> tuple[str, list[Row]]:
    """Return the name of the choice of a measurement on random inputs, and all candidates."""
    from cudnnpy._measuring.search import Search

    assert target.handle is not None
    tuner = Search(target.handle)
    wanted = with_limit(options)._replace(prefer="autotune")
    found, tried = selection.choose(problem, wanted, target, free, tuner)
    return found.name, [row_of(candidate) for candidate in tried]


def _explained(
    problem: Problem,
    options: PlanningOptions,
    target: Target,
    free: int,
    rows: list[Row],
    path: str | None,
    choice: str | None = None,
) -> Explanation:
    key = key_of(problem, options, target)
    found: Found | None = layers.current().get(key)
    memory = free if path is not None else devices.memory(problem.device)
    gpu = Gpu(key.gpu, key.capability, key.multiprocessors, memory, path)
    return explained(
        notation.text_of(problem, options),
        options,
        gpu,
        raw.version_text(raw.version()),
        selection.limit_of(options, free),
        rows,
        found,
        choice,
    )
