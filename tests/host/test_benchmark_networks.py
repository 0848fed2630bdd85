"""The benchmark of networks without a GPU and without torch: the list, the order by seed, the rows in files, the page."""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cudnnpy
from tools.benchmark import __main__ as program
from tools.benchmark.networks import catalogue, command, measure_layers, measure_programs, page, tables
from tools.benchmark.networks.catalogue import Layer, Network, layer
from tools.benchmark.networks.cells import KINDS, Cell, cells, in_order
from tools.benchmark.networks.command import Task
from tools.benchmark.networks.figures import by_network, failures, figures, groups, ratio, spread, worst
from tools.benchmark.networks.store import Rows, Writer

NETWORKS = catalogue.read()
LINES = (
    "64x56x56 -> 128, 3x3",
    "3x224x224 -> 64, 7x7, stride 2, padding 3",
    "512x17x17 -> 512, 1x7, padding 0x3, groups 512",
    "128x128x128 -> 64, 3x3, stride 2, padding 1, transposed, output padding 1, bias",
    "512x3999 -> 512, 3, padding 64, dilation 64, groups 512, bias",
    "3x16x224x224 -> 24, 1x3x3, stride 1x2x2, padding 0x1x1",
)


# --- the list


def test_the_list_has_the_networks_that_it_is_to_have() -> None:
    names = {network.name for network in NETWORKS}
    wanted = (
        "resnet vgg mobilenet_v2 mobilenet_v3 efficientnet convnext regnet resnext densenet inception googlenet "
        "shufflenet mnasnet alexnet squeezenet deeplab fcn r3d mc3 r2plus1d unet unet_3d stable_diffusion_unet "
        "stable_diffusion_decoder dcgan pix2pix whisper wavenet vit swin"
    )
    assert len(names) >= 25
    assert [name for name in wanted.split() if not any(other.startswith(name) for other in names)] == []
    assert all(network.batch > 1 and network.layers for network in NETWORKS)
    layers = {layer for network in NETWORKS for layer in network.layers}
    assert {layer.axes for layer in layers} == {1, 2, 3}
    assert all(any(test(layer) for layer in layers) for test in (attrgetter("transposed"), attrgetter("depthwise")))
    assert any(max(layer.output_padding) for layer in layers)
    assert len(next(network for network in NETWORKS if network.name == "resnet50").layers) == 23


def test_the_committed_list_is_what_is_written_from_it() -> None:
    assert catalogue.FILE.read_text(encoding="utf-8") == catalogue.write(NETWORKS)


def test_the_networks_of_the_tables_are_in_the_list_as_they_are() -> None:
    listed = {network.name: network for network in NETWORKS}
    assert len(tables.networks()) > 15
    for network in tables.networks():
        assert listed[network.name] == network, "run python -m tools.benchmark.networks.collect"


@pytest.mark.parametrize("line", LINES)
def test_a_line_reads_back(line: str) -> None:
    assert layer(line).text == line


def test_a_line_says_what_it_says() -> None:
    made = layer(LINES[3])
    assert made == Layer(128, (128, 128), 64, (3, 3), (2, 2), (1, 1), (1, 1), (1, 1), 1, True, True)
    assert (made.x_shape(4), made.w_shape, made.y_shape(4)) == ((4, 128, 128, 128), (128, 64, 3, 3), (4, 64, 256, 256))
    assert made.operations(4) == 2 * 4 * 128 * 128 * 128 * 64 * 9
    plain = layer(LINES[2])
    assert (plain.w_shape, plain.y_shape(2), plain.depthwise) == ((512, 1, 1, 7), (2, 512, 17, 17), True)
    assert plain.operations(2) == 2 * 2 * 512 * 17 * 17 * 7
    assert layer("64x8x8 -> 64, 1x1").moved_bytes(2, 2) == 2 * (2 * 64 * 64 + 64 * 64 + 2 * 64 * 64)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("64x56x56", "expected a line like"),
        ("64x56x56 -> 128, 3x3, strides 2", "unknown option 'strides 2'"),
        ("64x56x56 -> 128, 3x3x3", "expected 2 numbers for each option, or one"),
        ("64x56x56 -> 128, 3x3, padding 1x1x1", "expected 2 numbers for each option, or one"),
        ("64x56x56 -> 128, 3x3, padding -1", "expected whole numbers"),
        ("64x56x56 -> 128, 3x3, groups 3", "groups that divide the channels"),
        ("64x2x2 -> 128, 3x3", "and a result"),
    ],
)
def test_a_line_that_is_none_is_refused_with_its_number(text: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=expected):
        layer(text)
    file = tmp_path / "list.txt"
    file.write_text(f"# a list\n[net] batch 2, here\n{text}\n")
    with pytest.raises(ValueError, match=r"list\.txt, line 3: .*" + expected):
        catalogue.read(file)


