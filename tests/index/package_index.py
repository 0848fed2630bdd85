"""What the tests against the package index share: a wheel, and commands. They need the network: make test-extras."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def run(*command: Any, cwd: Path | None = None) -> str:
    """What a command prints; an AssertionError with all that it said where it fails."""
    done = subprocess.run([*map(str, command)], cwd=cwd, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pip(*arguments: Any) -> str:
    """What pip prints."""
    return run(sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments)


def built_wheel(folder: Path) -> Path:
    """The wheel of this package, built into a folder."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    return next(folder.glob("*.whl"))
