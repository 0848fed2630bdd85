"""Files of problems, which `cudnnpy tune` and `cudnnpy plan` read: TOML with a list of texts in the notation, or a trace.

    format = 1
    problems = [
        "forward 128x64x56x56 64x64x3x3 pad=1 float16 channels_last",
        "backward_data 128x64x56x56 64x64x3x3 pad=1 float16 channels_last",
    ]

A duplicate problem is read once. Of a file that `cudnnpy.trace` wrote the lines that begin with a problem are read; there may
be other lines between them, since the file may have been the standard error of a program.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from cudnnpy._core.atomic_file import replace_file
from cudnnpy._options.limits import MAX_PROBLEM_FILE_BYTES, MAX_SYNTAX_CHARACTERS
from cudnnpy._options.suggestions import did_you_mean
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem import Problem
from cudnnpy._planning.problem_notation import SYNTAXES, ProblemTextError, parse, parse_plannable, syntax_of, text_of

FORMAT = 1
_KEYS = ("format", "problems")
_HEADER = "# Problems for `cudnnpy tune` and `cudnnpy plan`.\n"

# A comment, or a string: of three quotation marks or apostrophes, or of one. Other parts of the file have none of these marks.
# The end of a string may be missing, and nothing is tried twice, so that any file takes linear time and little memory.
_TOKEN = re.compile(
    r"""\#[^\n]* | \"\"\"(?:[^"\\]++|\\.|"{1,2}(?!"))*+(?:\"{3,5})? | '''.*?(?:'{3,5}|\Z)
    | "(?:[^"\\\n]++|\\.)*+"? | '[^'\n]*'?""",
    re.DOTALL | re.VERBOSE,
)
# One character of a string with escapes. A backslash at the end of a line and the whitespace after it are dropped.
_CHARACTER = re.compile(r"\\u[0-9A-Fa-f]{4}|\\U[0-9A-Fa-f]{8}|\\x[0-9A-Fa-f]{2}|\\[ \t]*\n\s*|\\.|.", re.DOTALL)


class ListedProblem(NamedTuple):
    """A problem of a file."""

    text: str  #: the problem and its options in the notation, as `text_of` writes them
    problem: Problem
    options: PlanningOptions
    line: int  #: the line of the file, from 1


def read(path: str | os.PathLike[str], device: int = 0) -> list[ListedProblem]:
    """Return the problems of a file, for a device, each once and in their order.

    Raises ProblemTextError, which names the file, the line and the column, and OSError if the file cannot be read.
    """
    found, errors = read_with_errors(path, device)
    if errors:
        raise errors[0]
    return found


def read_with_errors(
    path: str | os.PathLike[str], device: int = 0
) -> tuple[list[ListedProblem], list[ProblemTextError]]:
    """Return the problems of a file, as `read` does, and an error for each text that is not a problem.

    Raises ProblemTextError for a file that is not a list of texts, and OSError if the file cannot be read.
    """
    name = os.fspath(path)
    source = _source(name)
    found: dict[str, ListedProblem] = {}
    errors: list[ProblemTextError] = []
    for text, place in traced(source) or _listed(name, source):
        try:
            problem, options = parse_plannable(text, device)
        except ProblemTextError as error:
            line, column = place.at(source, (error.column or 1) - 1)
            errors.append(ProblemTextError(error.reason, column, line, name))
            continue
        written = text_of(problem, options)
        found.setdefault(written, ListedProblem(written, problem, options, place.line))
    return list(found.values()), errors


def _listed(name: str, source: str) -> list[tuple[str, _Place]]:
    """Return the texts of a TOML file with their places. Raises ProblemTextError unless it is TOML of this format."""
    texts = _texts(name, source)
    return list(zip(texts, _places(source, len(texts)), strict=True))


def traced(source: str) -> list[tuple[str, _Place]]:
    """Return the problems of a trace as it has them, each choice once, with their places; none for another text."""
    if re.search(rf"""^[ \t]*["']?({"|".join(_KEYS)})["']?[ \t]*=""", source, re.MULTILINE):
        return []
    operations = "|".join(operation for kind in SYNTAXES for operation in syntax_of(kind).operations)
    found: dict[str, _Place] = {}
    line, counted = 1, 0
    times = r"workspace [^;\n]{1,40}; (?:planned in [0-9.]{1,20} ms; )?host [0-9.]{1,20} us\b"
    for match in re.finditer(rf"^((?:{operations}) .*); {times}", source, re.MULTILINE):
        line += source.count("\n", counted, match.start())
        counted = match.start()
        found.setdefault(match[1], _Place(match.start(), line, None))
    return list(found.items())


def write(path: str | os.PathLike[str], texts: Iterable[str]) -> None:
    """Write a file of problems, each once and in their order, in one step.

    Raises ProblemTextError for a text that is not a problem, before it writes, and OSError if the file cannot be written.
    """
    known = dict.fromkeys(text_of(*parse(text)) for text in texts)
    lines = "".join(f"    {_toml(text)},\n" for text in known)
    content = f"{_HEADER}format = {FORMAT}\nproblems = [\n{lines}]\n"
    try:
        _replace(Path(path), content.encode())
    except OSError as error:
        raise type(error)(error.errno, error.strerror, os.fspath(path)) from None


