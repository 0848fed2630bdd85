"""Entries of real plans: engine and knobs give the same plan again; the set-up of stored choices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from planning import Planner

from cudnnpy import raw

X, W = (32, 64, 28, 28), (128, 64, 3, 3)
PADDED = {"padding": 1}

CASES: dict[str, dict[str, Any]] = {
    "forward": {"operation": "forward", "first": X, "second": W, "options": PADDED},
    "strict": {"operation": "forward", "first": X, "second": W, "options": {"padding": 1, "tf32": False}},
    "data": {"operation": "backward_data", "first": (32, 128, 28, 28), "second": W, "shape": X, "options": PADDED},
    "filter": {"operation": "backward_filter", "first": (32, 128, 28, 28), "second": X, "shape": W, "options": PADDED},
    "half": {"operation": "forward", "first": X, "second": W, "dtype": "float16", "options": PADDED},
    "copies and epilogue": {
        "operation": "forward",
        "first": [X, (2 * 64 * 784, 2 * 784, 56, 2)],
        "second": W,
        "bias": (128,),
        "activation": "elu",
        "options": PADDED,
    },
    "blocks": {
        "operation": "forward",
        "first": (8, 3, 224, 224),
        "second": (32, 3, 7, 7),
        "dtype": "float16",
        "options": {"stride": 7},
    },
    "uneven padding": {
        "operation": "backward_filter",
        "first": (8, 16, 8, 8),
        "second": (8, 16, 8, 8),
        "shape": (16, 16, 2, 2),
        "options": {"padding": ((1, 0), (1, 0))},
    },
    "graph": {"name": "convolution_bias_relu"},
    "another graph": {"name": "convolution_alone", "options": {"tf32": False}},
}


@pytest.mark.parametrize("name", CASES)
def test_a_stored_plan_is_planned_again_alike(plan: Planner, name: str) -> None:
    found = plan("stored", **CASES[name])
    assert found["texts"][0] == found["texts"][1]  # what cuDNN itself writes of the plan is part of it
    assert found["sizes"][0] == found["sizes"][1]
    assert found["tables"][0] == found["tables"][1]
    assert found["key"][2:] == ["NVIDIA H200", "9.0", 132, raw.version()]


@pytest.mark.parametrize("name", ["half", "graph"])
def test_a_second_process_plans_what_the_first_measured(plan: Planner, name: str, tmp_path: Path) -> None:
    case = dict(CASES[name])
    case["options"] = {**case.get("options", {}), "prefer": "autotune"}
    if name == "graph":
        everything = [one["name"] for one in plan("own_candidates", **CASES[name])["candidates"] if one["planned"]]
    else:
        everything = [one["name"] for one in plan("survey", **CASES[name]) if one["planned"]]
    assert len(everything) > 1
    fast = dict.fromkeys(everything, 9.0) | {everything[-1]: 1.0}
    store = str(tmp_path / "store.jsonl")
    first = plan("tuned", store=store, times=fast, **case)
    assert (first["name"], first["remembered"]) == (everything[-1], "")
    second = plan("tuned", store=store, times={}, **case)
    assert (second["text"], second["remembered"]) == (first["text"], "user")
    assert (second["measured"], second["confirmed"]) == ([], [])
    moved = plan("tuned", store=store, times={}, driver="14.0", **case)
    assert (moved["text"], moved["measured"], moved["confirmed"]) == (first["text"], [], [first["name"]])
