"""The comparison of drawn graphs in child processes, as in tests/gpu/test_drawn_graphs.py, with planted faults."""

from __future__ import annotations

from drawn_graphs import SEED, drawn
from graph_checks import EXPECTED, check_graphs


def test_wrong_results_and_graphs_that_end_or_block_the_process_are_found_by_number() -> None:
    found = check_graphs(20, str(SEED), 2, "planted", 2.0)
    outcomes = {one.number: one for one in found.outcomes if one.outcome != "rejected"}
    expected = {3: "ended the process: SIGABRT", 5: "did not end within 2 s", 7: "wrong"}
    assert {3, 5, 13, 17} <= set(outcomes)
    for number, one in outcomes.items():
        assert one.outcome == expected.get(number % 10, "right"), number
        assert one.family == drawn(number)[0]
        assert (one.outcome in EXPECTED) == (number % 10 not in expected)
        if number % 10 in expected:
            assert f"graph {number}, {one.family}: {one.outcome}" in found.failures
            assert '{"tensors": ' in one.text
        if number % 10 == 7:
            assert ": 77 for " in one.text
    assert str(found).startswith(f"{len(found.outcomes)} graphs: ")
