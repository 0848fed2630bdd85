"""The command `cudnnpy faults`: list or remove the stored faults of candidates."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from cudnnpy.cli.errors import UsageError
from cudnnpy.cli.text_table import printed, say

if TYPE_CHECKING:
    from cudnnpy.store import Fault

_EPILOG = """
a fault is stored after it repeated in a new process; its candidate is then rejected for that problem:
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
    from cudnnpy import store as stores
    from cudnnpy.tuning.store.database import why_in_memory

    problem = options.remove
    with stores.open(options.store, read_only=options.store is not None and problem is None) as store:
        all_faults = store.faults()
        keys = {fault.key for fault in all_faults if problem in (None, "all", fault.text)}
        faults = [fault for fault in all_faults if fault.key in keys]
        if not faults and problem not in (None, "all"):
            raise UsageError(f"--remove must be a problem that cudnnpy faults lists, or all; got {problem!r}")
        if problem is not None:
            store.remove_faults(faults)
            if faults and (reason := why_in_memory(store)):
                return say("cudnnpy faults", f"{store.path} cannot be changed: {reason}", 1)
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
