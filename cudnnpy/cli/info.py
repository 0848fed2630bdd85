"""The command `cudnnpy info`: which cuDNN, CUDA and GPUs are here, and which parts are missing."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from cudnnpy import availability
from cudnnpy._planning import known_issues
from cudnnpy.cli.text_table import labelled, printed, show
from cudnnpy.tuning.ranking import model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to a parser."""
    parser.add_argument(
        "--json", action="store_true", help="print it as JSON, with the installed packages, for a report"
    )


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    report = availability.report()
    is_usable = report.why_unavailable is None
    notes = () if report.cudnn is None else (model.release_note(), known_issues.release_note())
    not_measured = [note for note in notes if note]
    if options.json:
        print(json.dumps({**asdict(report), "not_measured": not_measured}, indent=2))
        return 0 if is_usable else 1
    show(labelled([(label, printed(text)) for label, text in report.rows()]))
    show(printed(f"not measured: {note}") for note in not_measured)
    show(printed(f"problem: {problem}") for problem in report.problems)
    print("cuDNN can be used here" if is_usable else "cuDNN cannot be used here")
    return 0 if is_usable else 1
