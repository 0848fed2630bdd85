"""How far `cudnnpy tune` is: a bar with the time left on a terminal if rich is installed, otherwise a line for each problem."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

from cudnnpy._store.entry import Entry
from cudnnpy.cli.text_table import printed
from cudnnpy.cli.tune.local_workers import LostDevice, Result
from cudnnpy.cli.tune.report import row_of


class Progress(Protocol):
    """What is told of the work."""

    def note(self, report: Result | LostDevice) -> None:
        """Tell of a result, or of a device that is left out."""


@contextmanager
def progress(total: int, stream: TextIO) -> Iterator[Progress]:
    """Tell of some number of problems on a stream, as long as the block runs."""
    bar = _bar(stream)
    if bar is None:
        yield _Lines(total, stream)
        return
    with bar:
        yield _Bar(total, bar)


def _bar(stream: TextIO) -> Any:
    """Return rich's bar for a terminal; None for other streams, or if rich is not installed."""
    if not stream.isatty():
        return None
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress
    except ImportError:
        return None
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


class _Bar:
    def __init__(self, total: int, bar: Any) -> None:
        self._bar, self._task = bar, bar.add_task("tuning", total=total)

    def note(self, report: Result | LostDevice) -> None:
        if isinstance(report, Result):
            self._bar.advance(self._task)
            if report.entry is not None:
                return
        self._bar.console.print(printed(text_of(report)))


class _Lines:
    def __init__(self, total: int, stream: TextIO) -> None:
        self._total, self._stream, self._done, self._begin = total, stream, 0, time.monotonic()

    def note(self, report: Result | LostDevice) -> None:
        if isinstance(report, LostDevice):
            print(printed(text_of(report)), file=self._stream, flush=True)
            return
        self._done += 1
        left = (time.monotonic() - self._begin) / self._done * (self._total - self._done)
        end = f"; {duration(left)} left" if self._done < self._total else ""
        print(printed(f"[{self._done}/{self._total}] {text_of(report)}{end}"), file=self._stream, flush=True)


def text_of(report: Result | LostDevice) -> str:
    """Return a report as one line."""
    if isinstance(report, LostDevice):
        return f"GPU {report.device} is left out: {report.reason}"
    if report.entry is None:
        return f"{report.job.text}: not tuned: {report.reason}{_faults(report)}"
    return f"{report.job.text}: {_choice(report.entry)}, GPU {report.device}, {report.seconds:.1f} s{_faults(report)}"


def _faults(report: Result) -> str:
    count = len(report.faults)
    return f"; {count} candidate{'s' * (count != 1)} left out for faults" if count else ""


def _choice(entry: Entry) -> str:
    over = row_of(entry).over_heuristics
    gained = "" if over is None else f" ({over:.3f} of the heuristics' choice)"
    return "not measured" if entry.milliseconds is None else f"{entry.milliseconds:.4f} ms{gained}"


def duration(seconds: float) -> str:
    """Return a duration as text: "8 s", "3 min", "1 h 20 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
