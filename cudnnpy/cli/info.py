"""The command `cudnnpy info`: which cuDNN, CUDA and GPUs are here, and which parts are missing."""

from __future__ import annotations

import argparse
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to a parser."""
    parser.add_argument(
        "--json", action="store_true", help="print it as JSON, with the installed packages, for a report"
    )


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    from cudnnpy import availability
    from cudnnpy.cli.text_table import Line, labelled, printed, show, width

    report = availability.report()
    is_usable = report.why_unavailable is None
    notes: list[str] = []
    if report.cudnn is not None:
        from cudnnpy._planning import known_issues
        from cudnnpy.tuning.ranking import model

        notes = [note for note in (model.release_note(), known_issues.release_note()) if note]
    if options.json:
        import json
        from dataclasses import asdict

        print(json.dumps({**asdict(report), "not_measured": notes}, indent=2))
        return 0 if is_usable else 1
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    show(labelled([(label, printed(text)) for label, text in report.rows()], width() if is_terminal else None))
    show(Line(printed(f"not measured: {note}")) for note in notes)
    show(Line(printed(f"problem: {problem}")) for problem in report.problems)
    print("cuDNN can be used here" if is_usable else "cuDNN cannot be used here")
    return 0 if is_usable else 1
