"""The limits of what is kept for launches, as they were before a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import cudnnpy


@pytest.fixture
def cache_limits() -> Iterator[None]:
    """Whatever limits a test sets, those before it hold again after it."""
    before = cudnnpy.cache_info()
    yield
    cudnnpy.set_cache_limit(
        launches=before.launch_limit,
        replays=before.replay_limit,
        replay_bytes=before.replay_bytes_limit,
        direct=before.direct,
    )
