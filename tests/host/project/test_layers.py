"""The order of the modules, the cost of importing, and that everything public is documented."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from rooms import ROOMS

import cudnnpy

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "cudnnpy"

# The packages, and the modules beside them, from the lowest to the highest: each imports only from those before it.
ORDER = [name for room in ROOMS.values() for name in room]


# What the reference shares with the rest: types, names of C, the checks of options and of arguments, the error for a name that
# it lacks, and the classes from which it takes options, signatures and docstrings. Its numerics are independent.
WITH_THE_REFERENCE = {"typing", "_checks", "raw"}
LAYERS = {
    f"_layers.{name}"
    for name in (
        *("convolution", "fused", "transpose"),
        *("activation", "attention", "batch_normalization", "pooling", "softmax"),
    )
}
LAYERS |= {"_convolution.options", "_core.layouts"}
# The checks of the arguments of a call, by a Call with the specs of NumPy arrays
LAYERS |= {"_core.dtypes", "_convolution.specification", "_launch.dispatch", "_launch.program", "_layers.arguments"}
LAYERS |= {"_layers.lowerings.convolution_candidates", "_layers.lowerings.sums"}
# The evaluator of graphs reads graphs as data. The reference of the layers computes by its formulas.
EVALUATOR = {"reference.graph", "reference._kinds"}
AS_DATA = {"raw", "graph.kinds", "graph.operation_graph", "_core.dtypes", "_core.layouts", "_layers.graph"}


def modules() -> dict[str, str]:
    """Every module's name below the package -> its source; the package itself, which imports lazily, is left out."""
    found = {}
    for file in PACKAGE.rglob("*.py"):
        name = ".".join(file.relative_to(PACKAGE).with_suffix("").parts)
        if name != "__init__":
            found[name.removesuffix(".__init__")] = file.read_text()
    return found


def imported(source: str, known: set[str]) -> Iterator[tuple[int, str]]:
    """(line, module below the package) of every import in a module that runs; "" for the package itself."""
    tree = ast.parse(source)
    for_editors = {
        node
        for test in ast.walk(tree)
        if isinstance(test, ast.If) and isinstance(test.test, ast.Name) and test.test.id == "TYPE_CHECKING"
        for node in test.body
    }
    for node in ast.walk(tree):
        if node in for_editors:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: a relative import"
            below = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name.removeprefix("cudnnpy.") in known else str(node.module) for name in below]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "cudnnpy":
                yield node.lineno, name.removeprefix("cudnnpy").removeprefix(".")


# Graph.check compares with the reference, which it imports when it is called.
COMPARISONS = {("_layers.graph", "reference.graph")}


def top(name: str) -> str:
    """The package that a module is in, or the module itself: "graph.nodes" -> "graph"."""
    return name.split(".", maxsplit=1)[0]


def breaches(sources: dict[str, str], order: list[str]) -> list[str]:
    """Every import that is against the order of the packages, or that closes a circle within one, as text."""
    rank = {name: at for at, name in enumerate(order)}
    there = {top(name) for name in sources}
    found = [f"{name} is not in the order of the packages" for name in sorted(there - rank.keys())]
    found += [f"{name} is in the order of the packages and does not exist" for name in order if name not in there]
    within: dict[str, set[str]] = {name: set() for name in sources}
    for name, source in sources.items():
        for line, other in imported(source, set(sources)):
            if top(other) == top(name):
                within[name].add(other)
            elif top(other) not in rank:
                found.append(f"{name}:{line} imports {other or 'the package itself'}")
            elif top(name) in rank and rank[top(other)] > rank[top(name)] and (name, other) not in COMPARISONS:
                found.append(f"{name}:{line} imports {other}, which is not before it")
            elif name in EVALUATOR and other in AS_DATA:
                continue
            elif top(name) == "reference" and top(other) not in WITH_THE_REFERENCE and other not in LAYERS:
                found.append(f"{name}:{line} imports {other}: the reference stands alone")
    try:
        TopologicalSorter(within).prepare()
    except CycleError as error:
        found.append(f"a circle: {' imports '.join(reversed(error.args[1]))}")
    return found


def test_packages_import_only_from_those_before_them() -> None:
    assert breaches(modules(), ORDER) == []


def test_the_checks_of_options_need_the_standard_library_alone() -> None:
    for name in modules():
        if top(name) == "_checks" or name == "_convolution.options":
            new = {one.split(".")[0] for one in newly_imported(f"import cudnnpy.{name}")}
            assert new - sys.stdlib_module_names == {"cudnnpy"}, name


# Importing


def newly_imported(statement: str) -> set[str]:
    """The modules that a statement brings into a fresh interpreter, which has nothing but the standard library."""
    source = f"import sys; before = set(sys.modules); {statement}; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-S", "-c", source], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_imports_next_to_nothing() -> None:
    new = newly_imported("import cudnnpy")
    assert {name for name in new if name.startswith("cudnnpy")} == {"cudnnpy", "cudnnpy._version"}
    heavy = {
        "numpy",
        "ctypes",
        "cuda",
        "typing",
        "enum",
        "re",
        "dataclasses",
        "inspect",
        "pathlib",
        "json",
        "subprocess",
    }
    assert new & heavy == set()
    assert len(new) < 15


def test_importing_raw_imports_nothing_that_is_not_pythons_own() -> None:
    new = newly_imported("import cudnnpy.raw")
    assert "ctypes" in new
    assert {name.split(".")[0] for name in new} - sys.stdlib_module_names == {"cudnnpy"}


@pytest.mark.parametrize(
    "module", ["errors", "names", "_core.owned", "handle", "descriptors", "backend", "availability"]
)
def test_importing_a_module_near_c_needs_no_other_package(module: str) -> None:
    """Neither numpy nor cuda.core is imported before something needs it; nor is libcudnn loaded."""
    new = newly_imported(f"import cudnnpy.{module}; from cudnnpy.raw import _library; assert _library._loaded is None")
    assert {name.split(".")[0] for name in new} - sys.stdlib_module_names == {"cudnnpy"}


# Public names


@pytest.mark.parametrize("name", cudnnpy.__all__)
def test_a_lazy_name_stays_the_same(name: str) -> None:
    assert getattr(cudnnpy, name) is getattr(cudnnpy, name)
