"""The examples in the docstrings of public names: doctest's, of which those that begin with "# on a GPU" need one."""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Iterator
from typing import Any

from tools import public_api

_WHERE = re.compile(r">>> # on a GPU(?:, with (\w+))?$", re.M)


def documented() -> Iterator[tuple[str, Any]]:
    """The public classes and functions that should have an example: all but exceptions and protocols."""
    for path, value in public_api.objects():
        if inspect.isclass(value):
            if not issubclass(value, BaseException) and not getattr(value, "_is_protocol", False):
                yield path, value
        elif callable(value) and inspect.getdoc(inspect.unwrap(value)) and hasattr(value, "__wrapped__"):
            yield path, inspect.unwrap(value)
        elif inspect.isfunction(value):
            yield path, value


def examples(value: Any) -> str:
    """The examples of a docstring as its text, or ""."""
    _, _, text = (inspect.getdoc(value) or "").partition("\nExamples\n--------\n")
    return text


def needs(text: str) -> tuple[bool, str]:
    """Whether examples need a GPU, and the package that they need besides, or ""."""
    found = _WHERE.search(text)
    return found is not None, (found[1] or "") if found else ""


def failures(path: str, text: str) -> str:
    """Run examples and return what failed, as doctest reports it; "" if nothing did."""
    test = doctest.DocTestParser().get_doctest(text, {}, path, None, None)
    assert test.examples, f"{path}: no example"
    reported: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL).run(test, out=reported.append)
    return "".join(reported)
