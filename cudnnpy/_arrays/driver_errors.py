"""Raise errors of CUDA driver calls as exceptions, and synchronize a stream."""

from __future__ import annotations

from typing import Any

from cudnnpy._core.cuda_python import cuda_python
from cudnnpy.handle import on_device


def checked_result(result: tuple[Any, ...]) -> Any:
    """Return the value of a call of cuda.bindings.driver. Raises RuntimeError for an error of the driver."""
    driver = cuda_python("bindings.driver")
    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"CUDA driver: {status.name} ({int(status)})")
    return values[0] if values else None


def synchronize(stream: int, device: int) -> None:
    """Wait until the work queued on a stream is done."""
    driver = cuda_python("bindings.driver")
    with on_device(device):
        checked_result(driver.cuStreamSynchronize(stream))
