"""The stub driver: the file that Python writes, that nothing is left of it, and that only a child process loads it."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest
from messages import says
from offline_profiles import needs_profiles

from cudnnpy import DeviceProfile
from cudnnpy.errors import CudnnError
from cudnnpy.tuning.measuring import child_process
from cudnnpy.tuning.profiles import stub_driver
from cudnnpy.tuning.profiles.planner_process import PlannerProcess

LOAD = """
import ctypes, os, sys
ctypes.CDLL(sys.argv[1], os.RTLD_NOW)
library, text = ctypes.CDLL("libcuda.so.1"), ctypes.c_char_p()
handle, version, count = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int(7)
print(library.cuGetErrorString(100, ctypes.byref(text)), text.value.decode())
print(library.cuLibraryLoadData(ctypes.byref(handle), None), handle.value is not None)
print(library.cuDriverGetVersion(ctypes.byref(version)), version.value > 13000)
print(library.cuDeviceGetCount(ctypes.byref(count)), count.value)
print(library.cuLibraryUnload(handle), library.cuDeviceGet(None), library.cuLaunchKernel(None))
"""


def test_it_is_the_driver_of_who_loads_it_and_has_no_device():
    file = stub_driver.open_file()
    try:
        command = [sys.executable, "-c", LOAD, f"/proc/self/fd/{file}"]
        done = subprocess.run(command, pass_fds=[file], capture_output=True, text=True, check=True)
    finally:
        os.close(file)
    assert done.stdout == "0 this is no driver\n0 True\n0 True\n0 0\n0 100 100\n"  # no device
    assert done.stderr == ""


def test_its_stack_and_code_cannot_be_written():
    """Systems that forbid memory that is writable and executable load it, too."""
    content = stub_driver.content()
    begin = ctypes.c_uint64.from_buffer_copy(content, 32).value
    sizes = ctypes.c_uint16 * 2
    size, count = sizes.from_buffer_copy(content, 54)
    found = [tuple((ctypes.c_uint32 * 2).from_buffer_copy(content, begin + at * size)) for at in range(count)]
    assert found == [(1, 5), (1, 6), (2, 6), (0x6474E551, 6)]  # kinds of segments, with read 4, write 2 and execute 1


def test_another_architecture_needs_the_driver(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(stub_driver, "has_driver", lambda: True)
    assert stub_driver.open_file() is None
    monkeypatch.setattr(stub_driver, "has_driver", lambda: False)
    message = "NVIDIA's driver (libcuda.so.1) must be installed to plan on aarch64; got none"
    with pytest.raises(CudnnError, match=says(message)):
        stub_driver.open_file()


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

    monkeypatch.setattr(child_process.subprocess, "Popen", Started)
    return seen


def open_files():
    """Yield the targets of the open files of this process; another thread may close some meanwhile."""
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            yield os.readlink(f"/proc/self/fd/{number}")


@needs_profiles
@pytest.mark.usefixtures("without_driver")
def test_only_the_child_process_loads_it(profile_file, inherited):
    with closing(PlannerProcess(DeviceProfile.load(profile_file()))) as planner:
        ((inode,),) = inherited
        assert f" {inode} " in Path(f"/proc/{planner._process._process.pid}/maps").read_text()
        assert f" {inode} " not in Path("/proc/self/maps").read_text()
    assert not any("cudnnpy-stub-driver" in target for target in open_files())
