"""Without torch, one test of this folder is left, which says so."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from torch_here import files_that_need_torch

collect_ignore = files_that_need_torch(Path(__file__).parent, frozenset({"test_torch_is_installed.py"}))


@pytest.fixture
def networks_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark's networks on CPU tensors."""
    import torch

    from tools.benchmark.networks import models, tensors

    monkeypatch.setattr(tensors, "DEVICE", "cpu")
    monkeypatch.setattr(models, "DEVICE", "cpu")
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
