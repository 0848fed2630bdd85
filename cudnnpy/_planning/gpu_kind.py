"""The kind of the GPU of a target. GPUs of one kind share stored choices and plans."""

from __future__ import annotations

import json
from functools import lru_cache

from cudnnpy._core.cuda_python import gpu_facts
from cudnnpy._planning.choice import GpuKind
from cudnnpy._planning.engines import Target


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
