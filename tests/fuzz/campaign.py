"""A fuzzing campaign: drawn cases, each run in a child process, so that a crash or a hang is a failure that names the case.

A campaign is an object of a test module with two functions:

    CAMPAIGN = Campaign(draw, run)      # draw(random) -> case;  run(case) -> the name of what came of it

`draw` makes a case from a random.Random and nothing else, so that a seed and a number name it. `run` does the dangerous
thing. It returns a short name of the outcome, which is counted, and raises where a promise is broken. The test runs it all:

    def test_bad_texts_are_refused():
        outcomes = CAMPAIGN.carry_out(__file__, "CAMPAIGN", least=2000)
        assert set(outcomes) == {"refused", "loaded"}

The first `least` cases of seed 0 are run: the same ones each time, on every machine. CUDNNPY_FUZZ_SECONDS asks for more until
these seconds have passed ("inf": for ever), and CUDNNPY_FUZZ_SEED for other cases ("new" draws a seed; `make fuzz` does both).
The first case that raises, crashes, hangs or takes too much memory fails the test. CUDNNPY_FUZZ_SEED and CUDNNPY_FUZZ_FIRST,
which every failure prints, begin with that case.
"""

from __future__ import annotations

import faulthandler
import importlib
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import IO, Any

import pytest

HERE = Path(__file__).resolve().parent
SECONDS, SEED, FIRST = (f"CUDNNPY_FUZZ_{name}" for name in ("SECONDS", "SEED", "FIRST"))
_LEFT = 4096  # bytes that a case may leave: objects of C that a drawn call made, and that nobody destroys


@dataclass(frozen=True)
class Campaign:
    """How cases are drawn and run; what they may take: `hang` seconds each, and `memory` bytes altogether."""

    draw: Callable[[Random], Any]
    run: Callable[[Any], str]
    hang: float = 120.0
    memory: int = 1 << 30

    def carry_out(
        self, file: str, name: str, *, least: int = 1000, environment: Mapping[str, str] | None = None
    ) -> Counter[str]:
        """Runs the campaign called `name` of a test's file; returns how often each outcome came."""
        first, seed = int(os.environ.get(FIRST, "0")), _seed()
        print(f"{name}: {SEED}={seed}")
        child = [file, name, str(seed), str(first), str(least), os.environ.get(SECONDS, "0")]
        with tempfile.TemporaryFile("w+") as errors:
            last, report = self._watched(child, errors, environment)
            if "outcomes" in report:
                return Counter(report["outcomes"])
            errors.seek(0)
            said = errors.read()[-4000:]
        again = f"{SEED}={seed} {FIRST}={last} pytest {os.path.relpath(file)}"
        case = report.get("case") or _described(file, name, seed, last, environment)
        pytest.fail(f"{name}, case {last} {report['failed']}\n{case}\n{said}\nagain: {again}", pytrace=False)

    def _watched(
        self, arguments: list[str], errors: IO[str], environment: Mapping[str, str] | None
    ) -> tuple[int, dict[str, Any]]:
        """The number of the last case that was begun, and how the child ended."""
        reports, to = os.pipe()
        process = _started(["run", *arguments], to, errors, environment)
        os.close(to)
        last, rest = int(arguments[3]), b""
        try:
            while True:
                if not select.select([reports], [], [], self.hang)[0]:
                    return last, {"failed": f"did not end within {self.hang:g} s"}
                got = os.read(reports, 1 << 16)
                if not got:
                    code = process.wait()
                    how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
                    return last, {"failed": f"ended the process: {how}"}
                *lines, rest = (rest + got).split(b"\n")
                for line in lines:
                    if line.isdigit():
                        last = int(line)
                    else:
                        return last, dict(json.loads(line))
        finally:
            os.close(reports)
            process.kill()
            process.wait()


def _seed() -> int:
    asked = os.environ.get(SEED, "0")
    return Random().randrange(1 << 32) if asked == "new" else int(asked)


def _started(
    arguments: list[str], reports: int, errors: IO[str], environment: Mapping[str, str] | None
) -> subprocess.Popen[bytes]:
    paths = [
        str(HERE.parents[1]),
        str(HERE),
        str(HERE.parent / "shared"),
        *map(str, (HERE.parent / "host").glob("*/")),
        os.environ.get("PYTHONPATH", ""),
    ]
    given = {**os.environ, **(environment or {}), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, str(HERE / "campaign.py"), str(reports), *arguments]
    return subprocess.Popen(command, pass_fds=[reports], stdout=errors, stderr=errors, env=given)


def _described(file: str, name: str, seed: int, number: int, environment: Mapping[str, str] | None) -> str:
    """A case as text, drawn again in a process of its own."""
    with tempfile.TemporaryFile("w+") as out:
        reports, to = os.pipe()
        _started(["describe", file, name, str(seed), str(number)], to, out, environment).wait()
        os.close(reports)
        os.close(to)
        out.seek(0)
        return out.read()[-4000:]


# The child


def _random(seed: str, number: int) -> Random:
    return Random(f"{seed}/{number}")


def _text(case: Any) -> str:
    text = repr(case)
    return text if len(text) < 3000 else f"{text[:3000]}... ({len(text)} characters)"


def _used() -> int:
    """The most memory in bytes that this process has held so far. (getrusage counts what the parent held, too.)"""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def _run(campaign: Campaign, seed: str, first: int, least: int, seconds: float, reports: IO[str]) -> None:
    end = time.monotonic() + seconds
    outcomes: Counter[str] = Counter()
    before = _used()

    def report(**what: Any) -> None:
        reports.write(json.dumps(what) + "\n")
        reports.flush()

    for number in itertools.count(first):
        if number - first >= least and time.monotonic() > end:
            break
        reports.write(f"{number}\n")
        reports.flush()
        case = None
        try:
            case = campaign.draw(_random(seed, number))
            outcomes[campaign.run(case)] += 1
        except BaseException:
            report(failed=f"raised\n{traceback.format_exc(limit=-12)}", case=_text(case))
            return
        if _used() > before + campaign.memory + _LEFT * (number - first):
            report(failed=f"took {(_used() - before) >> 20} MiB of memory", case=_text(case))
            return
    report(outcomes=outcomes)


def _main(reports: str, do: str, file: str, name: str, seed: str, first: str, *more: str) -> None:
    faulthandler.enable()
    sys.path.insert(0, str(Path(file).resolve().parent))
    campaign: Campaign = getattr(importlib.import_module(Path(file).stem), name)
    if do == "describe":
        print(_text(campaign.draw(_random(seed, int(first)))))
        return
    least, seconds = more
    with os.fdopen(int(reports), "w") as to:
        _run(campaign, seed, int(first), int(least), float(seconds), to)


if __name__ == "__main__":
    _main(*sys.argv[1:])
