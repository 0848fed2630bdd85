"""The project's several files agree with each other, and its package page's links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
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


# The size of files and functions


# The package page. tools/package_page.py imports hatchling, as it runs in the build


def page(text: str, repository: str | None = None) -> str:
    program = (
        f"import sys; from tools.package_page import page; sys.stdout.write(page(sys.stdin.read(), {repository!r}))"
    )
    return subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, input=text, capture_output=True, text=True, check=True
    ).stdout


def links(text: str) -> list[str]:
    return re.findall(r"\]\(([^)]+)\)", text)


def test_no_link_of_the_package_page_needs_the_repositorys_files() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(links(readme)) > 10
    shown = page(readme)
    assert [link for link in links(shown) if not link.startswith(("https://", "#"))] == []
    assert "![" not in shown
    assert "| before | after |" not in shown
    assert "installation (docs/installation.md)" in shown
    assert shown.count("```") == readme.count("```")


def test_once_the_repository_is_known_the_links_lead_there() -> None:
    text = "[a](docs/a.md) ![p](docs/p.png) [s](#section) [o](https://other.example/x) [b](b.md#part)"
    assert links(page(text, "https://host.example/us/cudnnpy/")) == [
        "https://host.example/us/cudnnpy/blob/HEAD/docs/a.md",
        "https://host.example/us/cudnnpy/blob/HEAD/docs/p.png",
        "#section",
        "https://other.example/x",
        "https://host.example/us/cudnnpy/blob/HEAD/b.md#part",
    ]
    assert page(text) == "a (docs/a.md)  [s](#section) [o](https://other.example/x) b (b.md#part)"
    assert page("[b.md](b.md), [gpu.md](docs/gpu.md)") == "b.md, gpu.md"
