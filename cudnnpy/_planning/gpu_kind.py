"""GpuKind: name, compute capability and number of multiprocessors. GPUs of one kind share stored choices and plans."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import NamedTuple

from cudnnpy._cuda_python import cuda_python
from cudnnpy._planning.engines import Target
from cudnnpy._process_state import process_cache


class GpuKind(NamedTuple):
    """The name, the compute capability and the number of multiprocessors of a GPU; "" and 0 if they are unknown."""

    name: str
    capability: str
    multiprocessors: int

    def __str__(self) -> str:
        return f"{self.name}, compute capability {self.capability}, {self.multiprocessors} multiprocessors"


def gpu_kind(target: Target) -> GpuKind:
    """Return the kind of the GPU of a target."""
    if target.profile is not None:
        name, multiprocessors = _of_profile(target.profile)
    else:
        name, multiprocessors = ("", 0) if target.handle is None else _of_device(target.handle.device)
    return GpuKind(name, capability(target), multiprocessors)


def capability(target: Target) -> str:
    """Return the compute capability of the GPU of a target: "9.0"; "" if it is missing in a profile."""
    if target.profile is not None:
        number = json.loads(target.profile).get("deviceVer", 0)  # 900
        return f"{number // 100}.{number % 100 // 10}" if number else ""
    return "" if target.handle is None else _capability(target.handle.device)


@process_cache
def _capability(device: int) -> str:
    major, minor = cuda_python("core").Device(device).compute_capability
    return f"{major}.{minor}"


@lru_cache(maxsize=8)
def _of_profile(profile: str) -> tuple[str, int]:
    properties = json.loads(profile)
    return str(properties.get("deviceName", "")), int(properties.get("multiProcessorCount", 0))


@process_cache
def _of_device(device: int) -> tuple[str, int]:
    gpu = cuda_python("core").Device(device)
    return str(gpu.name), int(gpu.properties.multiprocessor_count)
