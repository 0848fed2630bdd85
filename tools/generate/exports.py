"""The table of public names in cudnnpy/__init__.py -> cudnnpy/__init__.pyi."""

from __future__ import annotations

from tools.generate.records import sealed


def stub(names: dict[str, str]) -> str:
    """cudnnpy/__init__.pyi: the public names as imports, for editors and type checkers.

    At run time a module-level __getattr__ imports each name on first use. A type checker that saw it would accept every
    name, also one that does not exist.
    """
    lines = ["from cudnnpy._version import __version__ as __version__"]
    for name, place in names.items():
        home, _, there = place.partition(":")
        lines.append(f"from cudnnpy{'.' if home else ''}{home} import {there or name} as {name}")
    lines = [*sorted(lines), "", "_LAZY: dict[str, str]", "", "__all__ = ["]
    lines += [f"    {name!r}," for name in (*names, "__version__")]
    banner = "# GENERATED from cudnnpy/__init__.py by `python -m tools.generate`; do not edit: types"
    return sealed(banner, "\n".join([*lines, "]"]) + "\n")
