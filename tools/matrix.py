"""Run the tests that need no GPU with several versions of Python and releases of cuDNN, one pair after the other.

    python3 tools/matrix.py                      # all that pyproject.toml names: what make test-matrix does
    python3 tools/matrix.py 3.12:cu12 3.13:cu13  # these pairs

A Python that is not found here is named and left out, and so is one that cannot make a virtual environment. The exit
status is 1 if a pair that was run failed. Each pair is `make test-host PYTHON=... CUDNN=...`; standard library only.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOT_FOUND = "not tested: no such Python here (looked for on PATH, in pyenv's folder and by uv)"


def table() -> tuple[list[str], list[str]]:
    """Return the versions of Python and the names of cuDNN's releases that pyproject.toml says are tested."""
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cudnnpy"]
    return list(ours["python"]), list(ours["cudnn"])


def candidates(version: str) -> Iterator[str]:
    """Yield where an interpreter of a version may be."""
    name = f"python{version}"
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if found := shutil.which(name, path=folder):
            yield found
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    patches = [(int(path.name.split(".")[2]), path) for path in pyenv.glob(f"{version}.*") if _is_release(path.name)]
    for _, path in sorted(patches, reverse=True):
        yield str(path / "bin" / name)
    if uv := shutil.which("uv"):
        done = subprocess.run(
            [uv, "python", "find", "--no-python-downloads", version], capture_output=True, text=True, check=False
        )
        yield from done.stdout.split("\n")[:1]


def _is_release(name: str) -> bool:
    return re.fullmatch(r"\d+\.\d+\.\d+", name) is not None


def find_python(version: str) -> str | None:
    """Return an interpreter of this version that starts and can make virtual environments; None without one.

    Starting it is the test: the python3.12 of pyenv on PATH exists, and fails, where pyenv has no 3.12 switched on.
    """
    question = "import sys, ensurepip, venv; print('{}.{}'.format(*sys.version_info))"
    for path in candidates(version):
        try:
            done = subprocess.run([path, "-c", question], capture_output=True, text=True, check=False)
        except OSError:
            continue
        if done.returncode == 0 and done.stdout.strip() == version:
            return path
    return None


def run(version: str, release: str) -> str:
    """Test one pair; return "passed", "failed" or why it was not tested, with the minutes that it took."""
    python = find_python(version)
    if python is None:
        return NOT_FOUND
    print(f"== Python {version} ({python}), cuDNN {release}", flush=True)
    start = time.monotonic()
    done = subprocess.run(
        ["make", "--no-print-directory", "test-host", f"PYTHON={python}", f"CUDNN={release}"], cwd=ROOT, check=False
    )
    minutes = (time.monotonic() - start) / 60
    return f"{'failed' if done.returncode else 'passed'} in {minutes:.1f} minutes"


def pair(text: str) -> tuple[str, str]:
    """Turn "3.12:cu13" into ("3.12", "cu13")."""
    version, _, release = text.partition(":")
    releases = table()[1]
    if not re.fullmatch(r"3\.\d+", version) or release not in releases:
        raise argparse.ArgumentTypeError(
            f"a pair must be such as 3.12:cu12, with one of {', '.join(releases)}; got {text!r}"
        )
    return version, release


def main(arguments: list[str] | None = None) -> int:
    """Run the program; see the module's own text."""
    parser = argparse.ArgumentParser(description="Test with several versions of Python and releases of cuDNN.")
    parser.add_argument("pairs", nargs="*", type=pair, metavar="PYTHON:CUDNN", help="such as 3.12:cu13; default: all")
    pairs: list[tuple[str, str]] = parser.parse_args(arguments).pairs
    if not pairs:
        versions, releases = table()
        pairs = [(version, release) for version in versions for release in releases]
    found = {one: run(*one) for one in pairs}
    for (version, release), outcome in found.items():
        print(f"Python {version}, cuDNN {release}: {outcome}")
    return int(any(outcome.startswith("failed") for outcome in found.values()))


if __name__ == "__main__":
    sys.exit(main())
