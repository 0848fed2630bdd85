"""Every parameter and every result of the public functions and classes has a type, and none of them is Any."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

import cudnnpy
import cudnnpy.torch
from cudnnpy import availability, backend, descriptors, errors, names, raw, reference, store, workspace

MODULES: list[ModuleType] = [
    cudnnpy,
    availability,
    backend,
    descriptors,
    errors,
    names,
    raw,
    reference,
    store,
    cudnnpy.torch,
    workspace,
]
SPECIAL = ("__init__", "__call__", "__getitem__", "__setitem__")

# What no type can say: it depends on a name or on an attribute that is given, or on data.
DEPENDS = {
    "to_numpy": "the element type of the array",
    "bound": "what the C function of this name takes and returns",
    "ctype": "the ctypes type of a C type",
    "Descriptor.get": "what the C function of this name, or the attribute, has",
    "Descriptor.__getitem__": "what the attribute has",
    "DeviceProfile.properties": "numbers, lists of numbers and texts, by cuDNN's names",
    "explain": "JSON, whose keys are documented",
}


def functions_of(name: str, value: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """A function, or the public methods and properties of a class and of its bases in this package."""
    value = inspect.unwrap(value) if callable(value) else value
    if inspect.isfunction(value):
        yield name, value
    if not inspect.isclass(value):
        return
    for kind in value.__mro__:
        for member, one in vars(kind).items() if kind.__module__.startswith("cudnnpy") else ():
            found = getattr(one, "__func__", getattr(one, "fget", one))
            made_by_typing = member == "__init__" and getattr(kind, "_is_protocol", False)
            if inspect.isfunction(found) and not made_by_typing and (member in SPECIAL or not member.startswith("_")):
                yield f"{kind.__name__}.{member}", found


def public(module: ModuleType) -> list[str]:
    """The public names of a module that are its own; of raw, those that are not C's, whose types are a stub."""
    listed = getattr(module, "__all__", None) or [
        name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
    ]
    return [name for name in listed if not name.startswith("_") and name not in set(raw._api.__all__)]


FUNCTIONS = sorted(
    {
        (module.__name__, name, function)
        for module in MODULES
        for one in public(module)
        for name, function in functions_of(one, getattr(module, one))
    },
    key=lambda found: found[:2],
)


def test_there_are_functions() -> None:
    names = {name for _, name, _ in FUNCTIONS}
    assert {"to_numpy", "call", "Handle.__init__", "TensorDescriptor.__init__", "Descriptor.set"} <= names
    assert set(DEPENDS) <= names


@pytest.mark.parametrize(("module", "name", "function"), FUNCTIONS, ids=[f"{at}.{name}" for at, name, _ in FUNCTIONS])
def test_annotations_say_what_is_taken_and_returned(module: str, name: str, function: Callable[..., Any]) -> None:
    signature = inspect.signature(function)
    missing = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.annotation is parameter.empty and parameter.name not in ("self", "cls")
    ]
    assert missing == []
    assert signature.return_annotation is not signature.empty
    told = {p.name: str(p.annotation) for p in signature.parameters.values()}
    assert [name for name, text in told.items() if re.search(r"\bAny\b", text)] == []
    assert bool(re.search(r"\bAny\b", str(signature.return_annotation))) == (name in DEPENDS)
