"""Exit statuses of errors that a command reports in place of a traceback."""

from __future__ import annotations

import os

from cudnnpy.cli.text_table import say


class UsageError(ValueError):
    """A command cannot run with these arguments, these files or this machine. The message is one line."""


def report(command: str, error: Exception) -> int | None:
    """Print an error on standard error and return the exit status. Return None for an error of no known kind."""
    from cudnnpy.availability import UnavailableError
    from cudnnpy.errors import CudnnError, LibraryError, NoAlgorithmError, StatusError

    if isinstance(error, NoAlgorithmError):
        return say(command, str(error), 2)  # with the table of candidates
    if isinstance(error, ValueError | ImportError | LibraryError | UnavailableError):
        return say(command, error, 1 if isinstance(error, StatusError) else 2)  # some StatusErrors are ValueErrors
    if isinstance(error, CudnnError | MemoryError | RuntimeError):  # the last from the CUDA driver or a child process
        return say(command, error, 1)
    if isinstance(error, OSError) and error.filename is not None:  # without a name, it is an error of standard output
        return say(command, f"{os.fsdecode(error.filename)}: {error.strerror or error}", 2)
    return None
