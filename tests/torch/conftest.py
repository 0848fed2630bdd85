"""Without torch, one test of this folder is left, which says so."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from torch_here import files_that_need_torch

collect_ignore = files_that_need_torch(Path(__file__).parent, frozenset({"test_torch_is_installed.py"}))


@pytest.fixture(autouse=True)
def cudnn_flags() -> Iterator[None]:
    """PyTorch's flags of cuDNN, which benchmarks set for their process, are restored."""
    if collect_ignore:  # there is no torch
        yield
        return
    import torch

    flags = torch.backends.cudnn
    before = flags.benchmark, flags.allow_tf32, flags.deterministic
    yield
    flags.benchmark, flags.allow_tf32, flags.deterministic = before


if TYPE_CHECKING:
    from cpu_kernels import Machine


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> "Machine":
    """cudnnpy.torch for CPU tensors."""
    from cpu_kernels import installed

    return installed(monkeypatch)
