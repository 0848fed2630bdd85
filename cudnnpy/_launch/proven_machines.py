"""The machines on which direct launches are on by default, because the tests ran there with them."""

from __future__ import annotations

from cudnnpy import raw
from cudnnpy._core.cuda_python import cuda_python
from cudnnpy._process.module_state import process_cache

# The compute capability, the release of cuDNN, the major release of the CUDA runtime that cuDNN was built with, and the major
# release of the driver. A row is written by hand, in the commit that records its run of the GPU tests in docs/dev/gpu.md.
PROVEN = (("9.0", 91900, 13, 580),)


@process_cache
def why_not_proven(capability: str) -> str:
    """Return why direct launches are off by default on the GPUs of a compute capability ("9.0"); "" if they are on.

    The driver is asked for its release only if the rest is in the table, because loading NVML takes a while.
    """
    cudnn, runtime = raw.version(), raw.cudnnGetCudartVersion() // 1000
    drivers = [row[3] for row in PROVEN if row[:3] == (capability, cudnn, runtime)]
    driver = _driver_release() if drivers else 0
    if driver in drivers:
        return ""
    release = f", driver {driver or 'unknown'}" if drivers else ""
    return f"unproven: compute capability {capability}, cuDNN {raw.version_text(cudnn)} for CUDA {runtime}{release}"


def _driver_release() -> int:
    """Return the major release of the driver, 580 for example; 0 if it is unknown."""
    try:
        return int(cuda_python("core.system").get_kernel_mode_driver_version()[0])
    except Exception:  # of NVML, which may be missing or fail
        return 0
