"""The report of `cudnnpy explain` as text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from cudnnpy._checks.byte_counts import bytes_text
from cudnnpy._planning import problem_notation
from cudnnpy._planning.choice import Choice
from cudnnpy._planning.selection import HOW_TO_COMPILE
from cudnnpy.cli.explain.explanation import Explanation, Stored
from cudnnpy.cli.text_table import Line, labelled, table, wrapped
from cudnnpy.graph.problem import GraphProblem

_NEXT = 5  # candidates in a short report
_QUANTITY = re.compile(r"\d[\d.,]*(?: bytes| [KMGT]iB)?")


def lines_of(explanation: Explanation, columns: int, *, lists_all: bool = False) -> Iterator[Line]:
    """Yield the report of an explanation, none of whose lines is longer than `columns`.

    It has the choice, the next candidates that can be used, and the number of candidates that each reason rejected; with
    `lists_all`, every candidate.
    """
    graph = _graph_of(explanation.problem)
    for line in labelled(list(_head(explanation, graph)), columns):
        yield line._replace(style="bold" if line.text.startswith("choice ") else "")
    name = None if explanation.choice is None else explanation.choice.name
    if graph is not None:
        yield Line("")
        yield Line("tensors in memory", "bold")
        yield from _tensors(graph, columns)
    usable = [row for row in explanation.candidates if not row.rejection_reason]
    rejected = [row for row in explanation.candidates if row.rejection_reason]
    yield Line("")
    if lists_all:
        yield Line(f"candidates that can be used, in ranking order: {len(usable)}", "bold")
        yield from _table(usable, name, columns)
        yield Line("")
        yield Line("rejected" if rejected else "rejected: none", "bold")
        yield from _reasons(rejected, columns)
    else:
        others = [row for row in usable if row.name != name]
        shown = f"the next {_NEXT} of {len(others)}" if len(others) > _NEXT else f"{len(others) or 'none'}"
        yield Line(f"other candidates that can be used, in ranking order: {shown}", "bold")
        if others:
            yield from _table(others[:_NEXT], None, columns)
        yield Line("")
        yield from _reason_counts(rejected, columns)


def _graph_of(text: str) -> GraphProblem | None:
    """Return the problem of a text if it is a graph."""
    if not text.startswith("graph "):
        return None
    problem, _options = problem_notation.parse_plannable(text)
    return problem if isinstance(problem, GraphProblem) else None


def _tensors(graph: GraphProblem, columns: int) -> Iterator[Line]:
    """Yield the table of a graph's tensors in memory; the outputs come last."""
    rows = [("tensor", "is", "data type", "shape", "strides")]
    inputs = len(graph.specs) - graph.results
    for at, (name, spec) in enumerate(zip(graph.operands, graph.specs, strict=True)):
        numbers = (" x ".join(map(str, spec.shape)), ", ".join(map(str, spec.strides or ())))
        rows.append((name, "input" if at < inputs else "output", spec.dtype, *numbers))
    yield from table(rows, columns)


def _head(explanation: Explanation, graph: GraphProblem | None) -> Iterator[tuple[str, str]]:
    """Yield the labels and texts of the head of the report."""
    gpu, choice, stored = explanation.device, explanation.choice, explanation.stored
    where = f"; device profile {gpu.profile}" if gpu.profile is not None else ""
    yield "problem", explanation.problem if graph is None else f"{graph.title}{explanation.problem.rpartition('}')[2]}"
    size = f"{gpu.multiprocessors} multiprocessors, {bytes_text(gpu.memory)}"
    yield "GPU", f"{gpu.name}, compute capability {gpu.capability}, {size}{where}"
    yield "cuDNN", explanation.cudnn
    yield "limit", f"{bytes_text(explanation.limit)} of workspace"
    yield "choice", "none" if choice is None else choice.name
    yield "because", explanation.why
    if choice is not None:
        known = choice.workspace_size
        yield "workspace", "unknown" if known is None else bytes_text(known)
        yield "notes", _notes(choice) or "none"
        yield "time", _time(choice, stored)
        yield "agreement", _agreement(choice.error)
    yield "store", "nothing for this problem" if stored is None else _store(stored, explanation.limit)


def _notes(row: Choice) -> str:
    notes = [note for note in row.notes if note != "nondeterministic"]
    return ", ".join([*notes, *([] if row.deterministic else ["not deterministic"])])


