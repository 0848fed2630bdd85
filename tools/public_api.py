"""The public names of cudnnpy, which docs/api.md lists, and for which the site has pages.

A name is public if the `__all__` of one of these modules has it; a member is public if its name has no underscore before it
and a class of this package defines it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

MODULES = {  # in the order of the site
    "cudnnpy": "Arrays and operations",
    "cudnnpy.reference": "The reference implementation",
    "cudnnpy.torch": "PyTorch programs",
    "cudnnpy.store": "Stored choices",
    "cudnnpy.errors": "Exceptions",
    "cudnnpy.typing": "Types for annotations",
    "cudnnpy.workspace": "Workspace",
    "cudnnpy.availability": "What is installed",
    "cudnnpy.raw": "The C API",
    "cudnnpy.descriptors": "Descriptors of the C API",
    "cudnnpy.backend": "Descriptors of the graph API",
    "cudnnpy.names": "Short names of enumerators",
}


def modules() -> dict[str, ModuleType]:
    """Return the public modules by their names."""
    return {name: import_module(name) for name in MODULES}


@cache
def exported(module: str) -> list[str]:
    """Return the public names of a module, except for modules that have an entry above, dunders, and the names of C."""
    found = import_module(module)
    names_of_c = set(import_module("cudnnpy.raw._api").__all__) if module == "cudnnpy.raw" else set()
    return [
        name
        for name in found.__all__
        if name not in names_of_c and f"{module}.{name}" not in MODULES and not name.startswith("__")
    ]


def members(kind: type) -> list[str]:
    """Return the public methods, properties and fields of a class that this package defines, and that the class has."""
    names = dict.fromkeys(
        name
        for base in reversed(kind.__mro__)
        if base.__module__.partition(".")[0] == "cudnnpy"
        for name in (*inspect.get_annotations(base), *(name for name in vars(base) if hasattr(kind, name)))
    )
    return [name for name in names if not name.startswith("_")]


def objects(*chosen: str) -> Iterator[tuple[str, Any]]:
    """Yield the dotted path and the object of every public name of the chosen modules, by default of all."""
    for module in chosen or MODULES:
        for name in exported(module):
            yield f"{module}.{name}", getattr(import_module(module), name)


def page_of(path: str) -> str:
    """Return the path under which the site has a name: exceptions and their members are those of `cudnnpy.errors`."""
    name = path.removeprefix("cudnnpy.")
    return f"cudnnpy.errors.{name}" if name.partition(".")[0] in exported("cudnnpy.errors") else path


def paths(*chosen: str) -> Iterator[str]:
    """Yield the dotted path of every public name of the chosen modules, each followed by those of its members."""
    for path, found in objects(*chosen):
        yield path
        if inspect.isclass(found):
            yield from (f"{path}.{member}" for member in members(found))
