"""The files of cuDNN that this process has loaded, that it would load, and that lie elsewhere: versions and origins.

No file is loaded here.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from typing import TypeAlias

from cudnnpy.raw import _library
from cudnnpy.raw._consistency import parts_of, version_text
from cudnnpy.raw._elf import examine, places

# The files of the installed nvidia-cudnn-* wheels, with the wheels (name, version) that list them.
Owners: TypeAlias = dict[str, list[tuple[str, str]]]

REPLACED = "replaced since it was loaded"  # an origin
_DELETED = " (deleted)"  # the kernel's mark of a mapped file that is no longer there


@dataclass(frozen=True)
class Library:
    """A file of cuDNN.

    Attributes
    ----------
    name, path : str
        The file.
    version : str or None
        The release, such as "9.28.0"; None if it is unknown.
    origin : str
        The wheel with its version, "conda", "system", the environment variable that leads to the file, such as
        "LD_LIBRARY_PATH", or "another folder".

    Examples
    --------
    >>> from cudnnpy import availability
    >>> library, *_ = availability.report().libraries
    >>> library.name
    'libcudnn.so.9'
    """

    name: str
    path: str
    version: str | None
    origin: str = ""


def owners_of_files() -> Owners:
    """Return the files of the installed wheels of cuDNN with their wheels."""
    owners: Owners = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"] or ""
        if name.lower().replace("_", "-").startswith("nvidia-cudnn-"):
            for file in distribution.files or ():
                if file.name.startswith("libcudnn"):
                    path = os.path.realpath(str(distribution.locate_file(file)))
                    owners.setdefault(path, []).append((name, distribution.version))
    return owners


def loaded_files(owners: Owners, first: str | None) -> Iterator[Library]:
    """Yield the files of cuDNN in this process's memory map, whoever loaded them. `first`, if it is loaded, comes first."""
    paths: dict[str, str] = {} if first is None else {os.path.realpath(first): first}
    with open("/proc/self/maps", errors="surrogateescape") as maps:
        for line in maps:
            path = line.rstrip("\n").split(maxsplit=5)[-1]
            if os.path.basename(path).startswith("libcudnn"):
                real = os.path.realpath(path.removesuffix(_DELETED))
                if path.endswith(_DELETED) or real not in paths:
                    paths[real] = path
    for path in paths.values():
        file = _library_file(path, owners)
        yield replace(file, version=version_text(_library.version())) if file.path == first else file


def files_to_load(file: str, loaded: list[Library], owners: Owners) -> Iterator[Library]:
    """Yield the parts of a libcudnn, and itself, unless a file of their name is loaded: later calls of cuDNN load them."""
    names = {other.name for other in loaded}
    for path in (file, *(part.path for _name, part in parts_of(file))):
        if os.path.basename(path) not in names:
            yield _library_file(path, owners)


def files_elsewhere(used: list[Library], owners: Owners) -> Iterator[Library]:
    """Yield the files of cuDNN in the other places that are searched, which another program may load."""
    known = {os.path.realpath(other.path) for other in used}
    for folder in dict.fromkeys(folder for _origin, folder in places("libcudnn.so.9")):
        for path in sorted(glob.iglob(os.path.join(glob.escape(folder), "libcudnn*.so.9"))):
            if os.path.realpath(path) not in known:
                known.add(os.path.realpath(path))
                yield _library_file(path, owners)


def _library_file(path: str, owners: Owners) -> Library:
    name = os.path.basename(path)
    if path.endswith(_DELETED):
        return Library(name.removesuffix(_DELETED), path.removesuffix(_DELETED), None, REPLACED)
    return Library(name, path, _version(path, owners), _origin(path, owners))


def _version(path: str, owners: Owners) -> str | None:
    """Return the version of a file: by its content or its name, otherwise by its wheel."""
    part = re.fullmatch(r"libcudnn_(\w+)\.so\.9", os.path.basename(path))
    release = examine(part[1] if part else "", path).release
    if release:
        return version_text(release)
    versions = {version for _name, version in owners.get(os.path.realpath(path), ())}
    return ".".join(versions.pop().split(".")[:3]) if len(versions) == 1 else None


def _origin(path: str, owners: Owners) -> str:
    """Return the wheels that have a file, or the place that is searched for it."""
    if wheels := owners.get(os.path.realpath(path)):
        return " and ".join(f"wheel {name} {version}" for name, version in wheels)
    folders = {os.path.realpath(os.path.dirname(one)) for one in (path, os.path.realpath(path))}
    named = os.environ.get(_library.VARIABLE)
    if named and os.path.realpath(os.path.dirname(named)) in folders:
        return _library.VARIABLE
    found = (origin for origin, folder in places(os.path.basename(path)) if os.path.realpath(folder) in folders)
    origin = next(found, "another folder")
    return {"wheel": "site-packages, of no wheel", "CONDA_PREFIX": "conda"}.get(origin, origin)
