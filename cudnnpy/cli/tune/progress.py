"""The progress of `cudnnpy tune`: a bar with the time left on a terminal with rich, otherwise a line for each problem."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Self, TextIO

from cudnnpy.cli.text_table import has_rich, printed
from cudnnpy.cli.tune.report import over_default
from cudnnpy.cli.tune.tune_problem import LostPlace, Result
from cudnnpy.tuning.store.entry import Entry


class Progress:
    """A context manager that shows the progress of some number of problems on a stream."""

    def __init__(self, total: int, stream: TextIO) -> None:
        self._total, self._stream, self._done = total, stream, 0
        self._bar = _bar(stream)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._stack.enter_context(self._bar)
            self._task = self._bar.add_task("tuning", total=self._total)
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stack.close()

    def show(self, report: Result | LostPlace) -> None:
        """Show a result, or a place that is left out. A bar has lines only for failures."""
        line = printed(text_of(report))
        if isinstance(report, Result):
            self._done += 1
        if self._bar is None:
            number = f"[{self._done}/{self._total}] " if isinstance(report, Result) else ""
            print(f"{number}{line}", file=self._stream, flush=True)
            return
        self._bar.update(self._task, completed=self._done)
        if isinstance(report, LostPlace) or report.entry is None:
            self._bar.console.print(line)


def _bar(stream: TextIO) -> Any:
    """Return rich's bar for a terminal; None for other streams, or if rich is not installed."""
    if not stream.isatty() or not has_rich():
        return None
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    return RichProgress(
        TextColumn("tuning"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(file=stream, highlight=False, markup=False),
        speed_estimate_period=3600,
    )


def text_of(report: Result | LostPlace) -> str:
    """Return a report as one line."""
    if isinstance(report, LostPlace):
        return f"{report.place} is left out: {report.reason}"
    count = len(report.faults)
    faults = f"; {count} candidate{'s' * (count != 1)} left out for faults" if count else ""
    if report.entry is None:
        return f"{report.job.text}: not tuned: {report.reason}{faults}"
    return f"{report.job.text}: {_choice(report.entry)}, {report.place}, {report.seconds:.1f} s{faults}"


def _choice(entry: Entry) -> str:
    ratio = over_default(entry)
    gain = "" if ratio is None else f" ({ratio:.3f} of the default choice)"
    return "not measured" if entry.choice.milliseconds is None else f"{entry.choice.milliseconds:.4f} ms{gain}"
