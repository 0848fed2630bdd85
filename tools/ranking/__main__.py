"""`python -m tools.ranking`: judges orders of candidates by the rows of surveys, on networks that were left out.

python -m tools.ranking.survey --seconds 300 -o survey.jsonl                on GPUs
python -m tools.ranking --pack survey.jsonl -o tools/ranking/rows/nvidia-h100.jsonl.gz
python -m tools.ranking                                                     the table, in some minutes on a GPU
python -m tools.ranking --write 9.0 9.19 -o cudnnpy/tuning/ranking/models        a model for a compute capability and a release
python -m tools.ranking --judge MODEL ROWS                                  a model by rows that it did not see, without PyTorch

The orders are cuDNN's heuristics, and ranking models that are trained on the problems of other networks (PyTorch is not a
dependency of any extra). The numbers are times over the fastest candidate's: of the first candidate, and of the fastest of the
first 2, 4, 8 and 16. Candidates of the knob search only count as the fastest.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from random import Random

import numpy as np

from cudnnpy.tuning.ranking.model import OPERATIONS, Model, file_name
from tools.ranking import rows
from tools.ranking.dataset import Described, arrays, describe, is_ranked, vocabulary
from tools.ranking.drawing import OF_NO_NETWORK

ROWS = Path(__file__).with_name("rows")
_FIRST = (1, 2, 4, 8, 16)
_MOST = 3.0  # larger times over the fastest count as this one in the means
_SLOW = (1.05, 1.2)
_NO_KEY = ("", "")


def heuristic_scores(one: Described) -> np.ndarray:
    """Return scores that sort the candidates of a problem: the proposals of its lowerings in turn, then other engines."""
    return np.array([each.position if each.position >= 0 else np.inf for each in one.configurations])


def trained(given: Sequence[Described], key: tuple[str, str], epochs: int) -> dict[str, np.ndarray]:
    """Return the arrays of a model of problems."""
    from tools.ranking.network import train

    known = vocabulary(given)
    found = train(arrays(given, known), known, epochs)
    return {**found, "key": np.array(key)}


def model_scores(given: Sequence[Described], folds: int, epochs: int, only: int | None) -> list[np.ndarray | None]:
    """Return the predictions for problems, each by a model that saw no problem of the network; of one fold, or of all."""
    networks = sorted({one.problem.network for one in given} - {OF_NO_NETWORK})  # whose problems are trained on always
    Random(0).shuffle(networks)
    fold = {network: number % folds for number, network in enumerate(networks)}
    scores: list[np.ndarray | None] = [None] * len(given)
    for left_out in range(folds) if only is None else [only]:
        model = Model(
            trained([one for one in given if fold.get(one.problem.network) != left_out], _NO_KEY, epochs), _NO_KEY
        )
        for n, one in enumerate(given):
            if fold.get(one.problem.network) == left_out:
                scores[n] = np.array(model.logarithms(one.features, one.configurations))
    return scores


def line(
    name: str,
    given: Sequence[Described],
    scores: Sequence[np.ndarray | None],
    others: Collection[tuple[int, int]] | None = None,
) -> str:
    """Return a line of the table for an order, judged by the problems with times of all candidates.

    `others` are the engines that planning ranks beside the proposals: those of the problems' own vocabulary.
    """
    others = set(vocabulary(given).others if others is None else others)
    found: dict[int, list[float]] = {count: [] for count in _FIRST}
    for one, of_problem in zip(given, scores, strict=True):
        if of_problem is None or not one.is_complete:
            continue
        order = np.argsort(of_problem, kind="stable")
        ranked = [
            one.problem.candidates[n].over_best for n in order if is_ranked(one.configurations[n], one.kind, others)
        ]
        for count in _FIRST if ranked else ():
            found[count].append(min(ranked[:count]))
    means = " | ".join(f"{np.exp(np.mean(np.log(np.minimum(found[count], _MOST)))):.3f}" for count in _FIRST)
    slow = " | ".join(f"{100 * np.mean(np.array(found[1]) > limit):.0f} %" for limit in _SLOW)
    return f"| {name} | {len(found[1]):,} | {means} | {slow} | {max(found[1]):.1f} |"


def judge(file: Path, given: Sequence[Described]) -> Iterator[str]:
    """Yield the lines of the table for the heuristics and a model's file: of all problems, and of each operation."""
    with np.load(file, allow_pickle=False) as arrays:
        model = Model(arrays, tuple(map(str, arrays["key"])))  # type: ignore[arg-type]
    others = {(one.kind, engine) for one in given for engine in model.others(one.kind)}
    parts = {
        "": given,
        **{f", {name}": [one for one in given if OPERATIONS[one.kind // 3] == name] for name in OPERATIONS},
    }
    for name, part in parts.items():
        if any(one.is_complete for one in part):
            yield line(f"heuristics{name}", part, [heuristic_scores(one) for one in part], others)
            scores = [np.array(model.logarithms(one.features, one.configurations)) for one in part]
            yield line(f"model{name}", part, scores, others)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.ranking", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="*", help="compressed rows (those beside the tool)")
    parser.add_argument("--pack", type=Path, nargs="+", metavar="SURVEY", help="write the rows of surveys, and end")
    parser.add_argument("--write", nargs=2, metavar=("CAPABILITY", "RELEASE"), help="write a model, and end")
    parser.add_argument("--judge", type=Path, metavar="MODEL", help="judge a model's file by the rows, and end")
    parser.add_argument("-o", "--output", type=Path, help="the file that --pack writes, or the folder of --write")
    parser.add_argument("--folds", type=int, default=5, help="into which the networks are divided (5)")
    parser.add_argument("--fold", type=int, help="judge only this one, from 0 on")
    parser.add_argument("--epochs", type=int, default=80, help="of each training; 0 judges the heuristics only (80)")
    given = parser.parse_args(arguments)
    if (given.pack or given.write) and given.output is None:
        parser.error("--pack and --write need -o, for their result")
    if given.write:
        given.output.mkdir(parents=True, exist_ok=True)  # before the training, which takes a quarter of an hour
    if given.pack:
        print(f"wrote {rows.pack(given.pack, given.output):,} problems")
        return 0
    problems = describe(rows.read(given.files or sorted(ROWS.glob("*.jsonl.gz"))), os.cpu_count() or 1)
    if given.write:
        file = given.output / file_name(*given.write)
        np.savez_compressed(file, **trained(problems, tuple(given.write), given.epochs))  # type: ignore[arg-type]
        print(f"wrote {file}, {file.stat().st_size:,} bytes, of {len(problems):,} problems")
        return 0
    columns = ["problems", *(f"best of {count}" for count in _FIRST), *(f"first above {limit}" for limit in _SLOW)]
    print(f"| order | {' | '.join(columns)} | worst |\n|{'---|' * (len(columns) + 2)}")
    if given.judge:
        print("\n".join(judge(given.judge, problems)))
        return 0
    print(line("heuristics", problems, [heuristic_scores(problem) for problem in problems]), flush=True)
    if given.epochs:
        scores = model_scores(problems, given.folds, given.epochs, given.fold)
        print(line("model, networks left out", problems, scores), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
