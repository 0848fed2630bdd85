"""The stub driver: what builds it, where it lies, and that only a child process sees it."""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from messages import says
from offline_profiles import needs_profiles

from cudnnpy._core import driver
from cudnnpy._planning import profile
from cudnnpy.cli import planner as planners
from cudnnpy.cli import stub_driver
from cudnnpy.cli.planner import NoDriverError, Planner
from cudnnpy.cli.stub_driver import StubDriverError, build, compiler, environment

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler (cc, gcc or clang) is here"
)


@needs_compiler
@pytest.mark.parametrize("given", [None, "", "cc", "cc -O1 -Wall"])
def test_it_is_built_by_the_systems_compiler(monkeypatch, tmp_path, given):
    monkeypatch.delenv("CC", raising=False)
    if given is not None:
        monkeypatch.setenv("CC", given)
    library = ctypes.CDLL(str(build(tmp_path)))
    assert library.cuModuleLoadData() == 100  # no device
    assert [file.name for file in tmp_path.iterdir()] == ["libcuda.so.1"]


def test_without_a_compiler_it_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        StubDriverError, match=says("a C compiler must be on the PATH, ... got none of cc, gcc, clang: install one")
    ):
        build(tmp_path)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "no-such-compiler -O2",
            "CC must be the command of a C compiler; got 'no-such-compiler -O2', which is not found",
        ),
        ("'cc", 'CC must be the command of a C compiler; got "\'cc": No closing quotation'),
    ],
)
def test_another_cc_is_named(monkeypatch, given, message):
    monkeypatch.setenv("CC", given)
    with pytest.raises(StubDriverError, match=says(message)):
        compiler()


@pytest.mark.parametrize(
    ("text", "message"), [("exit 3", "exit status 3"), ("echo 'x.c:1: error: no room' >&2; exit 1", "no room")]
)
def test_a_compiler_that_fails_is_quoted_in_one_line(monkeypatch, tmp_path, text, message):
    script = tmp_path / "compiler"
    script.write_text(f"#!/bin/sh\necho progress >&2\n{text}\n" if "error" in text else f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    with pytest.raises(
        StubDriverError, match=says(f"the stub driver cannot be compiled by {script}: ...{message}")
    ) as caught:
        build(tmp_path)
    assert len(str(caught.value).splitlines()) == 1


@needs_compiler
def test_a_temporary_folder_that_the_loader_does_not_find_is_named(monkeypatch, tmp_path):
    place = tmp_path / "a:b"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    with pytest.raises(
        StubDriverError, match=says(f"TMPDIR must be a folder without ':' and ';' in its name; got {place}")
    ):
        environment().__enter__()
    assert list(place.iterdir()) == []


def test_it_lies_in_a_private_folder_that_goes_away():
    before = dict(os.environ)
    with environment({"LD_LIBRARY_PATH": "/mine", "OTHER": "1"}) as found:
        folder, mine = found["LD_LIBRARY_PATH"].split(os.pathsep)
        assert (mine, found["OTHER"]) == ("/mine", "1")
        assert stat.S_IMODE(Path(folder).stat().st_mode) == 0o700
        assert os.listdir(folder) == ["libcuda.so.1"]
        assert dict(os.environ) == before
    assert not Path(folder).exists()
    with environment({}) as found:
        assert os.pathsep not in found["LD_LIBRARY_PATH"]  # an empty part would be the current folder


# Where it is used


@pytest.fixture
def environments(monkeypatch):
    """The values of LD_LIBRARY_PATH that processes are started with."""
    seen = []

    class Started(subprocess.Popen):
        def __init__(self, command, **options):
            if command[0] == sys.executable:
                seen.append(options["env"].get("LD_LIBRARY_PATH"))
            super().__init__(command, **options)

    monkeypatch.setattr(planners.subprocess, "Popen", Started)
    return seen


@needs_profiles
@needs_compiler
@pytest.mark.usefixtures("without_driver")
def test_only_the_child_process_sees_it(profile_file, environments):
    before = os.environ.get("LD_LIBRARY_PATH")
    with Planner(profile.read(profile_file()), stub=True):
        (given,) = environments
        assert "cudnnpy-stub-driver-" in given
        assert os.environ.get("LD_LIBRARY_PATH") == before
        with open("/proc/self/maps") as maps:
            assert "cudnnpy-stub-driver-" not in maps.read()


def test_without_a_driver_it_must_be_asked_for(profile_file, environments, without_driver):
    with pytest.raises(
        NoDriverError, match=says("must be installed for cuDNN's engines to load; got none: ... --stub-driver")
    ):
        Planner(profile.read(profile_file()))
    assert environments == []


@pytest.mark.parametrize("stub", [False, True])
def test_where_there_is_a_driver_it_is_never_built(monkeypatch, profile_file, environments, stub):
    monkeypatch.setattr(stub_driver, "has_driver", lambda: True)
    monkeypatch.setattr(stub_driver, "build", lambda folder: pytest.fail("it was built"))
    monkeypatch.setattr(planners, "_PROGRAM", "print('{{\"answer\": null}}') or input()")
    with Planner(profile.read(profile_file()), stub=stub):
        assert environments == [os.environ.get("LD_LIBRARY_PATH")]


def test_a_driver_is_what_loads_as_one(monkeypatch):
    def load():
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(driver, "driver_library", load)
    assert not stub_driver.has_driver()
    monkeypatch.setattr(driver, "driver_library", lambda: object())
    assert stub_driver.has_driver()


def test_the_source_is_part_of_the_package():
    assert stub_driver.SOURCE.is_file()
    assert stub_driver.SOURCE.parent.parent == Path(sys.modules["cudnnpy.cli"].__file__).parent