def _replace(target: Path, content: bytes) -> None:
    """Write a file by replacing it; a pipe, a device or a file without a name is written to."""
    if target.exists() and not (target.is_file() and target.stat().st_nlink):
        target.write_bytes(content)
    else:
        replace_file(target, content)


def _source(name: str) -> str:
    """Return the text of a file. Raises ProblemTextError for a folder, and for a file that is not UTF-8 or too large."""
    if os.path.isdir(name):
        raise ProblemTextError("path must be a file of problems; got a folder", file=name)
    with open(name, "rb") as file:
        content = file.read(MAX_PROBLEM_FILE_BYTES + 1)
    if len(content) > MAX_PROBLEM_FILE_BYTES:
        raise ProblemTextError(f"the file must have {MAX_PROBLEM_FILE_BYTES} bytes at most; got more", file=name)
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line, column = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        raise ProblemTextError(
            f"the file must be UTF-8; got the byte 0x{content[error.start]:02x}", column, line, name
        ) from None


def _texts(name: str, source: str) -> list[str]:
    """Return the texts of a file. Raises ProblemTextError unless it is TOML of this format."""
    example = f'format = {FORMAT} and problems = ["..."]'
    if len(re.sub(r"[\s,]+", "", _TOKEN.sub("", source))) > MAX_SYNTAX_CHARACTERS:
        raise ProblemTextError(
            f"the file must have {example}; got more than {MAX_SYNTAX_CHARACTERS} characters beside texts", file=name
        )
    try:
        content = tomllib.loads(source)
    except (ValueError, RecursionError) as error:
        raise _not_toml(name, error) from None
    if not content:
        raise ProblemTextError(f"the file must have {example}; got no content", file=name)
    for key in content:
        if key not in _KEYS:
            advice = did_you_mean(get_close_matches(key[:60], _KEYS, 1))
            raise ProblemTextError(f"the file must have {example}; got the key {key[:60]!r}{advice}", file=name)
    given = content.get("format")
    if type(given) is not int or given != FORMAT:
        newer = type(given) is int and given > FORMAT
        advice = ". A newer version of cudnnpy wrote the file: update cudnnpy" if newer else ""
        raise ProblemTextError(
            f"format must be {FORMAT}; got {f'none: type format = {FORMAT}' if given is None else str(given)[:60]}{advice}",
            file=name,
        )
    return _strings(name, content.get("problems"))


def _not_toml(name: str, error: Exception) -> ProblemTextError:
    said = "too many brackets within each other" if isinstance(error, RecursionError) else str(error)
    place = re.search(r" \(at line (\d+), column (\d+)\)", said)
    line, column = map(int, place.groups()) if place else (None, None)
    said = " ".join(said.replace(place.group(), "").split()) if place else " ".join(said.split())
    return ProblemTextError(
        f'the file must be TOML; got another text: {said[:200]}. It begins with format = {FORMAT} and problems = ["..."]',
        column,
        line,
        name,
    )


def _strings(name: str, given: Any) -> list[str]:
    if not isinstance(given, list):
        raise ProblemTextError(
            f"problems must be a list of texts; got {'none' if given is None else repr(given)[:60]}", file=name
        )
    for number, text in enumerate(given, 1):
        if not isinstance(text, str):
            raise ProblemTextError(
                f"problems must be a list of texts; got {str(text)[:60]} as number {number}", file=name
            )
    return given


class _Place(NamedTuple):
    """The position and line of a string's content in a file, and its source text if it has escapes."""

    start: int
    line: int
    escaped: str | None

    def at(self, source: str, index: int) -> tuple[int, int]:
        """Return the line and the column of a character of the string, both from 1."""
        end = self.start + index
        if self.escaped is not None:
            found = (one.start() for one in _CHARACTER.finditer(self.escaped) if not _is_continuation(one))
            end = self.start + next(islice(found, index, None), len(self.escaped))
        return self.line + source.count("\n", self.start, end), end - source.rfind("\n", 0, end)


def _is_continuation(found: re.Match[str]) -> bool:
    return found.group().startswith("\\") and found.group()[1:].isspace()


def _places(source: str, count: int) -> Iterator[_Place]:
    """Yield the places of the strings of a TOML file that has no strings except one list's and keys."""
    found, line, counted = 0, 1, 0
    for token in _TOKEN.finditer(source):
        text = token.group()
        if text.startswith("#") or re.compile(r"[ \t]*=").match(source, token.end()):
            continue
        marks = 3 if text.startswith(('"""', "'''")) else 1
        start = token.start() + marks + (marks == 3 and text[3] == "\n")  # TOML drops a line break after three marks
        line += source.count("\n", counted, start)
        counted = start
        yield _Place(start, line, source[start : token.end() - marks] if text.startswith('"') else None)
        found += 1
    assert found == count


def _toml(text: str) -> str:
    """Return a text as a TOML string: literally if it has quotation marks, as JSON has, and otherwise with escapes."""
    if '"' in text and "'" not in text and text.isprintable():
        return f"'{text}'"
    return json.dumps(text)
