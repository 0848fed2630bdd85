"""A stand-in for the CUDA driver, with which cuDNN's engines load and plan on a machine without one.

It is compiled from the package's C source by the system's compiler. Only a child process ever sees it: `environment` has the
folder in front of the child's LD_LIBRARY_PATH.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

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


@contextmanager
def environment(base: Mapping[str, str] | None = None) -> Iterator[dict[str, str]]:
    """Build the stand-in in a private temporary folder, and yield the environment of a child process that loads it.

    `base` is the environment that it is added to, by default this process's. The folder is removed after the block.
    Raises StubDriverError if the stand-in cannot be built, or not loaded from that folder.
    """
    inherited = dict(os.environ if base is None else base)
    with tempfile.TemporaryDirectory(prefix="cudnnpy-stub-driver-") as folder:
        if set(folder) & set(":;"):  # the marks between the folders of LD_LIBRARY_PATH
            raise StubDriverError(
                f"TMPDIR must be a folder without ':' and ';' in its name; got {os.path.dirname(folder)}"
            )
        build(Path(folder))
        before = inherited.get("LD_LIBRARY_PATH")
        yield {**inherited, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, [folder, before]))}
