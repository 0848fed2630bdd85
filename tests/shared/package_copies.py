"""Copies of the package that lack parts of it, with the tests, and Python in such a copy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def copied(folder: Path, *absent: str) -> Path:
    """Copy the package and its tests on the host into a folder, without some files and folders of the package."""
    ignored = shutil.ignore_patterns("__pycache__")
    for part in ("cudnnpy", "tests/host", "tests/shared", "tests/data"):
        shutil.copytree(ROOT / part, folder / part, ignore=ignored)
    for file in ("tests/conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / file, folder / file)
    for name in absent:
        path = folder / "cudnnpy" / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return folder


def run(folder: Path, *arguments: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the output of Python in a copy, which must succeed."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_tests(folder: Path, *names: str, options: Sequence[str] = ()) -> None:
    """Run files of tests/host in a copy, by their names without "test_"; all of them must pass."""
    found = {path.stem.removeprefix("test_"): str(path) for path in (folder / "tests" / "host").glob("*/test_*.py")}
    files = [found[name] for name in names]
    assert " passed" in run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *files)
