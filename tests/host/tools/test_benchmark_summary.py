"""The summary of the benchmark's rows: figures, groups, and lines."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from network_rows import LINES, network_cell, some_rows

import cudnnpy
from tools.benchmark import summary
from tools.benchmark.networks import measure_layers, measure_programs
from tools.benchmark.summary import Figure, figures, groups, ratio, slowest, spread


def times(**medians: float) -> dict[str, Any]:
    return {name: {"median": value} for name, value in medians.items()}


def row(part: str, name: str, error: str | None = None, **more: Any) -> dict[str, Any]:
    return {"part": part, "name": name, "error": error, **more}


HOST_US = {
    "ctypes cudnnBackendExecute, pack ready, 1": 6.0,
    "conv.forward(x, w), 1": 14.0,
    "cudnn-frontend graph.execute, handle=, tensor_uids=, 1": 12.5,
    "plan.execute(pointers), 1": 4.5,
    "plan.execute(pointers), new": 6.0,
    **{f"torch F.conv2d, {tuples}": 20.0 for tuples in ("1", "16", "new")},
    **{f"conv.forward(x, w, out=y), {n}": us for n, us in (("1", 10.0), ("16", 20.0), ("new", 5.0))},
}
HOST = row(
    "host",
    "float16",
    us={name: {"median": us} for name, us in HOST_US.items()},
    absent={"cudnn-frontend graph.execute, handle=, 1": "not installed"},
)


def operation_row(name: str, torch: float, ours: float, error: str | None = None) -> dict[str, Any]:
    operation, shape, kind = name.split(" | ")
    made = {"operation": operation, "shape": list(map(int, shape.split("x"))), "kind": kind}
    return row("operations", name, error, ms=times(torch=torch, cudnnpy=ours), **made)


OPERATIONS = [
    operation_row("softmax | 16x64 | fp32", 0.1, 0.05),
    operation_row("softmax | 16x128 | fp32", 0.1, 0.2),
    operation_row("relu | 8x64x7x7 | fp16 NHWC", 0.001, 0.001),
    operation_row("scale | 8x64x7x7 | fp64 NCHW", 0.1, 9.0, error="cudnnpy: differs from torch by nan"),
]


def reached(rows: list[dict[str, Any]]) -> dict[str, tuple[float, float | None]]:
    return {figure.name: (figure.target, figure.reached and round(figure.reached, 3)) for figure in figures(rows)}


def test_a_figure_says_whether_its_target_is_met() -> None:
    assert str(Figure("a", 0.5, 0.4)) == "a: 0.400 (<= 0.50) met"
    assert str(Figure("a", 0.5, 0.6)) == "a: 0.600 (<= 0.50) MISSED"
    assert str(Figure("a", 0.5, None)) == "a: not measured (<= 0.50)"


def test_the_figures_of_host_rows() -> None:
    assert reached([HOST]) == {
        "host: conv.forward(x, w, out=y) over F.conv2d, mean over tuples": (0.7, 0.5),
        "host: conv.forward(x, w, out=y) over F.conv2d, worst": (0.85, 1.0),
        "host: F.conv2d, cudnnpy.torch enabled over F.conv2d, mean over tuples": (1.1, None),
        "host: F.conv2d, cudnnpy.torch enabled over F.conv2d, worst": (1.3, None),
        "host: microseconds of plan.execute, same addresses": (5.0, 4.5),
        "host: microseconds of plan.execute, new addresses": (5.0, 6.0),
        "host: plan.execute(pointers) over ctypes cudnnBackendExecute, pack ready": (1.0, 0.75),
        "host: conv.forward(x, w) over torch F.conv2d": (0.7, 0.7),
        "host: conv.forward(x, w, out=y) over cudnn-frontend graph.execute, handle=": (0.9, 0.8),
        "host: conv.backward_data + backward_filter, out= over torch convolution_backward (dx, dw)": (0.5, None),
    }
    us = {f"{who}, {n}": {"median": us} for n, us in ((1, 10.0), (4213, 12.0)) for who in ("one", "torch")}
    us["torch, 4213"] = {"median": 10.0}
    assert reached([row("cache", "signatures", us=us, signatures=[1, 4213])]) == {
        "host cost with 4,213 cached signatures over one": (1.1, 1.2)
    }


def test_the_figures_of_operations_and_stored_choices_count_rows_that_ran() -> None:
    assert reached(OPERATIONS) == {
        "operations, cudnnpy over torch, mean (3 rows)": (0.8, 1.0),
        "operations, cudnnpy: share above 1.05 of the rows of 20 us or more": (0.12, 0.5),
        "operations, cudnnpy, worst": (1.5, 2.0),
    }
    stored = [row("store", "a", ms=times(fastest=1.0, stored=2.0)), row("store", "b", "ValueError: no")]
    assert reached(stored) == {"first call of a stored problem, stored over fastest, mean (1 rows)": (1.2, 2.0)}


def test_the_figures_of_networks() -> None:
    found = reached(some_rows())
    assert found["layers, autotune over torch, mean (3 rows)"] == (0.88, 1.032)
    assert found["layers, autotune, worst"] == (1.15, 2.0)
    assert found["seconds to tune, longest"] == (3.0, 0.2)
    assert found["training step, resnet50 | batch 16, over torch"] == (1.0, 0.5)
    assert found["inference, cudnnpy over torch, mean"] == (0.5, None)


def test_a_row_that_failed_has_no_ratio() -> None:
    rows = some_rows()
    assert [ratio(row, "autotune") for row in rows[:4]] == [0.5, 2.0, pytest.approx(1.1), None]
    assert ratio(rows[4], "cudnnpy") is None
    assert [row["name"] for _, row in slowest(rows[:4], "autotune", 2)] == [rows[1]["name"], rows[2]["name"]]


def test_the_share_counts_only_rows_that_take_long() -> None:
    found = spread(some_rows()[:4], "autotune")
    assert found is not None
    assert (found.size, found.share, found.worst) == (3, 0.5, 2.0)
    assert found.mean == pytest.approx((0.5 * 2.0 * 1.1) ** (1 / 3))
    over = spread(some_rows()[:4], "fastest", "torch, no search")
    assert over is not None
    assert over.worst == 1.0
    assert spread(some_rows()[3:4], "autotune") is None


def test_rows_are_grouped() -> None:
    found = {name: len(rows) for name, rows in groups(some_rows()[:4]).items()}
    assert (found["fp16 NHWC"], found["fp32 strict NCHW"]) == (3, 1)
    assert (found["forward"], found["backward_data"]) == (3, 1)
    assert (found["depthwise"], found["transposed"], found["1-D"]) == (1, 1, 0)
    assert (found["batch 1"], found["training batch"]) == (3, 1)
    assert {"softmax (rows)", "relu", "fp32"} <= groups(OPERATIONS).keys()


def test_the_lines_name_contenders_slow_rows_and_failures() -> None:
    lines = "\n".join(summary.lines([HOST, *OPERATIONS, *some_rows()])).splitlines()
    for line in (
        "| host, float16, us (over F.conv2d) | 1 | new | 16 |",
        "| conv.forward(x, w, out=y) | 10.00 (0.50) | 5.00 (0.25) | 20.00 (1.00) |",
        "| conv.forward(x, w) | 14.00 (0.70) |  |  |",
        "host, float16, cudnn-frontend graph.execute, handle=, 1: not installed",
        "operations, cudnnpy, slow: 2.000 softmax | 16x128 | fp32",
        "training, resnet50 | batch 16: torch 2.000 ms, cudnnpy 1.000 ms",
        "FAILED operations, scale | 8x64x7x7 | fp64 NCHW: cudnnpy: differs from torch by nan",
        f"FAILED layers, {some_rows()[3]['name']}: autotune: wrong by 1",
    ):
        assert line in lines
    assert not any("softmax (rows)" in line for line in lines)
    long = summary.lines(OPERATIONS, is_long=True)
    assert "operations, cudnnpy, softmax (rows): 2 rows, mean 1.000, 50.0% above the limit, worst 2.000" in long


def test_a_row_has_what_a_table_of_measurements_needs() -> None:
    found = measure_layers.facts(network_cell(LINES[3], 2))
    problem = found["problem"]
    assert (problem["x"], problem["w"], problem["y"]) == ((2, 128, 128, 128), (128, 64, 3, 3), (2, 64, 256, 256))
    assert (problem["transposed"], problem["output_padding"], problem["with_bias"]) == (True, (1, 1), True)
    assert (problem["dtype"], problem["channels_last"], problem["tf32"]) == ("float16", True, True)
    assert not measure_layers.facts(network_cell(LINES[3], 2, operation="backward_filter"))["problem"]["with_bias"]
    plan = SimpleNamespace(
        name="engine 7",
        source="heuristics",
        operation="forward",
        workspace_size=64,
        notes=("winograd",),
        deterministic=True,
        milliseconds=0.5,
        engine=cudnnpy.Engine(7, {3: 4}),
    )
    facts = json.loads(json.dumps(measure_layers.plan_facts(plan)))
    assert (facts["engine"]["index"], facts["engine"]["knobs"], facts["workspace"]) == (7, [[3, 4]], 64)


@pytest.mark.parametrize(("off", "allowed"), [(0.001, 0.002), (0.2, 0.4), (0.6, 0.8), (0.99, 0.995)])
def test_a_network_of_zeros_is_never_right(off: float, allowed: float) -> None:
    assert measure_programs.allowance(off) == pytest.approx(allowed)
