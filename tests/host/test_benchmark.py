"""The benchmark's arithmetic, statistics and pages, from recorded numbers: no GPU."""

from __future__ import annotations

import gc
import json
import math
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from clock import Clock

import cudnnpy
from tools.benchmark import __main__ as command
from tools.benchmark import device, host, report, stored
from tools.benchmark.figures import Figure, by_kind, failures, figures, fraction_of_floor, fraction_of_peak, ratio
from tools.benchmark.layers import KINDS, LAYERS, OPERATIONS
from tools.benchmark.timing import (
    HOST_BATCH,
    HOST_WARM_UP,
    Budget,
    device_timer,
    host_timer,
    interleaved,
    quiet,
    summary,
)

# --- the problems


def test_there_are_seven_layers_in_four_kinds() -> None:
    assert len({layer.name for layer in LAYERS}) == 7
    assert len({kind.name for kind in KINDS}) == 4
    assert [kind.name for kind in KINDS if not kind.tf32] == ["fp32 strict NCHW"]


# --- clocks and statistics


def test_a_budget_ends_and_a_part_ends_sooner() -> None:
    clock = Clock()
    budget = Budget(10, clock)
    part = budget.part(0.25)
    clock.now += 2
    assert (budget.left, part.left) == (8, 0.5)
    clock.now += 20
    assert (budget.left, part.left) == (0, 0)


def test_repetitions_are_interleaved_in_changing_order() -> None:
    order: list[str] = []

    def timer(name: str) -> Callable[[], float]:
        def timed() -> float:
            order.append(name)
            return float(len(order))

        return timed

    times = interleaved({name: timer(name) for name in "abc"}, 20, 1, Budget(1e9))
    turns = ["".join(order[at : at + 3]) for at in range(0, 60, 3)]
    assert len(turns) == 20
    assert all(sorted(turn) == list("abc") for turn in turns)
    assert len(set(turns)) == 6
    assert times == {name: [at + 1 for at, run in enumerate(order) if run == name] for name in "abc"}


def test_a_spent_budget_costs_repetitions_and_never_a_row() -> None:
    clock = Clock()

    def slow() -> float:
        clock.now += 1
        return 1.0

    times = interleaved({"a": slow, "b": slow}, 100, 3, Budget(1, clock))
    assert {name: len(measured) for name, measured in times.items()} == {"a": 3, "b": 3}
    times = interleaved({"a": slow, "b": slow}, 100, 3, Budget(10, clock))
    assert {name: len(measured) for name, measured in times.items()} == {"a": 5, "b": 5}


def test_the_median_ignores_an_outlier() -> None:
    assert summary([1.0, 2.0, 3.0, 4.0, 1000.0]) == {"median": 3.0, "low": 2.0, "high": 4.0, "runs": 5}
    assert summary([7.0]) == {"median": 7.0, "low": 7.0, "high": 7.0, "runs": 1}


def test_garbage_is_not_collected_while_timing() -> None:
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), quiet():
        assert not gc.isenabled()
        raise ZeroDivisionError
    assert gc.isenabled()


