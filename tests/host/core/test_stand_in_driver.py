"""The seam of the CUDA driver: one place that both ways to the driver come from."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from cuda.bindings import driver
from stand_in_driver import DONE, DriverFixture, stand_in_driver

from cudnnpy import _cuda_python
from cudnnpy._core import driver as driver_calls
from cudnnpy._cuda_python import cuda_python, driver_library


def test_calls_are_recorded_and_the_types_are_the_real_ones(cuda_driver: DriverFixture) -> None:
    stand_in = cuda_driver(cuStreamQuery=lambda stream: 600, cuThreadExchangeStreamCaptureMode=lambda mode: (*DONE, 7))
    assert not driver_calls.is_stream_idle(5)
    with driver_calls.relaxed_capture():
        pass
    (query, stream), relaxed, restored = stand_in.calls
    assert (query, stream.value) == ("cuStreamQuery", 5)
    relaxed_mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    assert [relaxed, restored] == [("cuThreadExchangeStreamCaptureMode", mode) for mode in (relaxed_mode, 7)]
    with pytest.raises(AttributeError, match="the stand-in for the driver has no cuLaunchKernelEx"):
        driver_library().cuLaunchKernelEx


def test_a_stand_in_may_be_inside_another_and_ends_with_its_block() -> None:
    core, modules = SimpleNamespace(), ("bindings.driver", "core")
    with stand_in_driver(core=core) as outer:
        assert [cuda_python(name) for name in modules] == [outer, core]
        with stand_in_driver() as inner:
            assert [cuda_python(name) for name in modules] == [inner, core]
            assert driver_library() is inner
        with pytest.raises(ZeroDivisionError), _cuda_python.replaced(libcuda=core):
            assert driver_library() is core
            _ = 1 / 0
        assert driver_library() is outer
    assert cuda_python("bindings.driver") is driver
