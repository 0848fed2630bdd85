"""docs/installation.md: the messages that it quotes are the real ones, its extras are the extras."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cuda.bindings.runtime
import numpy as np
import pytest
from messages import says

import cudnnpy
from cudnnpy import _cuda_python, availability, errors, raw
from cudnnpy._core.dtypes import numpy_dtype
from cudnnpy._cuda_state import cuda_problem
from cudnnpy._planning import device_profile
from cudnnpy.availability import Library
from cudnnpy.cli.edges import images
from cudnnpy.raw import _library
from cudnnpy.raw._consistency import PARTS
from cudnnpy.raw._library_files import REPLACED

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "installation.md").read_text()
QUOTED = re.findall(r"```text\n(.*?)\n```", PAGE, re.DOTALL)


def message(call: Any, *arguments: Any) -> str:
    """What an exception says; its lines stay lines."""
    with pytest.raises(Exception, match=r".") as error:
        call(*arguments)
    return str(error.value)


class Runtime:
    """CUDA's runtime with a driver, as far as it is asked whether it can be used."""

    cudaError_t = SimpleNamespace(cudaErrorInsufficientDriver=35, cudaErrorNoDevice=100)

    def __init__(self, own: int, driver: int, error: int) -> None:
        self.own, self.driver, self.error = own, driver, error

    def cudaRuntimeGetVersion(self) -> tuple[int, int]:
        return 0, self.own

    def cudaDriverGetVersion(self) -> tuple[int, int]:
        return 0, self.driver

    def cudaGetDeviceCount(self) -> tuple[int, int]:
        return self.error, 0


def library_messages(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of finding and loading libcudnn."""
    import cuda.pathfinder

    def nothing(name: str) -> None:
        raise cuda.pathfinder.DynamicLibNotFoundError(f"no {name} here")

    patch.delenv("CUDNNPY_LIBRARY", raising=False)
    patch.setattr(cuda.pathfinder, "load_nvidia_dynamic_lib", nothing)
    for there in (False, True):
        patch.setattr(errors, "has_driver", lambda there=there: there)
        yield message(_library._find_and_load)

    def no_cublas(name: str) -> None:
        names = '"libcublasLt.so.13 or libcublasLt.so.12"'
        raise cuda.pathfinder.DynamicLibNotFoundError(f"Failure finding {names}: No such file: {names}")

    patch.setattr(cuda.pathfinder, "load_nvidia_dynamic_lib", no_cublas)
    yield message(_library._find_and_load)
    patch.setattr(raw, "version", _library._find_and_load)
    yield message(device_profile.check_release)
    text = folder / "libcudnn.so.9"
    text.write_text("no library\n")
    patch.setattr(cuda.pathfinder, "load_nvidia_dynamic_lib", lambda name: SimpleNamespace(abs_path=str(text)))
    yield message(_library._find_and_load)
    patch.setenv("CUDNNPY_LIBRARY", str(folder))
    yield message(_library._find_and_load)
    old = folder / "libcudnn.so.8"
    source = folder / "old.c"
    source.write_text("unsigned long cudnnGetVersion(void) { return 8907; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", old, source], check=True)
    patch.setenv("CUDNNPY_LIBRARY", str(old))
    yield message(_library._find_and_load)


def driver_messages(patch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of a machine without a driver or a GPU, or with an old driver."""
    patch.setenv("CUDA_VISIBLE_DEVICES", "")
    for runtime in (Runtime(12090, 0, 35), Runtime(12090, 13000, 100), Runtime(13000, 12040, 35)):
        patch.setattr(cuda.bindings, "runtime", runtime)
        yield str(cuda_problem())
    patch.setattr(availability, "cuda_version_text", lambda number: "13.0")  # of cudnnGetCudartVersion
    patch.setattr(cuda.bindings, "runtime", Runtime(12040, 12040, 100))
    yield from availability.report().problems


def first_use() -> str:
    """Of the first use of a GPU where there is none, in a process of its own."""
    program = "import cudnnpy\ntry: cudnnpy.empty((2, 3))\nexcept cudnnpy.CudnnError as error: print(error)"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def file_messages(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of files that do not belong together."""
    here, there = str(folder / "a" / "libcudnn.so.9"), str(folder / "b" / "libcudnn_ops.so.9")
    owners = {here: [("nvidia-cudnn-cu13", "9.28.0.42"), ("nvidia-cudnn-cu12", "9.28.0.42")]}
    libraries = (Library("libcudnn.so.9", here, "9.28.0"), Library("libcudnn_ops.so.9", there, "9.28.0"))
    yield from availability._file_problems(libraries, owners)
    beside = Library("libcudnn_ops.so.9", str(folder / "a" / "libcudnn_ops.so.9"), "9.19.0")
    yield from availability._file_problems((libraries[0], beside), {})
    yield from availability._file_problems((Library("libcudnn_ops.so.9", there, None, REPLACED),), {})
    (folder / "a").mkdir()
    for part in ("", *(f"_{name}" for name in PARTS if name != "cnn")):
        (folder / "a" / f"libcudnn{part}.so.9").touch()
    patch.setattr(raw, "path", lambda: here)
    patch.setattr(availability, "_VERSION_CHECKS", ())
    yield from availability._part_problems({here: [("nvidia-cudnn-cu12", "9.28.0.42")]})


def package_messages(patch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of packages that are not installed."""
    patch.setattr("cudnnpy._memory.arrays.can_load_driver", lambda: True)
    yield message(cudnnpy.Convolution().forward, np.zeros((1, 3, 8, 8)), np.zeros((4, 3, 3, 3)))
    for name in ("cuda.core", "PIL", "ml_dtypes"):
        patch.setitem(sys.modules, name, None)
    for there in (False, True):
        patch.setattr(_cuda_python, "has_driver", lambda there=there: there)
        yield message(_cuda_python.cuda_python.__wrapped__, "core")
    yield message(images.load, "picture.png")
    yield message(numpy_dtype, "bfloat16")


def test_the_quoted_messages_are_the_real_ones(tmp_path: Path) -> None:
    real = [first_use()]
    for messages, arguments in (
        (driver_messages, ()),
        (file_messages, (tmp_path,)),
        (library_messages, (tmp_path,)),
        (package_messages, ()),
    ):
        with pytest.MonkeyPatch.context() as patch:
            real += messages(*arguments, patch)
    assert len(QUOTED) > 12
    for quoted in QUOTED:
        assert any(re.fullmatch(says(quoted), text) for text in real), f"{quoted}\n\nis none of\n\n" + "\n\n".join(real)


def test_every_extra_has_its_line() -> None:
    table = PAGE.partition("| extra | contents |")[2].partition("\n\n")[0]
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`([\w-]+)`", row.split("|")[1])}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert named == set(extras)


def test_the_wheel_file_is_this_version() -> None:
    assert set(re.findall(r"cudnnpy-([\d.]+)-py3", PAGE)) == {cudnnpy.__version__}


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_no_page_installs_from_an_index_that_does_not_have_it(page: str) -> None:
    """pip install 'cudnnpy[...]' by itself is for the day that the package is on one."""
    text = (ROOT / page).read_text()
    lines = re.findall(r"pip install '?cudnnpy(?:\[[\w,]+\])?(?: @)?", text)
    assert [line for line in lines if not line.endswith("] @")] == []
