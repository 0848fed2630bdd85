"""The command `cudnnpy edges`: read an image and write its edges."""

from __future__ import annotations

import argparse
import sys

from cudnnpy._checks.preferences import PREFERENCES
from cudnnpy.cli import output_files
from cudnnpy.cli.argument_types import size
from cudnnpy.cli.edges import images
from cudnnpy.cli.edges.detector import DEVICES, Edges, detect
from cudnnpy.cli.text_table import printed, say

_MEMORY_ADVICE = "--prefer no_workspace and --workspace-limit SIZE need less workspace, and --device cpu no GPU"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to a parser."""
    parser.add_argument("input", nargs="?", metavar="INPUT", help="an image (default: the sample image of the package)")
    parser.add_argument(
        "-o",
        "--output",
        default="edges.png",
        help="the file to write (default: %(default)s); its ending gives the format",
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
    if options.input is not None:
        # raises before an error about the output, which would hide that the input is missing
        open(options.input, "rb").close()
    output_files.check_writable(options.output, overwrite=options.force)
    format = images.format_of(options.output)
    frames: list[int] = []
    image = images.load(images.SAMPLE if options.input is None else options.input, frames.append)
    height, width = image.shape[1:3]
    images.check_size(options.output, format, width, height)
    try:
        edges = detect(
            image,
            device=options.device,
            sigmoid=options.sigmoid,
            prefer=options.prefer,
            workspace_limit=options.workspace_limit,
        )
        content = images.encode(options.output, images.to_levels(edges.values), format)
    except MemoryError as error:
        from cudnnpy._launch.dispatch import MEMORY_ADVICE

        raise MemoryError(str(error).replace(MEMORY_ADVICE, _MEMORY_ADVICE)) from None
    output_files.write(options.output, content, overwrite=options.force)
    part = f"image 1 of {frames[0]} of " if frames else ""
    source = "the sample image" if options.input is None else options.input
    _print_summary(f"{options.output}: the edges of {part}{source}, {width} x {height}", edges)
    return 0


def _print_summary(title: str, edges: Edges) -> None:
    if edges.why_no_gpu is not None:
        why = " ".join(edges.why_no_gpu.split())
        say("cudnnpy edges", f"the GPU was not used: {why} (cudnnpy info tells more)")
    if sys.stdout is None:
        return
    print(printed(title))
    print(f"device     {edges.device}{' (without cuDNN)' if edges.device == 'CPU' else ''}")
    print(f"algorithm  {edges.algorithm}")
    print(f"workspace  {edges.workspace_size} bytes")
    print(f"time       {edges.milliseconds:.3f} ms")