@pytest.mark.parametrize(
    "text", ["64x8x8 -> 64, 1x1\n", "[a]\n", "[a] batch 2, x\n8x8x8 -> 8, 1x1\n[a] batch 2, x\n8x8x8 -> 8, 1x1\n"]
)
def test_a_list_without_its_networks_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "list.txt"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"list\.txt, line"):
        catalogue.read(file)


# --- the order of the cells


def test_each_distinct_cell_comes_once_with_all_its_networks() -> None:
    order = in_order(NETWORKS, 0)
    assert len({cell.key for cell in order}) == len(order)
    assert {cell.key for cell in order} == {cell.key for of in cells(NETWORKS).values() for cell in of}
    shared = layer("64x56x56 -> 64, 3x3, padding 1")
    having = tuple(network.name for network in NETWORKS if shared in network.layers)
    assert len(having) > 1
    assert {cell.networks for cell in order if cell.layer == shared and cell.batch == 1} == {having}
    assert {(cell.kind.name, cell.operation) for cell in order if cell.layer == shared} == {
        (kind.name, operation) for kind in KINDS for operation in ("forward", "backward_data", "backward_filter")
    }


def test_the_seed_draws_the_order() -> None:
    first = [cell.key for cell in in_order(NETWORKS, 1)]
    assert first == [cell.key for cell in in_order(NETWORKS, 1)]
    other = [cell.key for cell in in_order(NETWORKS, 2)]
    assert set(first) == set(other)
    assert len(set(first[:200]) & set(other[:200])) < 40


def test_a_short_sample_has_every_network_and_every_kind() -> None:
    sample = in_order(NETWORKS, 3)[: 2 * len(NETWORKS)]
    drawn = Counter(network for cell in sample for network in cell.networks)
    assert set(drawn) == {network.name for network in NETWORKS}
    assert {cell.kind for cell in sample} == set(KINDS)


def test_a_training_batch_of_one_is_no_second_cell() -> None:
    network = Network("a", 1, "here", (layer(LINES[0]),))
    assert len(in_order([network], 0)) == len(KINDS) * 3


# --- rows in files


def _writer(file: Path, run: str, date: str = "2026-01-01") -> Writer:
    return Writer(file, {"run": run, "date": date, "GPU": "NVIDIA H200"})


def _row(**more: Any) -> dict[str, Any]:
    return {"part": "layers", "name": "a cell", "error": None, **more}


