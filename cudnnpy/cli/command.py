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
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any, NoReturn, TextIO

from cudnnpy._version import __version__

# Commands are imported in `main`, which handles Ctrl-C: their imports take long enough to be interrupted.

_DESCRIPTION = (
    "Every function of NVIDIA's cuDNN 9 C API from Python, and a small convolution layer on it with four clear choices."
)

# The module of each command, which has its `add_arguments` and `run`; its help line; its description.
_COMMANDS = {
    "info": (
        "info",
        "which cuDNN, CUDA and GPUs are here, and which parts are missing",
        "Exit status 1 if cuDNN cannot be used.",
    ),
    "edges": (
        "edges.command",
        "find the edges of an image",
        "Convolve an image with a 3x3 edge kernel and write the result, by cuDNN or by NumPy.",
    ),
    "tune": (
        "tune.command",
        "measure the candidates of problems on all GPUs, and store the choices",
        (
            "Tune the problems of a file, or those that a program plans, and store the choices, where "
            'prefer="autotune" finds them. A problem with a stored choice is not measured again.'
        ),
    ),
    "explain": (
        "explain.command",
        "which engine is chosen for a problem, why, and why not the others",
        "Report the candidates for a problem on a GPU, the choice, and the reasons.",
    ),
    "plan": (
        "plan.command",
        "plan problems for a GPU that a device profile describes, without the GPU",
        "Choose engines for a file of problems without a GPU, and write the plans for a store to import.",
    ),
    "device-profile": (
        "plan.device_profile",
        "write the device profile of a GPU, to plan for it elsewhere",
        "Read the device profile of a GPU of this machine, for cudnnpy plan and cudnnpy explain.",
    ),
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
        with _signals_as_interrupts(), _one_line_warnings():
            status = _run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt as stopped:
        _discard(sys.stdout)
        return 128 + next(iter(stopped.args), signal.SIGINT)
    except BrokenPipeError:
        _discard(sys.stdout)
        return 141
    except OSError as error:  # of standard output, for example a full disk; commands handle errors of their files
        _discard(sys.stdout)
        place = "standard output" if error.filename is None else error.filename
        return _fail(2, f"{place}: {error.strerror or error}")
    return status


@contextmanager
def _signals_as_interrupts() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt(number), unless they are ignored, as under nohup, or handled."""

    def stop(number: int, _frame: object) -> NoReturn:
        raise KeyboardInterrupt(number)

    with ExitStack() as stack:
        for number in (signal.SIGTERM, signal.SIGHUP):
            is_main = threading.current_thread() is threading.main_thread()  # other threads may not set handlers
            if is_main and signal.getsignal(number) == signal.SIG_DFL:
                stack.callback(signal.signal, number, signal.signal(number, stop))
        yield


@contextmanager
def _one_line_warnings() -> Iterator[None]:
    """Print a RuntimeWarning, for example about a damaged store, without the line of code that raised it."""
    before = warnings.formatwarning

    def one_line(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> str:
        if issubclass(category, RuntimeWarning):
            from cudnnpy.cli.text_table import printed

            return printed(f"cudnnpy: {' '.join(str(message).split())}") + "\n"
        return before(message, category, *place, **more)

    warnings.formatwarning = one_line
    try:
        yield
    finally:
        warnings.formatwarning = before


def _run(arguments: Sequence[str] | None) -> int:
    from cudnnpy._checks.suggestions import did_you_mean, near
    from cudnnpy.cli import errors

    parser = _Parser(prog="cudnnpy", description=_DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"cudnnpy {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)
    for name, (module_name, help_line, description) in _COMMANDS.items():
        command = commands.add_parser(name, help=help_line, description=description)
        module = import_module(f"cudnnpy.cli.{module_name}")
        module.add_arguments(command)
        command.set_defaults(run=module.run, command=f"cudnnpy {name}")
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given and not given[0].startswith("-") and given[0] not in _COMMANDS:
        guess = did_you_mean(near(given[0], _COMMANDS))
        names = ", ".join(_COMMANDS)
        return _fail(2, f"command must be one of {names}; got {given[0]!r:.60}{guess} (see cudnnpy --help)")
    try:
        options, unknown = parser.parse_known_args(given)
        if unknown:
            advice = getattr(options, "advice_on_unknown", "")
            name = getattr(options, "command", "cudnnpy")
            text = " ".join(" ".join(unknown).split())
            return _fail(2, f"unrecognized arguments: {text}{advice} (see {name} --help)", name)
    except SystemExit as ended:  # after --help, --version, or a wrong argument
        return ended.code if isinstance(ended.code, int) else 0
    if "run" not in options:
        parser.print_help()
        return 0
    try:
        status: int = options.run(options)
    except Exception as error:
        reported = errors.report(options.command, error)
        if reported is None:
            raise
        status = reported
    return status


def _fail(status: int, text: str, command: str = "cudnnpy") -> int:
    from cudnnpy.cli.text_table import say

    try:
        return say(command, text, status)
    except OSError:
        _discard(sys.stderr)
    return status


def _discard(stream: TextIO | None) -> None:
    """Redirect a stream that cannot be written to the null device, so that Python does not flush it at exit."""
    try:
        if stream is not None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
    except (OSError, ValueError):  # the stream is not a file
        return
