"""The training of a ranking model in PyTorch, and its arrays in NumPy."""

from __future__ import annotations

import numpy as np

from cudnnpy.tuning.ranking.model import Model
from tools.ranking import rows
from tools.ranking.__main__ import ROWS, heuristic_scores, line, trained
from tools.ranking.dataset import describe

KEY = ("9.0", "9.19")


def test_a_trained_model_ranks_better_than_the_heuristics() -> None:
    problems = list(rows.read([ROWS / "nvidia-h100.jsonl.gz"]))[::8]
    given = describe(problems, 1)
    model = Model(trained(given, KEY, epochs=80), KEY)
    scores = [np.array(model.logarithms(one.features, one.configurations)) for one in given]

    def first(found: list[np.ndarray]) -> float:
        return float(line("an order", given, found).split(" | ")[2])

    excess = first([heuristic_scores(one) for one in given]) - 1.0
    assert first(scores) - 1.0 < 0.8 * excess