def test_rows_are_in_the_file_as_soon_as_they_are_done(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    writer = _writer(file, "r1")
    writer.begin("layers | a")
    writer.row("layers | a", _row(value=1))
    found = Rows.read([file])
    assert found.is_done("layers | a")
    assert not found.is_done("layers | b")
    assert found.rows["layers | a"] == {"key": "layers | a", "run": "r1", **_row(value=1)}
    assert found.runs["r1"]["GPU"] == "NVIDIA H200"
    writer.close()


def test_a_line_that_was_cut_off_is_passed_over_and_replaced(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    writer = _writer(file, "r1")
    writer.row("layers | a", _row())
    writer.close()
    with file.open("a") as stream:
        stream.write('{"key": "layers | b", "ru')
    assert set(Rows.read([file]).rows) == {"layers | a"}
    writer = _writer(file, "r2", "2026-01-02")
    writer.row("layers | b", _row())
    writer.close()
    assert set(Rows.read([file]).rows) == {"layers | a", "layers | b"}


def test_the_union_of_files_takes_the_newest_run_whatever_their_order(tmp_path: Path) -> None:
    files = [tmp_path / "old.jsonl", tmp_path / "new.jsonl"]
    for number, file in enumerate(files, 1):
        writer = _writer(file, f"r{number}", f"2026-01-0{number}")
        writer.row("layers | both", _row(value=number))
        writer.row(f"layers | only {number}", _row())
        writer.close()
    for order in (files, files[::-1]):
        found = Rows.read(order)
        assert set(found.rows) == {"layers | both", "layers | only 1", "layers | only 2"}
        assert found.rows["layers | both"]["value"] == 2
        assert set(found.runs) == {"r1", "r2"}


def test_a_row_that_ends_its_process_twice_is_a_failed_one(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    for run in ("r1", "r2"):
        assert not (file.exists() and Rows.read([file]).is_done("layers | bad"))
        writer = _writer(file, run)
        writer.begin("layers | bad")
        writer.close()
    found = Rows.read([file])
    assert found.is_done("layers | bad")
    assert not found.is_done("layers | bad", again=True)
    assert failures(found.all()) == ["layers, bad: the process ended while this was measured, 2 times"]


def test_a_row_that_was_given_up_is_measured_later(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    writer = _writer(file, "r1")
    for _ in range(3):
        writer.begin("layers | a")
        writer.stop("layers | a")
    writer.close()
    found = Rows.read([file])
    assert not found.is_done("layers | a")
    assert found.all() == []


def test_a_failed_row_is_done_unless_it_is_wanted_again(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    writer = _writer(file, "r1")
    writer.row("layers | a", _row(error="wrong"))
    writer.close()
    assert Rows.read([file]).is_done("layers | a")
    assert not Rows.read([file]).is_done("layers | a", again=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("not JSON\n", r"line 1: not JSON"),
        ('{"layers": 1}\n', r"line 1: no row of a run"),
        ('{"key": "layers | a", "run": "r1", "part": "layers", "name": "a", "error": null}\n', r"run 'r1' is not in"),
        ('{"run": "r1"}\n{"key": "layers | a", "run": "r1"}\n', r"line 2: a row without its part"),
    ],
)
def test_a_file_of_something_else_is_refused(text: str, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(text)
    with pytest.raises(ValueError, match=expected):
        Rows.read([file])


# --- measuring, with a GPU that is none


def _gpu(fails_after: int = 10**9) -> Any:
    calls = []

    def synchronize() -> None:
        calls.append(1)
        if len(calls) > fails_after:
            raise RuntimeError("an illegal memory access was encountered")

    return SimpleNamespace(cuda=SimpleNamespace(synchronize=synchronize, empty_cache=lambda: None))


def _tasks(count: int, measure: Any, part: str = "layers") -> list[Task]:
    def task(number: int) -> Task:
        return Task(part, f"{part} | {number}", str(number), lambda row: measure(number, row))

    return [task(number) for number in range(count)]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr("tools.benchmark.networks.command.Budget.__init__.__defaults__", (found,))
    return found


def test_a_run_ends_before_its_time_and_the_next_goes_on(clock: Clock, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"

    def measure(number: int, row: dict[str, Any]) -> None:
        clock.now += 7.0

    for run, total in (("r1", 4), ("r2", 8), ("r3", 10), ("r4", 10)):
        rows = Rows.read([file] if file.exists() else [])
        writer = _writer(file, run)
        begin = clock.now
        assert command.measure(_gpu(), _tasks(10, measure), rows, writer, 30.0) == ""
        writer.close()
        assert clock.now - begin <= 30
        assert len(rows.rows) == len(Rows.read([file]).rows) == total
    assert [row["run"] for row in Rows.read([file]).rows.values()] == ["r1"] * 4 + ["r2"] * 4 + ["r3"] * 2


def test_parts_share_the_time_and_a_part_that_is_done_leaves_its_own(clock: Clock, tmp_path: Path) -> None:
    def measure(number: int, row: dict[str, Any]) -> None:
        clock.now += 10.0

    tasks = _tasks(100, measure, "inference") + _tasks(100, measure, "layers")
    rows = Rows()
    writer = _writer(tmp_path / "a.jsonl", "r1")
    command.measure(_gpu(), tasks, rows, writer, 850.0)
    counts = Counter(row["part"] for row in rows.rows.values())
    assert counts == {"inference": 25, "layers": 60}
    rows = Rows()
    command.measure(_gpu(), tasks[90:], rows, writer, 850.0)
    writer.close()
    assert Counter(row["part"] for row in rows.rows.values()) == {"inference": 10, "layers": 75}


def test_a_row_that_raises_is_a_failed_row_and_the_others_follow(tmp_path: Path) -> None:
    def measure(number: int, row: dict[str, Any]) -> None:
        row["flop"] = number
        if number == 1:
            raise MemoryError("too large")

    rows = Rows()
    writer = _writer(tmp_path / "a.jsonl", "r1")
    assert command.measure(_gpu(), _tasks(3, measure), rows, writer, 60.0) == ""
    writer.close()
    assert [row["error"] for row in rows.rows.values()] == [None, "MemoryError: too large", None]
    assert rows.rows["layers | 1"]["flop"] == 1


def test_a_lost_gpu_ends_the_run_after_the_row_that_lost_it(tmp_path: Path) -> None:
    rows = Rows()
    file = tmp_path / "a.jsonl"
    writer = _writer(file, "r1")
    why = command.measure(_gpu(fails_after=2), _tasks(9, lambda number, row: None), rows, writer, 60.0)
    writer.close()
    assert "illegal memory access" in why
    assert len(Rows.read([file]).rows) == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_run_keeps_its_rows_and_gives_up_the_one_it_was_at(number: int, tmp_path: Path) -> None:
    def measure(at: int, row: dict[str, Any]) -> None:
        if at == 2:
            signal.raise_signal(number)

    before = signal.getsignal(signal.SIGTERM)
    file = tmp_path / "a.jsonl"
    writer = _writer(file, "r1")
    assert command.measure(_gpu(), _tasks(9, measure), Rows(), writer, 60.0).startswith("stopped")
    writer.close()
    assert set(Rows.read([file]).rows) == {"layers | 0", "layers | 1"}
    assert json.loads(file.read_text().splitlines()[-1]) == {"stopped": "layers | 2", "run": "r1"}
    assert signal.getsignal(signal.SIGTERM) == before


# --- the figures and the page


def _ms(torch: float, fastest: float, autotune: float) -> dict[str, Any]:
    times = {"torch": torch, "torch, again": torch, "torch, no search": 2 * torch}
    times |= {"fastest": fastest, "autotune": autotune}
    return {name: {"median": value, "low": value, "high": value, "runs": 5} for name, value in times.items()}


def _cell_row(cell: Cell, torch: float, fastest: float, autotune: float, error: str | None = None) -> dict[str, Any]:
    plan = {"name": "engine 7", "engine": {"index": 7, "knobs": []}, "workspace": 0, "source": "heuristics"}
    return {
        "key": cell.key,
        "run": "r1",
        "part": "layers",
        "name": cell.name,
        **json.loads(json.dumps(measure_layers.facts(cell))),
        "error": error,
        "plans": {"fastest": plan, "autotune": plan},
        "plan_s": {"fastest": 0.01, "autotune": 0.2},
        "torch_search_s": 0.1,
        "ms": _ms(torch, fastest, autotune),
    }


def _cell(text: str, batch: int = 1, kind: int = 0, operation: str = "forward", networks: Any = ("a",)) -> Cell:
    return Cell(layer(text), batch, KINDS[kind], operation, tuple(networks))


def _program_row(part: str, network: str, batch: int, **times: float) -> dict[str, Any]:
    row = measure_programs.Program(part, network, batch)
    ms = {name: {"median": value, "low": value, "high": value, "runs": 5} for name, value in times.items()}
    return {
        "key": row.key,
        "run": "r1",
        "part": part,
        "name": row.name,
        "network": network,
        "batch": batch,
        "error": None,
        "ms": ms,
        "absent": {} if "cudnnpy" in times else {"cudnnpy": "docs/examples/torch_network.py is not there"},
    }


def _rows() -> list[dict[str, Any]]:
    return [
        _cell_row(_cell(LINES[0]), torch=1.0, fastest=2.0, autotune=0.5),
        _cell_row(_cell(LINES[2], networks=("a", "b")), torch=0.010, fastest=0.010, autotune=0.020),
        _cell_row(_cell(LINES[1], 64, 4, "backward_data", ("resnet50",)), torch=1.0, fastest=1.0, autotune=1.1),
        _cell_row(_cell(LINES[3]), torch=1.0, fastest=0.1, autotune=0.1, error="autotune: wrong by 1"),
        _program_row("inference", "resnet50", 1, torch=1.0),
        _program_row("training", "resnet50", 16, torch=2.0, cudnnpy=1.0),
    ]


def test_a_row_that_failed_has_no_ratio() -> None:
    rows = _rows()
    assert [ratio(row, "autotune") for row in rows[:4]] == [0.5, 2.0, pytest.approx(1.1), None]
    assert ratio(rows[4], "cudnnpy") is None
    assert [row["name"] for _, row in worst(rows[:4], "autotune", 2)] == [rows[1]["name"], rows[2]["name"]]


def test_the_share_counts_only_cells_that_take_long() -> None:
    found = spread(_rows()[:4], "autotune")
    assert found is not None
    assert (found.cells, found.share, found.worst, found.worst_long) == (3, 0.5, 2.0, pytest.approx(1.1))
    assert found.mean == pytest.approx((0.5 * 2.0 * 1.1) ** (1 / 3))
    fastest = spread(_rows()[:4], "fastest")
    assert fastest is not None
    assert fastest.share == 0.5  # 2.0 is above 1.10, 1.0 is not
    over = spread(_rows()[:4], "fastest", "torch, no search")
    assert over is not None
    assert over.worst == 1.0
    assert spread(_rows()[3:4], "autotune") is None


def test_rows_are_grouped_by_what_they_are() -> None:
    found = {name: len(rows) for name, rows in groups(_rows()[:4]).items()}
    assert found["all"] == 4
    assert (found["fp16 NHWC"], found["fp32 strict NCHW"]) == (3, 1)
    assert (found["forward"], found["backward_data"]) == (3, 1)
    assert (found["depthwise"], found["transposed"], found["with a bias"]) == (1, 1, 1)
    assert (found["batch 1"], found["a training batch"]) == (3, 1)
    assert "1-D" not in found
    assert {name: len(rows) for name, rows in by_network(_rows()).items()} == {"a": 3, "b": 1, "resnet50": 1}


def test_the_reaches_of_networks_are_the_promised_ones() -> None:
    layers, inference = [0.88, 0.01, 1.15, 0.98, 0.05, 1.5, 0.9, 1.1, 0.25, 3.0], [0.5, 0.5, 0.8, 0.8]
    assert [figure.reach for figure in figures([])] == [*layers, 1.0, 1.0, 0.95, 0.95, *inference]
    assert all(figure.reached is None for figure in figures([]))
    found = {figure.name: figure for figure in figures(_rows())}
    assert found["layers, autotune: worst"].reached == 2.0
    assert found["depthwise layers, autotune: worst"].reached == 2.0
    assert found["training step of resnet50, batch 16, over torch"].verdict == "met"
    assert found["inference, cudnnpy over torch"].why == "docs/examples/torch_network.py is not there"


def test_the_page_tells_of_everything() -> None:
    runs = [{"run": "r1", "date": "2026-01-01", "GPU": "NVIDIA H200", "seed": 3, "code": "abc"}]
    text = page.markdown(_rows(), runs, 42120)
    assert "# Networks on NVIDIA H200" in text
    assert "4 of 42,120 cells" in text
    assert f"- layers, {_rows()[3]['name']}: autotune: wrong by 1" in text
    assert (
        "| all | 4 | 1.032 | 50.0 % | 2.000 | 1.100 | 1.260 | 50.0 % | 2.000 | 2.000 | 2.000 | 0.630 | 1.000 |" in text
    )
    assert "### Slowest of autotune against torch" in text
    assert "docs/examples/torch_network.py is not there" in text
    assert "| seed | 3 |" in text
    for block in text.split("\n\n"):
        counts = {line.replace("\\|", "").count("|") for line in block.splitlines() if line.startswith("|")}
        assert len(counts) <= 1, block


def test_a_row_has_what_a_table_of_measurements_needs() -> None:
    found = measure_layers.facts(_cell(LINES[3], 2))
    problem = found["problem"]
    assert (problem["x"], problem["w"], problem["y"]) == ((2, 128, 128, 128), (128, 64, 3, 3), (2, 64, 256, 256))
    assert (problem["transposed"], problem["output_padding"], problem["with_bias"]) == (True, (1, 1), True)
    assert (problem["dtype"], problem["channels_last"], problem["tf32"]) == ("float16", True, True)
    assert not measure_layers.facts(_cell(LINES[3], 2, operation="backward_filter"))["problem"]["with_bias"]
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


# --- the command


def _files(tmp_path: Path, rows: list[dict[str, Any]]) -> list[str]:
    names = []
    for number, some in enumerate((rows[:3], rows[3:])):
        file = tmp_path / f"{number}.jsonl"
        writer = _writer(file, f"r{number}", f"2026-01-0{number + 1}")
        for row in some:
            writer.row(row["key"], {name: value for name, value in row.items() if name not in ("key", "run")})
        writer.close()
        names.append(str(file))
    return names


@pytest.mark.parametrize("failing", [True, False])
def test_merging_needs_no_gpu_and_a_wrong_row_fails(
    failing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # an import of it fails
    rows = _rows()
    rows[3]["error"] = "autotune: wrong by 1" if failing else None
    out = tmp_path / "out"
    status = program.main(["--only", "networks", "--merge", *_files(tmp_path, rows), "--out", str(out)])
    assert status == (1 if failing else 0)
    assert [file.name for file in out.iterdir()] == ["nvidia-h200-networks.md"]
    text = (out / "nvidia-h200-networks.md").read_text()
    assert "4 of 42,120 cells" in text
    assert "| rows | 3 | 3 |" in text
    assert ("FAILED layers" in capsys.readouterr().out) is failing


def test_a_run_measures_what_no_file_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = SimpleNamespace(
        cuda=SimpleNamespace(
            is_available=lambda: True,
            get_device_capability=lambda device: (9, 0),
            synchronize=lambda: None,
            empty_cache=lambda: None,
        )
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(program, "environment", lambda *given: {"GPU": "NVIDIA H200", "date": "today"})
    monkeypatch.setattr(catalogue, "read", lambda: [Network("a", 2, "here", (layer(LINES[0]),))])
    measured: list[str] = []

    def measure(torch: Any, cell: Cell, row: dict[str, Any], tune_seconds: float | None) -> None:
        measured.append(cell.key)
        assert tune_seconds == 0.5
        row.update({name: value for name, value in _cell_row(cell, 1.0, 1.0, 1.0).items() if name != "run"})

    monkeypatch.setattr(measure_layers, "measure", measure)
    known, out = tmp_path / "known.jsonl", tmp_path / "out"
    order = in_order(catalogue.read(), 7)
    writer = _writer(known, "r0")
    writer.row(order[0].key, {**_cell_row(order[0], 1.0, 1.0, 1.0), "run": "r0"})
    writer.close()
    given = ["--only", "networks", "--part", "layers", "--seed", "7", "--tune-seconds", "0.5"]
    given += ["--known", str(known), "--rows", str(tmp_path / "new.jsonl"), "--out", str(out)]
    assert program.main(given) == 0
    assert measured == [cell.key for cell in order[1:]]
    header = json.loads((tmp_path / "new.jsonl").read_text().splitlines()[0])
    assert (header["seed"], header["parts"], header["GPU capability"]) == (7, ["layers"], "9.0")
    assert header["date"].startswith("20")
    assert "36 of 36 cells" in (out / "nvidia-h200-networks.md").read_text()
    assert program.main(given) == 0
    assert len(measured) == 35


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--only", "networks", "--only", "host"], "it is a run of its own"),
        (["--only", "networks", "--quick"], "it is a run of its own"),
        (["--seed", "3"], "--seed: given without --only networks"),
        (["--only", "gpu", "--merge", "a"], "--merge: given without --only networks"),
        (["--only", "networks", "--merge", "a", "--again"], "--again: given with --merge, which measures nothing"),
        (["--only", "networks", "--tune-seconds", "0"], "--tune-seconds: 0.0 given; expected seconds above 0"),
    ],
)
def test_options_that_do_not_go_together(given: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        program.main(given)
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("text", [None, "no rows\n"])
def test_files_that_cannot_be_read_are_named(text: str | None, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SystemExit, match=r"rows: .*rows\.jsonl"):
        program.main(["--only", "networks", "--merge", str(file), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("off", "allowed"), [(0.001, 0.002), (0.2, 0.4), (0.6, 0.8), (0.99, 0.995)])
def test_a_network_of_zeros_is_never_right(off: float, allowed: float) -> None:
    assert measure_programs.allowance(off) == pytest.approx(allowed)


def test_the_recorded_command_tells_no_files() -> None:
    given = ["--only", "networks", "--known", "/x/a", "/x/b", "--seed", "3", "--rows", "/x/c", "--again"]
    assert program.command(given) == "python -m tools.benchmark --only networks --seed 3 --again"
