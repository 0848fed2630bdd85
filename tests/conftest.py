"""What holds for all tests: which need a GPU, how hypothesis runs, and that no test waits for ever."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from cudnnpy._process.module_state import reset
from cudnnpy.availability import why_unavailable

TESTS = Path(__file__).parent
GPU_FOLDER = TESTS / "gpu"
if str(TESTS) in sys.path:  # pytest's doing; from there, `import torch` would find the folder tests/torch
    sys.path.remove(str(TESTS))
sys.path.insert(0, str(TESTS / "shared"))  # what several folders of tests import
sys.path.append(str(TESTS.parent / "docs" / "examples"))

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in the background of a shell (`make test &`)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # so that what tests start does not inherit that

os.environ.pop("COLUMNS", None)  # which pytest-xdist sets in its processes: texts have the width of a pipe
os.environ["CUDNNPY_STORE"] = ""  # no test reads or writes the store of who runs it

# Speed depends on the machine, so it fails no test here; what fails is printed ready to be repeated.
settings.register_profile(
    "default", deadline=None, print_blob=True, derandomize=False, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI", "").lower() in ("1", "true") else "default")


def pytest_configure(config: pytest.Config) -> None:
    """Give every test a limit of time."""
    import time_limits

    config.pluginmanager.register(time_limits)


@pytest.fixture(autouse=True)
def initial_state(request: pytest.FixtureRequest) -> Iterator[None]:
    """Give each test the state of a new process: caches, settings, stores. A GPU test has the handles and memory of others."""
    yield
    reset("cudnnpy.tuning.store" if GPU_FOLDER in request.path.parents else "cudnnpy")


@pytest.hookimpl(tryfirst=True)  # before `-m gpu` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test under tests/gpu as one that needs a GPU."""
    for item in items:
        if GPU_FOLDER in item.path.parents:
            item.add_marker(pytest.mark.gpu)


def pytest_collection_finish() -> None:
    """Let garbage collection pass over the tests themselves: they are many, and some tests collect dozens of times."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a GPU test where cuDNN cannot be used, or fail it there if CUDNNPY_REQUIRE_GPU=1."""
    if item.get_closest_marker("gpu") is None:
        return
    why = why_unavailable()
    if why is not None:
        if os.environ.get("CUDNNPY_REQUIRE_GPU") == "1":
            pytest.fail(f"CUDNNPY_REQUIRE_GPU=1, and cuDNN cannot be used: {why}", pytrace=False)
        pytest.skip(f"cuDNN cannot be used: {why}")
