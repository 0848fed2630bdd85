"""The command `cudnnpy faults`: the faults of candidates that the store has, and their removal."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from cudnnpy.cli.text_table import printed, say

if TYPE_CHECKING:
    from cudnnpy.store import Fault

_EPILOG = """
a fault is stored after it repeated in a fresh process, and its candidate is not chosen for that problem any more:
  cudnnpy faults
  cudnnpy faults --remove "forward 32x48x160x160 48x1x3x3 pad=1 groups=48"
  cudnnpy faults --remove all
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to a parser."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("--store", metavar="FILE", help="the store or export to read (default: the user's store)")
    parser.add_argument(
        "--remove", metavar="PROBLEM", help='remove, and print, the faults of a listed problem, or "all"'
    )
    parser.add_argument("--json", action="store_true", help="print the faults as a JSON list")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    from cudnnpy import store
    from cudnnpy._store.database import why_in_memory

    chosen, is_removal = options.remove, options.remove is not None
    try:
        with store.open(options.store, read_only=options.store is not None and not is_removal) as kept:
            everything = kept.faults()
            keys = {fault.key for fault in everything if chosen in (None, "all", fault.text)}
            faults = [fault for fault in everything if fault.key in keys]
            if not faults and chosen not in (None, "all"):
                raise ValueError(f"--remove must be a problem that cudnnpy faults lists, or all; got {chosen!r}")
            if is_removal:
                kept.remove_faults(faults)
                if faults and (reason := why_in_memory(kept)):
                    return say("cudnnpy faults", f"{kept.path} cannot be changed: {reason}", 1)
    except (ValueError, OSError) as error:
        return say("cudnnpy faults", error, 2)
    _print(faults, options.json)
    return 0


def _print(faults: list[Fault], as_json: bool) -> None:
    if as_json:
        import json

        print(json.dumps([fault.plain() for fault in faults], indent=2))
        return
    for fault in faults:
        print(printed(_line(fault)))
    if not faults:
        print("no faults")


def _line(fault: Fault) -> str:
    from cudnnpy import raw

    key = fault.key
    place = (
        f"{key.gpu} ({key.multiprocessors} multiprocessors), cuDNN {raw.version_text(key.cudnn)}, driver {fault.driver}"
    )
    return f"{fault.symptom}: {fault.candidate}; {fault.text}; {place}; {fault.made_at[:10]}: {fault.detail}"
