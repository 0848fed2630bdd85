"""Format candidates as a text table, for NoAlgorithmError and candidates_table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cudnnpy._checks.byte_counts import bytes_text
from cudnnpy._checks.option_values import error_repr

if TYPE_CHECKING:
    from cudnnpy._planning.candidates import Candidate
    from cudnnpy.descriptors import AlgorithmCandidate


def table(candidates: Iterable[Candidate | AlgorithmCandidate]) -> str:
    """Return the candidates as a table: one line for each, with its workspace and its rejection reason.

    Parameters
    ----------
    candidates : iterable of Candidate
        The result of `Convolution.candidates`, or `Plan.candidates`, `AlgorithmChoice.candidates`,
        `NoAlgorithmError.candidates`.

    Raises
    ------
    TypeError
        The argument is something else.

    Examples
    --------
    >>> # on a GPU
    >>> import cudnnpy
    >>> x, w = cudnnpy.TensorSpec((8, 64, 56, 56)), cudnnpy.TensorSpec((64, 64, 3, 3))
    >>> print(cudnnpy.candidates_table(cudnnpy.Convolution(padding=1).candidates("forward", x, w)))  # doctest: +ELLIPSIS
      candidate ... left out because
    ...
    """
    given, candidates = candidates, list(candidates) if isinstance(candidates, Iterable) else [candidates]
    if not all(hasattr(candidate, "rejection_reason") for candidate in candidates):
        expected = "the candidates of a plan, conv.candidates(...) or an error"
        raise TypeError(f"candidates must be {expected}; got {error_repr(given)}")
    rows = [("candidate", "source", "workspace", "ms", "deterministic", "notes", "left out because")]
    for c in candidates:
        size = "?" if c.workspace_size is None else bytes_text(c.workspace_size)
        time = "" if c.milliseconds is None else f"{c.milliseconds:.4f}"
        notes = ", ".join(note for note in c.notes if note != "nondeterministic")
        rows.append(
            (c.name, c.source, size, time, "yes" if c.deterministic else "no", notes, c.rejection_reason or "-")
        )
    if len(rows) == 1:
        return "  (there is no candidate)"
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    return "\n".join(
        "  " + "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    )
