"""Find the files of libcudnn, and check that they are complete and of one release, before any is loaded.

Files of two releases, or a truncated file, would end the process at some later call. The files are ELF files for 64-bit Linux,
of which only the header, the table of sections and the dynamic symbols are read.
"""

from __future__ import annotations

import glob
import os
import re
import site
import struct
import sys
from collections.abc import Iterator
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import NamedTuple

from cudnnpy.errors import LibraryNotFoundError, LibraryVersionError
from cudnnpy.raw import _api

# The sub-libraries of every release of cuDNN 9, each after those that it needs.
PARTS = ("graph", "ops", "cnn", "adv", "heuristic", "engines_precompiled", "engines_runtime_compiled")
_AGAIN = "pip install --force-reinstall --no-deps nvidia-cudnn-cu12 (or -cu13)"
_CACHE = Path("/etc/ld.so.cache")  # of the dynamic linker
# Some parts of cuDNN export their release under this name, one byte each for major, minor and patch.
_VERSIONS = {"graph": b"cudnn_graph_version", "ops": b"cudnn_ops_infer_version", "adv": b"cudnn_adv_infer_version"}
_SECTION, _SYMBOL = struct.Struct("<4xI8xQQQI20x"), struct.Struct("<IBBHQQ")
_WITHOUT_BYTES, _DYNAMIC_SYMBOLS = 8, 11  # kinds of sections
_WEAK = 2  # a symbol that may be missing


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


# The search


def findable(name: str) -> str | None:
    """Return the file that cuda.pathfinder would load for a name, unless one is loaded already; None if there is none."""
    return next(filter(os.path.isfile, (os.path.join(folder, name) for _origin, folder in places(name))), None)


def _searched() -> list[str]:
    """Return the folders of LD_LIBRARY_PATH."""
    return [folder for folder in re.split("[:;]", os.environ.get("LD_LIBRARY_PATH", "")) if folder]


def places(name: str) -> Iterator[tuple[str, str]]:
    """Yield (origin, folder) in the order of the search: wheels and conda, the dynamic linker's, environment variables."""
    packages = site.getsitepackages()
    if site.ENABLE_USER_SITE:
        packages.insert(sys.prefix != sys.base_prefix, site.getusersitepackages())
    for folder in packages:
        yield from (("wheel", found) for found in sorted(glob.iglob(os.path.join(glob.escape(folder), "nvidia/*/lib"))))
    for variable in ("CONDA_PREFIX", "", "CUDNN_PATH", "CUDA_PATH", "CUDA_HOME"):
        if root := os.environ.get(variable):
            yield from ((variable, os.path.join(root, folder)) for folder in ("lib64", "lib"))
        elif not variable:
            yield from (("LD_LIBRARY_PATH", folder) for folder in _searched())
            cache = _CACHE.read_bytes() if _CACHE.exists() else b""
            cached = map(os.fsdecode, re.findall(rb"(/[^\0]*)/%s\0" % re.escape(name.encode()), cache))
            system = "/lib64", "/usr/lib64", "/lib", "/usr/lib", os.path.join(sys.base_prefix, "lib")
            yield from (("system", folder) for folder in (*cached, *system))


# One file


class Part(NamedTuple):
    """A file of cuDNN.

    `damage` describes the damage of the file, "" if it is intact; `release` is a number as from cudnnGetVersion, 0 if
    unknown. `exported` are the names that the file defines, and `wanted` the names of cuDNN that it needs from other files.
    """

    name: str
    path: str
    damage: str = ""
    release: int = 0
    exported: frozenset[bytes] = frozenset()
    wanted: tuple[bytes, ...] = ()


