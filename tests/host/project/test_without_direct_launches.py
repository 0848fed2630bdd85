"""The package without the folder of direct launches: it works, its tests pass, and cuDNN launches every plan."""

from __future__ import annotations

from pathlib import Path

import pytest
from package_copies import copied, run, run_tests


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package and its tests in a folder, without direct launches."""
    return copied(tmp_path, "_launch/direct")


def test_the_tests_of_launches_pass_without_it(copy: Path) -> None:
    """Those of direct launches are left out (conftest.py)."""
    found = run(copy, "-c", "import cudnnpy; print(cudnnpy.__file__); print(cudnnpy.cache_info())")
    assert str(copy) in found
    assert "direct_launches=0" in found
    run_tests(copy, "launcher", "operation", "plan_cache", "variant_packs", "steps")
    assert "no tests collected" in run(
        copy, "-c", "import pytest; print(pytest.main(['-q', '--co', 'tests/host/launch/test_direct_launch.py']))"
    )
