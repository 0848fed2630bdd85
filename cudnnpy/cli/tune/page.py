"""The page of `cudnnpy tune --html`: one file with its data, style and script, which loads nothing from any network.

The page's policy (Content-Security-Policy) names the digests of its own style and script, so that nothing else can run
in it. The style and the script are the files tuning_page.css and tuning_page.js beside the template.
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
from cudnnpy.cli.tune.report import ReportRow, gpu_text, gpus, summary

_FOLDER = Path(__file__).parents[1] / "data"


def page(rows: Sequence[ReportRow], failed: Sequence[tuple[str, str]] = ()) -> str:
    """Return the page of rows, and of problems that failed, each with its reason."""
    style, script, template = (
        (_FOLDER / f"tuning_page.{ending}").read_text("utf-8") for ending in ("css", "js", "html")
    )
    kinds = gpus(rows)
    where = f" on {kinds[0]}" if len(kinds) == 1 else f" on {len(kinds)} kinds of GPU" if kinds else ""
    parts = {
        "policy": f"default-src 'none'; style-src '{_policy_source(style)}'; script-src '{_policy_source(script)}'; "
        "base-uri 'none'; form-action 'none'",
        "title": html.escape(f"Choices of cudnnpy{where}"),
        "summary": html.escape(summary(rows)),
        "style": style,
        "script": script,
        "data": _embedded(content(rows, failed)),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def content(rows: Sequence[ReportRow], failed: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
    """Return the data of the page, as JSON."""
    return {
        "problems": [_problem(row) for row in rows],
        "failed": [{"text": text, "reason": reason} for text, reason in failed],
    }


def _policy_source(text: str) -> str:
    """Return the name of a style or script in a policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _embedded(value: Any) -> str:
    """Return JSON that cannot end an element of a page, whatever its texts are."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _problem(row: ReportRow) -> dict[str, Any]:
    entry = row.entry
    return {
        "text": row.text,
        "gpu": gpu_text(entry),
        "choice": row.name,
        "milliseconds": entry.milliseconds,
        "over_heuristics": row.over_heuristics,
        "over_guess": row.over_default,
        "workspace": entry.workspace_size,
        "spread": entry.spread,
        "error": entry.error,
        "measured": len(row.measured) or None,
        "facts": list(_facts(row).items()),
        "candidates": [_candidate(row, one) for one in entry.candidates],
    }


def _facts(row: ReportRow) -> dict[str, str]:
    """Return the details of a problem above its plot, by name."""
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
        facts["measured"] += "; the time was used up before all candidates were measured"
    if entry.error is not None:
        facts["largest difference"] = f"{entry.error:.3g} of the tolerance, from another candidate"
    return facts


def _candidate(row: ReportRow, candidate: StoredCandidate) -> dict[str, Any]:
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
