"""A stand-in for the CUDA driver, which records the calls of its functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from cuda.bindings import driver

from cudnnpy._core import cuda_python

DONE = (driver.CUresult.CUDA_SUCCESS,)


class StandInDriver:
    """Functions of libcuda by name; types and enums are those of cuda.bindings.driver. `calls` are names and arguments."""

    def __init__(self, **functions: Callable[..., Any]) -> None:
        self.functions = functions
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            return getattr(driver, name)
        if name not in self.functions:
            raise AttributeError(f"the stand-in for the driver has no {name}")

        def call(*arguments: Any) -> Any:
            self.calls.append((name, *arguments))
            return self.functions[name](*arguments)

        return call


DriverFixture = Callable[..., StandInDriver]


@contextmanager
def stand_in_driver(*, libcuda: Any = None, core: Any = None, **functions: Any) -> Iterator[StandInDriver]:
    """A stand-in in the place of the driver. `libcuda` and `core`, if passed, replace the ctypes library and cuda.core."""
    stand_in = StandInDriver(**functions)
    replacements = {"libcuda": libcuda or stand_in, "bindings.driver": stand_in, **({"core": core} if core else {})}
    with cuda_python.replaced(**replacements):
        yield stand_in


@pytest.fixture
def cuda_driver() -> Iterator[DriverFixture]:
    """Puts a stand-in in the place of the driver until the test ends: cuda_driver(cuStreamSynchronize=lambda _: DONE)."""
    with ExitStack() as stack:
        yield lambda **what: stack.enter_context(stand_in_driver(**what))
