"""Where the package avoids a function of cuDNN, a comment says why. A file of its own: tools.mutants drops comments."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import known_issues as page

PACKAGE = Path(__file__).resolve().parents[3] / "cudnnpy"


@pytest.mark.parametrize("issue", page.AVOIDED, ids=lambda issue: issue.id)
def test_what_avoids_a_function_says_why(issue: page.Avoided) -> None:
    assert issue.id in (PACKAGE / issue.where).read_text()
