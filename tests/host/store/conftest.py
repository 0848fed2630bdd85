"""The store of most tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from cudnnpy.store import Store


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A store in a file, and one in memory: they do the same."""
    return Store(tmp_path / "folder" / "store.jsonl" if request.param == "file" else "")
