"""A stand-in for the CUDA driver, with which cuDNN's engines load and plan on a machine without one.

It is compiled from the package's C source by the system's compiler. Only a child process ever loads it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import IO

SOURCE = Path(__file__).with_name("data") / "stub_driver.c"
LIBRARY = "libcuda.so.1"
_COMPILERS = ("cc", "gcc", "clang")
_SECONDS = 120


class StubDriverError(RuntimeError):
    """The stand-in cannot be built. The message is one line that says what to do."""


def has_driver() -> bool:
    """Return whether the real driver can be loaded."""
    from cudnnpy._core.driver import driver_library

    try:
        driver_library()
    except (OSError, AttributeError):
        return False
    return True


def note(wanted: bool) -> str:
    """Return what to say if the stand-in is wanted and not used, since the real driver is here; otherwise ""."""
    return "the CUDA driver is here and is used; --stub-driver has no effect" if wanted and has_driver() else ""


def compiler() -> list[str]:
    """Return the command of a C compiler: $CC, or the first of cc, gcc and clang that is found.

    Raises StubDriverError if there is none.
    """
    given = os.environ.get("CC", "")
    try:
        command = shlex.split(given)
    except ValueError as error:
        raise StubDriverError(f"CC must be the command of a C compiler; got {given!r}: {error}") from None
    if command:
        if shutil.which(command[0]) is None:
            raise StubDriverError(
                f"CC must be the command of a C compiler; got {given!r}, which is not found: correct or unset it"
            )
        return command
    found = next((name for name in _COMPILERS if shutil.which(name)), None)
    if found is None:
        raise StubDriverError(
            f"a C compiler must be on the PATH, to build the stub driver with; got none of {', '.join(_COMPILERS)}: "
            "install one, or name it in CC"
        )
    return [found]


def build(folder: Path) -> Path:
    """Compile the stand-in into a folder and return its file. Raises StubDriverError if that fails."""
    library = folder / LIBRARY
    command = compiler()
    options = ["-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}", "-o", str(library), str(SOURCE)]
    try:
        done = subprocess.run(
            [*command, *options],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StubDriverError(f"the stub driver cannot be compiled: {' '.join(str(error).split())}") from None
    if done.returncode or not library.is_file():
        said = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr)
        raise StubDriverError(
            f"the stub driver cannot be compiled by {shlex.join(command)}: "
            f"{' '.join(said.split())[:300] or f'exit status {done.returncode}'}"
        )
    return library


def library() -> IO[bytes]:
    """Build the stand-in, and return its file, which has no name: nothing is left of it when no process has it open.

    A child process that inherits it loads /proc/self/fd/N. Its soname is the driver's, so that the loader then takes it for
    every library that asks for the driver. Raises StubDriverError if it cannot be built.
    """
    with tempfile.TemporaryDirectory(prefix="cudnnpy-stub-driver-") as folder:
        content = build(Path(folder)).read_bytes()
    file = tempfile.TemporaryFile(prefix="cudnnpy-stub-driver-")  # noqa: SIM115
    file.write(content)
    file.flush()
    return file
