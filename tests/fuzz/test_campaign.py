"""The harness of the campaigns: a case that fails is a failure that names it."""

from __future__ import annotations

import ctypes
import os
import re
import time
from random import Random

import pytest
from campaign import FIRST, SECONDS, SEED, Campaign


def draw(random: Random) -> int:
    return random.randrange(100)


def run(case: int) -> str:
    return "even" if case % 2 == 0 else "odd"


def crash(case: int) -> str:
    if case > 95:
        ctypes.string_at(8)
    return "alive"


def stop(case: int) -> str:
    if case > 95:
        os.abort()
    return "alive"


def hang(case: int) -> str:
    while case > 95:
        time.sleep(1)
    return "alive"


def fail(case: int) -> str:
    assert case <= 95, "beyond"
    return "alive"


def grow(case: int) -> str:
    return "alive" if case <= 95 else str(len(b"x" * (200 << 20)))[:1]


GOOD = Campaign(draw, run)
CRASHES, STOPS, HANGS, FAILS = (Campaign(draw, how, hang=3.0) for how in (crash, stop, hang, fail))
GROWS = Campaign(draw, grow, memory=100 << 20)


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECONDS, "0")
    monkeypatch.setenv(SEED, "7")
    monkeypatch.delenv(FIRST, raising=False)


def test_the_least_number_of_cases_is_run_and_the_outcomes_are_counted() -> None:
    found = GOOD.carry_out(__file__, "GOOD", least=300)
    assert set(found) == {"even", "odd"}
    assert found.total() == 300


def test_a_seed_gives_the_same_cases_each_time() -> None:
    assert GOOD.carry_out(__file__, "GOOD") == GOOD.carry_out(__file__, "GOOD")


@pytest.mark.parametrize("ci", ["", "true"])
def test_without_settings_the_same_cases_are_run_and_no_more(ci: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SEED, "0")
    expected = GOOD.carry_out(__file__, "GOOD", least=300)
    monkeypatch.setenv("CI", ci)
    for name in (SECONDS, SEED):
        monkeypatch.delenv(name)
    assert GOOD.carry_out(__file__, "GOOD", least=300) == expected
    assert expected.total() == 300


def test_a_new_seed_is_drawn_and_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(SEED, "new")
    for _ in range(2):
        GOOD.carry_out(__file__, "GOOD", least=1)
    seeds = re.findall(rf"GOOD: {SEED}=(\d+)", capsys.readouterr().out)
    assert len(set(seeds)) == 2


def test_more_cases_are_run_while_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECONDS, "1")
    assert GOOD.carry_out(__file__, "GOOD", least=1).total() > 1


def test_what_the_parent_held_before_is_not_counted() -> None:
    held = b"x" * (1 << 29)
    assert held
    del held
    with pytest.raises(pytest.fail.Exception, match="took"):
        GROWS.carry_out(__file__, "GROWS")


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("CRASHES", "ended the process: SIGSEGV"),
        ("STOPS", "ended the process: SIGABRT"),
        ("HANGS", "did not end within 3 s"),
        ("FAILS", r"raised(.|\n)*AssertionError: beyond"),
        ("GROWS", r"took \d+ MiB of memory"),
    ],
)
def test_what_goes_wrong_fails_and_names_the_case(name: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(pytest.fail.Exception, match=rf"{name}, case \d+ {how}") as failed:
        globals()[name].carry_out(__file__, name)
    text = str(failed.value)
    again = re.search(rf"again: {SEED}=7 {FIRST}=(\d+) pytest .*test_campaign.py", text)
    assert again, text
    assert re.search(r"^9[6-9]$", text, re.MULTILINE), text
    monkeypatch.setenv(FIRST, again[1])  # which is the first to be run then
    with pytest.raises(pytest.fail.Exception, match=rf"{name}, case {again[1]} {how}"):
        globals()[name].carry_out(__file__, name, least=1)
