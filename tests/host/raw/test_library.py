"""Finding and loading libcudnn, and the errors where it cannot be."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from fresh_process import python

from cudnnpy import errors, raw
from cudnnpy._process.cuda_state import NO_DRIVER
from cudnnpy._process.installation import to_install
from cudnnpy.errors import LibraryNotFoundError
from cudnnpy.raw import _library

_LOAD = """
from cudnnpy import raw
from cudnnpy.errors import LibraryError
try:
    raw.cudnnGetVersion()
except LibraryError as error:
    print(type(error).__name__)
    print(error)
else:
    print(raw.version(), raw.path())
"""


def load(library: str | Path) -> list[str]:
    """The lines printed by a process that uses the library that CUDNNPY_LIBRARY names."""
    return python(_LOAD, CUDNNPY_LIBRARY=str(library)).splitlines()


def shared_library(folder: Path, name: str, source: str, *options: str) -> Path:
    """A small shared library compiled from C."""
    (folder / f"{name}.c").write_text(source)
    subprocess.run(["cc", "-shared", "-fPIC", f"{name}.c", "-o", name, *options], cwd=folder, check=True)
    return folder / name


def test_the_library_that_is_found() -> None:
    assert Path(raw.path()).name.startswith("libcudnn.so")
    assert raw.version() // 10000 == 9
    assert raw.version() == raw.cudnnGetVersion()
    assert raw.load() is raw.load()


def test_it_is_loaded_once_however_many_threads_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = []
    find = _library._find_and_load
    monkeypatch.setattr(_library, "_loaded", None)
    monkeypatch.setattr(_library, "_find_and_load", lambda: (loads.append(1), find())[1])
    ready = threading.Barrier(8)
    threads = [threading.Thread(target=lambda: (ready.wait(), raw.load())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loads) == 1


@pytest.mark.parametrize(("number", "text"), [(92800, "9.28.0"), (90000, "9.0.0"), (8907, "8.9.7"), (6021, "6.0.21")])
def test_version_text(number: int, text: str) -> None:
    assert raw.version_text(number) == text


def test_a_library_named_by_the_environment(tmp_path: Path) -> None:
    assert load(raw.path()) == [f"{raw.version()} {raw.path()}"]


def test_an_empty_name_is_no_name() -> None:
    assert load("") == [f"{raw.version()} {raw.path()}"]


@pytest.mark.parametrize("name", ["absent.so", "."])
def test_no_such_file(tmp_path: Path, name: str) -> None:
    kind, message = load(tmp_path / name)
    assert kind == "LibraryNotFoundError"
    assert (
        message
        == f"CUDNNPY_LIBRARY names '{tmp_path / name}', which is not a file. Name libcudnn.so.9 itself, or unset it."
    )


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("no library\n")
    kind, message = load(text)
    assert kind == "LibraryNotFoundError"
    assert message.startswith(f"{text} is damaged (the file ends at byte 11). ")
    assert message.endswith("CUDNNPY_LIBRARY named this file; unset it to search the usual places.")


def test_an_unreadable_file(tmp_path: Path) -> None:
    library = shared_library(tmp_path, "libcudnn.so.9", "int nothing;")
    library.chmod(0)
    if os.access(library, os.R_OK):
        library.write_bytes(library.read_bytes()[:100])  # root reads everything; half a file it cannot load either
    kind, message = load(library)
    assert kind == "LibraryNotFoundError"
    assert str(library) in message


def test_a_library_that_is_not_cudnn(tmp_path: Path) -> None:
    kind, message = load(shared_library(tmp_path, "libother.so", "int cublasGetVersion(void) { return 12; }"))
    assert kind == "LibraryNotFoundError"
    assert "cudnnGetVersion" in message


@pytest.mark.parametrize(("name", "number", "text"), [("so.8", 8907, "8.9.7"), ("so.10", 100203, "10.2.3")])
def test_another_major_version(tmp_path: Path, name: str, number: int, text: str) -> None:
    source = f"unsigned long cudnnGetVersion(void) {{ return {number}; }}"
    library = shared_library(tmp_path, f"libcudnn.{name}", source)
    kind, message = load(library)
    assert kind == "LibraryVersionError"
    assert message.startswith(f"{library} is cuDNN {text}; this package needs cuDNN 9.")
    assert f"Install it: {to_install()}" in message


def test_a_missing_libcublas(tmp_path: Path) -> None:
    blas = shared_library(tmp_path, "libcublasLt.so.12", "int cublasLtCreate(void) { return 0; }")
    source = "int cublasLtCreate(void);\nunsigned long cudnnGetVersion(void) { return 92800 + cublasLtCreate(); }"
    library = shared_library(
        tmp_path, "libcudnn.so.9", source, "-L.", "-l:libcublasLt.so.12", "-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed"
    )
    assert load(library) == [f"92800 {library}"]
    blas.unlink()
    kind, message = load(library)
    assert kind == "LibraryNotFoundError"
    assert "libcublasLt.so.12: cannot open shared object file" in message


def test_a_copy_without_its_sub_libraries(tmp_path: Path) -> None:
    kind, message = load(shutil.copy(raw.path(), tmp_path))
    assert kind == "LibraryNotFoundError"
    assert "libcudnn_" in message
    assert "cannot open shared object file" in message


def test_none_found(monkeypatch: pytest.MonkeyPatch) -> None:
    import cuda.pathfinder

    def nothing(name: str) -> None:
        raise cuda.pathfinder.DynamicLibNotFoundError(f"no {name} here\nand a long story")

    monkeypatch.delenv("CUDNNPY_LIBRARY", raising=False)
    monkeypatch.setattr(cuda.pathfinder, "load_nvidia_dynamic_lib", nothing)
    with pytest.raises(LibraryNotFoundError) as error:
        _library._find_and_load()
    assert "no cudnn here" in str(error.value)
    assert "long story" not in str(error.value)
    assert f"Install cuDNN: {to_install()}" in str(error.value)
    assert "CUDNNPY_LIBRARY" in str(error.value)


def test_found_and_not_loadable(monkeypatch: pytest.MonkeyPatch) -> None:
    import cuda.pathfinder

    def broken(name: str) -> None:
        raise RuntimeError(f"failed to dlopen {name}: libcublas.so.12 is missing")

    monkeypatch.delenv("CUDNNPY_LIBRARY", raising=False)
    monkeypatch.setattr(cuda.pathfinder, "load_nvidia_dynamic_lib", broken)
    with pytest.raises(LibraryNotFoundError, match=r"libcublas\.so\.12 is missing"):
        _library._find_and_load()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'Failure finding "libcublasLt.so.12": No such file: libcublasLt.so.12, No such file: libcublasLt.so.12\n',
            "libcudnn needs libcublasLt.so.12, which was not found. ",
        ),
        (
            'Failure finding "libcudnn.so.9": No such file: libcudnn.so.9, No such file: libcudnn.so.9',
            'libcudnn.so.9 was not found (Failure finding "libcudnn.so.9", No such file: libcudnn.so.9). ',
        ),
        ("no cudnn, no cudnn, none", "libcudnn.so.9 was not found (no cudnn, none). "),
        ("", "libcudnn.so.9 was not found (no libcudnn.so.9). "),
    ],
)
def test_what_was_not_found_is_said_once(monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    import cuda.pathfinder

    def nothing(name: str) -> None:
        raise cuda.pathfinder.DynamicLibNotFoundError(text)

    monkeypatch.delenv("CUDNNPY_LIBRARY", raising=False)
    monkeypatch.setattr(cuda.pathfinder, "load_nvidia_dynamic_lib", nothing)
    monkeypatch.setattr(errors, "has_driver", lambda: True)
    with pytest.raises(LibraryNotFoundError) as error:
        _library._find_and_load()
    assert str(error.value).startswith(message)
    monkeypatch.setattr(errors, "has_driver", lambda: False)
    with pytest.raises(LibraryNotFoundError) as error:
        _library._find_and_load()
    assert str(error.value).startswith(
        f"{NO_DRIVER}. Descriptors and `cudnnpy plan` need no driver, but cuDNN: {message}"
    )


def test_a_relative_name_finds_its_own_parts(tmp_path: Path) -> None:
    for file in Path(raw.path()).parent.glob("libcudnn*.so.9"):
        (tmp_path / file.name).symlink_to(file)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {os.getcwd()!r})\n{_LOAD}"],
        env={**os.environ, "CUDNNPY_LIBRARY": "libcudnn.so.9"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(raw.version()), str(tmp_path / "libcudnn.so.9")]
