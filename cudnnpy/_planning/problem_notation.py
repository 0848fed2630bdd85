"""The problem notation: write and parse a problem and its planning options as one line of text.

    forward 128x64x56x56 64x64x3x3 pad=1 float16 channels_last
    backward_filter 32x128x28x28 128x4x3x3 pad=1 stride=2 groups=32 deterministic tf32=False
    graph {"operations":[...],"tensors":[...]} workspace_limit=64MiB

A text consists of words separated by spaces, in any order. A word that begins with ``#`` begins a comment, up to the end of the
line, as in the lines of `cudnnpy.trace`. A text that begins with JSON needs no word ``graph``. `text_of` omits defaults and
writes the words in one order, so that equal problems have equal texts. The table SYNTAXES has the words of each kind of
problem. The words below give the options of every kind.

=====================================  =====================================================================
``prefer=autotune``                    "fastest", "limited_workspace", "no_workspace" or "autotune"
``workspace_limit=64MiB``              the limit of the workspace in bytes, with or without a unit
``deterministic``                      only deterministic engines; also ``deterministic=True``
``tf32=False``                         float32 is multiplied as float32
``tune_seconds=10``                    the time limit of tuning
=====================================  =====================================================================

The device, the policy and a forced algorithm are not part of a text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple

from cudnnpy._checks.byte_counts import read_bytes, write_bytes
from cudnnpy._checks.size_limits import MAX_PROBLEM_CHARACTERS
from cudnnpy._checks.suggestions import did_you_mean, near, suggest_value
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem import Problem

_SHOWN = 60  # characters of a word in a message
_READ_FOR_ADVICE = 30  # words
_LISTED_SIZES = re.compile(r"[(\[]*[0-9]+(?:[,*X\u00d7][0-9]+)*[)\],]*")  # 1,3,8,8 and (1, 3, 8, 8), word by word
_WORD = re.compile(r"#.*|\{|\S+")
_IN_JSON = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[{}]', re.DOTALL)


class ProblemTextError(ValueError):
    """A text is not a problem in the notation.

    `reason` has the expected and the given text. `column` is the number of the character at which the error is, from 1, or None
    if it is in the file as a whole. `line` and `file` tell where the text is from, if it is from a file.
    """

    def __init__(self, reason: str, column: int | None = None, line: int | None = None, file: str = "") -> None:
        self.reason, self.column, self.line, self.file = reason, column, line, file
        numbers = {"line": line, "column": column}
        place = [*([file] if file else []), *(f"{name} {number}" for name, number in numbers.items() if number)]
        super().__init__(f"{', '.join(place)}: {reason}" if place else reason)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason, self.column, self.line, self.file)


class Token(NamedTuple):
    """A word of a text, and the number of its first character, from 1."""

    text: str
    column: int


class ProblemSyntax(NamedTuple):
    """The syntax of a kind of problem: its tokens, and the functions that write and parse them."""

    operations: tuple[str, ...]  #: the words that name an operation; a text has exactly one
    operand: re.Pattern[str]  #: the pattern of words without a name: shapes, or the JSON of a graph
    #: for each name in ``name=value``, the function that parses the value. It raises ValueError for a text that it cannot
    #: parse, or returns it unchanged for `read` to reject
    values: Mapping[str, Callable[[str], Any]]
    aliases: Mapping[str, str]  #: other spellings of these names
    words: Mapping[str, tuple[str, Any]]  #: for each word without a value, the name and the value that it abbreviates
    refused: Mapping[str, str]  #: for words that users may expect and that do not exist, the correct ones
    write: Callable[[Any], list[str]]  #: returns the words of a problem
    #: returns the problem for a device. Raises TypeError or ValueError whose message starts with the name of the wrong argument
    read: Callable[[ParsedText, int], Problem]


# For each `kind` of problem, the module with its SYNTAX, a ProblemSyntax. The module is imported when it is first needed,
# because it imports this one.
SYNTAXES = {"convolution": "cudnnpy._layers.lowerings.convolution_candidates", "graph": "cudnnpy.graph.problem"}


def syntax_of(name: str) -> ProblemSyntax:
    """Return the syntax of a kind of problem by its name in the table."""
    found: ProblemSyntax = import_module(SYNTAXES[name]).SYNTAX
    return found


@dataclass
class ParsedText:
    """A parsed text: the operation, the tokens without a name in order, and the values by name."""

    operation: str
    operands: list[Token] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, int] = field(default_factory=dict)

    def error(self, error: Exception) -> ProblemTextError:
        """Return an error about an argument as a ProblemTextError, at the word that its message starts with."""
        if isinstance(error, ProblemTextError):
            return error
        named = re.match(r"[\w.]+", str(error))
        name = named.group() if named else ""
        around = self.columns.get(name.partition(".")[0], self.columns["operation"])
        return ProblemTextError(" ".join(str(error).split()), self.columns.get(name, around))


def text_of(problem: Problem, options: PlanningOptions | None = None) -> str:
    """Return the text of a problem, and of the options that differ from the defaults.

    The text does not contain the problem's device, nor the option `algorithm`.
    """
    words = syntax_of(problem.kind).write(problem)
    return " ".join([*words, *_words_of(options or PlanningOptions())])


def parse(text: str, device: int = 0) -> tuple[Problem, PlanningOptions]:
    """Return the problem of a text for a device, and the options.

    Raises ProblemTextError if it is not a text in the notation, or if its parts do not fit together, and TypeError if it is not
    a str.
    """
    if not isinstance(text, str):
        raise TypeError(
            "problem must be a str in the notation, such as 'forward 8x64x28x28 64x64x3x3 pad=1'; "
            f"got a {type(text).__name__}{'. It has plan() and candidates()' * hasattr(text, 'candidates')}"
        )
    if len(text) > MAX_PROBLEM_CHARACTERS:
        raise ProblemTextError(f"text must have {MAX_PROBLEM_CHARACTERS} characters at most; got {len(text)}", 1)
    words = list(_split(text))
    kind, operation = _kind(words)
    given = ParsedText(operation.text, columns={"operation": operation.column})
    for word in words:
        if word != operation:
            _take(given, kind, word)
    options = {name: given.values.pop(name) for name in _VALUES if name in given.values}
    try:
        return kind.read(given, device), PlanningOptions(**options)
    except (TypeError, ValueError) as error:
        raise given.error(error) from None


def parse_plannable(text: str, device: int = 0) -> tuple[Problem, PlanningOptions]:
    """Parse the text of a problem that is to be planned.

    Raises ProblemTextError as `parse` does, and also for a problem with an empty tensor, which needs no plan.
    """
    problem, options = parse(text, device)
    empty = [name for name, spec in zip(problem.operands, problem.specs, strict=True) if 0 in spec.shape]
    if empty:
        raise ProblemTextError(f"a planned problem must have elements; got none in {', '.join(empty)}", 1)
    return problem, options


# Words


def _split(text: str) -> Iterator[Token]:
    """Yield the words of a text without comments. JSON is one word even if it contains spaces."""
    at = 0
    while found := _WORD.search(text, at):
        start, at = found.span()
        if found.group().startswith("#"):
            continue
        if found.group() == "{":
            at = _end_of_json(text, start)
        yield Token(text[start:at], start + 1)


def _end_of_json(text: str, start: int) -> int:
    depth = 0
    for token in _IN_JSON.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(token.group(), 0)
        if not depth:
            return token.end()
    return len(text)


def _kind(words: list[Token]) -> tuple[ProblemSyntax, Token]:
    """Return the kind of problem of the words, and the operation among them."""
    kinds = [syntax_of(name) for name in SYNTAXES]
    found = [(kind, word) for word in words for kind in kinds if word.text in kind.operations]
    if len(found) == 1:
        return found[0]
    if not found and words and words[0].text.startswith("{"):  # the JSON of a graph
        return syntax_of("graph"), Token("graph", words[0].column)
    known = [operation for kind in kinds for operation in kind.operations]
    expected = f"operation must be one of {', '.join(map(repr, known))}"
    if found:
        (_, first), (_, second), *_ = found
        raise ProblemTextError(f"operation must be given once; got {second.text!r} after {first.text!r}", second.column)
    if not words:
        raise ProblemTextError(f"{expected}, with the shapes of x and w; got an empty text", 1)
    advice = [(word, suggest_value(word.text, known)) for word in words[:_READ_FOR_ADVICE]]
    word, guess = next((pair for pair in advice if pair[1]), (words[0], ""))
    raise ProblemTextError(f"{expected}; got {_shown(word.text)}{guess}", word.column)


def _take(given: ParsedText, kind: ProblemSyntax, word: Token) -> None:
    """Add the value of one word. Raises ProblemTextError if the word is unknown."""
    if kind.operand.match(word.text):
        given.operands.append(word)
        return
    values = {**kind.values, **_VALUES}
    spelled, equals, text = word.text.partition("=")
    name = kind.aliases.get(spelled, spelled)
    if not equals and word.text in (words := {**kind.words, **_WORDS}):
        name, value = words[word.text]
    elif name in values and text:
        try:
            value = values[name](text)
        except ValueError as error:
            raise ProblemTextError(str(error), word.column) from None
    else:
        raise ProblemTextError(_unknown(kind, word), word.column)
    if name in given.values:
        raise ProblemTextError(f"{name} must be given once; got {_shown(word.text)} as well", word.column)
    given.values[name], given.columns[name] = value, word.column


def _unknown(kind: ProblemSyntax, word: Token) -> str:
    """Return why a word is not part of the notation."""
    spelled = word.text.partition("=")[0]
    refused = {name.lower(): expected for name, expected in {**kind.refused, **_REFUSED}.items()}
    alone = {**kind.words, **_WORDS}
    named = [*kind.values, *kind.aliases, *_VALUES]
    if _LISTED_SIZES.fullmatch(word.text):
        sizes = re.findall("[0-9]+", word.text)
        right = "x".join(sizes) if len(sizes) > 1 else "such as 1x3x8x8"
        return f"shape must be sizes joined by x, {right[:_SHOWN]}; got {_shown(word.text)}"
    if spelled.lower() in refused:
        return f"{spelled} must be {refused[spelled.lower()]}; got {_shown(word.text)}"
    if spelled in named:
        return f"{spelled} must have a value, {spelled}=...; got {_shown(word.text)}"
    if spelled in alone:
        return f"{spelled} must have no value; got {_shown(word.text)}"
    guess = near(spelled, [*named, *alone, *refused, *kind.operations])
    expected = "a word of the notation" if guess else f"one of {', '.join([*alone, *(f'{name}=' for name in named)])}"
    return f"word must be {expected}; got {_shown(word.text)}{did_you_mean(guess)}"


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


# Values. A text that is not a value of the type is returned unchanged, and rejected where the value is checked.


def read_integer(text: str) -> int | str:
    """Return the integer of a text."""
    return int(text) if re.fullmatch(r"-?[0-9]{1,40}", text) else text


def read_number(text: str) -> float | str:
    """Return the number of a text as a float."""
    try:
        return float(text) if re.fullmatch(r"[-+.0-9a-zA-Z]{1,60}", text, re.ASCII) else text
    except ValueError:
        return text


def read_flag(text: str) -> bool | str:
    """Return the bool of a text."""
    return {"true": True, "false": False}.get(text.lower(), text)


def number_text(number: float) -> str:
    """Return the shortest text of a number that `read_number` reads as the same."""
    number = float(number)
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else repr(number)


# The words of the options


def _read_limit(text: str) -> int | None:
    if text == "None":
        return None
    count = read_bytes(text)
    if count is None:
        raise ValueError(
            f"workspace_limit must be a number of bytes, such as 64MiB, 1GiB or 1000000, or None; got {_shown(text)}"
        )
    return count


_VALUES: dict[str, Callable[[str], Any]] = {
    "prefer": str,
    "workspace_limit": _read_limit,
    "deterministic": read_flag,
    "tf32": read_flag,
    "tune_seconds": read_number,
}
_WORDS: dict[str, tuple[str, Any]] = {"deterministic": ("deterministic", True), "tf32": ("tf32", True)}
_REFUSED = {
    "algorithm": "left out, since a text says what an algorithm is chosen for",
    "policy": "left out, since a text is of one problem",
    "device": "left out, since a text is for any device",
    "float": "'float32' as in C, or 'float64' as in NumPy",
}


def _words_of(options: PlanningOptions) -> list[str]:
    limit, default = options.workspace_limit, PlanningOptions()
    words = {
        f"prefer={options.prefer}": options.prefer != default.prefer,
        f"workspace_limit={write_bytes(limit or 0)}": limit is not None,
        "deterministic": options.deterministic,
        "tf32=False": not options.tf32,
        f"tune_seconds={number_text(options.tune_seconds)}": options.tune_seconds != default.tune_seconds,
    }
    return [word for word, is_needed in words.items() if is_needed]
