"""The report of `cudnnpy tune`: its progress, and a table with a row for each entry of the store."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from statistics import geometric_mean

from cudnnpy import raw
from cudnnpy.cli import text_table
from cudnnpy.cli.text_table import choice_cells, printed, show_progress
from cudnnpy.cli.tune.tune_problem import LostPlace, Result
from cudnnpy.tuning.store.entry import Entry

_BAR = 30  # columns


class Progress:
    """The progress of some number of problems on standard error: on a terminal a bar with the time left, otherwise lines."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._begin = total, 0, time.monotonic()

    def show(self, report: Result | LostPlace) -> None:
        """Show a result, or a place that is left out. A terminal has lines only for failures."""
        line, is_result = printed(text_of(report)), isinstance(report, Result)
        self._done += is_result
        show_progress("")
        if not sys.stderr.isatty() or isinstance(report, LostPlace) or report.entry is None:
            number = f"[{self._done}/{self._total}] " if is_result else ""
            print(f"{number}{line}", file=sys.stderr, flush=True)
        if 0 < self._done < self._total:
            bar = "#" * (_BAR * self._done // self._total)
            left = timedelta(seconds=round((time.monotonic() - self._begin) * (self._total / self._done - 1)))
            show_progress(f"tuning [{bar:{_BAR}}] {self._done}/{self._total}, {left} left")


def text_of(report: Result | LostPlace) -> str:
    """Return a report as one line."""
    if isinstance(report, LostPlace):
        return f"{report.place} is left out: {report.reason}"
    count = len(report.faults)
    faults = f"; {count} candidate{'s' * (count != 1)} left out for faults" if count else ""
    if report.entry is None:
        return f"{report.job.text}: not tuned: {report.reason}{faults}"
    milliseconds = choice_cells(report.entry.choice)["ms"]
    return f"{report.job.text}: {milliseconds} ms, {report.place}, {report.seconds:.1f} s{faults}"


def _times(entry: Entry) -> tuple[float, float] | None:
    """Return the milliseconds of the choice and of the default choice; None if one of them is not known.

    The default choice, which prefer="fastest" takes, is the first verified candidate of the ranking.
    """
    verified = (one.milliseconds for one in entry.candidates if one.milliseconds and not one.rejection_reason)
    chosen, default = entry.choice.milliseconds, next(verified, None)
    return (chosen, default) if chosen and default else None


def lines_of(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield the lines of the report: the table, a legend, and the number of problems with the gain over the default choices."""
    gpus = [f"{entry.key.gpu}, cuDNN {raw.version_text(entry.key.cudnn)}" for entry in entries]
    rows = []
    for entry, gpu in zip(entries, gpus, strict=True):
        times = _times(entry)
        ratio = "" if times is None else f"{times[0] / times[1]:.3f}"
        named = {"gpu": gpu} if len(set(gpus)) > 1 else {}
        rows.append({"problem": entry.text, **named, **choice_cells(entry.choice), "over default": ratio})
    if rows:
        yield from text_table.table(rows)
        yield "over default: the time of the choice over the time of the default choice, which needs no measuring"
    count = f"{len(entries)} problem{'s' * (len(entries) != 1)}"
    times_of_all = [times for times in map(_times, entries) if times is not None]
    if times_of_all:
        mean = geometric_mean(chosen / default for chosen, default in times_of_all)
        chosen, default = (sum(column) for column in zip(*times_of_all, strict=True))
        gain = f"{mean:.3f} in the geometric mean, {chosen:.4g} ms of {default:.4g} ms in all"
        count = f"{count}; over the default choice: {gain}"
    yield count
