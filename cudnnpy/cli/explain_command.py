"""The command `cudnnpy explain`: which candidate is chosen for a problem, why, and why not the others."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from cudnnpy._options.convolution import PREFERENCES
from cudnnpy._options.limits import MAX_PROBLEM_CHARACTERS
from cudnnpy.cli.text_table import say

_EPILOG = """
a problem is an operation, its shapes and what differs from the defaults, such as
  cudnnpy explain forward 128x64x56x56 64x64x3x3 pad=1 float16 channels_last
  cudnnpy explain backward_filter 32x64x28x28 64x64x3x3 pad=1 tf32=False deterministic prefer=no_workspace
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to a parser."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument(
        "problem", nargs="+", metavar="PROBLEM", help="a problem in the notation, or - to read it from standard input"
    )
    parser.add_argument(
        "--device",
        default="0",
        metavar="DEVICE",
        help="the ordinal of a GPU of this machine (default: 0), or the file of a device profile",
    )
    parser.add_argument(
        "--prefer", choices=PREFERENCES, help="in place of the problem's own preference (default: fastest)"
    )
    parser.add_argument(
        "--measure",
        action="store_true",
        help="run the candidates on the GPU, time them and compare them with each other and with float64",
    )
    parser.add_argument(
        "--stub-driver",
        action="store_true",
        help="build a stand-in for the CUDA driver for a profile, if there is none",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    from cudnnpy.availability import UnavailableError
    from cudnnpy.cli.planner import NoDriverError
    from cudnnpy.cli.stub_driver import StubDriverError
    from cudnnpy.errors import CudnnError, LibraryError, NoAlgorithmError, StatusError

    try:
        return _explain(options)
    except NoAlgorithmError as error:
        return say("cudnnpy explain", str(error), 2)
    except StatusError as error:  # some are ValueErrors
        return say("cudnnpy explain", error, 1)
    except (ValueError, NoDriverError, StubDriverError, UnavailableError, LibraryError) as error:
        return say("cudnnpy explain", error, 2)
    except (CudnnError, MemoryError, RuntimeError) as error:  # RuntimeError: of the driver, or of the child process
        return say("cudnnpy explain", error, 1)


class _UsageError(ValueError):
    """Arguments do not fit together. The message is one line."""


def _explain(options: argparse.Namespace) -> int:
    text = _text(options.problem)
    on_gpu = options.device.isascii() and options.device.isdigit()
    if on_gpu and options.stub_driver:
        raise _UsageError("--stub-driver must be used with a device profile, --device FILE; got a GPU's ordinal")
    if options.measure and not on_gpu:
        raise _UsageError(f"--measure must be used on a GPU of this machine; got the device profile {options.device}")
    from cudnnpy.cli import explaining, stub_driver

    if note := stub_driver.note(options.stub_driver):
        say("cudnnpy explain", note)
    found = (
        explaining.on_gpu(text, int(options.device), options.prefer, measure=options.measure)
        if on_gpu
        else explaining.for_profile(text, options.device, options.prefer, stub=options.stub_driver)
    )
    _print(found, options.json)
    return 0 if found.choice is not None else 2


def _print(found: Any, as_json: bool) -> None:
    if as_json:
        import json

        print(json.dumps(found.plain(), indent=2))
        return
    from cudnnpy.cli import explanation_text, text_table

    text_table.show(explanation_text.lines_of(found, text_table.width()))


def _text(words: list[str]) -> str:
    """Return the text of the problem, from the arguments or from standard input."""
    if words != ["-"]:
        return " ".join(words)
    if sys.stdin is None:
        raise _UsageError("standard input must have a problem; got a closed one")
    if sys.stdin.isatty():
        raise _UsageError(
            "standard input must have a problem; got a terminal: redirect it, or write the problem as arguments"
        )
    try:
        return sys.stdin.read(MAX_PROBLEM_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise _UsageError(f"standard input must have a problem as text; got {error}") from None
