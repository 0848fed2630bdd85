"""Every extra of the wheel, as the package index serves it: pip finds an answer, with one cuDNN in it.

Nothing is installed; pip reads what each package asks for, some minutes for all of it. Needs the network: make test-extras.
"""

from __future__ import annotations

import json
import tomllib
from functools import cache
from pathlib import Path

import pytest
from package_index import ROOT, built_wheel, pip

EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_wheel(tmp_path_factory.mktemp("dist"))


@cache
def resolved(wheel: Path, extras: str, *others: str) -> dict[str, str]:
    """The packages that pip would install where nothing is installed, with their versions."""
    wanted = f"cudnnpy[{extras}] @ {wheel.as_uri()}"
    options = ("install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-")
    report = json.loads(pip(*options, wanted, *others))
    return {one["metadata"]["name"].lower().replace("_", "-"): one["metadata"]["version"] for one in report["install"]}


def test_no_extra_brings_no_cuda(wheel: Path) -> None:
    assert set(resolved(wheel, "")) == {"cudnnpy", "numpy", "cuda-pathfinder", "platformdirs"}


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
