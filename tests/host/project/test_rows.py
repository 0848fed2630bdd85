"""tests/rows.toml: every row is there, and names tests that exist."""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
ROWS: dict[str, Any] = tomllib.loads((ROOT / "tests" / "rows.toml").read_text())
WANTED = [
    f"{part}{number}" for part, count in zip("ABCDE", (6, 6, 6, 8, 5), strict=True) for number in range(1, count + 1)
]


@cache
def named_in(file: Path) -> frozenset[str]:
    """The test functions of a file, also those in classes."""
    tree = ast.parse(file.read_text())
    return frozenset(n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name.startswith("test_"))


@cache
def strings_of(folder: Path) -> frozenset[str]:
    """Every string in the Python files of a folder: what a test's parameters are made from."""
    trees = (ast.parse(file.read_text()) for file in folder.rglob("*.py"))
    constants = (node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return frozenset(value for value in constants if isinstance(value, str))


def faults(rows: dict[str, Any]) -> list[str]:
    """What is wrong with the rows, as text."""
    found = [f"{row} is missing" for row in WANTED if row not in rows]
    for name, row in rows.items():
        if name not in WANTED:
            found.append(f"{name} is no row")
        found += [f"{name} has {key!r}, which means nothing" for key in row if key not in KEYS]
        if not row.get("text"):
            found.append(f"{name} does not say what must work")
        if not (ROOT / row.get("page", "missing")).is_file():
            found.append(f"{name} has no page {row.get('page')!r}")
        for kind in ("host", "gpu"):
            listed, why = row.get(kind, []), row.get(f"without_{kind}", "")
            if bool(listed) == bool(why):
                found.append(f"{name} needs {kind} tests, or without_{kind} saying why there are none")
            found += [f"{name}: {fault}" for test in listed if (fault := fault_of(test, kind))]
            if len(set(listed)) != len(listed):
                found.append(f"{name} lists a {kind} test twice")
    return found


KEYS = ("text", "page", "host", "gpu", "without_host", "without_gpu")


def fault_of(test: str, kind: str) -> str:
    """What is wrong with "file::test" or "file::test[parameter]"; "" if nothing is."""
    path, _, function = test.partition("::")
    function, _, parameter = function.partition("[")
    file = ROOT / path
    folders = [ROOT / "tests" / folder for folder in ("host", "torch") if kind == "host"] or [ROOT / "tests" / kind]
    if not (set(folders) & set(file.parents) and file.is_file()):
        return f"{path} is no file of {' or '.join(f'tests/{folder.name}' for folder in folders)}"
    if function not in named_in(file):
        return f"{path} has no {function}"
    if parameter and parameter.removesuffix("]") not in strings_of(ROOT / "tests" / kind):
        return f"no file of tests/{kind} has the parameter {parameter.removesuffix(']')!r}"
    return ""


def test_every_row_names_tests_that_exist() -> None:
    assert faults(ROWS) == []
    assert list(ROWS) == WANTED


def test_the_packages_and_the_top_level() -> None:
    for name in ("pyproject.toml", "cudnnpy", "tests", "docs", "tools", "LICENSE"):
        assert (ROOT / name).exists(), name
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for wanted, given in {
        "numpy": project["dependencies"],
        "cuda-pathfinder": project["dependencies"],
        "platformdirs": project["dependencies"],
        "cuda-core": extras["cu12"],
        "cuda-python": extras["cu12"],
        "nvidia-cudnn-cu12": extras["cu12"],
        "nvidia-cudnn-cu13": extras["cu13"],
        "pytest": extras["test"],
        "hypothesis": extras["test"],
    }.items():
        assert any(text.startswith(wanted) for text in given), wanted
    assert len(project["dependencies"]) == 3
