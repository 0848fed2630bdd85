"""The site's pages of the C functions, from the tables that the generator makes of tools/generate/api.jsonl."""

from __future__ import annotations

import ctypes
from pathlib import PurePosixPath
from typing import Any

from cudnnpy import raw
from cudnnpy.raw import _api

FOLDER = PurePosixPath("reference/c")
_pointers: Any = ctypes
_POINTERS = (_pointers._Pointer, _pointers._CFuncPtr, ctypes.c_void_p, ctypes.c_char_p)
_LONGEST = 100  # characters of a prototype in one line


def pages() -> dict[PurePosixPath, bytes]:
    """Return a page for each function, and their index by sub-library."""
    lines = ["C functions", "===========", "", "Every function of cuDNN's headers, by the header that declares it."]
    lines += ["`raw` calls each under this name, with these parameters.", ""]
    for header in dict.fromkeys(_header(name) for name in raw.functions()):
        lines += ["", header, "-" * len(header), ""]
        lines += [f"- {_link(name)}" for name in raw.functions() if _header(name) == header]
    texts = {"index": lines, **{name: page(name) for name in raw.functions()}}
    return {FOLDER / f"{name}.rst": "\n".join([*text, ""]).encode() for name, text in texts.items()}


def page(name: str) -> list[str]:
    """Return the lines of a function's page: prototype, release, replacements and parameters.

    It is in no table of contents: the navigation of every page of the site would list it.
    """
    parameters, replacements = raw.parameters(name), raw.deprecated(name)
    signature = f"cudnnpy.raw.{name}({', '.join(parameter for parameter, _, _ in parameters)})"
    lines = [":orphan:", "", name, "=" * len(name), "", f".. py:function:: {signature}", ""]
    lines += ["   .. code-block:: c", "", *(f"      {line}" for line in prototype(name)), ""]
    since = raw.since(name)
    lines += [f"   {f'Since cuDNN {since}; declared' if since else 'Declared'} in ``{_header(name)}``.", ""]
    if replacements is not None:
        links = " or ".join(map(_link, replacements))
        lines += [f"   Deprecated{f'; replaced by {links}' if links else '; the header names no replacement'}.", ""]
    if parameters:
        rows = [("parameter", "C type", "direction", "NULL"), *(_row(name, at) for at in range(len(parameters)))]
        lines += ["   .. list-table::", "      :header-rows: 1", ""]
        lines += [
            f"      {'-' if at else '* -'} {cell}".replace("      - ", "        - ")
            for row in rows
            for at, cell in enumerate(row)
        ]
    kind = _api.FUNCTIONS[name][0]
    status = "``cudnnStatus_t``; :py:obj:`raw.check <cudnnpy.raw.check>` raises the exception of a bad one"
    return [*lines, "", f"   Returns {status if kind == 'cudnnStatus_t' else f'``{kind}``'}."]


def prototype(name: str) -> list[str]:
    """Return the C prototype, with a line for each parameter where it is long."""
    whole = raw.prototype(name)
    if len(whole) <= _LONGEST:
        return [f"{whole};"]
    result, _, rest = whole.partition("(")
    return [f"{result}(", *(f"    {part}" for part in f"{rest};".replace(", ", ",\n").split("\n"))]


def _row(name: str, at: int) -> tuple[str, str, str, str]:
    parameter, kind, direction = raw.parameters(name)[at]
    null = "not a pointer"
    if issubclass(raw.ctype(kind), _POINTERS):
        is_rejected = at in _api.NOT_NULL.get(name, ())
        null = "rejected: TypeError for None, ValueError for NULL" if is_rejected else "passed to cuDNN"
    return f"``{parameter}``", f"``{kind}``", direction or "not stated", null


def _header(name: str) -> str:
    return f"cudnn_{_api.FUNCTIONS[name][2]}.h"


def _link(name: str) -> str:
    return f":py:obj:`{name} <cudnnpy.raw.{name}>`" if name in _api.FUNCTIONS else f"``{name}``"