def _time(choice: Choice, stored: Stored | None) -> str:
    if choice.milliseconds is not None:
        is_stored = stored is not None and stored.choice.name == choice.name
        spread = "" if choice.spread is None or not is_stored else f", spread {choice.spread:.1%}"
        when = f" on {stored.entry.made_at[:10]}" if stored is not None and is_stored else ""
        return f"{choice.milliseconds:.4g} ms, measured{when}{spread}"
    return "not measured" if choice.expected is None else f"not measured; {_estimate(choice.expected)}"


def _estimate(expected: float) -> str:
    return f"predicted by the ranking: {expected:.2f} of the fastest one's"


def _agreement(error: float | None) -> str:
    if error is None:
        return "not compared"
    return f"differs from another candidate by {error:.3g} of the tolerance at most"


def _store(stored: Stored, limit: int) -> str:
    entry, choice = stored.entry, stored.choice
    taken = "; --prefer autotune takes it within this limit" if stored.fits(limit) else ""
    time = "not measured" if choice.milliseconds is None else f"{choice.milliseconds:.4g} ms"
    made = f"made on {entry.made_at[:10]} with cudnnpy {entry.made_with.get('cudnnpy', '?')}"
    return f"{stored.layer}: {choice.name}, {time}, {made}{taken}"


def _table(rows: Sequence[Choice], choice: str | None, columns: int) -> Iterator[Line]:
    """Yield a table of candidates without its empty columns. The names, sources and notes are wrapped where it is too wide.

    An expected time is relative to the fastest candidate's.
    """
    if not rows:
        yield Line("  (none)")
        return
    cells: list[tuple[str, ...]] = [("candidate", "source", "workspace", "expected", "time", "agreement", "notes")]
    for row in rows:
        expected = "" if row.expected is None else f"x{row.expected:.2f}"
        time = "" if row.milliseconds is None else f"{row.milliseconds:.4g} ms"
        size = "?" if row.workspace_size is None else bytes_text(row.workspace_size)
        error = "" if row.error is None else f"{row.error:.3g}"
        cells.append((row.name, row.source, size, expected, time, error, _notes(row)))
    used = [number for number in range(len(cells[0])) if any(cell[number] for cell in cells[1:])]
    cells = [tuple(cell[number] for number in used) for cell in cells]
    marked = next((number for number, row in enumerate(rows) if row.name == choice), None)
    yield from table(cells, columns, marked=marked)


def _reason_counts(rows: Sequence[Choice], columns: int) -> Iterator[Line]:
    """Yield the number of candidates that each reason rejected. Reasons that differ in quantities are one."""
    counts, texts = Counter[str](), dict[str, set[str]]()
    for row in rows:
        reason = _reason(row)
        counts[kind := _QUANTITY.sub("...", reason)] += _engine_count(row)
        texts.setdefault(kind, set()).add(reason)
    yield Line(f"rejected: {counts.total()} (--all lists them)" if rows else "rejected: none", "bold")
    for kind, count in counts.most_common():
        reason = kind if len(texts[kind]) > 1 else texts[kind].pop()
        for number, part in enumerate(wrapped(reason, columns - 7)):
            yield Line(f"{'' if number else count:5}  {part}", "yellow")


def _reason(row: Choice) -> str:
    """Return the rejection reason of a candidate in one line, without advice about an argument of Python."""
    return " ".join(row.rejection_reason.split()).removesuffix(HOW_TO_COMPILE)


def _engine_count(row: Choice) -> int:
    """Return the number of candidates of a row: "engines 4, 16-19" has 5."""
    ranges = re.findall(r"(\d+)(?:-(\d+))?", row.name) if row.name.startswith("engines ") else []
    return sum(int(last or first) - int(first) + 1 for first, last in ranges) or 1


def _reasons(rows: Sequence[Choice], columns: int) -> Iterator[Line]:
    """Yield the rejected candidates, grouped by their reasons."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        reasons.setdefault(_reason(row), []).append(row.name)
    for reason, names in reasons.items():
        for part in wrapped(reason, columns - 2):
            yield Line(f"  {part}", "yellow")
        listed = "; ".join(name if "(" in name else name.replace("engine ", "engine\xa0") for name in names)
        for part in wrapped(listed, columns - 4):
            yield Line(f"    {part}".replace("\xa0", " "), "dim")
