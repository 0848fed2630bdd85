"""The stub driver, a stand-in for libcuda with which cuDNN's engines load and plan on a machine without a CUDA driver.

It is an ELF file of one page that exports the functions that cuDNN's engines link. Nothing can run on it, and only a child
process that plans for a device profile loads it.
"""

from __future__ import annotations

import os
import platform
from struct import pack

from cudnnpy._process.cuda_state import has_driver
from cudnnpy.errors import CudnnError

__all__ = ["LIBRARY", "content", "has_driver", "open_file"]

LIBRARY = "libcuda.so.1"
_ARCHITECTURE = "x86_64"
_FUNCTIONS = (
    "cuGetErrorString",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuTensorMapEncodeIm2col",
    "cuTensorMapEncodeTiled",
)
_ERROR_TEXT = b"this is no driver\0"
_PAGE = 0x1000
_HEADER, _PROGRAM_HEADER, _SYMBOL, _DYNAMIC_ENTRY = 64, 56, 24, 16  # bytes
_PT_LOAD, _PT_DYNAMIC, _PT_GNU_STACK = 1, 2, 0x6474E551
_EXECUTE, _WRITE, _READ = 1, 2, 4
_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = 4, 5, 6, 10, 11, 14


def open_file() -> int:
    """Return the descriptor of a file in memory with the stub driver, which vanishes when it is closed.

    A process that loads /proc/self/fd/N has the library for everything that needs the driver, because the sonames are equal.
    Raises CudnnError on another architecture than x86-64.
    """
    if platform.machine() != _ARCHITECTURE:
        raise CudnnError(
            f"NVIDIA's driver ({LIBRARY}) must be installed to plan on {platform.machine()}; got none, and there is a "
            f"stand-in for {_ARCHITECTURE} alone"
        )
    file = os.memfd_create("cudnnpy-stub-driver")
    os.write(file, content())
    return file


def content() -> bytes:
    """Return the bytes of the library for x86-64.

    The file has one page, which is mapped twice: for reading and executing, and for the loader to write to the dynamic section.
    """
    names = b"\0" + b"".join(name.encode() + b"\0" for name in (LIBRARY, *_FUNCTIONS))
    count = len(_FUNCTIONS) + 1  # symbol 0 is undefined
    symbols_at = _HEADER + 4 * _PROGRAM_HEADER
    hash_at = symbols_at + count * _SYMBOL
    # One bucket: 1, 2, ... to the end.
    hashes = pack(f"<{3 + count}I", 1, count, 1, *((at + 1) % count for at in range(count)))
    names_at = hash_at + len(hashes)
    text_at = names_at + len(names)
    code_at = text_at + len(_ERROR_TEXT)
    code = _code(text_at - code_at)
    dynamic_at = -(-(code_at + len(code)) // 8) * 8
    dynamic = b"".join(
        pack("<qQ", tag, value)
        for tag, value in (
            (_DT_SONAME, names.index(LIBRARY.encode())),
            (_DT_HASH, hash_at),
            (_DT_STRTAB, names_at),
            (_DT_SYMTAB, symbols_at),
            (_DT_STRSZ, len(names)),
            (_DT_SYMENT, _SYMBOL),
            (0, 0),
        )
    )
    end = dynamic_at + len(dynamic)
    assert end <= _PAGE
    programs = b"".join(
        pack("<2I6Q", kind, flags, offset, address, address, size, size, alignment)
        for kind, flags, offset, address, size, alignment in (
            (_PT_LOAD, _READ | _EXECUTE, 0, 0, end, _PAGE),
            (_PT_LOAD, _READ | _WRITE, dynamic_at, _PAGE + dynamic_at, len(dynamic), _PAGE),
            (_PT_DYNAMIC, _READ | _WRITE, dynamic_at, _PAGE + dynamic_at, len(dynamic), 8),
            (_PT_GNU_STACK, _READ | _WRITE, 0, 0, 0, 16),
        )
    )
    # 64-bit, little-endian, version 1; a shared object for x86-64
    identification = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)
    header = identification + pack("<2HI3QI6H", 3, 62, 1, 0, _HEADER, 0, 0, _HEADER, _PROGRAM_HEADER, 4, 0, 0, 0)
    symbols = bytes(_SYMBOL) + b"".join(
        pack("<IBBHQQ", names.index(b"\0" + name.encode() + b"\0") + 1, 0x12, 0, 1, code_at + (at > 0) * _FAILS_AT, 1)
        for at, name in enumerate(_FUNCTIONS)
    )
    before = header + programs + symbols + hashes + names + _ERROR_TEXT + code
    return before.ljust(dynamic_at, b"\0") + dynamic


_FAILS_AT = 14  # the second function, after cuGetErrorString


def _code(text_distance: int) -> bytes:
    """Return the machine code: cuGetErrorString, and a function that returns CUDA_ERROR_NO_DEVICE.

    `text_distance` is the distance of the error's text from the begin of the code.
    """
    get_error_string = b"".join(
        (
            b"\x48\x8d\x05" + pack("<i", text_distance - 7),  # lea rax, [rip + text]
            b"\x48\x89\x06",  # mov [rsi], rax
            b"\x31\xc0",  # xor eax, eax
            b"\xc3",  # ret
        )
    )
    assert len(get_error_string) <= _FAILS_AT
    return get_error_string.ljust(_FAILS_AT, b"\xcc") + b"\xb8" + pack("<i", 100) + b"\xc3"  # mov eax, 100; ret
