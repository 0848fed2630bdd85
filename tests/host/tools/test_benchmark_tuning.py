"""The benchmark of tuning: its list, addresses and summary, without a GPU and without torch."""

from __future__ import annotations

import json
import random
from typing import Any

from network_rows import cell_row, network_cell

from tools.benchmark import fresh, placed, tuning
from tools.benchmark.networks import catalogue
from tools.benchmark.runs import Rows

LEFT_OUT = catalogue.read(tuning.LIST)
DEPTHWISE = "48x8x8 -> 48, 3x3, padding 1, groups 48"


def _tuned(text: str = DEPTHWISE, seconds: float = 0.5, autotune: float = 0.5, **more: Any) -> dict[str, Any]:
    row = cell_row(network_cell(text), torch=1.0, fastest=1.0, autotune=autotune)
    row["plan_s"] = {"autotune": seconds}
    row["plans"]["autotune"] = {**row["plans"]["autotune"], "ms": 0.1}
    row |= {
        "in_time": seconds <= tuning.limit(2.0),
        "rejected": {"out of memory": 2},
        "faults": [],
        "stored_faults": [],
    }
    return row | {"warnings": [], "runs": {"count": 100, "wrong": 0, "changed": 0, "largest": 0.0}} | more


def network_row(text: str) -> dict[str, Any]:
    cell = network_cell(text)
    return {"key": cell.key, "part": "layers", "name": cell.name, "error": "the process ended"}


def test_no_layer_of_the_list_is_one_that_the_project_was_developed_on() -> None:
    layers = [layer._replace(bias=False) for network in LEFT_OUT for layer in network.layers]
    known = {layer._replace(bias=False) for network in catalogue.read() for layer in network.layers}
    assert known.isdisjoint(layers)
    assert len(set(layers)) == len(layers)
    head = f"# {len(LEFT_OUT)} networks, {len(layers)} distinct convolutions "
    text = tuning.LIST.read_text(encoding="utf-8")
    assert text.startswith(head)
    assert [line for line in text.splitlines() if "->" in line] == [
        layer.text for network in LEFT_OUT for layer in network.layers
    ]
    assert {layer.axes for layer in layers} == {1, 2, 3}
    assert sum(layer.depthwise for layer in layers) > 50
    assert sum(layer.groups > 1 and not layer.depthwise for layer in layers) > 20


def test_arrays_are_placed_apart_at_addresses_that_vary() -> None:
    draw, sizes, seen = random.Random(1), [100, 4096, 7, 64], set()
    for _ in range(200):
        offsets, gaps = placed.draw_offsets(sizes, draw)
        arrays = sorted((offset, offset + size) for offset, size in zip(offsets, sizes, strict=True))
        ends = [0, *(edge for pair in arrays for edge in pair), gaps[-1][1]]
        assert gaps == list(zip(ends[::2], ends[1::2], strict=True))
        assert min(end - start for start, end in gaps) >= 2
        assert all(offset % 16 == 0 for offset in offsets)
        assert gaps[-1][1] <= placed.buffer_size(sizes)
        seen.add((sizes.index(max(sizes)), tuple(sorted(range(4), key=offsets.__getitem__)), offsets[1] % 256))
    assert len(seen) > 100


def test_the_summary_counts_each_failure_once() -> None:
    made = [
        _tuned(),
        _tuned("64x8x8 -> 64, 3x3, groups 4", seconds=7.5, autotune=1.25),
        _tuned("64x8x8 -> 64, 1x1", faults=[["engine 3", "context lost: 700"]], stored_faults=["engine 3, tf32"]),
        _tuned("64x8x8 -> 64, 5x5", error="2 of 100 runs gave a wrong result"),
        {**_tuned("64x8x8 -> 64, 7x7", error="StatusError: 700"), "context_lost": True},
        {**network_row("64x9x9 -> 64, 7x7"), "process_ended": "no return within 60 s"},
    ]
    made[0]["plans"]["autotune"]["ms"] = None
    rows = Rows()
    rows.rows = {row["key"]: json.loads(json.dumps(row)) for row in made}
    found = tuning.lines(rows)
    for line in (
        "contexts lost: 1",
        "processes that ended or did not return: 1",
        "tuned later than 2 * tune_seconds + 3 s: 1",
        "wrong results, bytes changed, other errors: 1",
        "without a measured choice (20.00%): 1",
        "plans run at varied addresses: 5, 500 runs, fewest 100",
        "seconds to tune, depthwise: 1 problems, median 0.50, most 0.50",
        "seconds to tune, grouped: 1 problems, median 7.50, most 7.50",
        "    autotune, fp16 NHWC, all: 3 rows, mean 0.679, 33.3% above the limit, worst 1.250",
        "    autotune, fp16 NHWC, grouped: 1 rows, mean 1.250, 100.0% above the limit, worst 1.250",
        "autotune above 1.05: 1",
        "rejected: 10",
        "faults stored: 1",
    ):
        assert line in found


def test_an_engine_is_caught_by_its_name_alone() -> None:
    row = {"error": None, "problem": 3, "faults": [["engine 18 (multiply=0)", "limit exceeded"]], "stored_faults": []}
    assert fresh.is_caught(row)
    assert not fresh.is_caught({**row, "faults": [["engine 18 (multiply=1)", "limit exceeded"]]})
    assert not fresh.is_caught({**row, "problem": 1})
    assert not fresh.is_caught({**row, "error": "exit status 1"})
    assert fresh.is_caught({**row, "faults": [], "stored_faults": ["Fault(engine 18 (multiply=0), ...)"]})
    assert [len(fresh.jobs(part, 2, None)) for part in fresh.JOBS] == [8, 8, 2]


def test_runs_that_changed_other_bytes_are_told_of() -> None:
    runs = {"count": 100, "wrong": 0, "changed": 0, "largest": 1e-7}
    assert tuning.wrong(runs) == ""
    assert tuning.wrong({**runs, "changed": 1}) == "1 of 100 runs changed bytes that are not their result"
    assert tuning.wrong({**runs, "wrong": 2, "largest": 0.5}).endswith("(largest difference 0.5)")
