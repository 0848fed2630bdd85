"""Chooser: the one seam between the layer, which plans, and tuning, which the layer does without if it is absent.

The class Chooser orders candidates as cuDNN's heuristics do. The chooser of the package `tuning` is derived from it: it ranks
candidates by predicted times, and knows stored and measured choices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

from cudnnpy._checks.option_values import error_repr
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.choice import Engine
from cudnnpy._planning.engines import Target
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem import Problem
from cudnnpy._process.module_state import process_cache

_TUNING = "cudnnpy.tuning"


class Request(NamedTuple):
    """A plan that is to be chosen."""

    problem: Problem
    options: PlanningOptions
    target: Target
    limit: int  #: the largest workspace in bytes
    stream: int = 0  #: the address of the caller's stream
    #: whether candidates may be run to measure them or to confirm a choice; False for reports, and after the device ran out of
    #: memory
    may_run: bool = True
    preferred_engine: Engine | None = None  #: tried first, such as that of an earlier shape (policy "once")


class Rejection(NamedTuple):
    """The rejection of a candidate by a chooser. One that is not final is ignored if no other candidate can be used."""

    reason: str
    is_final: bool


class Chosen(NamedTuple):
    """A planned candidate."""

    candidate: Candidate
    considered: Callable[[], list[Candidate]]  #: returns the candidates that were considered for it


class Chooser:
    """Orders the candidates of one request as cuDNN's heuristics do, and knows nothing else about them."""

    def __init__(self, request: Request) -> None:
        self.request = request

    def order(self) -> Iterator[Candidate]:
        """Yield every candidate once, not planned, best first. The caller plans each before it takes the next."""
        problem, target = self.request.problem, self.request.target
        functions = problem.functions(self.request.options, target)
        return distinct(chain(self.proposed(), problem.engines(target), functions))

    def proposed(self) -> Iterable[Candidate]:
        """Return the first candidates of `order`: the proposals of the heuristics."""
        return self.request.problem.proposed_candidates(self.request.target)

    def known(self) -> Chosen | None:
        """Return a choice within the limit that was stored, or that is measured now; None if there is none."""
        return None

    def rejections(self) -> Mapping[str, Rejection]:
        """Return the candidates that must not be chosen, by name. `known` may add some."""
        return {}

    def chosen(self) -> bool:
        """Take note that the request has been answered. Return whether the choice is provisional, and serves no other shape."""
        return False

    @staticmethod
    def source_text(source: str) -> str:
        """Return the source of a candidate for people."""
        return source


def distinct(candidates: Iterable[Candidate]) -> Iterator[Candidate]:
    """Yield the first candidate of each name."""
    seen: set[str] = set()
    for candidate in candidates:
        if candidate.name not in seen:
            seen.add(candidate.name)
            yield candidate


@process_cache
def tuning() -> Any:
    """Return the module `tuning.chooser`; None in a copy of the package without tuning."""
    if find_spec(_TUNING) is None:  # a failing import would disturb threads that import the same module
        return None
    return import_module(f"{_TUNING}.chooser")


def chooser_class() -> type[Chooser]:
    """Return the class of tuning's choosers; Chooser in a copy of the package without tuning."""
    return Chooser if tuning() is None else tuning().TuningChooser


def chooser_of(request: Request) -> Chooser:
    """Return a new chooser for a request. Raises ImportError for prefer="autotune" in a copy without tuning."""
    made = chooser_class()
    if made is Chooser and request.options.prefer == "autotune" and request.may_run:
        raise ImportError(
            f"prefer='autotune' needs the package {_TUNING}, which this copy lacks. Install the whole package, or use "
            "prefer='fastest', 'limited_workspace' or 'no_workspace', which measure nothing"
        )
    return made(request)


# GPUs of other machines


class OtherGpu:
    """A GPU that need not be in this machine, for which tuning plans in a child process: the base of DeviceProfile."""


def check_device(device: object, arrays: Mapping[str, object] = MappingProxyType({})) -> None:
    """Raise TypeError for the name of a profile in place of a DeviceProfile, and for a profile beside arrays of these names."""
    if isinstance(device, str):
        raise TypeError(
            "device must be an ordinal, a cuda.core Device or None, or a DeviceProfile; "
            f"got {error_repr(device)}. cudnnpy.DeviceProfile.load loads a profile by its name, such as 'h200'"
        )
    if isinstance(device, OtherGpu) and arrays:
        expected = "TensorSpecs" if len(arrays) > 1 else "a TensorSpec"
        given = ", ".join(map(error_repr, arrays.values()))
        raise TypeError(
            f"{' and '.join(arrays)} must be {expected} to plan for a device profile; got {given}. Type "
            "cudnnpy.TensorSpec(x.shape, dtype), with the strides if they are not packed"
        )
