"""docs/porting/cudnn-frontend.md with cudnn-frontend's wheel: both sides build the page's graph, and its names exist there.

Its wheel is installed into an environment that has this one's packages, and so this one's cuDNN. Without a GPU, cuDNN's
engines load with the stub driver, and graphs are built for the device profile in tests/data. Needs the
network: make test-extras. On a GPU tests/gpu/test_docs_gpu.py runs the page.
"""

from __future__ import annotations

import json
import os
import re
import site
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pages
import pytest
from frontend_operations import OPERATIONS, spec
from package_index import ROOT, pip

from cudnnpy import raw
from cudnnpy.tuning.profiles import stub_driver

PROFILE = ROOT / "tests" / "data" / f"h200-cudnn-{'9.28' if raw.version() >= 92800 else '9.19'}.json"
PAGE = "porting/cudnn-frontend.md"
NAMES_OF_FRONTEND = """
import json, cudnn
print(json.dumps([dir(cudnn), dir(cudnn.pygraph), {name: list(getattr(cudnn, name).__members__) for name in
    ("heur_mode", "build_plan_policy", "numerical_note", "reduction_mode", "data_type", "norm_forward_phase")}]))
"""
SHAPES = """
import json, sys
sys.path[:0] = [{root!r}, {shared!r}]
import cudnn
from frontend_operations import OPERATIONS, built
options = {{"device_property": cudnn.create_device_properties(open({profile!r}).read())}}
for name, operation in OPERATIONS.items():
    graph, tensors, outputs = built(cudnn, operation, **options)
    print(json.dumps([name, [[output.get_dim(), output.get_stride()] for output in outputs]]))
"""
NOT_METHODS = {"set_output", "set_data_type", "set_dim", "set_stride", "set_uid"}  # of its tensors


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of an environment with cudnn-frontend and the packages of this one."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    pip("--python", python, "install", "-q", "--no-deps", "nvidia-cudnn-frontend")
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
    (packages / "these.pth").write_text("\n".join(site.getsitepackages()))
    return python


@pytest.fixture
def without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN's folders and the stub driver are where the loader searches."""
    folders = [str(folder) for folder in Path(raw.path()).parents[2].glob("*/lib")]
    if not stub_driver.has_driver():
        stub = tmp_path / "stub"
        stub.mkdir()
        (stub / stub_driver.LIBRARY).write_bytes(stub_driver.content())
        folders.insert(0, str(stub))
    monkeypatch.setenv("LD_LIBRARY_PATH", os.pathsep.join(folders))


@pytest.mark.usefixtures("without_a_gpu")
def test_both_sides_build_the_graph(python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(python))
    (tmp_path / "h200.json").write_text(PROFILE.read_text())
    assert ("cudnn",) in pages.packages(PAGE, gpu=False)
    pages.run(PAGE, tmp_path, ("cudnn",), gpu=False)


@pytest.mark.usefixtures("without_a_gpu")
def test_every_operation_of_the_page_has_the_shapes_of_ours(python: Path) -> None:
    """cudnn-frontend checks each graph, and cuDNN takes it; tests/gpu/test_cudnn_frontend_gpu.py runs them."""
    program = SHAPES.format(root=str(ROOT), shared=str(ROOT / "tests" / "shared"), profile=str(PROFILE))
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = dict(map(json.loads, done.stdout.splitlines()))
    for name, operation in OPERATIONS.items():
        for (sizes, strides), expected in zip(found[name], operation.expected, strict=True):
            assert tuple(sizes) == expected.shape, name
            ours = spec(expected).strides
            assert all(a == b for a, b, size in zip(strides, ours, sizes, strict=True) if size > 1), name


@pytest.mark.usefixtures("without_a_gpu")
def test_its_names_on_the_page_exist(python: Path) -> None:
    done = subprocess.run([python, "-c", NAMES_OF_FRONTEND], capture_output=True, text=True, check=True)
    names, methods, enums = json.loads(done.stdout)
    text = (ROOT / "docs" / PAGE).read_text()
    rows = [re.split(r"(?<!\\)\|", line)[1] for line in text.splitlines() if line.startswith("| ")]
    theirs = " ".join(re.findall(r"`([^`]+)`", " ".join(rows)))
    assert set(re.findall(r"\bcudnn\.(\w+)", theirs)) - {*names} == set()
    for enum, member in re.findall(r"\bcudnn\.(\w+)\.([A-Z]\w*)", theirs):
        assert member in enums[enum], f"{enum}.{member}"
    called = {
        name for name in re.findall(r"(?<![\w.])(?:graph\.)?(\w+)\(", theirs) if name not in {*names, *NOT_METHODS}
    }
    assert len(called) > 30
    assert called - {*methods} == set()
    alone = set(re.findall(r"`([a-z]\w+)`", " ".join(rows)))
    assert alone - {*methods, *names, *NOT_METHODS} == set()
