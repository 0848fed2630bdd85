"""cudnnpy.torch without PyTorch: it is imported, its options are checked, and enable() names the missing package."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import cudnnpy.torch
from cudnnpy._core import cuda_python
from cudnnpy._process.cuda_state import NO_DRIVER
from cudnnpy.errors import LibraryNotFoundError

PACKAGE = Path(cudnnpy.torch.__file__).parents[1]


def test_importing_it_imports_neither_pytorch_nor_numpy_nor_cuda() -> None:
    program = "import sys, cudnnpy.torch; print({'torch', 'numpy', 'cuda'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], cwd=PACKAGE.parent, capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


def test_no_other_module_imports_it() -> None:
    others = [file for file in PACKAGE.rglob("*.py") if PACKAGE / "torch" not in file.parents]
    assert len(others) > 100
    assert [file.name for file in others if "cudnnpy.torch" in file.read_text()] == []


@pytest.mark.parametrize(
    ("driver", "message"),
    [
        (True, r"^cudnnpy\.torch needs PyTorch, which is not installed .*pip install torch$"),
        (False, f"^{re.escape(NO_DRIVER)}. cudnnpy.torch needs PyTorch, which is not installed either$"),
    ],
)
def test_without_pytorch_enable_says_so(monkeypatch: pytest.MonkeyPatch, driver: bool, message: str) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # in an environment that has it
    monkeypatch.setattr(cuda_python, "has_driver", lambda: driver)
    with pytest.raises(LibraryNotFoundError, match=message):
        cudnnpy.torch.enable()
    assert not cudnnpy.torch.is_enabled()
    cudnnpy.torch.disable()
    assert cudnnpy.torch.stats() == ({"forward": 0, "backward_data": 0, "backward_filter": 0}, {})
