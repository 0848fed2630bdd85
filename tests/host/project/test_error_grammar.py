"""Errors about arguments have one form: `{name} must be {expected}; got {given}`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

# Functions that make such errors, and classes of them, beside TypeError and ValueError.
KINDS = {"TypeError", "ValueError", "kind", "kind_of_error"}
# Texts of a TypeError or ValueError that is not about an argument.
OTHERS = {
    "cannot copy or pickle a ": "a C object has one owner",
    "the v7 functions need ": "a rejection reason, which the table of candidates shows",
}
FOLDERS = ("cudnnpy", "docs/examples")
# Files whose ValueErrors are about a file's content; a LibraryNotFoundError names the file.
OF_FILES = {"cudnnpy/raw/_elf.py"}


def texts(node: ast.expr) -> str:
    """The text of an expression as it stands in the source; a value that is put in is its source in braces."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(texts(part) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return "{" + ast.unparse(node.value) + "}"
    return ast.unparse(node)


def raised(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of every TypeError and ValueError that a module raises with a text of its own."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call) or not node.exc.args:
            continue
        made, argument = node.exc.func, node.exc.args[0]
        if isinstance(made, ast.Name) and made.id in KINDS and isinstance(argument, ast.Constant | ast.JoinedStr):
            yield node.lineno, texts(argument)


def fault(text: str) -> str | None:
    """What a text lacks of the one form; None where it lacks nothing, or is not about an argument."""
    if any(text.startswith(other) for other in OTHERS):
        return None
    if any(old in text for old in ("given; expected", "; expected ", ": expected ")):
        return "it says 'expected'"
    name, must, rest = text.partition(" must ")
    if not must:
        return "it has no ' must '"
    if not name.strip() or name.startswith("`"):
        return "it does not start with the argument's name"
    return None if "; got " in rest else "it has no '; got '"


def test_every_argument_error_has_the_one_form() -> None:
    faults, count = [], 0
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            path = file.relative_to(ROOT).as_posix()
            if path not in OF_FILES:
                for line, text in raised(file.read_text()):
                    count += 1
                    if why := fault(text):
                        faults.append(f"{path}:{line}: {why}: {text}")
    assert not faults, "\n".join(faults)
    assert count > 200


@pytest.mark.parametrize("text", OTHERS)
def test_an_exception_that_nothing_needs_is_none(text: str) -> None:
    sources = [file.read_text() for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    assert any(found.startswith(text) for source in sources for _, found in raised(source))
