"""The command `cudnnpy`: `info` says whether cuDNN is usable here, `edges` finds the edges of a picture.

Exit status: 0; 1 when cuDNN cannot be used (info) or failed; 2 for wrong arguments or files, with one line on stderr,
and for options that no algorithm meets, with the table of why not on stderr.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import NoReturn

from cudnnpy import availability, pictures
from cudnnpy._version import __version__
from cudnnpy.convolution.problem import PREFERENCES
from cudnnpy.edges import DEVICES, detect
from cudnnpy.errors import CudnnError, NoAlgorithmError

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{letter}B": 1000**power for power, letter in enumerate("KMGT", 1)}
_UNITS |= {f"{letter}IB": 1024**power for power, letter in enumerate("KMGT", 1)}


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage text in front of it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def size(text: str) -> int:
    """Return a number of bytes: "64MiB", "1GiB", "512KB", "1.5 GB", "1000"; KB counts thousands, KiB 1024s.

    Raises argparse.ArgumentTypeError for anything else.
    """
    match = re.fullmatch(r"([0-9]{1,20}(?:\.[0-9]{1,20})?) ?([A-Za-z]*)", text.strip())
    if match is None or match[2].upper() not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: expected for example 64MiB, 1GiB, 512KB or 1000000")
    return int(Fraction(match[1]) * _UNITS[match[2].upper()])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (by default the process's) and return its exit status."""
    parser = _Parser(prog="cudnnpy", description="cuDNN from Python.")
    parser.add_argument("--version", action="version", version=f"cudnnpy {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=_Parser)
    _add_info(commands)
    _add_edges(commands)
    options = parser.parse_args(arguments)
    status: int = options.run(options)
    return status


def _fail(command: str, status: int, text: str) -> int:
    print(f"cudnnpy {command}: {text}", file=sys.stderr)
    return status


def _add_info(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser(
        "info",
        help="what cuDNN, CUDA and GPUs are here, and what is missing",
        description="Exit status 1 if cuDNN cannot be used.",
    )
    parser.set_defaults(run=_info)


def _info(_options: argparse.Namespace) -> int:
    found = availability.report()
    rows = list(found.rows())
    if not (sys.stdout.isatty() and _print_table(rows)):
        width = max(len(label) for label, _text in rows)
        for label, text in rows:
            print(f"{label:{width}}  {text}")
    for problem in found.problems:
        print(f"problem: {problem}")
    print("cuDNN can be used here" if found.why_unavailable is None else "cuDNN cannot be used here")
    return 0 if found.why_unavailable is None else 1


def _print_table(rows: list[tuple[str, str]]) -> bool:
    """Print the rows on a terminal through rich; return False without rich."""
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


def _add_edges(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser(
        "edges",
        help="find the edges of a picture",
        description="Convolve a picture with a 3x3 edge kernel and write the result, by cuDNN or by NumPy.",
    )
    parser.add_argument(
        "input", nargs="?", type=Path, metavar="INPUT", help="a picture (default: the sample of the package)"
    )
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("edges.png"), help="where to write (default: %(default)s)"
    )
    parser.add_argument("--device", choices=DEVICES, default="auto", help="default: auto, the GPU if cuDNN can be used")
    parser.add_argument("--sigmoid", action="store_true", help="apply a sigmoid to the result")
    parser.add_argument(
        "--prefer",
        choices=PREFERENCES,
        default="fastest",
        help="how to choose cuDNN's algorithm (default: %(default)s)",
    )
    parser.add_argument(
        "--workspace-limit", type=size, metavar="SIZE", help="at most so much workspace, for example 64MiB"
    )
    parser.set_defaults(run=_edges)


def _edges(options: argparse.Namespace) -> int:
    source: Path = options.input or pictures.SAMPLE
    try:
        pictures.check_writable(options.output)
        picture = pictures.load(source)
        found = detect(
            picture,
            device=options.device,
            sigmoid=options.sigmoid,
            prefer=options.prefer,
            workspace_limit=options.workspace_limit,
        )
        pictures.save(options.output, found.picture)
    except (pictures.PictureError, availability.UnavailableError, ImportError) as error:
        return _fail("edges", 2, " ".join(str(error).split()))
    except NoAlgorithmError as error:
        return _fail("edges", 2, str(error))
    except (CudnnError, MemoryError) as error:
        return _fail("edges", 1, str(error))
    _, height, width, _ = picture.shape
    name = "the sample picture" if options.input is None else str(source)
    print(f"{options.output}: the edges of {name}, {width} x {height}")
    print(f"device     {found.device}{' (without cuDNN)' if found.device == 'CPU' else ''}")
    print(f"algorithm  {found.algorithm}")
    print(f"workspace  {found.workspace_size} bytes")
    print(f"time       {found.milliseconds:.3f} ms")
    return 0
