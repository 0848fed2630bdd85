"""The benchmark's section "operations": what is told of recorded rows."""

from __future__ import annotations

import json
from typing import Any

from tools.benchmark import operations, report
from tools.benchmark.figures import failures, figures, operation_ratios


def _summary(value: float) -> dict[str, float]:
    return {"median": value, "low": value, "high": value, "runs": 5}


def _row(kind: str, operation: str, error: str | None = None, **medians: float) -> dict[str, Any]:
    unit = "us" if kind == operations.HOST else "ms"
    row: dict[str, Any] = {"kind": kind, "operation": operation, "unit": unit, "error": error}
    if medians:
        names = {"new": "cudnnpy, new", "out": "cudnnpy, out=", "again": "torch, again"}
        row[unit] = {names.get(name, name): _summary(value) for name, value in medians.items()}
    return row


def _recorded() -> dict[str, Any]:
    rows = [
        _row(operations.HOST, "relu", torch=4.0, again=4.0, out=2.0, new=4.0),
        _row(operations.HOST, "set", torch=4.0, again=4.4, out=1.0),
        _row("fp32 NCHW", "relu", torch=1.0, again=1.0, cudnnpy=1.0),
        _row("fp32 NCHW", "tanh", torch=1.0, again=1.0, cudnnpy=2.0),
        _row("fp32 NCHW", "elu", error="ValueError: no"),
        _row("fp16 NHWC", "convolution", torch=1.0, again=1.0, cudnnpy=0.5, separate=2.0),
        _row("fp16 NHWC", "batch norm", error="separate: ValueError: no", torch=1.0, again=1.0, cudnnpy=1.0),
    ]
    return {"environment": {"GPU": "NVIDIA H200"}, "errors": {}, "operations": rows}


def test_the_figures_count_rows_and_tell_the_worst() -> None:
    found = [figure for figure in figures(_recorded()) if figure.name.startswith("operations")]
    assert [(figure.name, figure.reach, figure.reached and round(figure.reached, 3)) for figure in found] == [
        ("operations, GPU time over torch, geometric mean", 1.05, 1.0),
        ("operations, GPU time over torch, worst (3 of 4 meet it, 2 rows failed)", 1.05, 2.0),
        ("operations, host cost over torch, geometric mean", 0.75, 0.5),
        ("operations, host cost over torch, worst (2 of 3 meet it)", 0.75, 1.0),
    ]
    assert [figure.verdict for figure in found][:2] == ["met", "missed by 90.5 %"]


def test_without_a_row_that_ran_the_figures_say_so() -> None:
    rows = [_row("fp32 NCHW", "relu", error="ValueError: no")]
    found = [figure for figure in figures({"operations": rows}) if figure.name.startswith("operations")]
    assert {figure.verdict for figure in found} == {"not measured: no row ran"}
    found = [figure for figure in figures({}) if figure.name.startswith("operations")]
    assert {figure.verdict for figure in found} == {"not measured: section not run"}


def test_the_slowest_come_first_and_failures_are_told() -> None:
    results = _recorded()
    assert operation_ratios(results["operations"], "us") == [
        (1.0, "host fp32, relu, new"),
        (0.5, "host fp32, relu, out="),
        (0.25, "host fp32, set, out="),
    ]
    assert failures(results) == [
        "operations, fp32 NCHW, elu: ValueError: no",
        "operations, fp16 NHWC, batch norm: separate: ValueError: no",
    ]
    told = report.summary_lines(results)
    assert "slowest of the operations against torch, GPU time: 2.000 fp32 NCHW, tanh" in told


def test_the_page_has_a_table_for_each_kind() -> None:
    page = report.markdown(_recorded())
    assert "| fp32 NCHW | 1.05 | 2 | 1 | 1.414 | 2.000 | 1.000 |" in page
    assert "| host fp32, new | 0.75 | 1 | 0 | 1.000 | 1.000 | 1.049 |" in page
    assert "### host fp32: host cost\n" in page
    assert "| set | 0.250 |  | 1.100 | 4.00 | 1.00 |  |  |" in page
    assert "### fp32 NCHW: GPU time\n" in page
    assert "| tanh | 2.000 | 1.000 | 1.0000 | 2.0000 |  |" in page
    assert "| elu |  |  |  |  | failed |" in page
    assert "| fp16 NHWC, convolution | 0.250 | 2.000 | 0.500 | 0.5000 | 2.0000 |" in page
    for block in page.split("\n\n"):  # no table is torn: each row has the columns of its head
        counts = {line.count("|") for line in block.splitlines() if line.startswith("|")}
        assert len(counts) <= 1, block


def test_a_page_of_rows_that_all_failed_is_a_page() -> None:
    rows = [_row(kind, "relu", error="AttributeError: no") for kind in (operations.HOST, "fp32 NCHW")]
    page = report.markdown({"environment": {"GPU": "NVIDIA H200"}, "errors": {}, "operations": rows})
    assert page.count("AttributeError: no") == 2
    assert "What fusing gains" not in page


def test_json_reads_back() -> None:
    text = report.as_json(_recorded())
    assert json.loads(text) == _recorded()
    assert sum(line.startswith('{"kind"') for line in text.splitlines()) == 7
