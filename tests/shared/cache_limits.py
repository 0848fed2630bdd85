"""The settings of the plan cache and of launches, as they were before a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import cudnnpy


@pytest.fixture
def cache_limits() -> Iterator[None]:
    """Restores the settings that a test changes."""
    before = cudnnpy.cache_info()
    yield
    cudnnpy.set_cache_limit(before.limit, direct=before.direct)
