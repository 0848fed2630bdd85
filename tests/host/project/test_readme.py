"""README.md's Python runs as it stands, and its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md")


def blocks():
    found = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found
    return found


@pytest.mark.parametrize("program", blocks())
def test_the_readmes_programs_run(program):
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page):
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text())
    assert links or page != "README.md"
    missing = [link for link in links if not (ROOT / link).exists()]
    assert not missing
