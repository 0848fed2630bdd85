"""cuDNN's files, looked at before they are loaded: truncated ones, and those of different releases."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from cudnnpy import raw
from cudnnpy.errors import LibraryNotFoundError, LibraryVersionError
from cudnnpy.raw import _library_files
from cudnnpy.raw._library_files import PARTS, check_together

REAL = Path(raw.path()).parent
VERSIONS = {"graph": "cudnn_graph_version", "ops": "cudnn_ops_infer_version", "adv": "cudnn_adv_infer_version"}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder with the real files of cuDNN, as links: none may be written to."""
    for file in REAL.glob("libcudnn*.so.9"):
        (tmp_path / file.name).symlink_to(file.resolve())
    return tmp_path


def part(folder: Path, name: str) -> Path:
    return folder / f"libcudnn_{name}.so.9"


def compiled(folder: Path, name: str, source: str) -> Path:
    """A part of another release, compiled from C."""
    file = part(folder, name)
    file.unlink(missing_ok=True)
    (folder / "part.c").write_text(source)
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,--hash-style=both", "part.c", "-o", file], cwd=folder, check=True)
    return file


def of_release(folder: Path, name: str, number: int) -> Path:
    return compiled(folder, name, f"const unsigned {VERSIONS[name]} = {number:#x};\nint {name}(void) {{ return 0; }}")


def test_the_releases_of_the_real_files() -> None:
    for name in PARTS:
        found = _library_files.examine(name, str(part(REAL, name)))
        assert not found.damage
        if name in VERSIONS:
            assert found.release == raw.version()
    check_together(raw.path())
    assert _library_files.unmet_parts(raw.path()) == []
    assert _library_files.own_parts(raw.path()) == []


@pytest.mark.parametrize("name", sorted(file.stem[9:-3] for file in REAL.glob("libcudnn_*.so.9")))
@pytest.mark.parametrize("share", [0.5, 0.999, 0.0])
def test_a_truncated_part(copy: Path, name: str, share: float) -> None:
    file = part(copy, name)
    size = file.stat().st_size
    file.unlink()
    with open(part(REAL, name), "rb") as real, open(file, "wb") as short:
        short.write(real.read(1 << 20))  # what is read of it lies there, or beyond the end
        short.truncate(int(size * share))
    with pytest.raises(LibraryNotFoundError, match="Install cuDNN again, with enough room on the disk") as caught:
        check_together(str(copy / "libcudnn.so.9"))
    assert str(file) in str(caught.value)
    assert "is truncated: " in str(caught.value) or "is damaged" in str(caught.value)


def test_a_file_that_is_none(copy: Path) -> None:
    file = part(copy, "heuristic")
    file.unlink()
    file.write_text("<html>404</html>" * 20)
    with pytest.raises(LibraryNotFoundError, match=r"libcudnn_heuristic\.so\.9 is damaged \(not a 64-bit ELF file\)"):
        check_together(str(copy / "libcudnn.so.9"))


@pytest.mark.parametrize("name", VERSIONS)
def test_a_part_of_another_release(copy: Path, name: str) -> None:
    of_release(copy, name, 0x09_63_02)
    with pytest.raises(LibraryVersionError) as caught:
        check_together(str(copy / "libcudnn.so.9"))
    text = str(caught.value)
    assert text.startswith("the files of cuDNN do not belong together: ")
    assert f"{part(copy, name)} is of cuDNN 9.99.2" in text
    assert raw.version_text(raw.version()) in text
    assert "pip install --force-reinstall" in text


def test_a_patch_release_of_a_part_is_cudnns_to_judge(copy: Path) -> None:
    major, minor = raw.version() // 10000, raw.version() // 100 % 100
    of_release(copy, "adv", major << 16 | minor << 8 | 99)
    check_together(str(copy / "libcudnn.so.9"))


def test_a_part_that_tells_no_release_and_fits_no_other(copy: Path) -> None:
    compiled(copy, "cnn", "int cudnn_of_another_release(void);\nint cnn(void) { return cudnn_of_another_release(); }")
    with pytest.raises(
        LibraryVersionError, match=r"libcudnn_cnn\.so\.9 is of another release .*lacks cudnn_of_another"
    ):
        check_together(str(copy / "libcudnn.so.9"))
    assert [problem.split(" is ")[0] for problem in _library_files.unmet_parts(str(copy / "libcudnn.so.9"))] == [
        str(part(copy, "cnn"))
    ]


def test_a_libcudnn_that_is_newer_than_its_parts(tmp_path: Path) -> None:
    of_release(tmp_path, "graph", 0x09_00_00)
    library = tmp_path / "libcudnn.so.9"
    library.write_bytes(b"\0cudnnCausalConv1dForward\0")
    with pytest.raises(LibraryVersionError, match=r"libcudnn\.so\.9 is of cuDNN 9\.22\.0 or later, and .* of 9\.0\.0"):
        check_together(str(library))


