"""GpuKind: name, compute capability and number of multiprocessors. GPUs of one kind share stored choices and plans."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from cudnnpy._cuda_python import gpu_facts

if TYPE_CHECKING:
    from cudnnpy._planning.engines import Target


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
        return _of_profile(target.profile)
    return GpuKind("", "", 0) if target.handle is None else GpuKind(*gpu_facts(target.handle.device))


@lru_cache(maxsize=8)
def _of_profile(profile: str) -> GpuKind:
    properties = json.loads(profile)
    number = properties.get("deviceVer", 0)  # 900
    capability = f"{number // 100}.{number % 100 // 10}" if number else ""
    return GpuKind(str(properties.get("deviceName", "")), capability, int(properties.get("multiProcessorCount", 0)))
