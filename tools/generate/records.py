"""The intermediate form: api.jsonl, one declaration a line, so that an upgrade is a diff to review."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

Record = dict[str, Any]

FOLDER = Path(__file__).parent
API = FOLDER / "api.jsonl"


def dump(records: list[Record]) -> str:
    """The text of api.jsonl."""
    return "".join(json.dumps(record, ensure_ascii=True) + "\n" for record in records)


def load(text: str) -> list[Record]:
    """The records of an api.jsonl."""
    return [json.loads(line) for line in text.splitlines()]


def seal(body: str) -> str:
    """SHA-256 of a generated file's text without its seal line; a hand edit changes it."""
    return hashlib.sha256(body.encode()).hexdigest()


def sealed(header: str, body: str) -> str:
    """A generated file: comment lines, a seal over everything else, and the body."""
    return f"{header}\n# seal: sha256:{seal(header + body)}\n{body}"


def check_seal(text: str) -> bool:
    """Whether a generated Python file still carries the seal of its own text."""
    lines = text.splitlines(keepends=True)
    at = next((i for i, line in enumerate(lines) if line.startswith("# seal: sha256:")), None)
    if at is None:
        return False
    header, body = "".join(lines[:at]).rstrip("\n"), "".join(lines[at + 1 :])
    return lines[at].strip() == f"# seal: sha256:{seal(header + body)}"
