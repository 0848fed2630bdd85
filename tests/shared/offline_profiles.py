"""Device profiles for the tests of planning without a GPU, and the fixture with which it runs on any machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from planning import FIRST_WITH_PROFILES, profile

from cudnnpy import raw
from cudnnpy.tuning.profiles import planner_process, stub_driver

needs_profiles = pytest.mark.skipif(
    raw.version() < FIRST_WITH_PROFILES, reason="device profiles came with cuDNN 9.8; test_profile.py has the error"
)


def _ended_before_and_after() -> Iterator[None]:
    """End the planner's process before the first test that plans, and after the last."""
    planner_process.end_process()
    yield
    planner_process.end_process()


# The tests of a file share the planner that the first one starts, in the environment of that test; or a test has its own.
planner_of_the_file = pytest.fixture(_ended_before_and_after, scope="module", name="planner_of_the_file")
own_planner = pytest.fixture(_ended_before_and_after, name="own_planner")


@pytest.fixture
def without_driver(planner_of_the_file: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without a driver, with no store and no ranking model."""
    monkeypatch.setattr(stub_driver, "has_driver", lambda: False)
    monkeypatch.setenv("CUDNNPY_MODELS", "")
    monkeypatch.setenv("CUDNNPY_STORE", "")


def properties() -> dict[str, Any]:
    """What cuDNN says of the GPU that the tests plan for."""
    found: dict[str, Any] = json.loads(profile().read_text())
    return found


@pytest.fixture
def profile_file(tmp_path: Path) -> Callable[..., Path]:
    """Write a profile of these properties, and return its file."""

    def write(found: object = None, name: str = "gpu.json") -> Path:
        file = tmp_path / name
        file.write_text(found if isinstance(found, str) else json.dumps(properties() if found is None else found))
        return file

    return write
