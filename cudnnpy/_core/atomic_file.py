"""Atomic writes, which replace a file in one step, and private folders."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path


def replace_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file in one step. The mode of a replaced file stays, and a symbolic link is followed.

    A pipe, a device or a file without a name is written to in place. Raises OSError with the name of the file, after which a
    replaced file is unchanged.
    """
    try:
        earlier = os.stat(path) if os.path.exists(path) else None
        if earlier is not None and not (stat.S_ISREG(earlier.st_mode) and earlier.st_nlink):
            Path(path).write_bytes(content)
            return
        target = Path(os.path.realpath(path))
        # The temporary file is in a folder of its own, so that its mode is the default one.
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=target.parent, ignore_cleanup_errors=True) as folder:
            partial = Path(folder, "content")
            partial.touch(0o666 if earlier is None else 0o600)  # the content of a private file is never public
            with partial.open("wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            if earlier is not None:
                partial.chmod(stat.S_IMODE(earlier.st_mode))
            os.replace(partial, target)
    except OSError as error:
        error.filename, error.filename2 = os.fspath(path), None  # in place of the temporary file's
        raise


def make_private_folder(path: str | os.PathLike[str]) -> None:
    """Make a folder and those above it, for this user alone whatever the umask. Those that exist stay as they are.

    Raises OSError.
    """
    for folder in reversed((Path(path), *Path(path).parents)):
        os.makedirs(folder, 0o700, exist_ok=True)
