"""The command `cudnnpy`: its parser, exit status, signals and standard streams. Each subcommand has a module of its own.

The exit status is one of these:

- 0: success
- 1: cuDNN failed, or cannot be used (info); a problem was not tuned or planned
- 2: wrong arguments or files, with one line on stderr; no algorithm meets the options, with the table of candidates on stderr
- 130, 143, 129: Ctrl-C, SIGTERM, SIGHUP
- 141: the reader of the output closed the pipe
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from typing import Any, NoReturn, TextIO

from cudnnpy._version import __version__

# The module of each command, which has its `add_arguments` and `run`; and its help line. A module is imported in `main`, which
# handles Ctrl-C: the imports take long enough to be interrupted.
_COMMANDS = {
    "info": ("info", "which cuDNN, CUDA and GPUs are here, and which parts are missing; exit status 1 without cuDNN"),
    "edges": ("edges", "find the edges of an image, by cuDNN or by NumPy"),
    "tune": ("tune.session", "measure the candidates of problems on all GPUs, and store the choices"),
    "explain": ("explain", "which engine is chosen for a problem, why, and why not the others"),
    "plan": ("plan", "plan problems for a GPU that a device profile describes, without the GPU"),
    "device-profile": ("device_profile", "write the device profile of a GPU, to plan for it elsewhere"),
}


class _Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line, without the usage text."""

    def error(self, message: str) -> NoReturn:
        self.exit(_fail(2, f"{' '.join(message.split())} (see {self.prog} --help)", self.prog))

    def _print_message(self, message: str, file: Any = None) -> None:
        if message:  # the method of argparse ignores errors of the output
            (file or sys.stderr).write(message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (by default the process's) and return its exit status."""
    try:
        if sys.stderr is None:  # closed; print(file=None) would write to standard output
            sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # file names may contain any bytes
        with _signals_and_warnings():
            status = _run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt as stopped:
        _discard(sys.stdout)
        return 128 + next(iter(stopped.args), signal.SIGINT)
    except BrokenPipeError:
        _discard(sys.stdout)
        return 141
    except OSError as error:  # of standard output, for example a full disk
        _discard(sys.stdout)
        return _fail(2, f"standard output: {error.strerror or error}")
    return status


@contextmanager
def _signals_and_warnings() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt(number), and print a warning without the line of code that raised it.

    Signals stay ignored, as under nohup, or handled.
    """

    def stop(number: int, _frame: object) -> NoReturn:
        raise KeyboardInterrupt(number)

    def one_line(message: Warning | str, *_place: Any, **_more: Any) -> str:
        from cudnnpy.cli.text_table import printed

        return printed(f"cudnnpy: {' '.join(str(message).split())}") + "\n"

    with ExitStack() as stack:
        stack.callback(setattr, warnings, "formatwarning", warnings.formatwarning)
        warnings.formatwarning = one_line
        for number in (signal.SIGTERM, signal.SIGHUP):
            is_main = threading.current_thread() is threading.main_thread()  # other threads may not set handlers
            if is_main and signal.getsignal(number) == signal.SIG_DFL:
                stack.callback(signal.signal, number, signal.signal(number, stop))
        yield


def _run(arguments: Sequence[str] | None) -> int:
    from cudnnpy._checks.suggestions import did_you_mean, near

    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = _Parser(prog="cudnnpy", description="cuDNN 9 from Python: its whole C API, and a small convolution layer")
    parser.set_defaults(parser=parser, run=lambda _options: parser.print_help())
    parser.add_argument("--version", action="version", version=f"cudnnpy {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)
    for name, (module_name, help_line) in _COMMANDS.items():
        command = commands.add_parser(name, help=help_line, description=help_line)
        if name in given:
            module = import_module(f"cudnnpy.cli.{module_name}")
            module.add_arguments(command)
            command.set_defaults(run=module.run, parser=command)
    try:
        if given and not given[0].startswith("-") and given[0] not in _COMMANDS:
            guess = did_you_mean(near(given[0], _COMMANDS))
            parser.error(f"command must be one of {', '.join(_COMMANDS)}; got {given[0]!r:.60}{guess}")
        options, unknown = parser.parse_known_args(given)
        if unknown:
            advice = getattr(options, "advice_on_unknown", "")
            options.parser.error(f"unrecognized arguments: {' '.join(unknown)}{advice}")
    except SystemExit as ended:  # after --help, --version, or a wrong argument
        return ended.code if isinstance(ended.code, int) else 0
    return _reported(options)


def _reported(options: argparse.Namespace) -> int:
    """Run a command and return its exit status. An error is reported in place of a traceback."""
    from cudnnpy.availability import UnavailableError
    from cudnnpy.cli.text_table import say
    from cudnnpy.errors import CudnnError, LibraryError, NoAlgorithmError, StatusError

    try:
        status: int = options.run(options) or 0  # None of the help
        return status
    except NoAlgorithmError as error:
        return say(options.parser.prog, str(error), 2)  # with the table of candidates
    except StatusError as error:  # some are ValueErrors
        return say(options.parser.prog, error, 1)
    except (ValueError, ImportError, LibraryError, UnavailableError) as error:
        return say(options.parser.prog, error, 2)
    except (CudnnError, MemoryError, RuntimeError) as error:  # the last from the CUDA driver or a child process
        return say(options.parser.prog, error, 1)
    except OSError as error:
        if error.filename is None:  # of standard output
            raise
        return say(options.parser.prog, f"{os.fsdecode(error.filename)}: {error.strerror or error}", 2)


def _fail(status: int, text: str, command: str = "cudnnpy") -> int:
    from cudnnpy.cli.text_table import say

    try:
        return say(command, text, status)
    except OSError:
        _discard(sys.stderr)
    return status


def _discard(stream: TextIO | None) -> None:
    """Redirect a stream that cannot be written to the null device, so that Python does not flush it at exit."""
    if stream is not None:
        with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:  # the stream may be no file
            os.dup2(nowhere.fileno(), stream.fileno())
