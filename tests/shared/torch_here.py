"""Whether torch is installed, and what is said where it is not."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

_spec = find_spec("torch")
TORCH = _spec is not None and _spec.origin is not None  # a folder named torch on the path is a spec without an origin


def need_torch(tests: str, *required_by: str) -> None:
    """Skip the test that stands for all that need torch where it is missing; fail if a variable says that they must run."""
    if TORCH:
        return
    why = f"torch is not installed, so {tests} are not run (make test-torch makes an environment with it)"
    for name in ("CUDNNPY_REQUIRE_TORCH", *required_by):
        if os.environ.get(name) == "1":
            pytest.fail(f"{name}=1, and {why}", pytrace=False)
    pytest.skip(why)


def files_that_need_torch(folder: Path, without: frozenset[str]) -> list[str]:
    """A conftest's collect_ignore: where torch is missing, the test files of a folder but those that do without it."""
    return [] if TORCH else sorted(file.name for file in folder.glob("test_*.py") if file.name not in without)
