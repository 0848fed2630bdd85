"""The report of `cudnnpy tune`: the choice among candidates, the table, and the progress."""

from __future__ import annotations

import io
import re

import pytest
from made_up_entries import CANDIDATES, candidate, entry, job

from cudnnpy.cli.tune.report import Progress, lines_of
from cudnnpy.cli.tune.tune_problem import LostPlace, Result


def test_the_default_choice_is_the_first_that_ran_and_is_right() -> None:
    found = (
        candidate("engine 1", "heuristics", None, None, rejection_reason="not supported here: 3000"),
        candidate("engine 2", "heuristics", 0.1, rejection_reason="wrong result: off by 1"),
        candidate("engine 7", "ranking", 0.4),
        candidate("engine 3", "heuristics", 0.8),
        candidate("engine 4", "engines", 0.2),
    )
    made = entry("forward", found, 4)
    head, row, legend, _ = (re.split(r"  +", line) for line in lines_of([made]))
    assert head == ["problem", "choice", "workspace", "ms", "error", "over default"]
    assert row == ["forward", "engine 4", "0 bytes", "0.2000", "0.1", "0.500"]
    assert legend[0].startswith(head[-1])


def test_the_summary_is_of_the_problems_that_can_be_compared() -> None:
    entries = [entry("a"), entry("b", chosen=0), entry("c", CANDIDATES[2:4], 0)]
    assert [*lines_of([entry("d", milliseconds=0.0)])][-1] == "1 problem"
    assert [*lines_of(entries)][-1] == (
        "3 problems; over the default choice: 0.794 in the geometric mean, 1 ms of 1.25 ms in all"
    )


# How far it is


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


REPORTS = [
    Result(job("forward 1x1", 2.0), "GPU 1", 4.25, entry("forward 1x1")),
    LostPlace("GPU 0", "RuntimeError: fell off the bus"),
    Result(job("forward 2x2", 2.0), "GPU 1", 0.5, None, "the worker was ended by SIGSEGV"),
]


def test_progress_is_a_bar_with_the_time_left_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    shown = Progress(4)
    for report in REPORTS:
        shown.show(report)
    text = stream.getvalue().replace("\r\x1b[K", "|")
    assert re.search(r"\|tuning \[#{7} {23}\] 1/4, \d:\d\d:\d\d left\|", text)
    assert re.search(r"\|tuning \[#{15} {15}\] 2/4, \d:\d\d:\d\d left$", text)
    assert "|[2/4] forward 2x2: not tuned: the worker was ended by SIGSEGV\n" in text
    assert "|GPU 0 is left out: RuntimeError: fell off the bus\n" in text
    assert "0.2500 ms" not in text  # a line for each problem would hide the bar
