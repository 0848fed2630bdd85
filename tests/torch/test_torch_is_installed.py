"""One line says that the tests of this folder were not run. CUDNNPY_REQUIRE_TORCH=1 makes that a failure."""

from torch_here import need_torch


def test_torch_is_installed() -> None:
    need_torch("the tests of tests/torch")
