"""The driver's memory on the host: mappings between addresses that nothing may touch, allocations, copies and fills."""

from __future__ import annotations

import ctypes
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver
from stand_in_driver import DONE, StandInDriver

from cudnnpy.tuning.measuring import bench_buffers, result_comparison

GRAIN = 4096  # bytes, in place of 2 MiB
SHORT = (driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY, None)


def view(address: int, size: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_ubyte * size).from_address(address))


class Owner:
    """What keeps an allocation."""


class Memory:
    """The memory of a device. Arrays stay: what is freed too early would be noticed elsewhere."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, driver: StandInDriver, cache: int = 1 << 12) -> None:
        self.arrays: list[np.ndarray] = []
        self.most = 1 << 20  # bytes of one allocation or mapping
        self.mapped: dict[int, int] = {}  # bytes by the first address
        self.reserved: dict[int, int] = {}
        self.ever_mapped: list[tuple[int, int]] = []
        self.taken: list[tuple[int, int]] = []  # allocations: address and bytes
        self.held: weakref.WeakSet[Owner] = weakref.WeakSet()
        self.trimmed = 0
        for module in (result_comparison, bench_buffers):
            monkeypatch.setattr(module, "allocate", self.take)
        monkeypatch.setattr(bench_buffers, "release_workspace", self.trim)
        monkeypatch.setattr(bench_buffers, "_cache_size", lambda device: cache)
        driver.functions |= {
            "cuMemGetAllocationGranularity": lambda memory, option: (*DONE, GRAIN),
            "cuMemAddressReserve": self.reserve,
            "cuMemAddressFree": lambda address, size: self.forget(self.reserved, address, size),
            "cuMemCreate": lambda size, memory, flags: (
                SHORT if size > self.most else (*DONE, SimpleNamespace(size=size))
            ),
            "cuMemRelease": lambda handle: DONE,
            "cuMemMap": self.map,
            "cuMemUnmap": lambda address, size: self.forget(self.mapped, address, size),
            "cuMemSetAccess": lambda address, size, access, count: DONE,
            "cuMemcpyDtoDAsync": self.move,
            "cuMemcpyHtoDAsync": self.move,
            "cuMemcpyDtoHAsync": self.move,
            "cuMemsetD8Async": self.fill,
            "cuStreamSynchronize": lambda stream: DONE,
        }

    def array(self, size: int, grain: int) -> int:
        self.arrays.append(np.full(size + grain, 0x5A, np.uint8))
        return -(-self.arrays[-1].ctypes.data // grain) * grain

    def take(self, size: int, device: int, stream: int) -> tuple[int, int, Any]:
        assert (device, stream) == (0, 0)
        if size > self.most:
            raise MemoryError("no more")
        self.taken.append((self.array(size, 256), size))
        owner = Owner()
        self.held.add(owner)
        return (*self.taken[-1], owner)

    @property
    def count(self) -> int:
        """The allocations and mappings that were not freed."""
        return len(self.held) + len(self.mapped) + len(self.reserved)

    def trim(self) -> None:
        self.trimmed += 1

    def reserve(self, size: int, alignment: int, address: int, flags: int) -> Any:
        start = self.array(size, GRAIN)
        self.reserved[start] = size
        return *DONE, start

    def map(self, address: int, size: int, offset: int, handle: Any, flags: int) -> Any:
        assert size == handle.size
        assert any(start < address and address + size < start + n for start, n in self.reserved.items())
        self.mapped[address] = size
        self.ever_mapped.append((address, size))
        return DONE

    def forget(self, table: dict[int, int], address: int, size: int) -> Any:
        assert table.pop(address) == size
        return DONE

    def move(self, to: int, source: int, size: int, stream: int) -> Any:
        assert stream == 0
        ctypes.memmove(to, source, size)
        return DONE

    def fill(self, to: int, byte: int, size: int, stream: int) -> Any:
        assert stream == 0
        ctypes.memset(to, byte, size)
        return DONE

    def is_mapped(self, address: int) -> bool:
        return any(start <= address < start + size for start, size in self.mapped.items())

    def holds(self, address: int, size: int) -> bool:
        every = (*self.mapped.items(), *self.taken)
        return any(start <= address and address + size <= start + length for start, length in every)
