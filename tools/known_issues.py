"""Write docs/known-issues.md, the known issues of cuDNN, from the package's table.

    python -m tools.known_issues            # writes the page
    python -m tools.known_issues --check    # fails if the page differs from the table
    python -m tools.known_issues --faults choices.jsonl    # lists the faults of a store by engine, to write rows from

Engines are in cudnnpy/_planning/known_issues.json. The functions and operations that cudnnpy does not use are in
tools/avoided.json, so nothing reads them at run time.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cudnnpy import raw, store
from cudnnpy._planning.known_issues import ISSUES, NEWEST, HasFact, Issue, Remedy
from cudnnpy.graph.graph_facts import FACTS
from cudnnpy.store import Fault

ROOT = Path(__file__).resolve().parent.parent
PAGE = "docs/known-issues.md"

INTRODUCTION = """\
# Known issues of cuDNN

cuDNN offers the configurations below. They give a wrong result without an error, or they end the CUDA context. The property
tests of cudnnpy found most of them, and others were reported to other projects. cudnnpy avoids them, unless the tables say
otherwise.

"Measured in" names the releases and GPUs on which an issue was seen, or links the report of others. "Assumed in" names the
releases in which cudnnpy avoids an issue without a measurement. A release is assumed to have an issue until a measurement shows
that it does not. An issue that others reported is assumed only in the releases of the report. A release after {newest} is taken
to have every issue that {newest} has; `cudnnpy info` and the rejection reasons then say that it was not measured.

## GPUs on which nothing was measured

All measurements are from {devices}. On every other GPU:

- The tables apply unchanged, so they may reject an engine that is right there.
- An issue that only such a GPU has is not in the tables. A choice that is not from tuning is cuDNN's own proposal, and its
  result is not checked.
- Tuning checks each candidate on the GPU itself: between unmapped pages, and its result against float64 or other engines. A
  fault that repeats is stored for this GPU, and its configuration does not run there again ([Tuning](tuning.md)).
- `pytest tests/gpu/test_known_issues.py` reports which of the issues the GPU has
  ([From a fault to a known issue](dev/hunt.md)).

## How this page is made

`python -m tools.known_issues` writes this page. The table of engines is `cudnnpy/_planning/known_issues.json`, and
`pytest tests/gpu/test_known_issues.py` runs each engine on a problem that it gets wrong, and reports whether the loaded
release has the issue.
"""
ENGINES = """\
## Engines of the graph API

Engines have the numbers of cuDNN's global index, which differ between releases. Where every engine of a kind is taken to have
an issue, the engines that were seen to have it are in brackets. `Convolution.candidates` gives the effect as the reason of a
rejected engine.
"""
REMEDIES: dict[Remedy, str] = {
    "rejected": "the engine is rejected",
    "not called deterministic": "not called deterministic: `deterministic=True` rejects it, and a reduction uses "
    "cuDNN's functions",
    "not fused": "a plain convolution, with bias and activation in launches of their own",
    "padded": "the padding becomes zeros around x",
    "added apart": "no plan is asked for beta; `cudnnTransformTensor` adds it",
    "not proposed": "an engine that is compiled at run time is used only if cuDNN's heuristics propose it",
    "accepted": "accepted: the rounding that tf32 allows",
}
FUNCTIONS = """\
## Functions and operations

