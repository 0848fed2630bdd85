"""The store of most tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from stored import CUDNN, GPU

from cudnnpy.store import Store
from cudnnpy.tuning.store import database
from cudnnpy.tuning.store.machine import Machine


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store in a file, and one in memory: they do the same."""
    monkeypatch.setattr(database, "this_machine", lambda: Machine(CUDNN, frozenset([GPU])))
    return Store(tmp_path / "folder" / "store.sqlite" if request.param == "file" else "")
