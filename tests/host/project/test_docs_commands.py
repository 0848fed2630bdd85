"""The commands and the files of problems in the documentation: the command's own parsers read them, and a page's run."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pages
import pytest

from cudnnpy._planning import problem_notation
from cudnnpy.cli import command
from cudnnpy.tuning import problem_file

FILES = {"README.md": pages.ROOT / "README.md", **{page: pages.ROOT / "docs" / page for page in pages.PAGES}}


def blocks(text: str, *kinds: str) -> list[str]:
    """The fenced blocks of these kinds; "" is a fence without a word."""
    found = re.findall(r"^```(\w*)[^\n]*\n(.*?)^```$", text, re.M | re.DOTALL)
    return [content for kind, content in found if kind in kinds]


def commands(text: str) -> Iterator[str]:
    """The lines of a page's blocks that call the command `cudnnpy`."""
    for block in blocks(text, "", "console", "sh", "bash"):
        yield from re.findall(r"^(?:\$ )?(cudnnpy(?: .*)?)$", block, re.M)


def arguments(line: str) -> list[str]:
    """The arguments of a line, without a comment and without what the shell does with input and output."""
    return shlex.split(re.split(r" [<>|] ", line)[0], comments=True)[1:]


COMMANDS = [(page, line) for page, file in FILES.items() for line in commands(file.read_text())]


class Parsed(Exception):
    """The command's options: raised in place of running it."""


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch) -> None:
    real = argparse.ArgumentParser.parse_known_args

    def parse_known_args(self: argparse.ArgumentParser, *arguments: object) -> object:
        options, unknown = real(self, *arguments)  # type: ignore[call-overload]
        if self.prog == "cudnnpy" and not unknown:  # not a subcommand's own parser, which the first one calls
            raise Parsed(options)
        return options, unknown

    monkeypatch.setattr(command._Parser, "parse_known_args", parse_known_args, raising=False)


def test_there_are_commands() -> None:
    lines = [line for _, line in COMMANDS]
    for name in ("info", "edges", "explain", "plan", "device-profile", "tune"):
        assert any(line.startswith(f"cudnnpy {name}") for line in lines), name


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_the_parsers_accept_a_pages_commands(
    page: str, line: str, parse: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Parsed) as found:
        command.main(arguments(line))
        pytest.fail(f"{page}: {line}: {capsys.readouterr().err}")
    options = found.value.args[0]
    if line.startswith("cudnnpy explain"):
        problem_notation.parse(" ".join(options.problem))


def test_pages_import_examples_as_a_copy_beside_the_program_has_them() -> None:
    """An installed package has no folder `docs`."""
    for page, file in FILES.items():
        assert not re.search(r"^(?:from|import) docs\b", file.read_text(), re.M), page


@pytest.mark.parametrize(
    ("page", "number"),
    [("notation.md", 1), ("tuning.md", 0), ("planning-without-a-gpu.md", 0)],
)
def test_a_pages_files_of_problems_are_read(page: str, number: int, tmp_path: Path) -> None:
    block = blocks(FILES[page].read_text(), "text")[number]
    file = tmp_path / "problems.txt"
    file.write_text(block)
    requests = problem_file.read(file)
    assert [request.text for request in requests] == re.findall(r"^[^#\n].*$", block, re.M)
