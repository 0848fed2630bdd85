"""Plan in child processes: measuring for prefer="autotune", and planning for a device profile.

The package _measuring is imported when it is first needed: a copy of the package may lack it.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from typing import Any

from cudnnpy._options.checks import error_repr
from cudnnpy._planning import problem_notation, selection
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.device_profile import DeviceProfile
from cudnnpy._planning.measurement import Measurer
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.plan import Plan
from cudnnpy._planning.problem import CallerOperands, Problem
from cudnnpy.handle import on_device


def measurer_for(options: PlanningOptions, device: int, stream: int = 0) -> Measurer | None:
    """Return the measurer for calls on a device and a stream; None for the preferences that measure nothing.

    Raises ImportError in a copy of the package without measuring.
    """
    if options.prefer != "autotune":
        return None
    advice = ", or use prefer='fastest', 'limited_workspace' or 'no_workspace', which measure nothing"
    return _imported("tuner", "prefer='autotune'", advice).Tuner(device, stream)


def plan(problem: str, *, device: int | DeviceProfile = 0) -> Plan:
    """Choose the plan of a problem in the notation, such as ``"forward 8x64x28x28 64x64x3x3 pad=1 float16"``.

    Parameters
    ----------
    problem : str
        The problem with its options, as `cudnnpy.record` and ``cudnnpy explain`` write it.
    device : int or DeviceProfile
        The ordinal of a GPU of this machine, or the profile of a GPU that need not be here. The `entry` of a plan for a profile
        is what ``cudnnpy plan`` writes.

    Returns
    -------
    Plan
        The plan.

    Raises
    ------
    ValueError
        The text is not a problem, or cuDNN rejects the profile.
    NoAlgorithmError
        No algorithm can run; the message has the table of candidates.

    Examples
    --------
    >>> import cudnnpy
    >>> h200 = cudnnpy.DeviceProfile.load("h200")
    >>> cudnnpy.plan("forward 8x64x28x28 64x64x3x3 pad=1 float16 prefer=no_workspace", device=h200).workspace_size
    0
    """
    check_device(device)
    if isinstance(device, DeviceProfile):
        return plan_for_profile(*problem_notation.parse_plannable(problem), device)
    found, options = problem_notation.parse_plannable(problem, device)
    with on_device(device):
        return selection.plan_for(found, options, measurer_for(options, device))


def check_device(device: object, arrays: Collection[str] = ()) -> None:
    """Raise TypeError for the name of a profile in place of a DeviceProfile, and for a profile beside arrays of these names."""
    if isinstance(device, str):
        raise TypeError(
            "device must be an ordinal, a cuda.core Device or None, or a DeviceProfile; "
            f"got {error_repr(device)}. cudnnpy.DeviceProfile.load loads a profile by its name, such as 'h200'"
        )
    if isinstance(device, DeviceProfile) and arrays:
        expected, given = ("TensorSpecs", "others") if len(arrays) > 1 else ("a TensorSpec", "another object")
        raise TypeError(
            f"{' and '.join(arrays)} must be {expected} to plan for a device profile; got {given}. Type "
            "cudnnpy.TensorSpec(x.shape, dtype), with the strides if they are not packed"
        )


def plan_for_profile(
    problem: Problem, options: PlanningOptions, profile: DeviceProfile, operands: CallerOperands | None = None
) -> Plan:
    """Return the plan of a problem for the GPU of a profile. Raises NoAlgorithmError, and ValueError for a forced algorithm."""
    if options.algorithm is not None:
        raise ValueError(f"algorithm must be None for a device profile; got {options.algorithm!r}")
    return _planner().plan_for_profile(problem, options, profile, operands)


def candidates_for_profile(problem: Problem, options: PlanningOptions, profile: DeviceProfile) -> list[Candidate]:
    """Return every candidate of a problem for the GPU of a profile, with the rejection reasons."""
    return _planner().candidates_for_profile(problem, options, profile)


def _planner() -> Any:
    """Return the module that plans in the child process."""
    return _imported("planner_process", "planning for a device profile")


def _imported(name: str, purpose: str, advice: str = "") -> Any:
    """Return a module of the package _measuring. Raises ImportError in a copy of the package without it."""
    try:
        return import_module(f"cudnnpy._measuring.{name}")
    except ModuleNotFoundError as error:
        if error.name not in ("cudnnpy._measuring", "cudnnpy._store"):
            raise
        raise ImportError(
            f"{purpose} needs the package {error.name}, which this copy lacks. Install the whole package{advice}"
        ) from None
