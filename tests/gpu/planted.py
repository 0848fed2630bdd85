"""A search among real candidates, and one among these and a candidate that a test plants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from cudnnpy import Candidate, Convolution, TensorSpec
from cudnnpy._planning.choice import Choice
from cudnnpy._planning.engines import Target
from cudnnpy.handle import Handle, on_device
from cudnnpy.tuning.measuring.search import Search
from cudnnpy.tuning.measuring.timing import Watch
from cudnnpy.tuning.ranking.candidate_order import tuning_order

APPROXIMATE = {"winograd", "fft", "reduced_precision_reduction"}
X, W, Y = (8, 32, 14, 14), (32, 32, 3, 3), (8, 32, 14, 14)  # with padding 1


def arguments(operation: str) -> tuple[Any, ...]:
    from whole_numbers import whole_numbers

    x, w, dy = whole_numbers(*X, seed=1), whole_numbers(*W, seed=2), whole_numbers(*Y, seed=3)
    return {"forward": (x, w), "backward_data": (dy, w, X), "backward_filter": (dy, x, W)}[operation]


def specs(operation: str) -> tuple[Any, ...]:
    x, w, dy = (TensorSpec(shape) for shape in (X, W, Y))
    return {"forward": (x, w), "backward_data": (dy, w, X), "backward_filter": (dy, x, W)}[operation]


def searched(
    operation: str, *given: Any, out: TensorSpec | None = None, beta: float = 0.0, **options: Any
) -> tuple[Candidate, list[Candidate]]:
    """The candidate that measurement chooses for a convolution in this process, and all that were considered."""
    conv = Convolution(**{"padding": 1, **options})
    shape = given[2] if len(given) > 2 else None
    problem = conv._problem(operation, given[0], given[1], shape, None, None, out, 1.0, beta, 0)  # type: ignore[arg-type]
    return search(problem, conv._planning)


def search(problem: Any, options: Any) -> tuple[Candidate, list[Candidate]]:
    """The candidate that measurement chooses for a problem in this process, and all that were considered."""
    options, ordered, measured = options._replace(prefer="autotune"), list[Candidate](), list[Candidate]()

    def noted() -> Iterator[Candidate]:
        for candidate in tuning_order(problem, options, target):
            ordered.append(candidate)
            yield candidate

    with on_device(0):
        handle = Handle.default(0)
        target = Target(handle)
        watch = Watch(measured=measured.append)
        chosen = Search(handle, watch=watch)(problem, options, noted(), options.workspace_limit or 1 << 50)
    assert chosen is not None
    return chosen, [*ordered, *(one for one in measured if one.source == "knobs")]


class Planted:
    """An executable around a real one, that spoils its result."""

    def __init__(
        self,
        real: Any,
        spoil: Callable[[Handle, tuple[int, ...], int], int] | None,
        size: int = 0,
        before: Callable[[tuple[int, ...]], object] | None = None,
    ) -> None:
        self.real, self.spoil, self.before = real, spoil, before
        self.workspace_size = max(size, real.workspace_size)

    def bind(self, handle: Handle, pointers: tuple[int, ...], workspace: int) -> Callable[[], int]:
        launch = self.real.bind(handle, pointers, workspace)

        def spoiled() -> int:
            if self.before is not None:
                self.before(pointers)
            return launch() or (self.spoil(handle, pointers, workspace) if self.spoil else 0)

        return spoiled


def tune(
    planted: Callable[[Any], Planted],
    limit: int | None = None,
    default: bool = False,
    out: TensorSpec | None = None,
) -> tuple[Candidate, Candidate, list[Candidate]]:
    """Tunes a few real candidates and a planted one: what was chosen, the planted one, and the real ones."""
    x, w = specs("forward")
    conv = Convolution(padding=1, tf32=False)
    usable = [c for c in conv.candidates("forward", x, w, out=out) if not c.rejection_reason and c.source != "legacy"]
    exact = [c for c in usable if not APPROXIMATE & set(c.notes)]
    plain = next((c for c in exact if not c.workspace_size), exact[0])
    real = [c for c in usable if c is not plain][:3]
    bad = Candidate(Choice("planted", "heuristics"), make=lambda: planted(plain.executable))
    problem = conv.plan("forward", x, w, out=out).problem
    given = [bad, plain, *real] if default else [plain, bad, *real]
    options = conv._planning._replace(workspace_limit=limit)
    with on_device(0):
        handle = Handle.default(0)
        tuner = Search(handle)
        chosen = tuner(problem, options, given, 1 << 50 if limit is None else limit)
    assert chosen is not None
    return chosen, bad, [plain, *real]
