"""The UUID of a GPU, and the reasons why another process must not measure on it (MPS, exclusive mode, no guard pages)."""

from __future__ import annotations

import os

from cudnnpy._core.cuda_python import cuda_python
from cudnnpy._process.module_state import process_cache

_MPS_FOLDER = "/tmp/nvidia-mps"  # by default


@process_cache
def uuid_of(device: int) -> str:
    """Return the UUID of a GPU or MIG instance, as CUDA_VISIBLE_DEVICES takes it."""
    driver = cuda_python("bindings.driver")
    name = str(cuda_python("core").Device(device).name)
    get = getattr(driver, "cuDeviceGetUuid_v2", driver.cuDeviceGetUuid)  # of the instance, not of its GPU
    digits = bytes(get(driver.cuDeviceGet(device)[1])[1].bytes).hex()
    parts = digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]
    return f"{'MIG' if ' MIG ' in name else 'GPU'}-{'-'.join(parts)}"


@process_cache
def why_not_measured(device: int) -> str:
    """Return why another process would harm this one by measuring on a GPU; "" if it may measure."""
    if _value("COMPUTE_MODE", device) not in (None, 0):
        return "the GPU's compute mode is exclusive or prohibited, so that no second process may use it"
    return why_not_safe(device)


def why_not_safe(device: int) -> str:
    """Return why no process may measure on a GPU, even if no other uses it; "" if one may."""
    mps = _value("MPS_ENABLED", device)
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", _MPS_FOLDER)
    if mps or (mps is None and os.path.exists(os.path.join(folder, "control"))):
        return "CUDA MPS runs, under which a fault in one process ends the work of the others"
    if _value("VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED", device) == 0:
        return "the GPU or its driver has no virtual memory management, which guard pages need"
    return ""


def _value(name: str, device: int) -> int | None:
    """Return an attribute of a GPU; None if the driver or its bindings do not know it."""
    driver = cuda_python("bindings.driver")
    attribute = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}", None)
    if attribute is None:
        return None
    driver.cuInit(0)
    status, value = driver.cuDeviceGetAttribute(attribute, driver.cuDeviceGet(device)[1])
    return int(value) if status == driver.CUresult.CUDA_SUCCESS else None
