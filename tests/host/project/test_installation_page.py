"""docs/installation.md: the messages that it quotes are the real ones, its extras are the extras."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "installation.md").read_text()


def test_every_extra_has_its_line() -> None:
    table = PAGE.partition("| extra | contents |")[2].partition("\n\n")[0]
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`([\w-]+)`", row.split("|")[1])}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert named == set(extras)


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_no_page_installs_from_an_index_that_does_not_have_it(page: str) -> None:
    """pip install 'cudnnpy[...]' by itself is for the day that the package is on one."""
    text = (ROOT / page).read_text()
    lines = re.findall(r"pip install '?cudnnpy(?:\[[\w,]+\])?(?: @)?", text)
    assert [line for line in lines if not line.endswith("] @")] == []
