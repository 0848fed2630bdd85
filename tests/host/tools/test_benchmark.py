"""The benchmark's clocks and statistics, its host rows, its plot and its command: no GPU."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from clock import Clock
from network_rows import network_cell, some_rows, write_rows

import cudnnpy
from tools.benchmark import __main__ as program
from tools.benchmark import host, plot, runs, sections, stored
from tools.benchmark.networks import measure_layers
from tools.benchmark.runs import Rows
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

# Clocks and statistics


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


# The host rows


def stand_in(gpu: bool = True) -> Any:
    """The part of torch that the benchmark uses itself."""
    switches = SimpleNamespace(cudnn=SimpleNamespace(benchmark=False, allow_tf32=True))
    cuda = SimpleNamespace(synchronize=lambda: None, is_available=lambda: gpu)
    return SimpleNamespace(backends=switches, no_grad=nullcontext, cuda=cuda)


def test_a_contender_that_fails_or_is_absent_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(tensors: object) -> Callable[[], object]:
        raise ValueError("no such thing")

    def absent(tensors: object) -> Callable[[], object]:
        raise host.NotInstalled("not installed")

    def fails_later(tensors: object) -> Callable[[], object]:
        return lambda: 1 // 0

    monkeypatch.setattr(host, "Tensors", lambda torch, dtype, tuples: SimpleNamespace(tuples=tuples))
    makers = {"works": lambda tensors: lambda: None, "fails": fails, "later": fails_later, "absent": absent}
    contenders = {name: host.Contender(make) for name, make in makers.items()}
    monkeypatch.setattr(host, "CONTENDERS", contenders)
    monkeypatch.setattr(host, "MOST", 2)
    first, second = sections.tasks(stand_in(), ["host"], 0)
    assert [first.name, second.name] == list(host.DTYPES)
    row: dict[str, Any] = {"error": None}
    first.measure(row, Budget(0.001))
    assert list(row["us"]) == ["works, 1"]
    assert row["us"]["works, 1"]["median"] > 0
    assert row["error"].startswith("fails, 1: ValueError: no such thing; later, 1: ZeroDivisionError")
    assert row["absent"] == {"absent, 1": "not installed"}


def test_the_set_up_of_a_stored_choice_is_timed_with_an_empty_plan_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    cleared: list[None] = []

    class Layer:
        def __init__(self, **options: Any) -> None:
            self.prefer = options["prefer"]

        def forward(self, *_: Any, out: Any = None) -> None:
            called.append(self.prefer)

    monkeypatch.setattr(cudnnpy, "Convolution", Layer)
    monkeypatch.setattr(cudnnpy, "clear_cache", lambda: cleared.append(None))
    monkeypatch.setattr(stored, "operands", lambda torch, cell: [SimpleNamespace(x=1, w=2, dy=3, bias=None, out=4)])
    row: dict[str, Any] = {}
    stored.measure(stand_in(), network_cell("64x8x8 -> 64, 1x1"), row, Budget(0.01))
    assert len(called) == len(cleared) >= 2 * (2 + stored.LEAST)
    assert set(row["ms"]) == set(called) - {"autotune"} | {"stored"}


# The plot


def test_the_committed_plot_is_that_of_the_committed_rows() -> None:
    rows = Rows(sorted(plot.ROWS.glob("*.jsonl"))).rows
    assert len(rows) > 800
    text = plot.PICTURE.read_text(encoding="utf-8")
    assert text == plot.draw(rows.values()), "run python -m tools.benchmark.plot"
    assert len(text.splitlines()) < 200


# The parts and the command


def test_the_parts_have_rows_with_names_of_their_own() -> None:
    assert set(sections.PARTS) == {part for parts in sections.SECTIONS.values() for part in parts}
    every = sections.tasks(None, [part for part in sections.PARTS if part not in ("layers", "operations")], 0)
    assert len({task.key for task in every}) == len(every) > 150
    counts = {part: sum(task.part == part for task in every) for part in ("gpu", "store", "host")}
    assert counts == {"gpu": 84, "store": 12, "host": 2}
    kinds = {cell.kind.name for cell in sections.gpu_cells()}
    assert kinds == {"fp32 strict NCHW", "tf32 NHWC", "fp16 NHWC", "bf16 NHWC"}


def test_torch_compiles_ahead_what_more_than_one_row_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[tuple[list[str], float]] = []

    def compile_ahead(programs: Any, seconds: float) -> int:
        compiled.append(([program.name for program in programs], seconds))
        return 1

    monkeypatch.setattr("tools.benchmark.networks.compile_ahead.compile_ahead", compile_ahead)
    keys = {f"inference | mobilenet_v2 | batch {batch}" for batch in (1, 64)}
    program._compile_ahead({"inference | resnet50 | batch 1", "layers | a"}, 400.0)
    for seconds in (400.0, 4000.0):
        program._compile_ahead(keys, seconds)
    names = ["mobilenet_v2 | batch 1", "mobilenet_v2 | batch 64"]
    assert compiled == [(names, 50.0), (names, program.COMPILE_SECONDS)]


@pytest.mark.parametrize("error", [None, "autotune: wrong by 1"])
def test_the_summary_of_files_needs_no_gpu_and_a_failed_row_fails(
    error: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # an import of it fails
    rows = some_rows()
    rows[3]["error"] = error
    files = [write_rows(tmp_path / f"{n}.jsonl", f"r{n}", *some) for n, some in enumerate((rows[:3], rows[3:]))]
    assert program.main(["--merge", *map(str, files)]) == (1 if error else 0)
    assert ("FAILED layers" in capsys.readouterr().out) is (error is not None)


def test_a_run_measures_what_no_file_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = stand_in()
    torch.cuda.empty_cache = lambda: None
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(program, "environment", lambda *given: {"run": "r1", "seconds": 60.0, "GPU": "NVIDIA H200"})
    monkeypatch.setattr(program.runs, "leave", sys.exit)
    cells = sections.gpu_cells()
    monkeypatch.setattr(sections, "gpu_cells", lambda: cells[:4])
    measured: list[tuple[str, float | None]] = []
    monkeypatch.setattr(
        measure_layers, "measure", lambda torch, cell, row, seconds: measured.append((cell.name, seconds))
    )
    known = write_rows(
        tmp_path / "a.jsonl", "r0", {"key": f"gpu | {cells[0].name}", "part": "gpu", "name": "a", "error": None}
    )
    words = [
        "--only",
        "gpu",
        "--seed",
        "7",
        "--tune-seconds",
        "0.5",
        "--known",
        str(known),
        "--child",
        "--budget",
        "60",
    ]
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            program.main([*words, "--rows", str(tmp_path / "new.jsonl")])
        assert not ended.value.code
    assert measured == [(cell.name, 0.5) for cell in cells[1:4]]
    (run,) = Rows([tmp_path / "new.jsonl"]).runs.values()
    assert (run["GPU"], run["seed"]) == ("NVIDIA H200", 7)


def test_the_command_starts_a_child_with_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(runs, "supervise", lambda *given: started.append(given) or "exit status 1")
    assert program.main(["--only", "host", "--quick", "--out", str(tmp_path)]) == 1
    ((file, seconds, _, command),) = started
    assert (file.parent, seconds) == (tmp_path, program.QUICK_SECONDS)
    words = [
        "-m",
        "tools.benchmark",
        "--only",
        "host",
        "--quick",
        "--out",
        str(tmp_path),
        "--rows",
        str(file),
        "--child",
    ]
    assert command == words
    assert capsys.readouterr().out.splitlines() == [f"rows are in {file}; ended early: exit status 1", "no rows"]


def test_without_a_gpu_the_child_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch", stand_in(gpu=False))
    with pytest.raises(SystemExit, match="needs a CUDA GPU"):
        program.main(["--child", "--budget", "1", "--out", str(tmp_path)])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--budget", "0"], "--budget must be above 0; got 0.0"),
        (["--only", "networks", "--tune-seconds", "0"], "--tune-seconds must be above 0; got 0.0"),
        (["--only", "operations", "--part", "layers"], "--part: given without --only networks"),
    ],
)
def test_options_that_do_not_fit(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        program.main(words)
    assert expected in capsys.readouterr().err


def test_a_file_of_something_else_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("no rows\n")
    assert program.main(["--merge", str(file)]) == 1
    assert f"tools.benchmark: {file}, line 1: a row must be" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["--out", "/x/y", "--seed", "3"],
        ["--out=/x", "--seed", "3", "--child"],
        ["--known", "/x", "/y", "--seed", "3", "--rows", "/z"],
    ],
)
def test_the_recorded_command_names_no_files(words: list[str]) -> None:
    assert program.command(words) == "python -m tools.benchmark --seed 3"
