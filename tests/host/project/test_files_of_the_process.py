"""The files of cuDNN that a process has loaded, that it would load, and that lie elsewhere, with versions and origins."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from fresh_process import python

from cudnnpy import availability, raw
from cudnnpy.availability import Library

REAL = Path(raw.path()).resolve().parent
NAMES = {file.name for file in REAL.glob("libcudnn*.so.9")}
RELEASE = raw.version_text(raw.version())

_REPORT = """
import ctypes, dataclasses, json, os, sys
for file in sys.argv[1:]:
    ctypes.CDLL(file.removeprefix("-"))
    if file.startswith("-"):
        os.remove(file.removeprefix("-"))
from cudnnpy import availability
print(json.dumps(dataclasses.asdict(availability.report())))
"""


def report(*loaded: str | Path, **environment: str) -> dict[str, Any]:
    """The report of a process that has loaded files before; a file after "-" is removed then."""
    found: dict[str, Any] = json.loads(python(_REPORT, *map(str, loaded), **environment))
    return found


def built(folder: Path, name: str, number: int | None = None) -> Path:
    """A file of cuDNN that exports nothing but a release of a part."""
    folder.mkdir(parents=True, exist_ok=True)
    source, file = folder / "part.c", folder / name
    symbols = {"graph": "cudnn_graph_version", "adv": "cudnn_adv_infer_version"}
    variable = next((symbol for part, symbol in symbols.items() if part in name), "nothing")
    source.write_text(f"const unsigned {variable} = {number or 0:#x};\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,--hash-style=both", source, "-o", file], check=True)
    source.unlink()
    return file


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder with the real files of cuDNN, as links."""
    folder = tmp_path / "copy"
    folder.mkdir()
    for name in NAMES:
        (folder / name).symlink_to(REAL / name)
    return folder


def names(libraries: list[dict[str, str]]) -> set[str]:
    return {library["name"] for library in libraries}


def test_every_file_is_loaded_or_will_be() -> None:
    found = report()
    assert names(found["libraries"]) | names(found["not_loaded"]) == NAMES
    assert not names(found["libraries"]) & names(found["not_loaded"])
    assert {"libcudnn.so.9", "libcudnn_graph.so.9", "libcudnn_ops.so.9"} <= names(found["libraries"])
    assert {"libcudnn_heuristic.so.9", "libcudnn_engines_precompiled.so.9"} <= names(found["not_loaded"])
    for library in (*found["libraries"], *found["not_loaded"]):
        assert Path(library["path"]).resolve().parent == REAL
        assert library["version"] == RELEASE
        assert library["origin"].startswith("wheel nvidia-cudnn-cu")
    assert not [one for one in found["elsewhere"] if Path(one["path"]).resolve().parent == REAL]


def test_engines_that_something_has_loaded_are_listed_as_loaded() -> None:
    engines = REAL / "libcudnn_engines_precompiled.so.9"
    found = report(REAL / "libcudnn.so.9", engines)
    assert engines.name in names(found["libraries"])
    assert engines.name not in names(found["not_loaded"])


def test_another_release_elsewhere_is_listed_and_no_problem(tmp_path: Path) -> None:
    file = built(tmp_path, "libcudnn_graph.so.9", 0x09_63_02)
    found = report(LD_LIBRARY_PATH=str(tmp_path))
    path = str(file)
    assert [one for one in found["elsewhere"] if one["origin"] == "LD_LIBRARY_PATH"] == [
        {"name": file.name, "path": path, "version": "9.99.2", "origin": "LD_LIBRARY_PATH"}
    ]
    assert not any(path in problem for problem in found["problems"])


def test_a_part_from_another_folder_is_a_problem(tmp_path: Path) -> None:
    """As when a framework's cuDNN loads its engines by name, and LD_LIBRARY_PATH has others."""
    file = built(tmp_path, "libcudnn_heuristic.so.9")
    found = report(file, LD_LIBRARY_PATH=str(tmp_path))
    assert {"name": file.name, "path": str(file), "version": None, "origin": "LD_LIBRARY_PATH"} in found["libraries"]
    (problem,) = (one for one in found["problems"] if "different folders" in one)
    assert f"libcudnn_heuristic.so.9 (version unknown) from {tmp_path}" in problem
    assert f"({RELEASE}) from {REAL}" in problem


