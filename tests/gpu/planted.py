"""A candidate that a test plants among real ones, and autotune on these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from whole_numbers import whole_numbers

from cudnnpy import Candidate, Convolution
from cudnnpy._measuring.search import Search
from cudnnpy._planning.engines import Target
from cudnnpy.handle import Handle

APPROXIMATE = {"winograd", "fft", "reduced_precision_reduction"}
X, W, Y = (8, 32, 14, 14), (32, 32, 3, 3), (8, 32, 14, 14)  # with padding 1


def arguments(operation: str) -> tuple[Any, ...]:
    x, w, dy = whole_numbers(*X, seed=1), whole_numbers(*W, seed=2), whole_numbers(*Y, seed=3)
    return {"forward": (x, w), "backward_data": (dy, w, X), "backward_filter": (dy, x, W)}[operation]


class Planted:
    """An executable around a real one, that spoils its result."""

    def __init__(self, real: Any, spoil: Callable[[Handle, int], int] | None, run: bool = True, size: int = 0) -> None:
        self.real, self.spoil, self.run = real, spoil, run
        self.workspace_size = size

    def bind(self, handle: Handle, pointers: tuple[int, ...], workspace: int) -> Callable[[], int]:
        launch = self.real.bind(handle, pointers, workspace)

        def spoiled() -> int:
            status = launch() if self.run else 0
            return status or (self.spoil(handle, pointers[-1]) if self.spoil else 0)

        return spoiled


def tune(
    planted: Callable[[Any], Planted], limit: int | None = None, guess: bool = False
) -> tuple[Candidate, Candidate, list[Candidate]]:
    """Tunes a few real candidates and a planted one: what was chosen, the planted one, and the real ones."""
    x, w = arguments("forward")
    conv = Convolution(padding=1, tf32=False)
    usable = [c for c in conv.candidates("forward", x, w) if not c.refused and c.source != "legacy"]
    plain = next(c for c in usable if not c.workspace_size and not APPROXIMATE & set(c.notes))
    real = [c for c in usable if c is not plain][:3]
    bad = Candidate("heuristics", "planted", (), True, lambda: planted(plain.executable))
    problem = conv.plan("forward", x, w).problem
    tuner = Search(Handle.default(0), (x.data_ptr(), w.data_ptr()), None, torch.cuda.current_stream().cuda_stream)
    given = [bad, plain, *real] if guess else [plain, bad, *real]
    options = conv.options.planning._replace(workspace_limit=limit)
    chosen = tuner(problem, options, Target(Handle.default(0)), given, 1 << 50 if limit is None else limit)
    assert chosen is not None
    return chosen, bad, [plain, *real]
