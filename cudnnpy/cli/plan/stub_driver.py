"""The stub driver, a stand-in for libcuda with which cuDNN's engines load and plan on a machine without a CUDA driver.

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

from cudnnpy._cuda_state import has_driver
from cudnnpy.cli.errors import UsageError
from cudnnpy.cli.text_table import say

__all__ = ["LIBRARY", "SOURCE", "build", "compiler", "has_driver", "library", "say_if_unused"]

SOURCE = Path(__file__).parents[1] / "data" / "stub_driver.c"
LIBRARY = "libcuda.so.1"
_COMPILERS = ("cc", "gcc", "clang")
_COMPILE_SECONDS = 120


def say_if_unused(command: str, is_requested: bool) -> None:
    """Tell that a requested stub driver is not used, because the CUDA driver is here."""
    if is_requested and has_driver():
        say(command, "the CUDA driver is here and is used; --stub-driver has no effect")


def compiler() -> list[str]:
    """Return the command of a C compiler: $CC, or the first of cc, gcc and clang that is found.

    Raises UsageError if there is none.
    """
    value = os.environ.get("CC", "")
    try:
        command = shlex.split(value)
    except ValueError as error:
        raise UsageError(f"CC must be the command of a C compiler; got {value!r}: {error}") from None
    if command:
        if shutil.which(command[0]) is None:
            raise UsageError(
                f"CC must be the command of a C compiler; got {value!r}, which is not found: correct or unset it"
            )
        return command
    name = next((name for name in _COMPILERS if shutil.which(name)), None)
    if name is None:
        raise UsageError(
            f"a C compiler must be on the PATH, to build the stub driver with; got none of {', '.join(_COMPILERS)}: "
            "install one, or name it in CC"
        )
    return [name]


def build(folder: Path) -> Path:
    """Compile the stub driver into a folder and return its file. Raises UsageError if that fails."""
    library = folder / LIBRARY
    command = compiler()
    options = ["-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}", "-o", str(library), str(SOURCE)]
    try:
        done = subprocess.run(
            [*command, *options],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            errors="replace",
            timeout=_COMPILE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"the stub driver cannot be compiled: {' '.join(str(error).split())}") from None
    if done.returncode or not library.is_file():
        message = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr)
        raise UsageError(
            f"the stub driver cannot be compiled by {shlex.join(command)}: "
            f"{' '.join(message.split())[:300] or f'exit status {done.returncode}'}"
        )
    return library


def library() -> IO[bytes]:
    """Build the stub driver and return its open file, which has no name and vanishes when it is closed.

    A child process that inherits the file loads /proc/self/fd/N. The loader then uses it for every
    library that needs the driver, because the sonames are equal. Raises UsageError if it cannot be built.
    """
    with tempfile.TemporaryDirectory(prefix="cudnnpy-stub-driver-") as folder:
        content = build(Path(folder)).read_bytes()
    file = tempfile.TemporaryFile(prefix="cudnnpy-stub-driver-")  # noqa: SIM115
    file.write(content)
    file.flush()
    return file
