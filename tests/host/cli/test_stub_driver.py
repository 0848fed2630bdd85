"""The stub driver: what builds it, that nothing is left of it, and that only a child process loads it."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from messages import says
from offline_profiles import needs_profiles

from cudnnpy import __version__
from cudnnpy._measuring import process
from cudnnpy._planning import device_profile
from cudnnpy.cli.errors import UsageError
from cudnnpy.cli.plan import stub_driver
from cudnnpy.cli.plan.planner_process import PlannerProcess
from cudnnpy.cli.plan.stub_driver import build, compiler, library

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
        UsageError, match=says("a C compiler must be on the PATH, ... got none of cc, gcc, clang: install one")
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
    with pytest.raises(UsageError, match=says(message)):
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
        UsageError, match=says(f"the stub driver cannot be compiled by {script}: ...{message}")
    ) as caught:
        build(tmp_path)
    assert len(str(caught.value).splitlines()) == 1


@needs_compiler
def test_its_file_has_no_name_and_is_the_driver_of_who_loads_it(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    program = (
        f"import ctypes; ctypes.CDLL('/proc/self/fd/%d'); print(ctypes.CDLL({stub_driver.LIBRARY!r}).cuModuleUnload())"
    )
    with library() as file:
        assert [*tmp_path.iterdir()] == []
        command = [sys.executable, "-c", program % file.fileno()]
        done = subprocess.run(command, pass_fds=[file.fileno()], capture_output=True, text=True, check=True)
    assert done.stdout == "100\n"  # no device


# Where it is used


@pytest.fixture
def inherited(monkeypatch):
    """The files that child processes of Python inherit."""
    seen = []

    class Started(subprocess.Popen):
        def __init__(self, command, **options):
            if command[0] == sys.executable:
                seen.append([os.fstat(file).st_ino for file in options["pass_fds"]])
            super().__init__(command, **options)

    monkeypatch.setattr(process.subprocess, "Popen", Started)
    return seen


@needs_profiles
@needs_compiler
@pytest.mark.usefixtures("without_driver")
def test_only_the_child_process_loads_it(profile_file, inherited):
    with PlannerProcess(device_profile.read(profile_file()), stub=True) as planner:
        ((inode,),) = inherited
        assert f" {inode} " in Path(f"/proc/{planner._process._process.pid}/maps").read_text()
        assert f" {inode} " not in Path("/proc/self/maps").read_text()


def test_without_a_driver_it_must_be_asked_for(profile_file, inherited, without_driver):
    with pytest.raises(
        UsageError, match=says("must be installed for cuDNN's engines to load; got none: ... --stub-driver")
    ):
        PlannerProcess(device_profile.read(profile_file()))
    assert inherited == []


@pytest.mark.parametrize("stub", [False, True])
def test_where_there_is_a_driver_it_is_never_built(monkeypatch, profile_file, inherited, stub):
    monkeypatch.setattr(stub_driver, "has_driver", lambda: True)
    monkeypatch.setattr(stub_driver, "build", lambda folder: pytest.fail("it was built"))
    answer = f"assert 'stub' not in input(); print('{json.dumps({'answer': __version__})}', flush=True); input()"
    monkeypatch.setattr(process, "_command", lambda: [sys.executable, "-c", answer])
    with PlannerProcess(device_profile.read(profile_file()), stub=stub):
        assert inherited == [[]]


def test_a_driver_is_what_loads_as_one(monkeypatch):
    def load(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert not stub_driver.has_driver()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert stub_driver.has_driver()


def test_the_source_is_part_of_the_package():
    assert stub_driver.SOURCE.is_file()
    assert stub_driver.SOURCE.parent.parent == Path(sys.modules["cudnnpy.cli"].__file__).parent
