"""The command `cudnnpy edges`: read an image and write its edges; "-" is standard input or output."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from cudnnpy._checks.preferences import PREFERENCES
from cudnnpy.cli import output_files
from cudnnpy.cli.argument_types import size
from cudnnpy.cli.edges import images
from cudnnpy.cli.edges.detector import DEVICES, Edges, detect
from cudnnpy.cli.errors import UsageError
from cudnnpy.cli.text_table import printed, say, show_progress

_STREAM = "-"
_MEMORY_ADVICE = "--prefer no_workspace and --workspace-limit SIZE need less workspace, and --device cpu no GPU"
_PROGRESS_PIXELS = 4_000_000  # pixels, which take a second on the CPU


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to a parser."""
    parser.add_argument(
        "input",
        nargs="?",
        metavar="INPUT",
        help="an image, or - for standard input (default: the sample image of the package)",
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
    if options.input not in (None, _STREAM):
        # raises before an error about the output, which would hide that the input is missing
        open(options.input, "rb").close()
    to_stream = options.output == _STREAM
    output = "standard output" if to_stream else options.output
    if to_stream:
        _check_standard_output(options.force)
    else:
        output_files.check_writable(output, overwrite=options.force)
    format = images.format_of(output, options.format or ("png" if to_stream else None))
    frames: list[int] = []
    image = _load(options.input, frames.append)
    height, width = image.shape[1:3]
    images.check_format(output, format, width, height)

    def show(state: str) -> None:
        if width * height >= _PROGRESS_PIXELS:
            show_progress(state)

    show("cudnnpy edges: convolving")
    try:
        edges = detect(
            image,
            device=options.device,
            sigmoid=options.sigmoid,
            prefer=options.prefer,
            workspace_limit=options.workspace_limit,
            on_progress=lambda part: show(f"cudnnpy edges: convolving, {part:.0%}"),
        )
        show("cudnnpy edges: writing")
        content = images.encode(output, images.to_levels(edges.values), format)
    except MemoryError as error:
        from cudnnpy._launch.dispatch import MEMORY_ADVICE

        raise MemoryError(str(error).replace(MEMORY_ADVICE, _MEMORY_ADVICE)) from None
    finally:
        show("")
    if to_stream:
        # with PYTHONUNBUFFERED, a write to sys.stdout may be partial
        with open(sys.stdout.fileno(), "wb", closefd=False) as stream:
            stream.write(content)
    else:
        output_files.write(output, content, overwrite=options.force)
    source = {None: "the sample image", _STREAM: "standard input"}.get(options.input, options.input)
    part = f"image 1 of {frames[0]} of " if frames else ""
    _print_summary(f"{output}: the edges of {part}{source}, {width} x {height}", edges, to_stream)
    return 0


def _check_standard_output(force: bool) -> None:
    if sys.stdout is None:
        raise UsageError("standard output is closed")
    if sys.stdout.isatty() and not force:
        raise UsageError("standard output is a terminal; redirect it, name a file with -o, or use --force")


def _load(source: str | None, on_frames: Callable[[int], object]) -> NDArray[np.float32]:
    if source != _STREAM:
        return images.load(images.SAMPLE if source is None else source, on_frames=on_frames)
    if sys.stdin is None:
        raise UsageError("standard input is closed")
    if sys.stdin.isatty():
        raise UsageError("standard input is a terminal; redirect it, or name a file")
    return images.load(sys.stdin.buffer, "standard input", on_frames)


def _print_summary(title: str, edges: Edges, to_stream: bool) -> None:
    if edges.why_no_gpu is not None:
        why = " ".join(edges.why_no_gpu.split())
        say("cudnnpy edges", f"the GPU was not used: {why} (cudnnpy info tells more)")
    stream = sys.stderr if to_stream else sys.stdout
    if stream is None:
        return
    print(printed(title), file=stream)
    print(f"device     {edges.device}{' (without cuDNN)' if edges.device == 'CPU' else ''}", file=stream)
    print(f"algorithm  {edges.algorithm}", file=stream)
    print(f"workspace  {edges.workspace_size} bytes", file=stream)
    print(f"time       {edges.milliseconds:.3f} ms", file=stream)
