"""ProfilePlan: a plan for a device profile, made from the entry that the planner's child process returned. It cannot run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cudnnpy._launch.steps import BoundLaunch
from cudnnpy._planning.candidates import detached_candidate
from cudnnpy._planning.device_profile import DeviceProfile
from cudnnpy._planning.plan import Plan
from cudnnpy._planning.plan_serialization import deserialize, engine_of, lowering_of, parsed_problem
from cudnnpy._planning.problem import CallerOperands, Problem
from cudnnpy.errors import CudnnError
from cudnnpy.handle import Handle

if TYPE_CHECKING:  # a copy of the package without the store plans for no profile
    from cudnnpy._store.entry import Entry


class ProfilePlan(Plan):
    """A plan for a device profile, whose methods are documented in Plan."""

    def __init__(self, entry: Entry, profile: DeviceProfile, operands: CallerOperands | None = None) -> None:
        content = deserialize(entry.plan)
        problem, _ = parsed_problem(content, 0)
        considered = [detached_candidate(*one) for one in entry.candidates]
        chosen = next(one for one in considered if one.name == content.name and not one.rejection_reason)
        chosen.engine = engine_of(content, lowering_of(content, problem))
        chosen.executable = _OnAnotherGpu(entry.workspace_size, profile)
        self.profile, self.entry = profile, entry
        super().__init__(problem, chosen, operands)
        self.candidates = considered

    def __repr__(self) -> str:
        assert self.profile is not None
        return f"{super().__repr__()[:-1]}; for {self.profile.description}>"

    def execute(self, /, *addresses: int, **named: int) -> None:
        """Raise CudnnError: the plan is for a GPU that a profile describes."""
        assert self.profile is not None
        raise _cannot_run(self.profile)

    def __reduce__(self) -> tuple[Callable[..., Plan], tuple[Any, ...]]:
        return ProfilePlan, (self.entry, self.profile, self._caller)

    def check_serves(self, problem: Problem) -> None:
        """Raise ValueError: the plan serves no problem on a GPU of this process."""
        assert self.profile is not None
        raise ValueError(
            f"algorithm must be a plan for a GPU of this process; got one for {self.profile.description}, a device profile. "
            "Load it by Plan.from_json(plan.to_json())"
        )

    def to_json(self) -> str:
        """Return the plan as text, which Plan.from_json reads on such a GPU."""
        assert self.entry is not None
        return self.entry.plan


@dataclass
class _OnAnotherGpu:
    """The executable of a plan for another GPU, which has a workspace size and cannot be launched."""

    workspace_size: int
    profile: DeviceProfile

    def bind(self, handle: Handle, addresses: tuple[int, ...], workspace: int) -> BoundLaunch:
        """Raise CudnnError."""
        raise _cannot_run(self.profile)


def _cannot_run(profile: DeviceProfile) -> CudnnError:
    return CudnnError(
        f"plan must be for a GPU of this process to run; got one for {profile.description}, the device profile "
        f"{profile.source}. On such a GPU, load it by Plan.from_json(plan.to_json())"
    )
