"""The package without the folder of direct launches works; test_core_alone.py runs the tests of launches without it."""

from __future__ import annotations

from pathlib import Path

from package_copies import copied, run


def test_it_works_and_its_tests_are_left_out(tmp_path: Path) -> None:
    """conftest.py leaves them out."""
    copy = copied(tmp_path, "_launch/direct")
    found = run(copy, "-c", "import cudnnpy; print(cudnnpy.__file__); print(cudnnpy.cache_info())")
    assert str(copy) in found
    assert "direct_launches=0" in found
    assert "no tests collected" in run(
        copy, "-c", "import pytest; print(pytest.main(['-q', '--co', 'tests/host/launch/test_direct_launch.py']))"
    )
