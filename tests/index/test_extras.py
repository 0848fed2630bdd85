"""Every extra of the wheel, as the package index serves it: it resolves, and what it brings is enough for what it is for.

The large ones, with cuDNN, are resolved here and nothing is downloaded; the environments that the other tests run in are
made of them. Needs the network: make test-extras.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import venv
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def run(*command: Any, cwd: Path | None = None) -> str:
    done = subprocess.run([*map(str, command)], cwd=cwd, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    return next(folder.glob("*.whl"))


@cache
def resolved(wheel: Path, extras: str, *others: str) -> dict[str, str]:
    """The packages that pip would install where nothing is installed, with their versions."""
    wanted = f"cudnnpy[{extras}] @ {wheel.as_uri()}"
    options = ("install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-")
    report = json.loads(run(*PIP, *options, wanted, *others))
    return {one["metadata"]["name"].lower().replace("_", "-"): one["metadata"]["version"] for one in report["install"]}


def test_no_extra_brings_no_cuda(wheel: Path) -> None:
    assert set(resolved(wheel, "")) == {"cudnnpy", "numpy", "cuda-pathfinder"}


@pytest.mark.parametrize("extra", EXTRAS)
def test_every_extra_resolves(wheel: Path, extra: str) -> None:
    found = resolved(wheel, extra)
    flavours = {name for name in found if name.startswith("nvidia-cudnn-")}
    assert flavours == {"cu12": {"nvidia-cudnn-cu12"}, "cu13": {"nvidia-cudnn-cu13"}}.get(
        extra, flavours if extra == "torch" else set()
    )
    assert len(flavours) < 2


@pytest.mark.parametrize("flavour", ["12", "13"])
def test_what_a_flavour_brings(wheel: Path, flavour: str) -> None:
    found = resolved(wheel, f"cu{flavour}")
    assert found["cuda-python"].split(".")[0] == found["cuda-bindings"].split(".")[0] == flavour
    suffix = "-cu12" if flavour == "12" else ""
    assert {"cuda-core", f"nvidia-cublas{suffix}", f"nvidia-cuda-nvrtc{suffix}"} <= set(found)
    assert found[f"nvidia-cudnn-cu{flavour}"].startswith("9.")


@pytest.mark.parametrize(
    ("extra", "other"),
    [
        ("cu13", "torch"),
        ("cu12", "torch"),
        ("cu13", "jax[cuda13]"),
        ("cu12", "jax[cuda12]"),
    ],
)
def test_beside_a_framework(wheel: Path, extra: str, other: str) -> None:
    """docs/installation.md has the table; here, that there is an answer, and one cuDNN in it."""
    found = resolved(wheel, extra, other)
    assert other.partition("[")[0] in found
    assert [name for name in found if name.startswith("nvidia-cudnn-")] == [f"nvidia-cudnn-{extra}"]


USES = {
    "images": "cudnnpy edges -o edges.png",
    "cli": "cudnnpy edges -o edges.png",
    "dtypes": "python -c \"import cudnnpy, numpy; f = cudnnpy.reference.transform_tensor; "
    "assert f(numpy.ones((1, 2, 3, 4)), dtype='bfloat16').dtype.name == 'bfloat16'\"",
    "plots": 'python -c "import matplotlib.pyplot, cudnnpy.reference"',
}  # fmt: skip


@pytest.mark.parametrize("extra", USES)
def test_the_small_ones_are_enough_for_what_they_are_for(wheel: Path, tmp_path: Path, extra: str) -> None:
    folder = tmp_path / "environment"
    venv.create(folder, symlinks=True)
    run(*PIP, "--python", folder / "bin" / "python", "install", "-q", f"cudnnpy[{extra}] @ {wheel.as_uri()}")
    run("sh", "-c", f"'{folder}'/bin/{USES[extra]}", cwd=tmp_path)
