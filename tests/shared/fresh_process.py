"""Programs in an interpreter of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def python(program: str, *arguments: str, **environment: str) -> str:
    """Return what a program prints, which must end well within two minutes."""
    command, given = [sys.executable, "-c", program, *arguments], {**os.environ, **environment}
    done = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr[-3000:])
    return done.stdout
