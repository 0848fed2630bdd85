"""Drawn graphs on the GPU: each that cuDNN plans is compared with NumPy's results, element by element.

CUDNNPY_PROPERTY_EXAMPLES is how many are compared, and CUDNNPY_PROPERTY_SEED draws others than those of drawn_graphs.SEED.
"""

from __future__ import annotations

import os

import pytest
from drawn_graphs import SEED
from graph_checks import check_graphs

EXAMPLES = int(os.environ.get("CUDNNPY_PROPERTY_EXAMPLES", "100"))
PROCESSES = min(8, os.cpu_count() or 1)


def test_graphs_that_are_planned_are_right(capsys: pytest.CaptureFixture[str]) -> None:
    seed = os.environ.get("CUDNNPY_PROPERTY_SEED") or str(SEED)
    found = check_graphs(EXAMPLES, seed, PROCESSES)
    with capsys.disabled():
        print(f"\nCUDNNPY_PROPERTY_SEED={seed} CUDNNPY_PROPERTY_EXAMPLES={EXAMPLES}\n{found}")
    assert not found.failures, f"{found}\n\n{found.failures}"
    assert found.counts()["right"] >= EXAMPLES