def test_a_patch_release_of_a_part_is_a_problem_of_the_report(copy: Path) -> None:
    """cuDNN itself judges at its first call whether it can be used."""
    if raw.version() < 90100:
        pytest.skip("cuDNN 9.0 ends the process (SIGABRT) at the first call with such a part")
    part = copy / "libcudnn_adv.so.9"
    part.unlink()
    major, minor = raw.version() // 10000, raw.version() // 100 % 100
    built(copy, part.name, major << 16 | minor << 8 | 99)
    found = report(CUDNNPY_LIBRARY=str(copy / "libcudnn.so.9"))
    mixed = [problem for problem in found["problems"] if f"{part.name} ({major}.{minor}.99)" in problem]
    assert len(mixed) == 1


def test_files_that_cannot_be_loaded_together_are_listed_with_their_releases(copy: Path) -> None:
    part = copy / "libcudnn_adv.so.9"
    part.unlink()
    built(copy, part.name, 0x09_63_02)
    found = report(CUDNNPY_LIBRARY=str(copy / "libcudnn.so.9"))
    assert (found["cudnn"], found["libraries"]) == (None, [])
    assert names(found["not_loaded"]) == NAMES
    versions = {library["name"]: (library["version"], library["origin"]) for library in found["not_loaded"]}
    assert versions[part.name] == ("9.99.2", "CUDNNPY_LIBRARY")
    assert versions["libcudnn_ops.so.9"][0] == RELEASE
    assert str(REAL / part.name) in {str(Path(library["path"]).resolve()) for library in found["elsewhere"]}


def test_no_libcudnn_at_all(tmp_path: Path) -> None:
    found = report(CUDNNPY_LIBRARY=str(tmp_path / "libcudnn.so.9"))
    assert (found["libraries"], found["not_loaded"]) == ([], [])
    assert names(found["elsewhere"]) >= NAMES


def test_a_file_that_was_replaced_is_a_problem(tmp_path: Path) -> None:
    """As pip does under a running program."""
    file = tmp_path / "libcudnn_ext.so.9"
    shutil.copy(REAL / file.name, file) if file.name in NAMES else built(tmp_path, file.name)
    found = report(f"-{file}")
    (library,) = (one for one in found["libraries"] if one["path"] == str(file))
    assert library["origin"] == "replaced since it was loaded"
    assert any(one.startswith(f"{file.name}: replaced since this process loaded it") for one in found["problems"])


def test_libcudnn_itself_that_was_replaced_is_a_problem(copy: Path) -> None:
    file = copy / "libcudnn.so.9"
    file.unlink()
    shutil.copy(REAL / file.name, file)
    program = f"""
import os, shutil
from cudnnpy import availability, raw
raw.load()
os.remove({str(file)!r})
shutil.copy({str(REAL / file.name)!r}, {str(file)!r})
report = availability.report()
print(report.libraries[0], *report.problems, sep="\\n")
"""
    first, *problems = python(program, CUDNNPY_LIBRARY=str(file)).splitlines()
    expected = Library(file.name, str(file), RELEASE, "replaced since it was loaded")
    assert first == repr(expected)
    assert any(problem.startswith(f"{file.name}: replaced since this process loaded it") for problem in problems)


def test_the_problems_of_files_name_their_folders_releases_and_wheels() -> None:
    one, two = Library("libcudnn.so.9", "/a/libcudnn.so.9", "9.28.0"), Library("b", "/a/b", "9.19.0")
    (problem,) = availability._file_problems((one, two), {})
    assert problem.startswith(
        "files of cuDNN are of different releases: libcudnn.so.9 (9.28.0) from /a; b (9.19.0) from /a. "
    )
    (problem,) = availability._file_problems((one,), {}, (Library("b", "/c/b", "9.28.0"),))
    assert "are loaded, or would be: libcudnn.so.9 (9.28.0) from /a; b (9.28.0) from /c. " in problem
    assert list(availability._file_problems((one,), {}, (Library("b", "/a/b", None),))) == []
