"""Rows of the benchmark of networks, as its tests make them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tools.benchmark.networks import measure_layers, measure_programs
from tools.benchmark.networks.catalogue import layer
from tools.benchmark.networks.cells import KINDS, Cell
from tools.rows import Writer

LINES = (
    "64x56x56 -> 128, 3x3",
    "3x224x224 -> 64, 7x7, stride 2, padding 3",
    "512x17x17 -> 512, 1x7, padding 0x3, groups 512",
    "128x128x128 -> 64, 3x3, stride 2, padding 1, transposed, output padding 1, bias",
    "512x3999 -> 512, 3, padding 64, dilation 64, groups 512, bias",
    "3x16x224x224 -> 24, 1x3x3, stride 1x2x2, padding 0x1x1",
)


def write_rows(file: Path, run: str, *rows: dict[str, Any]) -> Path:
    """Write a file with one run."""
    writer = Writer(file)
    writer.add({"run": run, "date": "2026-01-01", "GPU": "NVIDIA H200"})
    for row in rows:
        writer.add({**row, "run": run})
    writer.close()
    return file


def _ms(torch: float, fastest: float, autotune: float) -> dict[str, Any]:
    times = {"torch": torch, "torch, again": torch, "torch, no search": 2 * torch}
    times |= {"fastest": fastest, "autotune": autotune}
    return {name: {"median": value, "low": value, "high": value, "runs": 5} for name, value in times.items()}


def cell_row(cell: Cell, torch: float, fastest: float, autotune: float, error: str | None = None) -> dict[str, Any]:
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


def network_cell(text: str, batch: int = 1, kind: int = 0, operation: str = "forward", networks: Any = ("a",)) -> Cell:
    return Cell(layer(text), batch, KINDS[kind], operation, tuple(networks))


def program_row(part: str, network: str, batch: int, **times: float) -> dict[str, Any]:
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


def some_rows() -> list[dict[str, Any]]:
    return [
        cell_row(network_cell(LINES[0]), torch=1.0, fastest=2.0, autotune=0.5),
        cell_row(network_cell(LINES[2], networks=("a", "b")), torch=0.010, fastest=0.010, autotune=0.020),
        cell_row(network_cell(LINES[1], 64, 4, "backward_data", ("resnet50",)), torch=1.0, fastest=1.0, autotune=1.1),
        cell_row(network_cell(LINES[3]), torch=1.0, fastest=0.1, autotune=0.1, error="autotune: wrong by 1"),
        program_row("inference", "resnet50", 1, torch=1.0),
        program_row("training", "resnet50", 16, torch=2.0, cudnnpy=1.0),
    ]
