"""Whether CUDA can be used in this process: the versions of the driver and the runtime, the number of GPUs, and why not."""

from __future__ import annotations

import ctypes
import os
from typing import Any, NamedTuple

from cudnnpy._process.installation import with_extra

CUDA_MAJORS = ("12", "13")  # the CUDA versions that an extra is for
_IN_PYTHON = (
    ", compute on the CPU with cudnnpy.reference, or plan for the GPU of another machine with "
    "device=cudnnpy.DeviceProfile.load('h200')"
)
NO_DRIVER = f"no CUDA driver (libcuda.so.1) was found: install NVIDIA's driver{_IN_PYTHON}"


def without_python_advice(text: str) -> str:
    """Return an error without the advice that is Python: the commands give their own."""
    return text.replace(_IN_PYTHON, "")


class CudaState(NamedTuple):
    """The state of CUDA as cuda-bindings reports it; without cuda-bindings the only known problem is a missing driver."""

    driver: str | None  #: the CUDA version of the driver, "12.9"
    runtime: str | None
    gpu_count: int
    problem: str | None  #: why CUDA cannot be used, with the remedy


def has_driver() -> bool:
    """Return whether libcuda.so.1 can be loaded. It needs no package."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def cuda_problem() -> str | None:
    """Return why CUDA cannot be used, with the remedy; None if it can, or if nothing is known without cuda-bindings."""
    return cuda_state().problem


def cuda_state() -> CudaState:
    """Return the CUDA versions of the driver and the runtime, the number of GPUs, and why CUDA cannot be used."""
    try:
        from cuda.bindings import runtime
    except ImportError:
        return CudaState(None, None, 0, None if has_driver() else NO_DRIVER)
    _error, number = runtime.cudaRuntimeGetVersion()
    version = version_text(number)
    _error, number = runtime.cudaDriverGetVersion()
    if not number:
        return CudaState(None, version, 0, NO_DRIVER)
    driver = version_text(number)
    error, count = runtime.cudaGetDeviceCount()
    if error == runtime.cudaError_t.cudaErrorInsufficientDriver:
        major = driver.split(".")[0]
        older = f", or pip install {with_extra(f'cu{major}')}" if major in CUDA_MAJORS else ""
        problem = f"the driver is for CUDA {driver} and cuda-bindings for CUDA {version}: update the driver{older}"
    elif error == runtime.cudaError_t.cudaErrorNoDevice or (not error and not count):
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        cause = "" if hidden is None else f" (CUDA_VISIBLE_DEVICES is {hidden!r}, which may hide it)"
        problem = f"there is a CUDA driver, and no GPU{cause}"
    elif error:
        problem = f"CUDA cannot be used: {error_text(runtime, error)}; nvidia-smi may tell more"
    else:
        return CudaState(driver, version, count, None)
    return CudaState(driver, version, 0, problem)


def error_text(runtime: Any, error: Any) -> str:
    """Return the text and the number of an error of cuda.bindings.runtime."""
    _status, text = runtime.cudaGetErrorString(error)
    return f"{text.decode()} ({int(error)})"


def version_text(number: int) -> str:
    """Return a CUDA version as text: "12.9" for 12090."""
    return f"{number // 1000}.{number % 1000 // 10}"
