"""Drawn graphs compared by Graph.check in child processes: a graph that ends or blocks a process is one failure, with its text.

`check_graphs` hands the numbers of graphs to some children, each of which is this file. A child is replaced when it ends, does
not answer, or has an error that may have left its context unusable.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from threading import Lock
from typing import IO, Any, NamedTuple

import numpy as np
from drawn_graphs import drawn, operands_of

from cudnnpy import Graph
from cudnnpy.errors import FunctionNotAvailableError, NoAlgorithmError
from cudnnpy.graph.graph_json import graph_to_json
from cudnnpy.graph.operation_graph import canonical_graph
from cudnnpy.reference.graph import compare, evaluate, random_results

SHARED = Path(__file__).resolve().parent
COMPARED = frozenset({"right", "wrong"})
EXPECTED = frozenset({"right", "no algorithm", "rejected", "not in this release"})


class Outcome(NamedTuple):
    """What came of a graph: one of EXPECTED, "wrong", "error", or how the process ended; and what is wrong, or the kinds."""

    number: int
    family: str
    outcome: str
    text: str = ""
    unchecked: int = 0  # elements whose tolerance is infinite


class Checks:
    """The outcomes, and the tables of them."""

    def __init__(self, outcomes: list[Outcome]) -> None:
        self.outcomes = sorted(outcomes)

    @property
    def failures(self) -> str:
        return "\n\n".join(
            f"graph {one.number}, {one.family}: {one.outcome}\n{one.text}"
            for one in self.outcomes
            if one.outcome not in EXPECTED
        )

    def counts(self) -> Counter[str]:
        return Counter(one.outcome for one in self.outcomes)

    def __str__(self) -> str:
        families = {one.family: Counter[str]() for one in self.outcomes}
        for one in self.outcomes:
            families[one.family][one.outcome] += 1
        rows = [f"{len(self.outcomes)} graphs: {_counts(self.counts())}"]
        rows += [f"    {family}: {_counts(found)}" for family, found in sorted(families.items())]
        kinds = Counter(kind for one in self.outcomes if one.outcome == "right" for kind in one.text.split())
        rows.append(f"    kinds in right graphs: {_counts(kinds)}")
        return "\n".join(rows)


def _counts(found: Counter[str]) -> str:
    return ", ".join(f"{number} {outcome}" for outcome, number in found.most_common())


def check_graphs(compared: int, seed: str, processes: int, how: str = "gpu", seconds: float = 60.0) -> Checks:
    """Draws graphs until so many are compared, or three times as many are drawn.

    `how` is "gpu", or "planted" for results of NumPy's with planted faults. A graph may take `seconds`.
    """
    outcomes: list[Outcome] = []
    numbers, turn = count(), Lock()

    def work() -> None:
        with tempfile.TemporaryFile() as errors, Child(seed, how, seconds, errors) as child:
            while True:
                with turn:
                    done = sum(one.outcome not in EXPECTED - COMPARED for one in outcomes)
                    number = next(numbers)
                if done >= compared or number >= 3 * compared:
                    return
                outcomes.append(child.check(number))

    with ThreadPoolExecutor(processes) as pool:
        for one in [pool.submit(work) for _ in range(processes)]:
            one.result()
    return Checks(outcomes)


class Child:
    """A context manager: a process that checks graphs, which is started anew if it has ended."""

    def __init__(self, seed: str, how: str, seconds: float, errors: IO[bytes]) -> None:
        self._arguments, self._seconds, self._errors = [seed, how], seconds, errors
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def check(self, number: int) -> Outcome:
        """The outcome of a graph."""
        process = self._process = self._process or self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{number}\n".encode())
        process.stdin.flush()
        is_answered = bool(select.select([process.stdout], [], [], self._seconds)[0])
        line = process.stdout.readline() if is_answered else b""
        if line:
            outcome = Outcome(*json.loads(line))
            if outcome.outcome == "error":
                self._end()
            return outcome
        how = f"did not end within {self._seconds:g} s"
        if is_answered:
            code = process.wait()
            how = f"ended the process: {signal.Signals(-code).name if code < 0 else f'exit status {code}'}"
        self._end()
        self._errors.seek(0)
        family, graph = drawn(number, self._arguments[0])
        return Outcome(number, family, how, f"{text_of(graph)}\n{self._errors.read().decode(errors='replace')[-2000:]}")

    def _started(self) -> subprocess.Popen[bytes]:
        self._errors.seek(0)
        self._errors.truncate()
        paths = [str(SHARED.parents[1]), str(SHARED), os.environ.get("PYTHONPATH", "")]
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )
        assert process.stdout is not None
        process.stdout.readline()  # it is ready
        return process

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def text_of(graph: Graph) -> str:
    """A graph as JSON."""
    return json.dumps(graph_to_json(canonical_graph(graph._operation_graph({}))[0]))


# The child


def outcome_of(number: int, seed: str, how: str) -> Outcome:
    family, graph = drawn(number, seed)
    arrays = operands_of(graph, number)
    try:
        graph.problem()
    except ValueError as error:
        return Outcome(number, family, "rejected", str(error))
    try:
        found = graph.check(arrays) if how == "gpu" else planted(graph, arrays, number)
    except NoAlgorithmError as error:
        return Outcome(number, family, "no algorithm", str(error).splitlines()[0])
    except FunctionNotAvailableError as error:
        return Outcome(number, family, "not in this release", str(error))
    except Exception as error:
        text = f"{type(error).__name__}: {error}\n{text_of(graph)}"
        return Outcome(number, family, "error", text)
    unchecked = sum(one.unchecked for one in found.values())
    if wrong := {name: one for name, one in found.items() if not one.is_right}:
        text = "\n".join(f"{name}: {one}" for name, one in wrong.items())
        plan = graph.plan().name if how == "gpu" else how
        return Outcome(number, family, "wrong", f"{plan}\n{text}\n{text_of(graph)}", unchecked)
    kinds = sorted({operation.kind for operation in graph._operation_graph({}).operations})
    return Outcome(number, family, "right", " ".join(kinds), unchecked)


def planted(graph: Graph, arrays: dict[str, Any], number: int) -> dict[str, Any]:
    """NumPy's results as Graph.check compares them. Of ten graphs one is wrong, one ends the process, and one blocks it."""
    if number % 10 == 3:
        os.abort()
    if number % 10 == 5:
        time.sleep(3600)
    random = random_results(graph._operation_graph({}))
    masks = {node.name: np.ones(node.shape, np.float32) for node in graph.outputs if node.uid in random}
    expected, allowed = evaluate(graph, {**arrays, **masks})
    results = {name: one.copy() for name, one in expected.items()}
    if number % 10 == 7:
        *_, last = results.values()
        last.flat[last.size // 2] = 77
    return {name: compare(results[name], expected[name], allowed[name]) for name in results}


def main(seed: str, how: str) -> None:
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # the output of libraries is no answer
        print("ready", file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps(outcome_of(int(line), seed, how)), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
