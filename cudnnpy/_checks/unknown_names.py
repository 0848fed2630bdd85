"""The errors for names that `cudnnpy` and its graphs lack: what to type for another library's name, or a similar name."""

from __future__ import annotations

import re
from collections.abc import Collection
from importlib import import_module

from cudnnpy._checks.other_names import advice
from cudnnpy._checks.public_dir import no_attribute
from cudnnpy._checks.suggestions import did_you_mean, near, suggest_option

# Public modules that `import cudnnpy` does not make available, and modules whose names people look for in the package itself.
_OWN_IMPORTS = ("torch", "typing", "availability")
_MODULES = ("descriptors", "errors", "names", "store", "workspace", "availability", "backend", "typing", "reference")


def missing(name: str, public: Collection[str]) -> str:
    """Return the message for a name that the package lacks, with the name to type if there is one. `public` are its names."""
    text = f"module 'cudnnpy' has no attribute {name!r:.80}"
    return text if name.startswith("_") else f"{text}{_suggest(name, public)}"


def missing_in_reference(name: str, public: Collection[str]) -> str:
    """Return the message for a name that `cudnnpy.reference` lacks; what to type is a name there if it has it."""
    text = f"module 'cudnnpy.reference' has no attribute {name!r:.80}"
    if name.startswith("_"):
        return text
    if name in import_module("cudnnpy").__all__:
        return f"{text}: type cudnnpy.{name}"
    return text + re.sub(rf"\bcudnnpy\.(?=(?:{'|'.join(public)})\b)", "cudnnpy.reference.", _suggest(name, public))


def missing_in_graph(owner: object, name: str) -> str:
    """Return the message for an attribute that a graph or a tensor lacks, with what to type in place of cudnn-frontend's."""
    known = advice("graph").get(name)
    return f"{type(owner).__name__!r} object has no attribute {name!r}: {known}" if known else no_attribute(owner, name)


def suggest_keyword(graph: object, unknown: str, known: tuple[str, ...]) -> str:
    """Return the end of the error for an unknown keyword of a graph's method, such as cudnn-frontend's."""
    return suggest_option(graph, unknown, known, advice("graph arguments").get(unknown, "").split(), "graph keywords")


def _suggest(name: str, public: Collection[str]) -> str:
    if name in _OWN_IMPORTS:
        return f". It is a module of its own: type import cudnnpy.{name} first"
    plain = _plain(name)
    if plain.startswith("cuda") and plain != "cuda":
        return f": {_in_raw(name)}"
    if same := [known for known in public if _plain(known) == plain]:
        return did_you_mean(same)
    for known, sentence in advice("package").items():
        if _plain(known) == plain:
            return f": {sentence}"
    if plain.startswith("cudnn"):
        return f": {_in_raw(name)}"
    for module in _MODULES:
        if name in import_module(f"cudnnpy.{module}").__all__:
            return f": type cudnnpy.{module}.{name}"
    return did_you_mean(near(name, public)) or ". help(cudnnpy) lists the names"


def _in_raw(name: str) -> str:
    """Return what to type for a name of C, or why cuDNN 9 does not have it."""
    raw = import_module("cudnnpy.raw")
    return f"type cudnnpy.raw.{name}" if name in raw.__all__ else raw.missing(name)


def _plain(name: str) -> str:
    return name.lower().replace("_", "")
