"""Files of problems: writing, reading, and the line of an error."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import sample_graphs

from cudnnpy import Graph
from cudnnpy._planning.problem_notation import ProblemTextError, parse, text_of
from cudnnpy.tuning import problem_file

FORWARD, FILTER = "forward 1x64x8x8 64x64x3x3 pad=1 float16", "backward_filter 1x64x8x8 64x64x3x3 pad=1 tf32=False"
GRAPH = text_of(sample_graphs.convolution_bias_relu(Graph()).problem())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "PROBLEMS.txt"


# There and back


def test_what_is_written_is_read(file: Path) -> None:
    problem_file.write(file, [FORWARD, GRAPH, FILTER])
    found = problem_file.read(file)
    assert [request.text for request in found] == [FORWARD, GRAPH, FILTER]
    assert [request[1:3] for request in found] == [parse(text) for text in (FORWARD, GRAPH, FILTER)]
    assert [request.line for request in found] == [2, 3, 4]
    assert file.read_text() == f"# Problems for `cudnnpy tune` and `cudnnpy plan`.\n{FORWARD}\n{GRAPH}\n{FILTER}\n"


def test_texts_are_written_in_their_one_form_and_once(file: Path) -> None:
    texts = ["half padding=1,1 forward 1x64x8x8 64x64x3x3", FILTER, FORWARD]
    problem_file.write(file, iter(texts))
    assert file.read_text().splitlines()[1:] == [FORWARD, FILTER]
    file.write_text("\n".join(texts))
    assert [(request.text, request.line) for request in problem_file.read(file)] == [(FORWARD, 1), (FILTER, 2)]


def test_empty_lines_and_comments_are_skipped_and_json_is_a_graph(file: Path) -> None:
    file.write_text(
        f"# first\n\n  {FORWARD}  # as in {FILTER}\n{GRAPH.removeprefix('graph ')} tf32=False # fused\n#{BAD}\n"
    )
    found = problem_file.read(file)
    assert [(one.text, one.line) for one in found] == [(FORWARD, 3), (f"{GRAPH} tf32=False", 4)]


def test_a_file_may_have_no_problems(file: Path) -> None:
    problem_file.write(file, [])
    assert problem_file.read(file) == []


# Writing is atomic


def test_nothing_is_written_if_a_text_is_no_problem(file: Path) -> None:
    with pytest.raises(ProblemTextError, match="Did you mean 'forward'"):
        problem_file.write(file, [FORWARD, "foward 1x64x8x8 64x64x3x3"])
    assert list(file.parent.iterdir()) == []
    file.write_text("mine")
    with pytest.raises(ProblemTextError):
        problem_file.write(file, ["x"])
    assert file.read_text() == "mine"


def test_where_nothing_can_be_written_is_told_by_the_given_name(tmp_path: Path) -> None:
    for path, kind in ((tmp_path, IsADirectoryError), (tmp_path / "no" / "p.txt", FileNotFoundError)):
        with pytest.raises(kind) as caught:
            problem_file.write(path, [FORWARD])
        assert caught.value.filename == os.fspath(path)
    assert list(tmp_path.iterdir()) == []


# What is refused

BAD = "forward 1x64x8x8 64x64x3x3 stirde=2"  # at column 28
WORD = "word must be a word of the notation; got 'stirde=2'. Did you mean 'stride'?"


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        (BAD, 1, 28),
        (f"# é \U0001f600\n{FORWARD}\n\n  {BAD}\n{FILTER}", 4, 30),
        (f"{FORWARD}\r\n{BAD}\r\n", 2, 28),
        (f"\ufeff{BAD}", 1, 28),
    ],
)
def test_an_error_has_the_line_and_the_column_of_the_file(file: Path, text: str, line: int, column: int) -> None:
    file.write_bytes(text.encode())
    with pytest.raises(ProblemTextError) as caught:
        problem_file.read(file)
    error = caught.value
    assert (error.reason, error.file) == (WORD, os.fspath(file))
    assert (error.line, error.column) == (line, column)
    assert str(error) == f"{file}, line {line}, column {column}: {WORD}"


OLD = f"""# Problems for `cudnnpy tune` and `cudnnpy plan`.
format = 1
problems = [
    "{FORWARD}",
]
"""


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (b"", ": the file must have one problem a line; got no problem"),
        (b"# only this", ": the file must have one problem a line; got no problem"),
        (OLD.encode(), ", line 2: the file must have one problem a line; got TOML, .*: write the texts of its list .*"),
        (b"problems = []", ", line 1: the file must have one problem a line; got TOML, .*"),
        (b"[[problem]]\ntext = 'forward'", ", line 1: the file must have one problem a line; got TOML, .*"),
        (
            b"a text",
            ", line 1, column 1: the file must have one problem a line; got another text: operation must be .*",
        ),
        (b'{"format": 1}', ", line 1, column 1: the file must have one problem a line; got another text: .*"),
        (FORWARD.encode() + b"\nx" * 1001, ", line 2, column 1: the file must have one problem a line; got another .*"),
        (b"forward\n# \xe9\n", ", line 2, column 3: the file must be UTF-8; got the byte 0xe9"),
        (b"\xff\xfef\0", ", line 1, column 1: the file must be UTF-8; got the byte 0xff"),
        (b"SQLite format 3\0\x10", ", line 1, column 1: the file must have one problem a line; .*"),
    ],
)
def test_a_file_that_is_none_of_problems_is_refused_in_one_line(file: Path, given: bytes, reason: str) -> None:
    file.write_bytes(given)
    with pytest.raises(ProblemTextError) as caught:
        problem_file.read_with_errors(file)
    assert re.fullmatch(re.escape(str(file)) + reason, str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_the_error_of_a_file_that_cannot_be_read_names_it() -> None:
    with pytest.raises(OSError, match="Input/output error: '/proc/self/mem'"):
        problem_file.read("/proc/self/mem")
