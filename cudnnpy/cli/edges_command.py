"""The command `cudnnpy edges`: reads a picture and writes its edges; "-" is standard input or output."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from typing import TextIO

from cudnnpy._options.byte_counts import read_bytes
from cudnnpy._options.convolution import PREFERENCES
from cudnnpy.availability import UnavailableError
from cudnnpy.cli import pictures
from cudnnpy.cli.edges import DEVICES, Drawing, draw
from cudnnpy.cli.picture_files import PictureError, check_size, check_writable, encode, format_of, write
from cudnnpy.cli.text_table import printed, say
from cudnnpy.errors import CudnnError, NoAlgorithmError

STREAM = "-"


def size(text: str) -> int:
    """Parse a number of bytes, such as "64MiB", "1GiB", "512KB", "1.5 GB" or "1000"; a KB is 1000 bytes, a KiB 1024.

    Raises argparse.ArgumentTypeError for any other text.
    """
    count = read_bytes(text)
    if count is None:
        raise argparse.ArgumentTypeError(
            f"a size must be a number of bytes, such as 64MiB, 1GiB, 512KB or 1000000; got {text!r}"
        )
    return count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to a parser."""
    parser.add_argument(
        "input",
        nargs="?",
        metavar="INPUT",
        help="a picture, or - for standard input (default: the sample picture of the package)",
    )
    parser.add_argument(
        "-o",
        "--output",
        default="edges.png",
        help="the file to write, or - for standard output (default: %(default)s); its ending gives the format",
    )
    parser.add_argument(
        "--format", help="the format to write, for example jpg (default: the output's ending, else png)"
    )
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    parser.add_argument("--device", choices=DEVICES, default="auto", help="default: auto, the GPU if cuDNN can be used")
    parser.add_argument("--sigmoid", action="store_true", help="apply a sigmoid to the result")
    parser.add_argument(
        "--prefer",
        choices=PREFERENCES,
        default="fastest",
        help="how to choose cuDNN's algorithm (default: %(default)s)",
    )
    parser.add_argument("--workspace-limit", type=size, metavar="SIZE", help="the largest workspace, for example 64MiB")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    try:
        return _edges(options)
    except (PictureError, UnavailableError, ImportError) as error:
        return say("cudnnpy edges", error, 2)
    except NoAlgorithmError as error:
        return say("cudnnpy edges", str(error), 2)
    except (CudnnError, MemoryError, RuntimeError) as error:  # RuntimeError: an error of the CUDA driver
        return say("cudnnpy edges", str(error) or "out of memory", 1)


def _edges(options: argparse.Namespace) -> int:
    to_stream = options.output == STREAM
    output = "standard output" if to_stream else options.output
    if to_stream:
        _check_standard_output(options)
    else:
        source = None if options.input == STREAM else options.input
        check_writable(options.output, overwrite=options.force, source=source, format=options.format)
    kind = format_of(output, options.format or ("png" if to_stream else None))
    picture = _open(options.input)
    check_size(output, kind, picture.width, picture.height)
    drawn = draw(
        picture,
        device=options.device,
        sigmoid=options.sigmoid,
        prefer=options.prefer,
        workspace_limit=options.workspace_limit,
    )
    picture.close()  # frees memory for the encoding
    content = encode(output, drawn.image, kind)
    if to_stream:
        with open(
            sys.stdout.fileno(), "wb", closefd=False
        ) as stream:  # with PYTHONUNBUFFERED, stdout's writes partially
            stream.write(content)
    else:
        write(options.output, content, overwrite=options.force, format=options.format)
    _print_summary(options.input, output, drawn, sys.stderr if to_stream else sys.stdout)
    return 0


def _check_standard_output(options: argparse.Namespace) -> None:
    if sys.stdout is None:
        raise PictureError("standard output is closed")
    if sys.stdout.isatty() and not options.force:
        raise PictureError("standard output is a terminal; redirect it, name a file with -o, or use --force")
    if options.input in (None, STREAM):
        return
    try:
        written, read = os.fstat(sys.stdout.fileno()), os.stat(options.input)
    except OSError:
        return  # standard output is not a file, or the input does not exist, which opening it reports
    if stat.S_ISREG(written.st_mode) and os.path.samestat(written, read):
        raise PictureError("standard output is the input, which the shell has opened for writing")


def _open(source: str | None) -> pictures.Picture:
    if source != STREAM:
        return pictures.Picture(pictures.SAMPLE if source is None else source)
    if sys.stdin is None:
        raise PictureError("standard input is closed")
    if sys.stdin.isatty():
        raise PictureError("standard input is a terminal; redirect it, or name a file")
    return pictures.Picture(sys.stdin.buffer, "standard input")


def _print_summary(source: str | None, output: str, drawn: Drawing, to: TextIO | None) -> None:
    if drawn.why_no_gpu is not None:
        why = " ".join(drawn.why_no_gpu.split())
        say("cudnnpy edges", f"the GPU was not used: {why} (cudnnpy info tells more)")
    if to is None:
        return
    name = {None: "the sample picture", STREAM: "standard input"}.get(source, source)
    width, height = drawn.image.size
    print(printed(f"{output}: the edges of {name}, {width} x {height}"), file=to)
    print(f"device     {drawn.device}{' (without cuDNN)' if drawn.device == 'CPU' else ''}", file=to)
    print(f"algorithm  {drawn.algorithm}", file=to)
    print(f"workspace  {drawn.workspace_size} bytes", file=to)
    print(f"time       {drawn.milliseconds:.3f} ms", file=to)