| issue | function or operation | condition | effect | remedy in cudnnpy |
|---|---|---|---|---|
"""
FOUND_IN = (
    "\nMeasured in {release} on an {device} where the row names no other, and assumed in every release of cuDNN 9.\n"
)


class Avoided(NamedTuple):
    """A function or an operation that cudnnpy does not use under a condition.

    `where` is the module of cudnnpy that avoids it; its comment names the issue. `test` shows the right result on a GPU.
    """

    id: str
    what: str
    when: str
    happens: str
    instead: str
    where: str
    test: str


AVOIDED = [Avoided(**row) for row in json.loads(Path(__file__).with_name("avoided.json").read_text(encoding="utf-8"))]


def rendered() -> str:
    """Return the page's text."""
    release, device = ISSUES[0].measured[0]
    devices = " and ".join(dict.fromkeys(f"an {name}" for issue in ISSUES for _, name in issue.measured))
    found_in = FOUND_IN.format(release=raw.version_text(release), device=device)
    functions = "".join(f"| {' | '.join(avoided[:5])} |\n" for avoided in AVOIDED)
    return "\n".join(
        (
            INTRODUCTION.format(devices=devices, newest=raw.version_text(NEWEST)),
            ENGINES,
            "".join(_engines()),
            FUNCTIONS + functions + found_in,
        )
    )


def _engines() -> Iterator[str]:
    columns = "issue", "operation", "engines", "condition", "effect", "remedy in cudnnpy", "measured in", "assumed in"
    yield f"| {' | '.join(columns)} |\n"
    yield f"|{'---|' * len(columns)}\n"
    for issue in ISSUES:
        happens = issue.reason + (f" ({issue.detail})" if issue.detail else "")
        measured = ", ".join(f"{raw.version_text(release)} on an {device}" for release, device in issue.measured)
        if issue.source:
            measured = f"{measured or 'nothing'}; [report]({issue.source})"
        row = (
            issue.id,
            ", ".join(issue.operations),
            _of(issue),
            condition_text(issue),
            happens,
            REMEDIES[issue.remedy],
            measured,
            _assumed(*issue.assumed),
        )
        yield f"| {' | '.join(row)} |\n"


def condition_text(issue: Issue) -> str:
    """Return when a problem has an issue, from the docstring of its condition."""
    condition = issue.condition
    return (FACTS[condition.name] if isinstance(condition, HasFact) else condition).__doc__ or ""


def _of(issue: Issue) -> str:
    numbers = ", ".join(map(str, issue.engines))
    return f"{issue.kind} ({numbers or 'not reported'})" if issue.kind else numbers


def _assumed(first: int, after: int | None) -> str:
    end = f" to {raw.version_text(NEWEST)}" if after is None else f", before {raw.version_text(after)}"
    return f"from {raw.version_text(first)}{end}"


def faults_by_engine(path: str) -> Iterator[str]:
    """Yield the faults of a store or export, as lines: an engine with the symptoms and releases, then its problems."""
    by_engine: dict[str, list[Fault]] = {}
    for fault in store.open(path, read_only=True).faults():
        engine = re.match(r"engine \d+", fault.candidate)
        by_engine.setdefault(engine[0] if engine else fault.candidate, []).append(fault)
    for name, faults in sorted(by_engine.items(), key=lambda item: (-len(item[1]), item[0])):
        counts = Counter((fault.symptom, raw.version_text(fault.key.cudnn), fault.key.gpu) for fault in faults)
        seen = (f"{count} {what} with cuDNN {on} on an {gpu}" for (what, on, gpu), count in sorted(counts.items()))
        yield f"{name}: {'; '.join(seen)}"
        yield from (f"    {fault.text}: {fault.candidate}: {fault.symptom}: {fault.detail}" for fault in faults)


def main(arguments: list[str] | None = None) -> int:
    """Write the page, or check it; return the exit status."""
    parser = argparse.ArgumentParser(description="Write docs/known-issues.md from the table of known issues.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page differs")
    parser.add_argument("--faults", metavar="STORE", help="write nothing; list the faults of a store by engine")
    given = parser.parse_args(arguments)
    if given.faults is not None:
        print(*faults_by_engine(given.faults), sep="\n")
        return 0
    file, text = ROOT / PAGE, rendered()
    if not given.check:
        file.write_text(text)
        return 0
    if file.is_file() and file.read_text() == text:
        return 0
    print(f"{PAGE} is not what the table says: run python -m tools.known_issues", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
