"""`python -m tools.ranking.survey -o FILE`: measures every candidate of drawn problems, on all visible GPUs.

FILE has a line for each problem: its text, its network, and the rows of its candidates (child.py). The same command
continues an earlier run. Rows of several files can be joined. With --list the problems are the cells of a list of networks, in
an order drawn by the seed, and the survey ends after the last one.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

from cudnnpy.tuning.measuring.child_process import Ended, Message, WorkerProcess
from cudnnpy.tuning.measuring.gpu_worker import symptom_of
from cudnnpy.tuning.measuring.gpus import uuid_of
from tools.ranking.drawing import AROUND, Drawn, draw, listed, of_cell
from tools.rows import FileError, Writer, read

COMMAND = (sys.executable, "-P", "-m", "tools.ranking.child")
_MAX_ENDS = 12  # of processes for one problem
_PROBLEM_SECONDS = 60.0


class Survey:
    """The problems that are left, and the file. Threads share it."""

    def __init__(self, file: Path, header: dict[str, Any], problems: Iterator[Drawn], most: int = 0) -> None:
        rows = read(file)
        if rows and rows[0] != header:
            raise FileError(f"{file} must be of a survey with {header}; got {rows[0]}: name a new one with -o")
        done = {row["number"] for row in rows[1:]}
        self._problems = (one for one in problems if one.number not in done)
        self._writer, self._lock, self._most = Writer(file), threading.Lock(), most
        if not rows:
            self._writer.add(header)

    def run(self, uuid: str, end: float) -> None:
        """Measure problems on one GPU until a time of time.monotonic()."""
        child = _start(uuid)
        while time.monotonic() < end:
            with self._lock:
                drawn = next(self._problems, None)
            if drawn is None:
                break
            rows: dict[str, list[Any]] = {}
            left_out: dict[str, str] = {}
            begin = time.monotonic()
            for _ in range(_MAX_ENDS):
                known = {name: row[2:4] for name, row in rows.items() if row[2] is not None}
                request = {
                    "do": "survey",
                    "text": drawn.text,
                    "left_out": left_out,
                    "known": known,
                    "most": self._most,
                }
                answer = child.ask(request, min(begin + _PROBLEM_SECONDS, end + 10.0), _noted(rows))
                if not isinstance(answer, Ended):
                    error = str(answer.get("error", ""))
                    break
                child.end()
                child = _start(uuid)
                error = answer.how
                if answer.cause == "deadline" or not answer.begun:
                    break
                reason = f"fault: {symptom_of(answer)}"
                left_out[answer.begun] = reason
                rows[answer.begun] = [answer.begun, -1, None, None, [], reason]
            seconds = round(time.monotonic() - begin, 2)
            if time.monotonic() < end + 10.0:
                self._writer.add(
                    {**drawn._asdict(), "seconds": seconds, "error": error[:200], "rows": list(rows.values())}
                )
        child.end()


def chosen(given: argparse.Namespace) -> dict[str, Any]:
    """Return what chooses the problems of a survey."""
    if given.list:
        return {"seed": given.seed, "list": given.list.name, "only": given.only}
    return {"seed": given.seed, "around": given.around, "free": given.free, "grouped": given.grouped}


def problems(given: argparse.Namespace) -> Iterator[Drawn]:
    """Yield the problems of a survey: those that the seed draws, without end, or the cells of a list."""
    if given.list:
        cells = enumerate(listed(given.list, given.seed, given.only))
        return (of_cell(number, cell) for number, cell in islice(cells, given.first, None))
    shares = {name: value for name, value in chosen(given).items() if name != "seed"}
    return (draw(given.seed, number, **shares) for number in count(given.first))


def _noted(rows: dict[str, list[Any]]) -> Any:
    def note(message: Message) -> None:
        if "row" in message:
            row = message["row"]
            if row[0] not in rows or row[2] is not None or row[5]:
                rows[row[0]] = row

    return note


def run_side_by_side(functions: Iterable[Callable[[], object]]) -> None:
    """Run each function in a thread that Ctrl-C ends, and wait for all. The first error of a thread is raised at the end."""
    errors = list[BaseException]()

    def run(function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(function,), daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _start(uuid: str) -> WorkerProcess:
    return WorkerProcess({"gpu": uuid}, command=COMMAND)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.ranking.survey", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="after which no problem is begun (600)")
    parser.add_argument("--seed", type=int, default=1, help="draws the problems (1)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first problem (0)")
    parser.add_argument("--around", type=float, default=AROUND, help=f"the share of layers around networks' ({AROUND})")
    parser.add_argument("--free", type=float, default=0.0, help="the share of layers of no network (0)")
    grouped = "the share of grouped convolutions of no network (0)"
    parser.add_argument("--grouped", type=float, default=0.0, help=grouped)
    parser.add_argument("--list", type=Path, metavar="FILE", help="measure the cells of a list of networks instead")
    only = "of a list, those whose names match: a layer, batch, kind and operation"
    parser.add_argument("--only", default="", metavar="EXPRESSION", help=only)
    parser.add_argument("--processes", type=int, default=4, help="children of each GPU, which plan side by side (4)")
    parser.add_argument(
        "--most", type=int, default=0, help="candidates of a problem, by the ranking and drawn (0: all)"
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("survey.jsonl"), help="the file (survey.jsonl)")
    given = parser.parse_args(arguments)
    from cuda.core import Device

    from cudnnpy import raw

    gpus = [uuid_of(device.device_id) for device in Device.get_all_devices()]
    header = {"survey": 2, **chosen(given), "cudnn": raw.version_text(raw.version()), "gpu": str(Device(0).name)}
    survey, end = Survey(given.output, header, problems(given), given.most), time.monotonic() + given.seconds
    os.environ["CUDNNPY_STORE"] = ""
    run_side_by_side([partial(survey.run, uuid, end) for uuid in gpus] * given.processes)
    rows = read(given.output)[1:]
    print(f"{len(rows)} problems, {sum(len(row['rows']) for row in rows)} candidates")
    return 0


if __name__ == "__main__":
    sys.exit(main())
