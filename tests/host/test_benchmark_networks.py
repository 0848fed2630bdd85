"""The figures, the page and the command of the benchmark of networks, without a GPU and without torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from network_rows import LINES, cell_row, network_cell, network_writer, some_rows

import cudnnpy
from tools.benchmark import __main__ as program
from tools.benchmark.networks import catalogue, measure_layers, measure_programs, page
from tools.benchmark.networks.catalogue import Network, layer
from tools.benchmark.networks.cells import Cell, in_order
from tools.benchmark.networks.figures import by_network, figures, groups, ratio, spread, worst

# --- the figures and the page


def test_a_row_that_failed_has_no_ratio() -> None:
    rows = some_rows()
    assert [ratio(row, "autotune") for row in rows[:4]] == [0.5, 2.0, pytest.approx(1.1), None]
    assert ratio(rows[4], "cudnnpy") is None
    assert [row["name"] for _, row in worst(rows[:4], "autotune", 2)] == [rows[1]["name"], rows[2]["name"]]


def test_the_share_counts_only_cells_that_take_long() -> None:
    found = spread(some_rows()[:4], "autotune")
    assert found is not None
    assert (found.cells, found.share, found.worst, found.worst_long) == (3, 0.5, 2.0, pytest.approx(1.1))
    assert found.mean == pytest.approx((0.5 * 2.0 * 1.1) ** (1 / 3))
    fastest = spread(some_rows()[:4], "fastest")
    assert fastest is not None
    assert fastest.share == 0.5  # 2.0 is above 1.10, 1.0 is not
    over = spread(some_rows()[:4], "fastest", "torch, no search")
    assert over is not None
    assert over.worst == 1.0
    assert spread(some_rows()[3:4], "autotune") is None


def test_rows_are_grouped_by_what_they_are() -> None:
    found = {name: len(rows) for name, rows in groups(some_rows()[:4]).items()}
    assert found["all"] == 4
    assert (found["fp16 NHWC"], found["fp32 strict NCHW"]) == (3, 1)
    assert (found["forward"], found["backward_data"]) == (3, 1)
    assert (found["depthwise"], found["transposed"], found["with a bias"]) == (1, 1, 1)
    assert (found["batch 1"], found["a training batch"]) == (3, 1)
    assert "1-D" not in found
    assert {name: len(rows) for name, rows in by_network(some_rows()).items()} == {"a": 3, "b": 1, "resnet50": 1}


def test_the_reaches_of_networks_are_the_promised_ones() -> None:
    layers, inference = [0.88, 0.01, 1.15, 0.98, 0.05, 1.5, 0.9, 1.1, 0.25, 3.0], [0.5, 0.5, 0.8, 0.8]
    assert [figure.reach for figure in figures([])] == [*layers, 1.0, 1.0, 0.95, 0.95, *inference]
    assert all(figure.reached is None for figure in figures([]))
    found = {figure.name: figure for figure in figures(some_rows())}
    assert found["layers, autotune: worst"].reached == 2.0
    assert found["depthwise layers, autotune: worst"].reached == 2.0
    assert found["training step of resnet50, batch 16, over torch"].verdict == "met"
    assert found["inference, cudnnpy over torch"].why == "docs/examples/torch_network.py is not there"


def test_the_page_tells_of_everything() -> None:
    runs = [{"run": "r1", "date": "2026-01-01", "GPU": "NVIDIA H200", "seed": 3, "code": "abc"}]
    text = page.markdown(some_rows(), runs, 42120)
    assert "# Networks on NVIDIA H200" in text
    assert "4 of 42,120 cells" in text
    assert f"- layers, {some_rows()[3]['name']}: autotune: wrong by 1" in text
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


# --- the command


def _files(tmp_path: Path, rows: list[dict[str, Any]]) -> list[str]:
    names = []
    for number, some in enumerate((rows[:3], rows[3:])):
        file = tmp_path / f"{number}.jsonl"
        writer = network_writer(file, f"r{number}", f"2026-01-0{number + 1}")
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
    rows = some_rows()
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
        row.update({name: value for name, value in cell_row(cell, 1.0, 1.0, 1.0).items() if name != "run"})

    monkeypatch.setattr(measure_layers, "measure", measure)
    known, out = tmp_path / "known.jsonl", tmp_path / "out"
    order = in_order(catalogue.read(), 7)
    writer = network_writer(known, "r0")
    writer.row(order[0].key, {**cell_row(order[0], 1.0, 1.0, 1.0), "run": "r0"})
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
        (["--seed", "3"], "--seed: given without --only networks or --only operations"),
        (["--only", "operations", "--part", "layers"], "--part: given without --only networks"),
        (["--only", "operations", "--only", "gpu"], "it is a run of its own"),
        (["--only", "gpu", "--merge", "a"], "--merge: given without --only networks"),
        (["--only", "networks", "--merge", "a", "--again"], "--again: given with --merge, which measures nothing"),
        (["--only", "networks", "--tune-seconds", "0"], "--tune-seconds must be above 0; got 0.0"),
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
