"""The report of `cudnnpy tune`: the choice among candidates, the table, and the progress."""

from __future__ import annotations

import io
import re

import pytest
from made_up_entries import CANDIDATES, candidate, entry, job

from cudnnpy.cli.tune.progress import Progress
from cudnnpy.cli.tune.report import LEGEND, over_default, summary, table
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
    assert over_default(made) == 0.5
    head, row = (re.split(r"  +", line.text) for line in table([made]))
    assert head == ["problem", "choice", "ms", "over default", "workspace"]
    assert row == ["forward", "engine 4", "0.2000", "0.500", "0 bytes"]
    assert LEGEND.startswith(head[3])


def test_the_summary_is_of_the_problems_that_can_be_compared() -> None:
    entries = [entry("a"), entry("b", chosen=0), entry("c", CANDIDATES[2:4], 0)]
    assert summary(entries) == (
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
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with Progress(4, stream) as shown:
        for report in REPORTS:
            shown.show(report)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    assert "2/4" in text
    assert re.search(r"left \d:\d\d:\d\d", text)
    assert "forward 2x2: not tuned: the worker was ended by SIGSEGV" in " ".join(text.split())
    assert "GPU 0 is left out" in text
    assert "0.2500 ms" not in text  # a line for each problem would hide the bar
