"""The project's several files agree with each other, and its package page's links lead somewhere."""

from __future__ import annotations

import ast
import hashlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import cudnnpy

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_versions_agree() -> None:
    changes = re.findall(r"^## \[([^\]]+)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert changes[0][0] == cudnnpy.__version__
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", date) for _, date in changes[1:])  # only the newest may be unreleased
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^version: (.+)$", citation, re.M) == [cudnnpy.__version__]
    released = re.findall(r"^date-released: (.+)$", citation, re.M)
    assert released == ([] if changes[0][1] == "unreleased" else [changes[0][1]])


def test_the_authors_and_the_licence_agree() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    (author,) = PROJECT["authors"]
    assert re.findall(r"^  - name: (.+)$", citation, re.M) == [author["name"]]
    assert re.findall(r"^license: (.+)$", citation, re.M) == [PROJECT["license"]]


def test_the_licence_is_the_text_as_published() -> None:
    """Apache 2.0 with its appendix, a template, whose placeholders are part of the text."""
    digest = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == digest


@pytest.mark.parametrize("file", ["README.md", "SECURITY.md", "CONTRIBUTING.md", "CITATION.cff", "pyproject.toml"])
def test_no_placeholder_is_left(file: str) -> None:
    assert (
        re.findall(r"(?i)\bTODO\b|\bFIXME\b|your name|<[a-z]+ ?[a-z]*>|example\.(?:com|org)", (ROOT / file).read_text())
        == []
    )


# The size of files and functions

FILE_LINES = 400 + 20  # of a file that is written by hand: about 400
FUNCTION_LINES = 60 + 5  # of a function without its docstring: about 60
# A generated table; declarations, which type checkers and the documentation read in one module; and public classes of which
# most lines are docstrings.
NOT_COUNTED = {"raw/_api.py", "typing.py", "_options/convolution_methods.py", "_store/database.py"}


EXAMPLES = re.compile(r"^ +(?:>>> .*|\.\.\. .*|Examples|-{8})$", re.M)  # lines of docstrings that are not counted


def too_long(name: str, source: str) -> list[str]:
    """What is too long in a module: the module itself, and its functions by name."""
    lines = len(source.splitlines()) - len(EXAMPLES.findall(source))
    found = [f"{name} has {lines} lines"] if lines > FILE_LINES else []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            text = node.body[0] if ast.get_docstring(node) is not None else None
            documented = 0 if text is None else (text.end_lineno or 0) - text.lineno + 1
            lines = (node.end_lineno or 0) - node.lineno + 1 - documented
            if lines > FUNCTION_LINES:
                found.append(f"{name}: {node.name} has {lines} lines")
    return found


def test_files_and_functions_are_short() -> None:
    package = ROOT / "cudnnpy"
    files = {str(file.relative_to(package)): file.read_text() for file in package.rglob("*.py")}
    assert files.keys() >= NOT_COUNTED
    assert [one for name, text in files.items() if name not in NOT_COUNTED for one in too_long(name, text)] == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("x = 1\n" * 420, []),
        ("x = 1\n" * 421, ["a.py has 421 lines"]),
        ("x = 1\n" * 416 + 'def f():\n    """One.\n\n    Examples\n    --------\n    >>> x\n    """\n', []),
        ("def f():\n" + "    x = 1\n" * 64, []),
        ("def f():\n" + "    x = 1\n" * 65, ["a.py: f has 66 lines"]),
        ('class A:\n    def f(self):\n        """One.\n\n        Two.\n        """\n' + "        x = 1\n" * 64, []),
        ("class A:\n    async def f(self):\n" + "        x = 1\n" * 70, ["a.py: f has 71 lines"]),
    ],
)
def test_a_planted_long_one_is_found(source: str, found: list[str]) -> None:
    assert too_long("a.py", source) == found


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
