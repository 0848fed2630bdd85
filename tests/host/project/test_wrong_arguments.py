"""Wrong arguments of every public function, and the names that `dir` lists: an array where anything else is expected."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import cudnnpy
from cudnnpy import Graph, availability, errors
from cudnnpy._checks.options import Options
from cudnnpy._core.owned import Owned
from tools import public_api

ARRAY = np.full((40, 100), 0.5)
ARRAY.setflags(write=False)
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
CONTENT = ("[0.5", "0.5,", "0.5 ")


def calls(name: str, function: Callable[..., Any]) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """A call with the array in place of every required argument, and for each optional argument that call with it as well."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return
    given = tuple(ARRAY for one in parameters if one.kind in POSITIONAL and one.default is one.empty)
    named = {one.name: ARRAY for one in parameters if one.kind is one.KEYWORD_ONLY and one.default is one.empty}
    if given or named:
        yield name, given, named
    for one in list(parameters)[len(given) :]:
        if one.kind in (*POSITIONAL, one.KEYWORD_ONLY) and one.name not in named:
            yield f"{name}({one.name}=)", given, {**named, one.name: ARRAY}


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public functions and classes, and the methods of objects that can be made without arguments."""
    for path, value in public_api.objects():
        if path.startswith(("cudnnpy.raw.", "cudnnpy.torch.", "cudnnpy.typing.", "cudnnpy.names.")):
            continue  # C's own; another package; no functions; and functions whose `argument` is a name for errors
        is_class = inspect.isclass(value)
        if not callable(value) or (
            is_class and (issubclass(value, BaseException) or getattr(value, "_is_protocol", 0))
        ):
            continue
        yield path, value
        if not is_class or not issubclass(value, Options | Graph | Owned):
            continue
        try:
            made = value()
        except Exception:
            continue
        yield from (
            (f"{path}.{name}", method)
            for name in public_api.members(value)
            if callable(method := getattr(made, name, None))
        )


CALLS = [call for name, function in functions() for call in ((function, *one) for one in calls(name, function))]


@pytest.mark.parametrize(("function", "name", "given", "named"), CALLS, ids=[call[1] for call in CALLS])
def test_an_array_as_an_argument_is_no_riddle(function, name, given, named):
    """The error names the argument, in a few words: no attribute that the array lacks, and none of its content."""
    try:
        function(*given, **named)
    except (TypeError, ValueError, RuntimeError, errors.CudnnError, availability.UnavailableError) as error:
        text = str(error)
    else:
        return  # it is an array that was expected
    assert not any(part in text for part in CONTENT), text
    assert "ambiguous" not in text
    assert "scalar index" not in text
    assert len(text) < 1500


def test_there_are_calls_of_all_kinds():
    names = {call[1] for call in CALLS}
    assert len(names) > 300
    assert names >= {"cudnnpy.Plan", "cudnnpy.candidates_table", "cudnnpy.Graph.convolution(padding=)"}


@pytest.mark.parametrize("path", [path for path, value in public_api.objects() if inspect.isclass(value)])
def test_dir_lists_public_names_alone(path):
    value = dict(public_api.objects())[path]
    private = {name for name in dir(value) if name.startswith("_") and not name.endswith("__")}
    if issubclass(value, tuple):
        private -= {"_asdict", "_field_defaults", "_fields", "_make", "_replace"}  # documented by Python
    if getattr(value, "_is_protocol", False):
        private -= {"_abc_impl", "_is_protocol", "_is_runtime_protocol"}
    assert private == set()


def test_dir_of_an_object_lists_public_names_alone():
    graph = cudnnpy.Graph()
    assert "convolution" in dir(graph)
    assert [name for name in dir(graph) if name.startswith("_") and not name.endswith("__")] == []
    assert vars(graph).keys() - set(dir(graph))  # it has private attributes
