"""Without torch, only the tests that do without it are left, and one that says so."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_here import files_that_need_torch

import cudnnpy

# Processes of a user take turns at measuring on a GPU, by a lock in the cache folder. Those of the tests do not wait for it.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="cudnnpy-tests-")

WITHOUT_TORCH = frozenset(
    {
        "test_attention_gpu.py",
        "test_autograd.py",
        "test_choose_algorithm.py",
        "test_convolution_against_reference.py",
        "test_cudnn_frontend_gpu.py",
        "test_descriptors_gpu.py",
        "test_docs_gpu.py",
        "test_docstring_examples_gpu.py",
        "test_drawn_graphs.py",
        "test_edges.py",
        "test_handle.py",
        "test_known_issues.py",
        "test_torch_for_the_gpu.py",
        "test_messages_gpu.py",
        "test_tune_command_gpu.py",
    }
)
collect_ignore = files_that_need_torch(Path(__file__).parent, WITHOUT_TORCH)


@pytest.fixture(autouse=True)
def own_plans_and_workspace() -> Iterator[None]:
    """Give each test an empty plan cache, and the next one the default allocator."""
    cudnnpy.clear_cache()
    yield
    cudnnpy.set_allocator(None)


@pytest.fixture
def direct_launches() -> Iterator[None]:
    """Direct launches wherever they can be verified, also on a machine where they are off by default."""
    before = cudnnpy.cache_info().direct
    cudnnpy.set_direct_launches(True)
    yield
    cudnnpy.set_direct_launches(before)
