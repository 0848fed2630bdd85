"""Watch, the progress callbacks of a search; ContextLost, the error that ends the measuring process."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from cudnnpy._planning.candidates import Candidate


def _begin(candidate: Candidate | None, seconds: float) -> None: ...


def _note(candidate: Candidate) -> None: ...


class Watch(NamedTuple):
    """Callbacks of a search. The default ones do nothing."""

    #: Called before each step that may crash or hang, with the candidate (None for a step of no single candidate) and the most
    #: seconds until the next call of any callback.
    begin: Callable[[Candidate | None, float], object] = _begin
    measured: Callable[[Candidate], object] = _note  #: called after each candidate, also a rejected one
    best: Callable[[Candidate], object] = _note  #: called with each new fastest candidate whose result was verified


SILENT = Watch()


class ContextLost(Exception):
    """The CUDA context was lost while a candidate ran: this process can use the GPU no more."""

    def __init__(self, name: str, error: str) -> None:
        super().__init__(f"{name} ended the CUDA context: {error}")
        self.name, self.error = name, error  #: the candidate and the driver's name of the error
