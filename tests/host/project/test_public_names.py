"""The tables of names in docs/api.md and the code agree, in both directions."""

from __future__ import annotations

import inspect
import pydoc
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pkgutil import resolve_name
from types import FunctionType
from typing import Any

import pages
import pytest

import cudnnpy
from tools import public_api

DOCS = pages.ROOT / "docs"
MODULES = {name.removeprefix("cudnnpy."): module for name, module in public_api.modules().items()}
CLASSES: dict[str, type] = {}  # the classes of cudnnpy before those of its modules
for path, value in public_api.objects():
    if inspect.isclass(value):
        CLASSES.setdefault(path.rpartition(".")[2], value)
# The class of a variable in the tables.
OBJECTS = {"plan": "Plan", "candidate": "Candidate", "conv": "Convolution", "error": "StatusError"}


def exists(name: str) -> bool:
    """Whether a dotted name is something public, or a module; its head is a module, a class or one of OBJECTS."""
    if name.startswith(("cudnnpy.", "tools.")) and is_module(name):
        return True
    head, *rest = name.removeprefix("cudnnpy.").split(".")
    found: Any = MODULES.get(head) or CLASSES.get(OBJECTS.get(head, head)) or getattr(cudnnpy, head, None)
    for part in rest:
        if part.startswith("_") or not (hasattr(found, part) or part in fields(found)):
            return False
        found = getattr(found, part, None)
    return found is not None or bool(rest)


def is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def fields(found: object) -> list[str]:
    """Those that a class has no default for are no attributes of it."""
    return public_api.members(found) if inspect.isclass(found) else []


def tables(text: str) -> Iterator[tuple[str, str]]:
    """Each name in the first column of a table, with the module that the section above is about."""
    for section in re.split(r"^## ", text, flags=re.M)[1:]:
        module = re.match(r"`(cudnnpy(?:\.[a-z]\w*)?)`", section)
        for line in re.findall(r"^\| (`.*?) \|", section, re.M):
            yield from ((module[1] if module else "", name) for name in re.findall(r"`([^`]+)`", line))


API = (DOCS / "api.md").read_text()


def test_every_name_in_the_tables_of_names_exists_in_its_module() -> None:
    found = list(tables(API))
    assert len(found) > 100
    for module, name in found:
        assert (module and exists(f"{module}.{name}")) or exists(name), f"{module or 'docs/api.md'}: {name}"


@pytest.mark.parametrize("module", public_api.MODULES)
def test_every_public_name_is_in_the_section_of_its_module(module: str) -> None:
    section = re.search(rf"^## `{re.escape(module)}`$.*?(?=^## |\Z)", API, re.M | re.DOTALL)
    assert section, f"docs/api.md has no section `{module}`"
    short = module.rpartition(".")[2]  # raw.call reads better than call
    missing = [
        name for name in public_api.exported(module) if not {f"`{name}`", f"`{short}.{name}`"} & set(ticks(section[0]))
    ]
    assert missing == []


def ticks(text: str) -> list[str]:
    return re.findall(r"`[^`]+`", text)


@pytest.mark.parametrize("name", public_api.MODULES)
def test_a_module_exports_its_classes_and_nothing_that_it_lacks(name: str) -> None:
    module = public_api.modules()[name]
    assert [one for one in module.__all__ if not hasattr(module, one)] == []
    classes = [one for one, value in vars(module).items() if inspect.isclass(value) and value.__module__ == name]
    assert [one for one in classes if not one.startswith("_") and one not in module.__all__] == []


@pytest.mark.parametrize("path", [*cudnnpy.__all__, *(f"reference.{name}" for name in cudnnpy.reference.__all__)])
def test_every_public_class_and_method_has_a_docstring_of_its_own(path: str) -> None:
    """`help` of a class shows its own `__doc__` alone, and not a base's."""
    found = resolve_name(f"cudnnpy:{path}")
    if inspect.isclass(found):
        methods = {name: inspect.getattr_static(found, name, None) for name in public_api.members(found)}
        kinds = FunctionType | property | classmethod | staticmethod
        assert found.__doc__
        assert [name for name, one in methods.items() if isinstance(one, kinds) and not one.__doc__] == []


@pytest.mark.parametrize("name", public_api.MODULES)
def test_a_module_completes_to_its_public_names_alone(name: str) -> None:
    module = public_api.modules()[name]
    assert dir(module) == sorted(module.__all__)


def test_help_of_the_package_begins_with_its_public_names() -> None:
    shown = pydoc.render_doc(cudnnpy, renderer=pydoc.plaintext).partition("PACKAGE CONTENTS")[0]
    listed = set(re.findall(r"\w+", shown))
    assert [name for name in cudnnpy.__all__ if name not in listed and name != "__version__"] == []
