"""`python -m tools.ranking`: judges orders of candidates by the rows of surveys, on networks that were left out.

python -m tools.ranking.survey --seconds 300 -o survey.jsonl                on GPUs
python -m tools.ranking --pack survey.jsonl -o tools/ranking/rows/nvidia-h100.jsonl.gz
python -m tools.ranking                                                     the table, in some minutes

The orders are cuDNN's heuristics, then other engines; and gradient-boosted trees of scikit-learn (not a dependency of any
extra: pip install scikit-learn), trained on the problems of other networks. The numbers are times over the fastest candidate's:
of the first candidate, and of the fastest of the first 4, 8 and 16. Candidates of the knob search only count as the fastest.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tools.ranking import rows
from tools.ranking.features import ENGINE, features
from tools.ranking.rows import Problem

ROWS = Path(__file__).with_name("rows")
_FIRST = (1, 4, 8, 16)
_CLIPPED = 1.2  # the logarithm of a time over the best, from which on it does not matter
_SLOW = 1.2
_TREES: dict[str, Any] = {"max_iter": 200, "max_leaf_nodes": 31, "learning_rate": 0.1, "max_bins": 128}


def is_ranked(name: str, position: int) -> bool:
    """Return whether a candidate is a proposal of the heuristics or an engine with its default knobs."""
    return position >= 0 or "(" not in name


def heuristic_scores(problem: Problem) -> np.ndarray:
    """Return scores that sort the candidates of a problem: the proposals of its lowerings in turn, then other engines."""
    return np.array([one.position if one.position >= 0 else np.inf for one in problem.candidates])


def model_scores(problems: Sequence[Problem], folds: int) -> list[np.ndarray]:
    """Return the predicted logarithms of times over the best, each by trees that saw no problem of the network."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    networks = sorted({problem.network for problem in problems})
    Random(0).shuffle(networks)
    fold = {network: number % folds for number, network in enumerate(networks)}
    all_features = [np.array(features(problem), np.float32) for problem in problems]
    targets = [np.log([one.over_best for one in problem.candidates]).clip(0, _CLIPPED) for problem in problems]
    scores: list[np.ndarray] = [np.empty(0)] * len(problems)
    for left_out in range(folds):
        train = [n for n, problem in enumerate(problems) if fold[problem.network] != left_out]
        y = np.concatenate([targets[n] for n in train])
        trees = HistGradientBoostingRegressor(
            categorical_features=[ENGINE], random_state=0, early_stopping=False, **_TREES
        )
        trees.fit(np.concatenate([all_features[n] for n in train]), y, sample_weight=np.exp(-y))
        for n, problem in enumerate(problems):
            if fold[problem.network] == left_out:
                scores[n] = trees.predict(all_features[n])
    return scores


def line(name: str, problems: Sequence[Problem], scores: Sequence[np.ndarray]) -> str:
    """Return a line of the table for an order."""
    found: dict[int, list[float]] = {count: [] for count in _FIRST}
    for problem, of_problem in zip(problems, scores, strict=True):
        order = [problem.candidates[n] for n in np.argsort(of_problem, kind="stable")]
        ranked = [one.over_best for one in order if is_ranked(one.name, one.position)]
        for count in _FIRST:
            found[count].append(min(ranked[:count], default=np.nan))
    means = " | ".join(f"{np.exp(np.nanmean(np.log(found[count]))):.3f}" for count in _FIRST)
    return f"| {name} | {len(problems):,} | {means} | {100 * np.mean(np.array(found[1]) > _SLOW):.0f} % |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.ranking", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="*", help="compressed rows (those beside the tool)")
    parser.add_argument("--pack", type=Path, nargs="+", metavar="SURVEY", help="write the rows of surveys, and end")
    parser.add_argument("-o", "--output", type=Path, help="the file that --pack writes")
    parser.add_argument("--folds", type=int, default=8, help="into which the networks are divided (8)")
    given = parser.parse_args(arguments)
    if given.pack:
        if given.output is None:
            parser.error("--pack needs -o, the file to write")
        print(f"wrote {rows.pack(given.pack, given.output):,} problems")
        return 0
    problems = list(rows.read(given.files or sorted(ROWS.glob("*.jsonl.gz"))))
    print("| order | problems | first | best of 4 | of 8 | of 16 | first above 1.2 |\n|---|---|---|---|---|---|---|")
    print(line("heuristics", problems, [heuristic_scores(problem) for problem in problems]), flush=True)
    try:
        print(line("trees, networks left out", problems, model_scores(problems, given.folds)))
    except ModuleNotFoundError as error:
        print(f"tools.ranking: {error}: pip install scikit-learn", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
