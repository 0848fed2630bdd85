"""The page of `cudnnpy tune --html`: one file with its data, style and script, which asks nothing of any network.

The page's policy (Content-Security-Policy) names the digests of its own style and script, so that nothing else can run in
it. The style and the script are the files tuning_page.css and tuning_page.js beside the template.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cudnnpy._options.byte_counts import bytes_text
from cudnnpy._store.entry import StoredCandidate
from cudnnpy.cli.tuning_report import Row, gpu_text, gpus, summary

_FOLDER = Path(__file__).parent / "data"


def page(rows: Sequence[Row], failed: Sequence[tuple[str, str]] = ()) -> str:
    """Return the page of rows, and of problems that failed, each with its reason."""
    style, script, template = (
        (_FOLDER / f"tuning_page.{ending}").read_text("utf-8") for ending in ("css", "js", "html")
    )
    places = gpus(rows)
    where = f" on {places[0]}" if len(places) == 1 else f" on {len(places)} kinds of GPU" if places else ""
    parts = {
        "policy": f"default-src 'none'; style-src '{_source(style)}'; script-src '{_source(script)}'; "
        "base-uri 'none'; form-action 'none'",
        "title": html.escape(f"Choices of cudnnpy{where}"),
        "summary": html.escape(summary(rows)),
        "style": style,
        "script": script,
        "data": _embedded(content(rows, failed)),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def content(rows: Sequence[Row], failed: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
    """Return the data of the page, as JSON."""
    return {
        "problems": [_problem(row) for row in rows],
        "failed": [{"text": text, "reason": reason} for text, reason in failed],
    }


def _source(text: str) -> str:
    """Return what a policy calls a style or a script by."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _embedded(value: Any) -> str:
    """Return JSON that ends no element of a page, whatever its texts are."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _problem(row: Row) -> dict[str, Any]:
    entry = row.entry
    return {
        "text": row.text,
        "gpu": gpu_text(entry),
        "choice": row.name,
        "milliseconds": entry.milliseconds,
        "over_heuristics": row.over_heuristics,
        "over_guess": row.over_guess,
        "workspace": entry.workspace_size,
        "spread": entry.spread,
        "error": entry.error,
        "measured": len(row.measured),
        "facts": list(_facts(row).items()),
        "candidates": [_candidate(row, one) for one in entry.candidates],
    }


def _facts(row: Row) -> dict[str, str]:
    """Return what a problem's detail says before its plot, by name."""
    entry, key = row.entry, row.entry.key
    others = f"{len(row.measured)} of {len(entry.candidates)} candidates were measured"
    facts = {
        "choice": row.name,
        "GPU": f"{gpu_text(entry)} (compute capability {key.capability}, {key.multiprocessors} multiprocessors)",
        "workspace": bytes_text(entry.workspace_size),
        "measured": f"{others}, in at most {entry.tune_seconds:g} s",
        "made": f"{entry.made_at} with {', '.join(f'{name} {version}' for name, version in entry.made_with.items())}",
    }
    if entry.milliseconds is None:
        facts["measured"] = f"nothing: planned without measuring, from {len(entry.candidates)} candidates"
    elif not entry.complete:
        facts["measured"] += "; the time was used up before all had their turn"
    if entry.error is not None:
        facts["largest error"] = f"{entry.error:.3g} of the tolerance, against float64"
    return facts


def _candidate(row: Row, candidate: StoredCandidate) -> dict[str, Any]:
    return {
        "name": candidate.name,
        "source": candidate.source,
        "milliseconds": candidate.milliseconds,
        "workspace": candidate.workspace_size,
        "notes": ", ".join(
            candidate.notes if candidate.deterministic else dict.fromkeys((*candidate.notes, "nondeterministic"))
        ),
        "roles": row.roles(candidate),
        "refused": candidate.refused,
    }