def test_the_host_timer_synchronises_outside_the_timed_region(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, waits = Clock(), []
    monkeypatch.setattr("tools.benchmark.timing.time.perf_counter", clock)

    def call() -> None:
        clock.now += 5e-6

    def synchronize() -> None:
        waits.append(clock.now)
        clock.now += 1

    assert host_timer(call, synchronize)() == pytest.approx(5.0)
    assert waits[0] == pytest.approx(100 + HOST_WARM_UP * 5e-6)
    assert waits[1] - waits[0] == pytest.approx(1 + HOST_BATCH * 5e-6)
    assert len(waits) == 2


def test_the_device_timer_takes_turns_and_divides() -> None:
    log: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            log.append("record")

        def synchronize(self) -> None:
            log.append("wait")

        def elapsed_time(self, other: Event) -> float:
            return 12.0

    fake = SimpleNamespace(cuda=SimpleNamespace(Event=Event, _sleep=lambda cycles: log.append("spin")))
    calls: list[Callable[[], object]] = [lambda: log.append("first"), lambda: log.append("second")]
    assert device_timer(fake, calls, 3)() == 4.0
    assert log == ["spin", "record", "first", "second", "first", "record", "wait"]


# --- rows that fail stay rows


def stand_in(gpu: bool = True) -> Any:
    """What the benchmark itself asks of torch, beside its rows."""
    switches = SimpleNamespace(cudnn=SimpleNamespace(benchmark=False, allow_tf32=True))
    cuda = SimpleNamespace(synchronize=lambda: None, is_available=lambda: gpu)
    return SimpleNamespace(backends=switches, no_grad=nullcontext, cuda=cuda)


def test_a_road_that_fails_or_is_absent_stays_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(tensors: object) -> Callable[[], object]:
        raise ValueError("no such thing")

    def absent(tensors: object) -> Callable[[], object]:
        raise host.NotInstalled("not installed")

    def fails_later(tensors: object) -> Callable[[], object]:
        return lambda: 1 // 0

    monkeypatch.setattr(host, "Tensors", lambda torch, dtype: None)
    roads = {"works": lambda tensors: lambda: None, "fails": fails, "later": fails_later, "absent": absent}
    monkeypatch.setattr(host, "ROADS", roads)
    monkeypatch.setattr(host, "MOST", 2)
    rows = {(row["dtype"], row["row"]): row for row in host.measure(stand_in(), Budget(0.001))}
    assert len(rows) == len(host.DTYPES) * len(roads)
    for dtype in host.DTYPES:
        assert rows[dtype, "works"]["us"]["median"] > 0
        assert rows[dtype, "fails"]["error"] == "ValueError: no such thing"
        assert rows[dtype, "later"]["error"].startswith("ZeroDivisionError")
        assert rows[dtype, "absent"]["absent"] == "not installed"
        assert rows[dtype, "absent"]["error"] is None


def test_a_cell_that_fails_stays_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(torch: Any, kind: Any, layer: Any, operation: str, budget: Any, cell: dict[str, Any]) -> None:
        cell["flop"] = layer.operations
        if operation == "backward_data":
            raise MemoryError("too large")

    monkeypatch.setattr(device, "_measure", measure)
    cells = list(device.measure(stand_in(), Budget(1)))
    assert len(cells) == len(KINDS) * len(LAYERS) * len(OPERATIONS) == 84
    assert {cell["operation"] for cell in cells if cell["error"]} == {"backward_data"}
    assert all("flop" in cell for cell in cells)


# --- recorded results


def _summary(value: float) -> dict[str, float]:
    return {"median": value, "low": value, "high": value, "runs": 5}


def _host_row(row: str, us: float | None, dtype: str, absent: str | None) -> dict[str, Any]:
    return {"dtype": dtype, "row": row, "us": us and _summary(us), "absent": absent, "error": None}


def _cell(
    kind: int, layer: int, operation: str, torch: float, fastest: float, tuned: float, error: str | None = None
) -> dict[str, Any]:
    facts = {"name": "engine 1", "workspace": 0, "notes": [], "deterministic": True}
    return {
        "kind": KINDS[kind].name,
        "layer": LAYERS[layer].name,
        "operation": operation,
        "error": error,
        "flop": 4e9,
        "bytes": 4e6,
        "setup_ms": {"cold": 3.0, "warm": 1.0},
        "tuning_s": 0.5,
        "tuning_limit_s": 2.5,
        "plans": {"fastest": facts, "autotune": facts},
        "ms": {
            "torch": _summary(torch),
            "torch, again": _summary(torch),
            "fastest": _summary(fastest),
            "autotune": _summary(tuned),
        },
    }


_HOST_US: dict[str, float | None] = {
    "ctypes cudnnBackendExecute, pack ready": 6.0,
    "plan.execute(pointers)": 6.6,
    "conv.forward(x, w, out=y)": 10.0,
    "conv.forward(x, w)": 14.0,
    "torch F.conv2d": 20.0,
    "cudnn-frontend graph.execute, handle=": None,
    "cudnn-frontend graph.execute, handle=, tensor_uids=": 12.0,
    "conv.backward_data + backward_filter, out=": 18.0,
    "torch convolution_backward (dx, dw)": 40.0,
}


_ADDRESSES_US: dict[int | str, dict[str, float]] = {
    1: {"torch F.conv2d": 20.0, "conv.forward(x, w, out=y)": 10.0, "plan.execute(pointers)": 3.0},
    1000: {"torch F.conv2d": 20.0, "conv.forward(x, w, out=y)": 18.0, "plan.execute(pointers)": 9.0},
    "new": {"torch F.conv2d": 20.0, "conv.forward(x, w, out=y)": 15.0, "plan.execute(pointers)": 12.0},
}
for _tuples, _us in ((1, 6.0), (1000, 8.0)):
    _ADDRESSES_US[_tuples]["ctypes cudnnBackendExecute, pack ready"] = _us
for _tuples, _us in ((1, 14.0), (1000, 22.0), ("new", 26.0)):
    _ADDRESSES_US[_tuples]["F.conv2d, cudnnpy.torch enabled"] = _us


def _recorded() -> dict[str, Any]:
    return {
        "environment": {"GPU": "NVIDIA H200", "command": "python -m tools.benchmark", "torch": "2.11.0"},
        "errors": {},
        "host": [
            _host_row(row, us and (us if dtype == "float16" else 3.0), dtype, None if us else "not installed")
            for dtype in ("float16", "float32")
            for row, us in _HOST_US.items()
        ],
        "addresses": [
            {"row": row, "tuples": tuples, **_host_row(row, us, "float16", None)}
            for tuples, by_row in _ADDRESSES_US.items()
            for row, us in by_row.items()
        ],
        "peaks": {**{kind.name: 100.0 for kind in KINDS}, "copy": 4000.0},
        "device": [
            _cell(0, 0, "forward", torch=1.0, fastest=2.0, tuned=0.5),
            _cell(0, 1, "forward", torch=1.0, fastest=0.5, tuned=0.5),
            _cell(2, 0, "forward", torch=2.0, fastest=2.0, tuned=2.2),
        ],
        "cache": [
            {
                "wanted": 1,
                "signatures": 1,
                "us": _summary(9.0),
                "torch_us": _summary(15.0),
                "in_turn_us": _summary(9.0),
                "error": None,
            },
            {
                "wanted": 10_000,
                "signatures": 4_213,
                "us": _summary(10.8),
                "torch_us": _summary(15.0),
                "in_turn_us": _summary(12),
                "error": None,
            },
        ],
    }


def test_the_figures_are_ratios_with_what_is_missed() -> None:
    found = {figure.name: figure for figure in figures(_recorded())}
    assert [(figure.reached and round(figure.reached, 3), figure.verdict) for figure in found.values()] == [
        (1.1, "met"),
        (0.5, "met"),
        (0.7, "met"),
        (None, "not measured: cudnn-frontend graph.execute, handle=: not installed"),
        (0.45, "met"),
        (0.5, "met"),
        (0.9, f"missed by {100 * (0.9 / 0.85 - 1):.1f} %"),
        (0.75, "met"),
        (0.7, "met"),
        (1.1, "met"),
        (1.3, f"missed by {100 * (1.3 / 1.1 - 1):.1f} %"),
        (0.5, "met"),
        (1.5, "met"),
        (round((0.5 * 0.5 * 1.1) ** (1 / 3), 3), "met"),
        (1.1, f"missed by {100 * (1.1 / 1.02 - 1):.1f} %"),
        (1.0, "met"),
        (1.2, "missed by 9.1 %"),
        (None, "not measured: section not run"),
        (None, "not measured: section not run"),
    ]


def test_a_share_is_missed_by_points() -> None:
    assert Figure("layers: share above 1.05", 0.01, 0.052, is_share=True).verdict == "missed by 4.2 points"
    assert Figure("layers: share above 1.05", 0.01, 0.01, is_share=True).verdict == "met"


def test_the_faster_form_of_cudnn_frontend_counts() -> None:
    results = _recorded()
    for row in results["host"]:
        if row["row"] == "cudnn-frontend graph.execute, handle=":
            row["us"] = _summary(16.0)
    found = next(figure for figure in figures(results) if "cudnn-frontend" in figure.name)
    assert found.reached == pytest.approx(10 / 12)


def test_the_reaches_are_the_promised_ones() -> None:
    fixed, varying = [1.2, 0.55, 0.7, 0.9, 0.5], [0.55, 0.85, 1.0, 1.1, 1.1, 1.1, 1.2, 2.0]
    assert [figure.reach for figure in figures({})] == [*fixed, *varying, 0.9, 1.02, 1.0, 1.1, 1.05, 0.75]
    assert all(figure.verdict == "not measured: section not run" for figure in figures({}))


def test_a_cell_with_an_error_counts_in_no_mean_and_is_told() -> None:
    results = _recorded()
    results["device"][0]["error"] = "differs from torch"
    del results["device"][1]["ms"]
    results["device"][1]["error"] = "MemoryError: too large"
    means = by_kind(results["device"], "autotune")
    assert list(means) == [*(kind.name for kind in KINDS), "all"]
    assert {group for group, pair in means.items() if pair is not None} == {"fp16 NHWC", "all"}
    assert means["fp16 NHWC"] == means["all"] == pytest.approx((1.1, 1.1))
    assert "GPU: autotune over torch, worst cell (2 of 3 cells missing)" in {f.name for f in figures(results)}
    assert failures(results) == [
        f"GPU, fp32 strict NCHW, {LAYERS[0].name}, forward: differs from torch",
        f"GPU, fp32 strict NCHW, {LAYERS[1].name}, forward: MemoryError: too large",
    ]
    page = report.markdown(results)
    assert "MemoryError: too large" in page
    assert page.count("| failed |") == 2


def test_the_same_call_timed_twice_is_no_contender() -> None:
    cell = _cell(0, 0, "forward", torch=2.0, fastest=1.0, tuned=1.0)
    cell["ms"]["torch, again"] = _summary(2.1)
    assert ratio(cell, "torch, again") == pytest.approx(1.05)


def test_fractions_of_the_measured_peaks() -> None:
    peaks = {KINDS[0].name: 100.0, "copy": 4000.0}  # TFLOP/s, GB/s
    cell = _cell(0, 0, "forward", torch=1.0, fastest=1.0, tuned=0.1)  # 4 GFLOP: 0.04 ms; 4 MB: 0.001 ms
    assert fraction_of_peak(cell, "autotune", peaks) == pytest.approx(0.4)
    assert fraction_of_floor(cell, "autotune", peaks) == pytest.approx(0.4)
    cell["bytes"] = 200e6  # 0.05 ms
    assert fraction_of_floor(cell, "autotune", peaks) == pytest.approx(0.5)


def test_the_page_has_every_section() -> None:
    page = report.markdown(_recorded(), "nvidia-h200.svg")
    assert "# Benchmark on NVIDIA H200" in page
    assert "| host, fixed addresses: conv.forward(x, w, out=y) over torch F.conv2d | <= 0.55 | 0.500 | met |" in page
    assert (
        "| host, addresses always new: conv.forward(x, w, out=y) over torch F.conv2d | <= 1.00 | 0.750 | met |" in page
    )
    assert "| plan.execute(pointers) | 0.15 | 3.00 | 0.45 | 9.00 | 0.60 | 12.00 |" in page
    assert "| GPU: autotune over torch, worst cell | <= 1.02 | 1.100 | missed by 7.8 % |" in page
    assert "](nvidia-h200.svg)" in page
    assert "| fp32 strict NCHW | 0.500 | 0.500 | 1.000 | 2.000 | 1.000 | 1.000 |" in page
    assert "| cudnn-frontend graph.execute, handle= |  | not installed |  | not installed |" in page
    assert "| conv.forward(x, w) | 0.70 | 14.00 | 1.00 | 3.00 |" in page
    assert "| 4,213 (of 10,000: the time was up) | 1.20 | 10.80 | 15.00 | 12.00 |" in page
    assert "Rows that failed" not in page
    for block in page.split("\n\n"):  # no table is torn: each row has the columns of its head
        counts = {line.count("|") for line in block.splitlines() if line.startswith("|")}
        assert len(counts) <= 1, block


def test_a_section_that_did_not_run_has_no_heading() -> None:
    results = {"environment": {"GPU": "NVIDIA H200"}, "errors": {}}
    assert "Host cost" not in report.markdown(results)
    assert report.summary_lines(results)[0].endswith("not measured: section not run")


def test_json_has_one_row_on_a_line_and_reads_back() -> None:
    text = report.as_json(_recorded())
    assert json.loads(text) == _recorded()
    assert sum(line.startswith('{"kind"') for line in text.splitlines()) == 3


def test_no_plot_without_cells_or_matplotlib(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not report.draw({"device": []}, tmp_path / "a.svg")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert not report.draw(_recorded(), tmp_path / "a.svg")
    assert not list(tmp_path.iterdir())


# --- the command


@pytest.mark.parametrize("error", [None, "RuntimeError: lost"])
def test_the_exit_status_says_whether_every_row_ran(
    error: str | None, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    results = _recorded()
    results["device"][2]["error"] = error
    source = tmp_path / "nvidia-h200.json"
    source.write_text(report.as_json(results), encoding="utf-8")
    out = tmp_path / "pages"
    assert command.main(["--from-json", str(source), "--out", str(out)]) == (1 if error else 0)
    assert [file.name for file in out.iterdir()] == ["nvidia-h200.md"]
    assert ("FAILED GPU, fp16 NHWC" in capsys.readouterr().out) is (error is not None)


def test_without_a_gpu_the_command_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", stand_in(gpu=False))
    with pytest.raises(SystemExit, match="needs a CUDA GPU"):
        command.main(["--quick"])


@pytest.mark.parametrize("given", ["0", "-5"])
def test_a_budget_is_above_zero(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--budget", given])
    assert "--budget must be above 0; got" in capsys.readouterr().err


def test_a_section_that_breaks_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(torch: Any, budget: Budget) -> list[dict[str, Any]]:
        raise RuntimeError("lost the GPU")

    monkeypatch.setitem(sys.modules, "torch", stand_in(gpu=True))
    monkeypatch.setattr(command, "environment", lambda *given: {"GPU": "some"})
    shares: dict[str, float] = {}

    def works(name: str) -> Callable[[Any, Budget], list[dict[str, Any]]]:
        def measure(torch: Any, budget: Budget) -> list[dict[str, Any]]:
            shares[name] = budget.left
            return []

        return measure

    sections = {"host": (breaks, 0.1), "cache": (works("cache"), 0.1)}
    monkeypatch.setattr(command, "SECTIONS", sections)
    results = command.run(None, 60.0, [])
    assert results["errors"] == {"host": "RuntimeError: lost the GPU"}
    assert results["cache"] == []
    assert math.isclose(shares["cache"], 60, rel_tol=0.01)  # what one leaves unused, the next may have


def test_a_run_that_is_stopped_writes_what_it_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def stops(torch: Any, budget: Budget) -> Iterator[dict[str, Any]]:
        yield {"row": "first"}
        signal.raise_signal(signal.SIGTERM)
        yield {"row": "second"}

    def never(torch: Any, budget: Budget) -> Iterator[dict[str, Any]]:
        raise AssertionError("a section after the stop")

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setitem(sys.modules, "torch", stand_in(gpu=True))
    monkeypatch.setattr(command, "environment", lambda *given: {"GPU": "some"})
    monkeypatch.setattr(command, "SECTIONS", {"cache": (stops, 0.1), "host": (never, 0.1)})
    monkeypatch.setattr(command.report, "markdown", lambda results, plot: "page")
    monkeypatch.setattr(command.report, "summary_lines", lambda results: [])
    monkeypatch.setattr(command, "failures", lambda results: list(results["errors"].values()))
    try:
        assert command.main(["--out", str(tmp_path)]) == 1
    finally:
        signal.signal(signal.SIGTERM, before)
    written = json.loads((tmp_path / "some.json").read_text())
    assert written["errors"] == {"cache": "stopped after 1 rows"}
    assert written["cache"] == [{"row": "first"}]
    assert "host" not in written


@pytest.mark.parametrize("where", [["--out", "/somewhere/else"], ["--out=/somewhere/else"]])
def test_the_recorded_command_tells_no_path_of_the_machine(where: list[str]) -> None:
    assert command.command(["--budget", "400", *where, "--quick"]) == "python -m tools.benchmark --budget 400 --quick"


def _stored_row(stored: float, fastest: float, error: str | None = None) -> dict[str, Any]:
    times = None if error else {"stored": _summary(stored), "fastest": _summary(fastest)}
    return {"kind": "fp16 NHWC", "layer": "conv2", "operation": "forward", "ms": times, "error": error}


def test_the_set_up_of_stored_choices_is_a_figure() -> None:
    rows = [_stored_row(2.0, 1.0), _stored_row(0.5, 1.0), _stored_row(0.0, 0.0, "ValueError: no")]
    results = {**_recorded(), "stored": rows}
    (figure,) = [found for found in figures(results) if found.name.startswith("set-up")]
    assert (figure.reached, figure.verdict) == (pytest.approx(1.0), "met")
    page = report.markdown(results)
    assert "| fp16 NHWC, conv2, forward | 2.00 | 2.00 | 1.00 |" in page
    assert "- stored, fp16 NHWC, forward: ValueError: no" in page
    (none,) = [f for f in figures({**_recorded(), "stored": rows[2:]}) if f.name.startswith("set-up")]
    assert none.verdict == "not measured: no row ran"


def test_the_set_up_of_a_stored_choice_is_timed_with_an_empty_plan_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    cleared: list[str] = []
    made: list[Any] = []

    class Layer:
        def __init__(self, **options: Any) -> None:
            self.prefer = options["prefer"]

        def forward(self, *_: Any, out: Any = None) -> None:
            cleared.append(self.prefer)

        backward_data = backward_filter = forward

    monkeypatch.setattr(cudnnpy, "Convolution", Layer)
    monkeypatch.setattr(cudnnpy, "clear_cache", lambda: made.append(None))
    torch = stand_in()
    torch.randn = lambda *_, **__: SimpleNamespace(to=lambda **how: None)
    for name in ("channels_last", "contiguous_format", "float32", "float16", "bfloat16"):
        setattr(torch, name, None)
    rows = list(stored.measure(torch, Budget(0.01)))
    assert [row["error"] for row in rows] == [None] * 12
    assert len(cleared) == len(made) >= 12 * 2 * (2 + stored.LEAST)
    assert set(rows[0]["ms"]) == {"fastest", "stored"}
