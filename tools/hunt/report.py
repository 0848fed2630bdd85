"""The file of a hunt, and its summary by engine.

A line is a JSON object: the header; then for each problem a line {"fault": ...} for each fault, and last a line
{"problem": ...}. A line that the end of a process has cut off is ignored, and its problem runs again.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

Row: TypeAlias = Mapping[str, Any]
FORMAT = 1
SLACK_BYTES = 512  # behind an operand: allocators round sizes up to it
OUTSIDE = "access outside"
_SHOWN, _CHARACTERS = 3, 200  # faults of an engine in the summary, and of the problem of each
_SLOWER = 1.05  # from which on a time counts as slower


class FileError(ValueError):
    """The file is not that of this hunt."""


class Findings(NamedTuple):
    """The contents of a file."""

    header: Row
    done: dict[int, Row]  #: the problems by number
    faults: list[Row]


def read(file: Path) -> Findings | None:
    """Return the contents of a file; None if there are none. Raises FileError for the file of another program."""
    rows: list[Row] = []
    for line in file.read_bytes().split(b"\n") if file.exists() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:  # a line that was cut off, or the end of the file
            continue
    if not rows:
        return None
    if not isinstance(rows[0], dict) or rows[0].get("hunt") != FORMAT:
        raise FileError(
            f"{file} must be a file of tools.hunt, format {FORMAT}; got another one: name a new one with -o"
        )
    done = {row["problem"]: row for row in rows if "problem" in row}
    # a fault is there twice if its problem ran again
    faults = {(row["fault"]["text"], row["fault"]["candidate"]): row["fault"] for row in rows if "fault" in row}
    return Findings(rows[0], done, list(faults.values()))


class Writer:
    """Appends lines, each as a whole and on disk when `add` returns."""

    def __init__(self, file: Path) -> None:
        is_cut = file.exists() and file.read_bytes()[-1:] not in (b"", b"\n")
        self._file = file.open("ab")
        if is_cut:
            self._file.write(b"\n")  # what was cut off stays a line of its own

    def add(self, row: Row) -> None:
        """Append a line."""
        self._file.write(json.dumps(row).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def summary(findings: Findings) -> str:
    """Return the summary: the faults by operation, engine and symptom, and the cost of reads just behind operands."""
    rows, faults = findings.done.values(), findings.faults
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(row["kind"] for row in rows).items()))
    lines = [
        ", ".join(f"{name} {value}" for name, value in findings.header.items() if name != "hunt" and value is not None),
        f"{len(rows)} problems ({kinds}), {sum(row['runs'] for row in rows)} candidates run",
        *_by_engine(findings),
        *_slack(findings),
        f"{sum(len(row['unrepeated']) for row in rows)} faults did not repeat alone in a fresh process.",
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
