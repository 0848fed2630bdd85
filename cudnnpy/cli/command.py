"""The command `cudnnpy`: `info`, `edges`, `tune`, `explain`, `faults`, `plan` and `device-profile`, each in its own module.

Exit status: 0 on success; 1 if cuDNN cannot be used (info), if it failed, or if a problem was not tuned or planned; 2 for wrong
arguments or files, with one line on stderr, and for options that no algorithm meets, with the table of rejection reasons on
stderr; 130 after Ctrl-C, 143 after SIGTERM and 129 after SIGHUP; 141 if the reader of the output closed the pipe.
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

# A command's imports are done when it runs: they take long enough to be interrupted by Ctrl-C, which `main` handles.

# Each command but `info`: the module that has its `add_arguments` and `run`, its line of help, and its description.
_COMMANDS = {
    "edges": (
        "edges_command",
        "find the edges of a picture",
        "Convolve a picture with a 3x3 edge kernel and write the result, by cuDNN or by NumPy.",
    ),
    "tune": (
        "tune_command",
        "measure the candidates of problems on all GPUs, and keep the choices",
        (
            "Tune the problems of a file, or those that a program plans, and keep the choices in the store, where "
            'prefer="autotune" finds them. What is in the store already is not measured again.'
        ),
    ),
    "explain": (
        "explain_command",
        "which engine is chosen for a problem, why, and why not the others",
        "Report the candidates for a problem on a GPU, the choice, and the reasons.",
    ),
    "faults": (
        "faults_command",
        "which candidates are not chosen because of a fault, and how they may be again",
        "List the faults of candidates that measuring found and the store has, or remove some.",
    ),
    "plan": (
        "plan_command",
        "plan problems for a GPU that a device profile describes, without the GPU",
        "Choose engines for a file of problems without a GPU, and write the plans for a store to import.",
    ),
    "device-profile": (
        "profile_command",
        "write what cuDNN needs to know of a GPU to plan for it elsewhere",
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
        with _stopped_as_by_ctrl_c(), _warnings_in_one_line():
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
def _stopped_as_by_ctrl_c() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt(number). One that is ignored, as under nohup, or handled stays so."""

    def stop(number: int, _frame: object) -> NoReturn:
        raise KeyboardInterrupt(number)

    with ExitStack() as stack:
        for number in (signal.SIGTERM, signal.SIGHUP):
            is_main = threading.current_thread() is threading.main_thread()  # only there may handlers be set
            if is_main and signal.getsignal(number) == signal.SIG_DFL:
                stack.callback(signal.signal, number, signal.signal(number, stop))
        yield


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Print a RuntimeWarning, such as that of a damaged store, without the line of code that led to it."""
    before = warnings.formatwarning

    def in_one_line(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> str:
        if issubclass(category, RuntimeWarning):
            from cudnnpy.cli.text_table import printed

            return printed(f"cudnnpy: {' '.join(str(message).split())}") + "\n"
        return before(message, category, *place, **more)

    warnings.formatwarning = in_one_line
    try:
        yield
    finally:
        warnings.formatwarning = before


def _run(arguments: Sequence[str] | None) -> int:
    parser = _Parser(prog="cudnnpy", description="cuDNN from Python.")
    parser.add_argument("--version", action="version", version=f"cudnnpy {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)
    _add_info(commands)
    for name, (module, text, description) in _COMMANDS.items():
        command = commands.add_parser(name, help=text, description=description)
        there = import_module(f"cudnnpy.cli.{module}")
        there.add_arguments(command)
        command.set_defaults(run=there.run)
    try:
        options = parser.parse_args(arguments)
    except SystemExit as ended:  # after --help, --version, or a wrong argument
        return ended.code if isinstance(ended.code, int) else 0
    if "run" not in options:
        parser.print_help()
        return 0
    status: int = options.run(options)
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


def _add_info(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser(
        "info",
        help="what cuDNN, CUDA and GPUs are here, and what is missing",
        description="Exit status 1 if cuDNN cannot be used.",
    )
    parser.add_argument(
        "--json", action="store_true", help="print it as JSON, with the installed packages, for a report"
    )
    parser.set_defaults(run=_info)


def _info(options: argparse.Namespace) -> int:
    from cudnnpy import availability
    from cudnnpy.cli.text_table import printed

    found = availability.report()
    if options.json:
        import json
        from dataclasses import asdict

        print(json.dumps(asdict(found), indent=2))
        return 0 if found.why_unavailable is None else 1
    rows = [(label, printed(text)) for label, text in found.rows()]
    if not (sys.stdout is not None and sys.stdout.isatty() and _print_table(rows)):
        width = max(len(label) for label, _text in rows)
        for label, text in rows:
            print(f"{label:{width}}  {text}")
    for problem in found.problems:
        print(printed(f"problem: {problem}"))
    print("cuDNN can be used here" if found.why_unavailable is None else "cuDNN cannot be used here")
    return 0 if found.why_unavailable is None else 1


def _print_table(rows: list[tuple[str, str]]) -> bool:
    """Print the rows on a terminal with rich; return False if rich is not installed."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        return False
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, markup=False).print(table)
    return True
