"""The stub driver, a stand-in for libcuda with which cuDNN's engines load, compile and plan without a CUDA driver.

It is an ELF file of one page that exports the functions that cuDNN's engines link or look up. Kernels can be loaded, since
planning loads those that it compiled, but nothing can run. Only a child process that plans for a device profile loads it.
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
#: The functions by effect: "text" is the error's text, "handle" a success with a handle as the first result, and
#: "version" and "zero" one with a number. cuDNN links some and looks the others up; it calls few of them to plan.
_FUNCTIONS = {
    "text": ("cuGetErrorName", "cuGetErrorString"),
    "handle": (
        "cuKernelGetFunction",
        "cuLibraryGetKernel",
        "cuLibraryLoadData",
        "cuLibraryLoadFromFile",
        "cuModuleGetFunction",
        "cuModuleLoadData",
    ),
    "version": ("cuDriverGetVersion",),  # some engines ask CUDA's runtime, which must find a driver, but no device
    "zero": ("cuDeviceGetCount",),
    "success": ("cuKernelSetAttribute", "cuLibraryUnload", "cuModuleUnload"),
    "failure": (
        "cuCtxGetCurrent",
        "cuCtxGetLimit",
        "cuCtxPopCurrent",
        "cuCtxPushCurrent",
        "cuDeviceGet",
        "cuGetExportTable",
        "cuKernelGetAttribute",
        "cuLaunchCooperativeKernel",
        "cuLaunchKernel",
        "cuLaunchKernelEx",
        "cuLinkAddData",
        "cuLinkComplete",
        "cuLinkCreate",
        "cuLinkDestroy",
        "cuOccupancyMaxPotentialClusterSize",
        "cuStreamGetCtx",
        "cuTensorMapEncodeIm2col",
        "cuTensorMapEncodeTiled",
    ),
}
_ERROR_TEXT = b"this is no driver\0"
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
_VERSION = 99_990  # of the driver, which must not be older than the runtime: CUDA 99.99
_PAGE = 0x1000  # in bytes; also the handle of everything
_HEADER, _PROGRAM_HEADER, _SYMBOL, _DYNAMIC_ENTRY = 64, 56, 24, 16  # bytes
_PT_LOAD, _PT_DYNAMIC, _PT_GNU_STACK = 1, 2, 0x6474E551
_EXECUTE, _WRITE, _READ = 1, 2, 4
_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = 4, 5, 6, 10, 11, 14


def open_file() -> int | None:
    """Return the descriptor of a file in memory with the stub driver, which vanishes when it is closed.

    A process that loads /proc/self/fd/N has the library for everything that needs the driver, because the sonames are equal. It
    serves machines with a driver, too, so that a plan for a profile does not depend on the machine. On another architecture
    than x86-64 the driver is needed: then return None, or raise CudnnError if there is none.
    """
    if platform.machine() != _ARCHITECTURE:
        if has_driver():
            return None
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
    effects = {name: effect for effect, functions in _FUNCTIONS.items() for name in functions}
    names = b"\0" + b"".join(name.encode() + b"\0" for name in (LIBRARY, *effects))
    count = len(effects) + 1  # symbol 0 is undefined
    symbols_at = _HEADER + 4 * _PROGRAM_HEADER
    hash_at = symbols_at + count * _SYMBOL
    # One bucket: 1, 2, ... to the end.
    hashes = pack(f"<{3 + count}I", 1, count, 1, *((at + 1) % count for at in range(count)))
    names_at = hash_at + len(hashes)
    text_at = names_at + len(names)
    code_at = text_at + len(_ERROR_TEXT)
    code, offsets = _code(text_at - code_at)
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
        pack("<IBBHQQ", names.index(b"\0" + name.encode() + b"\0") + 1, 0x12, 0, 1, code_at + offsets[effect], 1)
        for name, effect in effects.items()
    )
    before = header + programs + symbols + hashes + names + _ERROR_TEXT + code
    return before.ljust(dynamic_at, b"\0") + dynamic


def _code(text_distance: int) -> tuple[bytes, dict[str, int]]:
    """Return the machine code, which is one function for each effect, and their offsets by effect.

    `text_distance` is the distance of the error's text from the begin of the code. The first arguments are in rdi and rsi, and
    the result is in eax.
    """
    functions = {
        # lea rax, [rip + text]; mov [rsi], rax; xor eax, eax; ret
        "text": b"\x48\x8d\x05" + pack("<i", text_distance - 7) + b"\x48\x89\x06\x31\xc0\xc3",
        "handle": b"\x48\xc7\x07" + pack("<i", _PAGE) + b"\x31\xc0\xc3",  # mov qword [rdi], _PAGE; xor eax, eax; ret
        "version": b"\xc7\x07" + pack("<i", _VERSION) + b"\x31\xc0\xc3",  # mov dword [rdi], _VERSION; xor eax, eax; ret
        "zero": b"\xc7\x07" + pack("<i", 0) + b"\x31\xc0\xc3",
        "success": b"\x31\xc0\xc3",  # xor eax, eax; ret
        "failure": b"\xb8" + pack("<i", _NO_DEVICE) + b"\xc3",  # mov eax, _NO_DEVICE; ret
    }
    offsets, code = {}, b""
    for effect, function in functions.items():
        offsets[effect] = len(code)
        code += function
    return code, offsets
