"""Without torch, one test of this folder is left, which says so."""

from pathlib import Path

from torch_here import files_that_need_torch

collect_ignore = files_that_need_torch(Path(__file__).parent, frozenset({"test_torch_is_installed.py"}))
