"""The project's several files agree with each other, and its package page's links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import cudnnpy

ROOT = Path(__file__).resolve().parents[3]


def test_the_versions_agree() -> None:
    changes = re.findall(r"^## \[([^\]]+)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert changes[0][0] == cudnnpy.__version__
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", date) for _, date in changes[1:])  # only the newest may be unreleased
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^version: (.+)$", citation, re.M) == [cudnnpy.__version__]
    released = re.findall(r"^date-released: (.+)$", citation, re.M)
    assert released == ([] if changes[0][1] == "unreleased" else [changes[0][1]])
