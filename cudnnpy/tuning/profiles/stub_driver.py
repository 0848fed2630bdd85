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
_PAGE = 0x1000  # in bytes; also the handle of everything
_HEADER, _PROGRAM_HEADER, _SYMBOL = 64, 56, 24  # bytes
_PT_LOAD, _PT_DYNAMIC, _PT_GNU_STACK = 1, 2, 0x6474E551
_EXECUTE, _WRITE, _READ = 1, 2, 4
_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = 4, 5, 6, 10, 11, 14

# The machine code of functions, by effect. The first arguments are in rdi and rsi, and the result is in eax.
_SUCCESS = b"\x31\xc0\xc3"  # xor eax, eax; ret
_FAILURE = b"\xb8" + pack("<i", 100) + b"\xc3"  # mov eax, CUDA_ERROR_NO_DEVICE; ret
_HANDLE = b"\x48\xc7\x07" + pack("<i", _PAGE) + _SUCCESS  # mov qword [rdi], _PAGE
_ZERO = b"\xc7\x07" + pack("<i", 0) + _SUCCESS  # mov dword [rdi], 0
_VERSION = b"\xc7\x07" + pack("<i", 99_990) + _SUCCESS  # CUDA 99.99: a driver must not be older than the runtime
# lea rax, [rip + 6]; mov [rsi], rax; the text is behind the function
_TEXT = b"\x48\x8d\x05" + pack("<i", 6) + b"\x48\x89\x06" + _SUCCESS + b"this is no driver\0"

# The functions by their code. cuDNN links some of them and looks the others up; it calls few of them to plan.
_FUNCTIONS = {
    _TEXT: "cuGetErrorName cuGetErrorString",
    _HANDLE: "cuKernelGetFunction cuLibraryGetKernel cuLibraryLoadData cuLibraryLoadFromFile "
    "cuModuleGetFunction cuModuleLoadData",
    _VERSION: "cuDriverGetVersion",  # some engines ask CUDA's runtime, which must find a driver, but no device
    _ZERO: "cuDeviceGetCount",
    _SUCCESS: "cuKernelSetAttribute cuLibraryUnload cuModuleUnload",
    _FAILURE: "cuCtxGetCurrent cuCtxGetLimit cuCtxPopCurrent cuCtxPushCurrent cuDeviceGet cuGetExportTable "
    "cuKernelGetAttribute cuLaunchCooperativeKernel cuLaunchKernel cuLaunchKernelEx "
    "cuLinkAddData cuLinkComplete cuLinkCreate cuLinkDestroy cuOccupancyMaxPotentialClusterSize "
    "cuStreamGetCtx cuTensorMapEncodeIm2col cuTensorMapEncodeTiled",
}


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
    functions = [(name.encode(), code) for code, names in _FUNCTIONS.items() for name in names.split()]
    names = b"\0".join((b"", LIBRARY.encode(), *(name for name, _ in functions), b""))
    count = len(functions) + 1  # symbol 0 is undefined
    symbols_at = _HEADER + 4 * _PROGRAM_HEADER
    hash_at = symbols_at + count * _SYMBOL
    # One bucket: 1, 2, ... to the end.
    hashes = pack(f"<{3 + count}I", 1, count, 1, *((at + 1) % count for at in range(count)))
    names_at = hash_at + len(hashes)
    code_at = names_at + len(names)
    symbols, code = bytes(_SYMBOL), b""
    for name, function in functions:
        symbols += pack("<IBBHQQ", names.index(b"\0" + name + b"\0") + 1, 0x12, 0, 1, code_at + len(code), 1)
        code += function
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
    return (header + programs + symbols + hashes + names + code).ljust(dynamic_at, b"\0") + dynamic