def test_parts_of_another_folder_count_where_libcudnn_has_none(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    part(copy, "ops").unlink()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{elsewhere}")
    check_together(str(copy / "libcudnn.so.9"))  # what is nowhere is cuDNN's to report
    of_release(elsewhere, "ops", 0x09_63_02)
    with pytest.raises(LibraryVersionError, match="out of LD_LIBRARY_PATH"):
        check_together(str(copy / "libcudnn.so.9"))


def test_own_parts_come_before_those_of_the_library_path(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = str(copy / "libcudnn.so.9")
    other = copy / "other"
    other.mkdir()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{REAL}:{other}")
    assert _library_files.own_parts(library) == []  # the very same files
    of_release(other, "ops", 0x09_63_02)
    assert _library_files.own_parts(library)[:2] == [str(part(copy, "graph")), str(part(copy, "ops"))]


_MIXED = """
import sys
from ctypes import byref
from cudnnpy import availability, raw
from cudnnpy.errors import LibraryError
print(any(sys.argv[1] in problem for problem in availability.report().problems))
try:
    raw.load()
    raw.call("cudnnCreateTensorDescriptor", byref(raw.cudnnTensorDescriptor_t()))
except LibraryError as error:
    print(type(error).__name__, str(error).count(sys.argv[1]) > 0)
else:
    print("used", sys.argv[1] in open("/proc/self/maps").read())
"""


def mixed(folder: Path, file: Path, **environment: str) -> list[str]:
    given = {**os.environ, "CUDNNPY_LIBRARY": str(folder / "libcudnn.so.9"), **environment}
    command = [sys.executable, "-c", _MIXED, str(file)]
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    return done.stdout.splitlines()


def test_a_process_with_a_mixed_folder_is_told_and_lives(copy: Path) -> None:
    file = of_release(copy, "ops", 0x09_63_02)
    assert mixed(copy, file) == ["True", "LibraryVersionError True"]


def test_a_process_with_a_truncated_part_is_told_and_lives(copy: Path) -> None:
    file = part(copy, "ops")
    file.unlink()
    shutil.copy(part(REAL, "ops"), file)
    os.truncate(file, file.stat().st_size // 2)
    assert mixed(copy, file) == ["True", "LibraryNotFoundError True"]


def test_another_release_in_the_library_path_is_not_used(tmp_path: Path) -> None:
    file = of_release(tmp_path, "ops", 0x09_63_02)
    assert mixed(REAL, file, LD_LIBRARY_PATH=str(tmp_path)) == ["False", "used False"]


def test_numbers_in_a_files_name_tell_its_release(tmp_path: Path) -> None:
    real = tmp_path / "libcudnn_cnn.so.9.14.1"
    shutil.copy(part(REAL, "cnn"), real)
    part(tmp_path, "cnn").symlink_to(real)
    assert _library_files.examine("cnn", str(part(tmp_path, "cnn"))).release == 91401


_ATTEMPTS = """
import os, random, site, sys
from cuda.pathfinder import load_nvidia_dynamic_lib
from cudnnpy import raw
from cudnnpy.errors import LibraryNotFoundError
for name in ("cublasLt", "nvrtc"):
    load_nvidia_dynamic_lib(name)
site.getsitepackages, site.ENABLE_USER_SITE = lambda: [sys.argv[3]], False
file, whole = sys.argv[1], open(sys.argv[2], "rb").read()
size = len(whole)
lengths = (0, 1, 15, 63, 64, 500, 4096, size // 4, size // 2, size * 3 // 4, size - 4096, size - 1)
garbage = [whole[:at] + fill for at in (64, 1024, size // 2) for fill in (bytes(size - at), random.randbytes(size - at))]
renamed = whole.replace(b"libc.so.6", b"li\\xff.so.6")  # a library that it needs, in bytes that are not UTF-8
for content in [renamed, *(whole[:length] for length in lengths), b"<html>404</html>" * 1000, *garbage]:
    open(file, "wb").write(content)
    child = os.fork()
    if not child:
        try:
            raw.load()
        except LibraryNotFoundError as error:
            os._exit(0 if file in str(error) else 3)
        os._exit(4)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize(
    ("variable", "place"),
    [
        ("CUDNNPY_LIBRARY", ""),
        ("LD_LIBRARY_PATH", ""),
        ("CONDA_PREFIX", "lib"),
        ("CUDNN_PATH", "lib64"),
        ("CUDA_HOME", "lib64"),
        (None, "nvidia/cudnn/lib"),
    ],
)
def test_a_damaged_libcudnn_is_not_loaded(tmp_path: Path, variable: str | None, place: str) -> None:
    """Wherever it is found: loading it would end the process."""
    file = tmp_path / place / "libcudnn.so.9"
    file.parent.mkdir(parents=True, exist_ok=True)
    environment = {name: text for name, text in os.environ.items() if name not in ("CUDNNPY_LIBRARY", "CUDA_PATH")}
    if variable is not None:
        environment[variable] = str(file if variable == "CUDNNPY_LIBRARY" else tmp_path)
    command = [sys.executable, "-c", _ATTEMPTS, str(file), str(REAL / "libcudnn.so.9"), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout.split() == ["0"] * 20


def test_the_dynamic_linkers_cache_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, library = tmp_path / "ld.so.cache", tmp_path / "libof.so.9"
    cache.write_bytes(f"\0glibc-ld.so.cache\0libof.so.9\0{library}\0/of/libof.so.99\0".encode())
    monkeypatch.setattr(_library_files, "_CACHE", cache)
    assert _library_files.findable(library.name) is None
    library.write_bytes(b"")
    assert _library_files.findable(library.name) == str(library)


def test_every_byte_of_the_tables_may_be_wrong(tmp_path: Path) -> None:
    """Whatever a damaged file says, it is read to an end and refused or taken, and nothing else is raised."""
    file = of_release(tmp_path, "ops", 0x09_00_00)
    data = file.read_bytes()
    for at in range(0, len(data) - 4, len(data) // 300):
        for value in (0, 0xFFFFFFFF):
            part(tmp_path, "ops").write_bytes(data[:at] + struct.pack("<I", value) + data[at + 4 :])
            _library_files.examine("ops", str(file))
