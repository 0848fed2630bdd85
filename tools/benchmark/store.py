"""Rows in a file, one JSON text on a line, written as they come, so that a run may end at any time and go on later.

The lines of a file are of four forms:

    {"run": id, ...}                what a run was told and what its numbers depend on; before its rows
    {"begin": key, "run": id}       a row is being measured
    {"key": key, "run": id, ...}    it is measured, or failed: its "error" is then a text
    {"stopped": key, "run": id}     it was given up to end the run, and may be measured later

A row that was begun twice and came to no end took its process with it: it is a failed row.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO

_TRIES = 2  # of a row that ends its process


class Rows:
    """What files of rows hold together: `runs` by id, and `rows` by key, of each the newest."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, Any]] = {}
        self.rows: dict[str, dict[str, Any]] = {}
        self._open: Counter[str] = Counter()  # rows that were begun and are not done, with the times
        self._last: dict[str, str] = {}  # their run

    @classmethod
    def read(cls, files: Iterable[Path]) -> Rows:
        """The union of the files; where a row was measured by several runs, the newest run's counts.

        A last line without its end, from a run that was killed, is passed over. Raises ValueError for other text.
        """
        found = cls()
        lines = [pair for file in files for pair in _lines(file)]
        for line, _ in lines:
            if "key" not in line and "begin" not in line and "stopped" not in line:
                found.runs[line["run"]] = line
        for line, where in sorted(lines, key=lambda pair: found._date(pair[0])):  # the sort keeps a file's order
            if line["run"] not in found.runs:
                raise ValueError(f"{where}: a run's line must come before its rows; got none for run {line['run']!r}")
            found._take(line)
        return found

    def _date(self, line: Mapping[str, Any]) -> str:
        return str(self.runs.get(line["run"], {}).get("date", ""))

    def _take(self, line: dict[str, Any]) -> None:
        if "begin" in line:
            self._open[line["begin"]] += 1
            self._last[line["begin"]] = line["run"]
        elif "stopped" in line:
            self._open[line["stopped"]] -= 1
        elif "key" in line:
            self.rows[line["key"]] = line
            self._open.pop(line["key"], None)

    def all(self) -> list[dict[str, Any]]:
        """Every row, with those that ended their process as failed ones."""
        return [*self.rows.values(), *(self._lost(key) for key in self._open if self._is_lost(key))]

    def unfinished(self) -> list[str]:
        """The keys of rows that were begun and came to no end: their process ended."""
        return [key for key, times in self._open.items() if times > 0 and key not in self.rows]

    def is_done(self, key: str, again: bool = False) -> bool:
        """Whether a row needs no measuring; `again`: rows that failed do."""
        if key in self.rows:
            return not (again and self.rows[key]["error"])
        return self._is_lost(key) and not again

    def _is_lost(self, key: str) -> bool:
        return self._open[key] >= _TRIES and key not in self.rows

    def _lost(self, key: str) -> dict[str, Any]:
        part, _, name = key.partition(" | ")
        why = f"the process ended while this was measured, {self._open[key]} times"
        return {"key": key, "run": self._last[key], "part": part, "name": name, "error": why}


class Writer:
    """One run that appends its rows to a file; every line is in the file before the next is measured."""

    def __init__(self, file: Path, run: Mapping[str, Any]) -> None:
        self._run = run["run"]
        file.parent.mkdir(parents=True, exist_ok=True)
        _drop_torn_line(file)
        self._stream: TextIO = file.open("a", encoding="utf-8")
        self._write(run)

    def begin(self, key: str) -> None:
        """Before a row is measured."""
        self._write({"begin": key, "run": self._run})

    def stop(self, key: str) -> None:
        """A row that was begun will not come."""
        self._write({"stopped": key, "run": self._run})

    def row(self, key: str, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row that is done; returns it as the file has it."""
        made = {"key": key, "run": self._run, **row}
        self._write(made)
        return made

    def _write(self, line: Mapping[str, Any]) -> None:
        self._stream.write(json.dumps(line) + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Ends the run."""
        self._stream.close()


def _lines(file: Path) -> list[tuple[dict[str, Any], str]]:
    lines = file.read_text(encoding="utf-8").split("\n")[:-1]
    found = []
    for number, text in enumerate(lines, 1):
        where = f"{file}, line {number}"
        try:
            line = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{where}: a row must be JSON; got text that is not ({error})") from None
        if not isinstance(line, dict) or not isinstance(line.get("run"), str):
            raise ValueError(f"{where}: a row must be one that this benchmark wrote; got another")
        if "key" in line and not {"part", "name", "error"} <= line.keys():
            raise ValueError(
                f"{where}: a row must have its part and its name or error, as this benchmark wrote it; got one without"
            )
        found.append((line, where))
    return found


def _drop_torn_line(file: Path) -> None:
    """Cuts off what stands behind the last end of a line."""
    if not file.exists():
        return
    with file.open("r+b") as stream:
        text = stream.read()
        stream.truncate(text.rfind(b"\n") + 1)
