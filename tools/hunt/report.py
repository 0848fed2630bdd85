"""The file of a hunt, and its summary by engine.

A line is a JSON object: the header; then for each problem a line {"fault": ...} for each fault, and last a line
{"problem": ...}. A problem without its last line runs again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from tools import rows
from tools.rows import FileError

Row: TypeAlias = Mapping[str, Any]
FORMAT = 1
SLACK_BYTES = 512  # behind an operand: allocators round sizes up to it
OUTSIDE = "access outside"
_SHOWN, _CHARACTERS = 3, 200  # faults of an engine in the summary, and of the problem of each
_SLOWER = 1.05  # from which on a time counts as slower


class Findings(NamedTuple):
    """The contents of a file."""

    header: Row
    done: dict[int, Row]  #: the problems by number
    faults: list[Row]


def read(file: Path) -> Findings | None:
    """Return the contents of a file; None if there are none. Raises FileError for the file of another program."""
    lines = rows.read(file)
    if not lines:
        return None
    if lines[0].get("hunt") != FORMAT:
        raise FileError(
            f"{file} must be a file of tools.hunt, format {FORMAT}; got another one: name a new one with -o"
        )
    done: dict[int, Row] = {line["problem"]: line for line in lines if "problem" in line}
    # a fault is there twice if its problem ran again
    faults = {(line["fault"]["text"], line["fault"]["candidate"]): line["fault"] for line in lines if "fault" in line}
    return Findings(lines[0], done, list(faults.values()))


def summary(findings: Findings) -> str:
    """Return the summary: the faults by operation, engine and symptom, and the cost of reads just behind operands."""
    done, faults = findings.done.values(), findings.faults
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(row["kind"] for row in done).items()))
    lines = [
        ", ".join(f"{name} {value}" for name, value in findings.header.items() if name != "hunt" and value is not None),
        f"{len(done)} problems ({kinds}), {sum(row['runs'] for row in done)} candidates run",
        *_by_engine(findings),
        *_slack(findings),
        f"{sum(len(row['unrepeated']) for row in done)} faults did not repeat alone in a fresh process.",
    ]
    return "\n".join(lines if faults else [*lines[:2], "no faults", lines[-1]]) + "\n"


def _by_engine(findings: Findings) -> Iterator[str]:
    ran = Counter((row["operation"], engine) for row in findings.done.values() for engine in row["engines"])
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for fault in findings.faults:
        groups[fault["operation"], fault["engine"], fault["symptom"]].append(fault)
    for (operation, engine, symptom), found in sorted(groups.items()):
        texts = {fault["text"] for fault in found}
        yield f"{operation}, {engine}: {symptom} in {len(texts)} of {ran[operation, engine]} problems"
        for fault in found[:_SHOWN]:
            yield f"    {fault['candidate']}: {fault['detail']}"
            yield f"        {fault['text'][:_CHARACTERS]}"


def _slack(findings: Findings) -> Iterator[str]:
    """Yield which candidates only read a little behind an operand, and the time that their rejection costs."""
    short = [fault for fault in findings.faults if fault["slack"]]
    names = ", ".join(sorted({f"{fault['operation']} {fault['engine']}" for fault in short})) or "none"
    yield f"right with {SLACK_BYTES} mapped bytes behind each operand: {len(short)} candidates ({names})"
    best = {row["text"]: row["ms"] for row in findings.done.values() if row["ms"]}
    fastest: dict[str, float] = {}
    for fault in short:
        if fault["ms"] and fault["text"] in best:
            fastest[fault["text"]] = min(fault["ms"], fastest.get(fault["text"], fault["ms"]))
    costs = [best[text] / ms for text, ms in fastest.items() if best[text] > _SLOWER * ms]
    worst = f", {max(costs):.2f} times at worst" if costs else ""
    yield f"without them {len(costs)} of {len(findings.done)} problems are slower{worst} (single runs)"
