"""One line says that the GPU tests that need torch were not run; CUDNNPY_REQUIRE_GPU=1 makes that a failure."""

from torch_here import need_torch


def test_torch_is_installed() -> None:
    need_torch("the GPU tests that compare with torch", "CUDNNPY_REQUIRE_GPU")