def examine(name: str, path: str) -> Part:
    """Return a part of cuDNN ("graph", "ops", ...; "" for libcudnn itself), without loading it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would wait for its writer
        with open(descriptor, "rb"), mmap(descriptor, 0, access=ACCESS_READ) as data:
            return _part(name, path, data)
    except OSError as error:
        return Part(name, path, f"cannot be read ({error.strerror})")
    except (ValueError, LookupError, struct.error) as error:
        return Part(name, path, f"is damaged ({error})")


class _Section(NamedTuple):
    """A section of an ELF file. `link` is the number of the section with the strings of a table of symbols."""

    kind: int
    address: int
    offset: int
    size: int
    link: int

    def bytes_of(self, data: mmap) -> bytes:
        """Return the bytes of the section."""
        return data[self.offset : self.offset + self.size]


def _part(name: str, path: str, data: mmap) -> Part:
    """Return the part that an ELF file is. Raises ValueError, LookupError or struct.error for a damaged file."""
    if len(data) < 64:
        raise ValueError(f"the file ends at byte {len(data)}")
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit ELF file")
    (start,), (entry, count) = struct.unpack_from("<Q", data, 40), struct.unpack_from("<HH", data, 58)
    size, whole = len(data), start + entry * count
    if whole <= size:
        sections = [_Section(*_SECTION.unpack_from(data, start + entry * at)) for at in range(count)]
        whole = max([whole, *(one.offset + one.size for one in sections if one.kind != _WITHOUT_BYTES)])
    if size < whole:
        return Part(name, path, f"is truncated: {size} of its {whole} bytes are there")
    table = next((one for one in sections if one.kind == _DYNAMIC_SYMBOLS), None)
    symbols, strings = (b"", b"") if table is None else (one.bytes_of(data) for one in (table, sections[table.link]))
    # The dynamic linker reads these tables unchecked.
    if not symbols.startswith(bytes(_SYMBOL.size)) or not strings.startswith(b"\0"):
        raise ValueError("its tables were overwritten")
    exported: dict[bytes, tuple[int, int]] = {}
    wanted = []
    for at, info, _, section, address, _ in _SYMBOL.iter_unpack(symbols):
        symbol = strings[at : strings.index(b"\0", at)]
        if section:
            exported[symbol] = section, address
        elif info >> 4 != _WEAK and b"cudnn" in symbol:
            wanted.append(symbol)
    release, numbers = 0, os.path.basename(os.path.realpath(path)).partition(".so.")[2]
    if _VERSIONS.get(name) in exported:
        section, address = exported[_VERSIONS[name]]
        place = sections[section].offset + address - sections[section].address
        patch, minor, major, _ = data[place : place + 4]
        release = major * 10000 + minor * 100 + patch
    if not release and re.fullmatch(r"\d+\.\d+\.\d+", numbers):  # as the packages of Linux distributions name them
        release = version_number(numbers)
    return Part(name, path, "", release, frozenset(exported), tuple(wanted))


# The files together


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
        to_do = f"Install all of cuDNN again, in one release: {_AGAIN}."
        if len({os.path.dirname(part.path) for part in parts.values()}) > 1:
            to_do = (
                "Take the folder of the other release out of LD_LIBRARY_PATH, or install all of cuDNN in one release."
            )
        raise LibraryVersionError(f"the files of cuDNN do not belong together: {'; '.join(problems)}. {to_do}")


def unmet_parts(file: str) -> list[str]:
    """Return the inconsistencies that check_together does not look for, since cuDNN reports some of them itself."""
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
    others = (os.path.join(folder, os.path.basename(path)) for folder in _searched())
    return any(os.path.exists(other) and not os.path.samefile(path, other) for other in others)


def _path(folder: str, name: str) -> str:
    return os.path.join(folder, f"libcudnn_{name}.so.9")


def parts_of(file: str) -> Iterator[tuple[str, Part]]:
    """Yield the parts: all beside libcudnn, else the first in LD_LIBRARY_PATH. cuDNN reports missing ones."""
    beside = sorted(os.listdir(os.path.dirname(file)))
    others = (found[1] for found in map(re.compile(r"libcudnn_(\w+)\.so\.9").fullmatch, beside) if found)
    for name in dict.fromkeys((*PARTS, *others)):
        for folder in (os.path.dirname(file), *_searched()):
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
    """Yield the parts that need a name of cuDNN that neither libcudnn_graph nor libcudnn_ops exports."""
    if "graph" in parts and "ops" in parts:
        exported = parts["graph"].exported | parts["ops"].exported
        for part in (parts[name] for name in names if name in parts):
            if missing := next((name for name in part.wanted if name not in exported), None):
                symbol = missing.decode(errors="replace")
                yield f"{part.path} is of another release than {parts['graph'].path}, which lacks {symbol}"
