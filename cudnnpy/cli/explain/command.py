"""The command `cudnnpy explain`: report the choice for a problem, the reasons, and the rejected candidates."""

from __future__ import annotations

import argparse
import json
import os

from cudnnpy._checks.preferences import PREFERENCES
from cudnnpy.cli import text_table
from cudnnpy.cli.errors import UsageError

_EPILOG = """
a problem is an operation, its shapes and the options that differ from the defaults, such as
  cudnnpy explain forward 128x64x56x56 64x64x3x3 pad=1 float16 channels_last
  cudnnpy explain backward_filter 32x64x28x28 64x64x3x3 pad=1 tf32=False deterministic prefer=no_workspace
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to a parser."""
    parser.set_defaults(
        advice_on_unknown="; an option of the problem is a word without dashes, such as workspace_limit=64MiB"
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("problem", nargs="+", metavar="PROBLEM", help="a problem in the notation")
    parser.add_argument(
        "--device",
        default="0",
        metavar="DEVICE",
        help="the ordinal of a GPU of this machine (default: 0), or a device profile: a name, such as h200, or a file",
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
        "--all", action="store_true", help="list every candidate, and every rejected one below its reason"
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    text = " ".join(options.problem)
    if os.path.isfile(text):
        raise UsageError(f"{text}: a problem must be named, and cudnnpy plan takes a file of problems")
    is_ordinal = options.device.isascii() and options.device.isdigit()
    if options.measure and not is_ordinal:
        raise UsageError(f"--measure must be used on a GPU of this machine; got the device profile {options.device}")
    from cudnnpy.cli.explain import explain
    from cudnnpy.tuning.profiles.device_profile import DeviceProfile

    if is_ordinal:
        advice = "; to plan without a GPU, name a device profile, such as --device h200"
        explanation = explain.on_gpu(text, int(options.device), options.prefer, measure=options.measure, advice=advice)
    else:
        explanation = explain.for_profile(text, DeviceProfile.load(options.device), options.prefer)
    if options.json:
        print(json.dumps(explanation.plain(), indent=2))
    else:
        from cudnnpy.cli.explain.explanation_text import lines_of

        text_table.show(lines_of(explanation, text_table.width(), lists_all=options.all))
    return 0 if explanation.choice is not None else 2
