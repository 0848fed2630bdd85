"""Check that the files of an installed cuDNN are complete and of one release, before any is loaded.

Files of two releases, or a truncated file, would end the process at some later call.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from cudnnpy.errors import LibraryNotFoundError, LibraryVersionError
from cudnnpy.raw import _api
from cudnnpy.raw._elf import DAMAGED, Part, examine, searched, unmet

# The sub-libraries of every release of cuDNN 9, each after those that it needs.
PARTS = ("graph", "ops", "cnn", "adv", "heuristic", "engines_precompiled", "engines_runtime_compiled")
_AGAIN = "pip install --force-reinstall --no-deps nvidia-cudnn-cu12 (or -cu13)"


def version_text(number: int) -> str:
    """Return a version as text: "9.28.0" for 92800. cuDNN 8 and earlier count differently: "8.9.7" for 8907.

    Examples
    --------
    >>> from cudnnpy import raw
    >>> raw.version_text(92800)
    '9.28.0'
    """
    if not isinstance(number, int):
        raise TypeError(f"number must be an int, such as 92800; got {number!r:.200}")
    major = 10000 if number >= 90000 else 1000
    return f"{number // major}.{number % major // 100}.{number % 100}"


def version_number(text: str) -> int:
    """Return the number of a release of cuDNN 9 from its text: 92800 for "9.28.0"."""
    major, minor, patch = map(int, text.split("."))
    return major * 10000 + minor * 100 + patch


def check_together(file: str) -> None:
    """Check the parts of libcudnn without loading them, in a few milliseconds.

    Raises LibraryNotFoundError for a damaged file and LibraryVersionError for parts of different releases.
    """
    parts = dict(parts_of(file))
    damaged = [part for part in parts.values() if part.damage]
    if damaged:
        raise LibraryNotFoundError(
            "; ".join(f"{part.path} {part.damage}" for part in damaged),
            f"Install cuDNN again, with enough room on the disk: {_AGAIN}.",
        )
    problems = [*_releases(file, parts), *_unmet(parts, ("cnn",))]
    if problems:
        raise LibraryVersionError(f"the files of cuDNN do not belong together: {'; '.join(problems)}. {_to_do(parts)}")


def unmet_parts(file: str) -> list[str]:
    """Return the inconsistencies that check_together does not look for. It takes tens of milliseconds, for a report."""
    parts = dict(parts_of(file))
    return [] if any(part.damage for part in parts.values()) else list(_unmet(parts, PARTS[1:]))


def own_parts(file: str) -> list[str]:
    """Return the parts beside libcudnn if LD_LIBRARY_PATH has others, which some releases would load instead.

    The parts that are returned must be loaded at once.
    """
    folder = os.path.dirname(file)
    own = [path for path in (_path(folder, name) for name in PARTS) if os.path.exists(path)]
    return own if any(_other(path) for path in own) else []


def _other(path: str) -> bool:
    """Return whether LD_LIBRARY_PATH has another file of this name."""
    others = (os.path.join(folder, os.path.basename(path)) for folder in searched())
    return any(os.path.exists(other) and not os.path.samefile(path, other) for other in others)


def _path(folder: str, name: str) -> str:
    return os.path.join(folder, f"libcudnn_{name}.so.9")


def parts_of(file: str) -> Iterator[tuple[str, Part]]:
    """Yield the parts: all beside libcudnn, else the first in LD_LIBRARY_PATH. cuDNN reports missing ones."""
    beside = sorted(os.listdir(os.path.dirname(file)))
    others = (found[1] for found in map(re.compile(r"libcudnn_(\w+)\.so\.9").fullmatch, beside) if found)
    for name in dict.fromkeys((*PARTS, *others)):
        for folder in (os.path.dirname(file), *searched()):
            path = _path(folder, name)
            if os.path.exists(path):
                yield name, examine(name, path)
                break


def _releases(file: str, parts: dict[str, Part]) -> Iterator[str]:
    known = [part for part in parts.values() if part.release]
    if len({part.release // 100 for part in known}) > 1:
        for part in known:
            yield f"{part.path} is of cuDNN {version_text(part.release)}"
    graph = parts.get("graph")
    if graph is not None and graph.release:
        newest = _newest_function(file)
        if newest > graph.release:
            yield (
                f"{file} is of cuDNN {version_text(newest)} or later, and {graph.path}, which answers for it, of "
                f"{version_text(graph.release)}"
            )


def _newest_function(file: str) -> int:
    """Return the release of libcudnn's newest function, since libcudnn itself does not state its release."""
    with open(file, "rb") as opened:
        names = set(re.findall(rb"cudnn[A-Z]\w+", opened.read(1 << 20)))
    newest = 0
    for name, facts in _api.FUNCTIONS.items():
        if facts[3] not in ("", "9.0.0") and name.encode() in names:
            newest = max(newest, version_number(facts[3]))
    return newest


def _unmet(parts: dict[str, Part], names: tuple[str, ...]) -> Iterator[str]:
    exporting = [parts[name].path for name in ("graph", "ops") if name in parts]
    if len(exporting) < 2:
        return
    for name in names:
        if name in parts:
            try:
                symbol = unmet(parts[name].path, exporting)
            except (OSError, *DAMAGED):
                continue  # a file of another format, which cannot be checked
            if symbol is not None:
                yield f"{parts[name].path} is of another release than {parts['graph'].path}, which lacks {symbol}"


def _to_do(parts: dict[str, Part]) -> str:
    folders = {os.path.dirname(part.path) for part in parts.values()}
    if len(folders) > 1:
        return "Take the folder of the other release out of LD_LIBRARY_PATH, or install all of cuDNN in one release."
    return f"Install all of cuDNN again, in one release: {_AGAIN}."
