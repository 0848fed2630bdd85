"""A room of the package imports only from the rooms above it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from rooms import ROOMS

ROOT = Path(__file__).resolve().parents[3]
NAMES = list(ROOMS)
ROOM_OF = {name: room for room, names in ROOMS.items() for name in names}


def sources() -> dict[str, str]:
    """Every module's path below the package -> its source, without the package itself, which names modules in a table."""
    package = ROOT / "cudnnpy"
    found = {file.relative_to(package).as_posix(): file.read_text() for file in package.rglob("*.py")}
    return {path: source for path, source in found.items() if path != "__init__.py"}


def imports(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, top name below the package) of the imports below a node, except for those under TYPE_CHECKING."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.ImportFrom) and str(child.module).split(".")[0] == "cudnnpy":
            below = str(child.module).split(".")[1:2] or [alias.name for alias in child.names]
            yield from ((child.lineno, name) for name in below)
        elif isinstance(child, ast.Import):
            names = [alias.name.split(".") for alias in child.names]
            yield from ((child.lineno, name[1]) for name in names if name[0] == "cudnnpy" and len(name) > 1)
        else:
            yield from imports(child)


def breaches(modules: dict[str, str]) -> list[str]:
    """Return the imports from a lower room, and the names without a room."""
    found = []
    for path, source in modules.items():
        room = ROOM_OF.get(path.split("/")[0].removesuffix(".py"))
        if room is None:
            found.append(f"{path} has no room")
            continue
        for line, name in imports(ast.parse(source)):
            other = ROOM_OF.get(name)
            if other is None:
                found.append(f"{path}:{line} imports {name}, which has no room")
            elif NAMES.index(other) > NAMES.index(room):
                found.append(f"{path}:{line}, in {room}, imports {name} of {other}")
    return sorted(found)


def test_a_room_imports_only_from_the_rooms_above_it() -> None:
    assert breaches(sources()) == []


def test_an_import_from_below_is_found_wherever_it_is() -> None:
    lazy = "def f():\n    from cudnnpy.tuning import chooser\n"
    typed = "if TYPE_CHECKING:\n    from cudnnpy.store import Entry\n"
    modules = {
        "handle.py": lazy,
        "graph/a.py": typed,
        "_core/b.py": "from cudnnpy import errors, graph\n",
        "new.py": "",
    }
    assert breaches(modules) == [
        "_core/b.py:1, in the binding, imports graph of the layer",
        "handle.py:2, in the binding, imports tuning of the extras",
        "new.py has no room",
    ]
