"""The example of each kind of operation: what it computes in NumPy, and whether it has a plan for a GPU that is not here."""

from __future__ import annotations

import graph_kinds
import numpy as np
import pytest
from offline_profiles import needs_profiles

from cudnnpy import DeviceProfile, NoAlgorithmError, raw, reference
from cudnnpy.errors import PlanningError
from cudnnpy.graph.kinds import KINDS
from tools import graph_kinds as page

RELEASE = "{}.{}".format(*divmod(raw.version() // 100, 100))


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_of_a_kind_is_evaluated(kind: str) -> None:
    example = graph_kinds.example(kind)
    assert kind in example.graph.operations
    results = reference.run(example.graph, example.arrays)
    allowed = reference.tolerance(example.graph, example.arrays)
    for name, array in results.items():
        assert np.isfinite(array.astype(np.float64)).all()
        assert np.isfinite(allowed[name]).all() or kind == "pointwise"  # a comparison may go either way


@needs_profiles
@pytest.mark.skipif(RELEASE not in page.PLANNED, reason="the page has no column for the loaded release")
@pytest.mark.parametrize("kind", KINDS)
def test_the_page_says_which_examples_have_a_plan(kind: str) -> None:
    graph = graph_kinds.example(kind).graph
    try:
        plan = graph.plan(DeviceProfile.load("h200"))
    except (NoAlgorithmError, PlanningError):
        assert kind not in page.PLANNED[RELEASE]
    else:
        assert kind in page.PLANNED[RELEASE]
        assert plan.entry is not None


def test_the_page_is_what_the_table_says() -> None:
    assert page.main(["--check"]) == 0
