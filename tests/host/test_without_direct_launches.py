"""The package without the folder of direct launches: it works, its tests pass, and cuDNN launches every plan."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DIRECT = Path("cudnnpy", "_launch", "direct")
TESTS = ("launcher", "operation", "plan_cache", "variant_packs", "steps")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package and its tests in a folder, without direct launches."""
    assert (ROOT / DIRECT).is_dir()
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("cudnnpy", "tests/host", "tests/shared", "tests/data"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    for file in ("tests/conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / file, tmp_path / file)
    shutil.rmtree(tmp_path / DIRECT)
    return tmp_path


def run(folder: Path, *arguments: str) -> str:
    """The output of Python in a copy, which must succeed."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_tests_of_launches_pass_without_it(copy: Path) -> None:
    """Those of direct launches are left out (conftest.py)."""
    found = run(copy, "-c", "import cudnnpy; print(cudnnpy.__file__); print(cudnnpy.cache_info())")
    assert str(copy) in found
    assert "direct_launches=0" in found
    files = [f"tests/host/test_{name}.py" for name in TESTS]
    assert " passed" in run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files)
    assert "no tests collected" in run(
        copy, "-c", "import pytest; print(pytest.main(['-q', '--co', 'tests/host/test_direct_launch.py']))"
    )
