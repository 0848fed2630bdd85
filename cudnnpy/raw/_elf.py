"""Find the files of libcudnn, and read their release and their damage from the ELF structure, without loading them.

They are ELF files for 64-bit Linux. Only a few kilobytes of each file are read.
"""

from __future__ import annotations

import glob
import os
import re
import site
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

# Some parts of cuDNN export their release under this name, one byte each for major, minor and patch.
_VERSIONS = {"graph": b"cudnn_graph_version", "ops": b"cudnn_ops_infer_version", "adv": b"cudnn_adv_infer_version"}
_CACHE = Path("/etc/ld.so.cache")  # of the dynamic linker
_LOAD, _DYNAMIC = 1, 2  # kinds of segments
_STRINGS, _SYMBOLS, _STRINGS_SIZE, _HASH = 5, 6, 10, 0x6FFFFEF5  # entries of the dynamic segment
_WEAK = 2  # a symbol that may be missing
_MAX_CHAIN = 1000  # of names with similar hashes, in an undamaged file
DAMAGED = (ValueError, KeyError, ArithmeticError, struct.error)  # the exceptions of reading a damaged file
_SYMBOL = struct.Struct("<IBBHQQ")


class _Elf:
    """An open ELF file. Raises ValueError for any other file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.size = os.fstat(descriptor).st_size
        header = self.at(0, 64)
        if header[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a 64-bit ELF file")
        segments_at, sections_at = struct.unpack_from("<QQ", header, 32)
        entry, count, section_entry, sections = struct.unpack_from("<HHHH", header, 54)
        table = self.at(segments_at, entry * count)
        self._segments = [struct.unpack_from("<IIQQQQQQ", table, at * entry) for at in range(count)]
        ends = [offset + in_file for _kind, _flags, offset, _address, _physical, in_file, *_ in self._segments]
        self.whole_size = max([sections_at + section_entry * sections, *ends])
        self._places: dict[int, int] = {}
        if self.size >= self.whole_size:
            for kind, _flags, offset, _address, _physical, in_file, *_ in self._segments:
                if kind == _DYNAMIC:
                    self._places = dict(struct.iter_unpack("<QQ", self.at(offset, in_file // 16 * 16)))
            # The dynamic linker reads these tables unchecked.
            if any(self.loaded(self._places.get(tag, 0), 1) != b"\0" for tag in (_STRINGS, _SYMBOLS)):
                raise ValueError("its tables were overwritten")

    def at(self, offset: int, size: int) -> bytes:
        """Return `size` bytes of the file. Raises ValueError if it is too short."""
        if offset + size > self.size:
            raise ValueError(f"the file ends at byte {self.size}")
        return os.pread(self._descriptor, size, offset)

    def loaded(self, address: int, size: int) -> bytes:
        """Return the bytes at an address of the loaded file."""
        for kind, _flags, offset, start, _physical, in_file, *_ in self._segments:
            if kind == _LOAD and start <= address < start + in_file:
                return self.at(offset + address - start, size)
        raise ValueError(f"no segment holds the address {address:#x}")

    def find(self, name: bytes) -> int | None:
        """Return the address of an exported name, or None, by the hash table that dlsym uses."""
        buckets, first, bloom, _shift = struct.unpack("<IIII", self.loaded(self._places[_HASH], 16))
        chains = self._places[_HASH] + 16 + 8 * bloom + 4 * buckets
        wanted = 5381
        for byte in name:
            wanted = (wanted * 33 + byte) & 0xFFFFFFFF
        (begin,) = struct.unpack("<I", self.loaded(chains - 4 * buckets + 4 * (wanted % buckets), 4))
        for index in range(begin, begin + _MAX_CHAIN if begin >= first else begin):
            (hashed,) = struct.unpack("<I", self.loaded(chains + 4 * (index - first), 4))
            if hashed | 1 == wanted | 1:
                at, _info, _other, _section, value, _size = _SYMBOL.unpack(
                    self.loaded(self._places[_SYMBOLS] + _SYMBOL.size * index, _SYMBOL.size)
                )
                if self.loaded(self._places[_STRINGS] + at, len(name) + 1) == name + b"\0":
                    return int(value)
            if hashed & 1:
                break
        return None

    def number(self, name: bytes) -> int | None:
        """Return the 32-bit number that the file exports under a name, or None."""
        address = self.find(name)
        return None if address is None else int(struct.unpack("<I", self.loaded(address, 4))[0])

    def wanted(self) -> list[bytes]:
        """Return the names of cuDNN that the file imports from other files."""
        # The symbols before `first` are not exported.
        _buckets, first, *_ = struct.unpack("<IIII", self.loaded(self._places[_HASH], 16))
        strings = self.loaded(self._places[_STRINGS], self._places[_STRINGS_SIZE])
        names = []
        for at, info, _other, section, *_ in _SYMBOL.iter_unpack(
            self.loaded(self._places[_SYMBOLS], _SYMBOL.size * first)
        ):
            name = strings[at : strings.index(b"\0", at)]
            if not section and info >> 4 != _WEAK and b"cudnn" in name:
                names.append(name)
        return names


@contextmanager
def _opened(path: str) -> Iterator[_Elf]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would wait for its writer
    try:
        yield _Elf(descriptor)
    finally:
        os.close(descriptor)


class Part(NamedTuple):
    """A file of cuDNN.

    `damage` describes the damage of the file, "" if it is intact; `release` is a number as from cudnnGetVersion, 0 if
    unknown.
    """

    name: str
    path: str
    damage: str = ""
    release: int = 0


def findable(name: str) -> str | None:
    """Return the file that cuda.pathfinder would load for a name, unless one is loaded already; None if there is none."""
    return next(filter(os.path.isfile, (os.path.join(folder, name) for _origin, folder in places(name))), None)


def searched() -> list[str]:
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
            yield from (("LD_LIBRARY_PATH", folder) for folder in searched())
            cache = _CACHE.read_bytes() if _CACHE.exists() else b""
            cached = map(os.fsdecode, re.findall(rb"(/[^\0]*)/%s\0" % re.escape(name.encode()), cache))
            system = "/lib64", "/usr/lib64", "/lib", "/usr/lib", os.path.join(sys.base_prefix, "lib")
            yield from (("system", folder) for folder in (*cached, *system))


def examine(name: str, path: str) -> Part:
    """Return a part of cuDNN ("graph", "ops", ...; "" for libcudnn itself), without loading it."""
    try:
        with _opened(path) as file:
            if file.size < file.whole_size:
                return Part(name, path, f"is truncated: {file.size} of its {file.whole_size} bytes are there")
            number = file.number(_VERSIONS[name]) if name in _VERSIONS else None
    except OSError as error:
        return Part(name, path, f"cannot be read ({error.strerror})")
    except DAMAGED as error:
        return Part(name, path, f"is damaged ({error})")
    if number:
        major, minor, patch = number >> 16, number >> 8 & 255, number & 255
        return Part(name, path, "", major * 10000 + minor * 100 + patch)
    numbers = os.path.basename(os.path.realpath(path)).partition(".so.")[2].split(".")
    if len(numbers) == 3 and all(one.isdigit() for one in numbers):  # as the packages of Linux distributions name them
        major, minor, patch = map(int, numbers)
        return Part(name, path, "", major * 10000 + minor * 100 + patch)
    return Part(name, path)


def unmet(path: str, others: Iterable[str]) -> str | None:
    """Return a name that a file of cuDNN needs and none of the others exports, or None."""
    with ExitStack() as stack:
        file = stack.enter_context(_opened(path))
        exporting = [stack.enter_context(_opened(other)) for other in others]
        for name in file.wanted():
            if all(other.find(name) is None for other in exporting):
                return name.decode(errors="replace")
    return None
