"""Files of problems, which `cudnnpy tune` and `cudnnpy plan` read: one problem a line, in the notation.

    # the first layer
    forward 128x64x56x56 64x64x3x3 pad=1 float16 channels_last
    backward_data 128x64x56x56 64x64x3x3 pad=1 float16 channels_last

A duplicate problem is read once. The file of `cudnnpy.trace` is one of problems: what follows a problem in a line is a comment.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable
from typing import NamedTuple

from cudnnpy._checks.size_limits import MAX_PROBLEM_FILE_BYTES, MAX_REPORTED_LINES
from cudnnpy._core.atomic_file import replace_file
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem import Problem
from cudnnpy._planning.problem_notation import SYNTAXES, ProblemTextError, parse, parse_plannable, syntax_of, text_of

_HEADER = "# Problems for `cudnnpy tune` and `cudnnpy plan`.\n"
_TOML = re.compile(r"""^[ \t]*(?:["']?(?:format|problems)["']?[ \t]*=|\[{1,2}[A-Za-z_.]+\])""", re.MULTILINE)


class ListedProblem(NamedTuple):
    """A problem of a file."""

    text: str  #: the problem and its options in the notation, as `text_of` writes them
    problem: Problem
    options: PlanningOptions
    line: int  #: the line of the file, from 1


def read(path: str | os.PathLike[str]) -> list[ListedProblem]:
    """Return the problems of a file, each once and in their order.

    Raises ProblemTextError, which names the file, the line and the column, and OSError if the file cannot be read.
    """
    found, errors = read_with_errors(path)
    if errors:
        raise errors[0]
    return found


def read_with_errors(path: str | os.PathLike[str]) -> tuple[list[ListedProblem], list[ProblemTextError]]:
    """Return the problems of a file, as `read` does, and an error for each line that is not a problem.

    Raises ProblemTextError for a file that is not one of problems, and OSError if the file cannot be read.
    """
    name = os.fspath(path)
    source = _source(name)
    found: dict[str, ListedProblem] = {}
    errors: list[ProblemTextError] = []
    for number, line in enumerate(io.StringIO(source), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            problem, options = parse_plannable(line)
        except ProblemTextError as error:
            errors.append(ProblemTextError(error.reason, error.column, number, name))
            if len(errors) > MAX_REPORTED_LINES:
                raise _of_another_text(errors[0]) from None
            continue
        written = text_of(problem, options)
        found.setdefault(written, ListedProblem(written, problem, options, number))
    if errors and not re.search(rf"(?:^|\s)(?:{_operations()})(?:\s|$)", source):
        raise _of_another_text(errors[0])
    if not (found or errors or source.startswith(_HEADER)):
        raise ProblemTextError("the file must have one problem a line; got no problem", file=name)
    return list(found.values()), errors


def _operations() -> str:
    """Return a pattern of the words that name an operation."""
    return "|".join(operation for kind in SYNTAXES for operation in syntax_of(kind).operations)


def write(path: str | os.PathLike[str], texts: Iterable[str]) -> None:
    """Write a file of problems, each once and in their order, in one step.

    Raises ProblemTextError for a text that is not a problem, before it writes, and OSError if the file cannot be written.
    """
    known = dict.fromkeys(text_of(*parse(text)) for text in texts)
    content = _HEADER + "".join(f"{text}\n" for text in known)
    replace_file(path, content.encode())


def _source(name: str) -> str:
    """Return the text of a file. Raises ProblemTextError for a folder, and for a file that cannot be one of problems."""
    if os.path.isdir(name):
        raise ProblemTextError("path must be a file of problems; got a folder", file=name)
    with open(name, "rb") as file:
        try:
            content = file.read(MAX_PROBLEM_FILE_BYTES + 1)
        except OSError as error:  # which has no name, unlike an error of open
            raise OSError(error.errno, error.strerror, name) from None
    if len(content) > MAX_PROBLEM_FILE_BYTES:
        raise ProblemTextError(f"the file must have {MAX_PROBLEM_FILE_BYTES} bytes at most; got more", file=name)
    try:
        source = content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line, column = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        raise ProblemTextError(
            f"the file must be UTF-8; got the byte 0x{content[error.start]:02x}", column, line, name
        ) from None
    if toml := _TOML.search(source):
        raise ProblemTextError(
            "the file must have one problem a line; got TOML, as earlier versions read: write the texts of its list "
            "`problems`, each on a line of its own, without quotation marks and commas",
            line=source.count("\n", 0, toml.start()) + 1,
            file=name,
        )
    return source


def _of_another_text(error: ProblemTextError) -> ProblemTextError:
    """Return the error for a file that is not one of problems, at the place of its first error."""
    reason = f"the file must have one problem a line; got another text: {error.reason}"
    return ProblemTextError(reason, error.column, error.line, error.file)
