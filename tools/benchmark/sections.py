"""The parts of the benchmark, and the rows of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from tools.benchmark import cache, host, operations, stored
from tools.benchmark.networks import catalogue, measure_layers, measure_programs
from tools.benchmark.networks.cells import KINDS, OPERATIONS, Cell, in_order
from tools.benchmark.networks.measure_programs import INFERENCE, TRAINING
from tools.benchmark.runs import Part, Task
from tools.benchmark.timing import Budget

PARTS = {
    "host": Part(0.12),
    "gpu": Part(0.75),
    "cache": Part(0.18),
    "store": Part(0.05),
    "host operations": Part(0.05),
    "operations": Part(0.28, 4.0),
    "inference": Part(0.25, 20.0),
    "training": Part(0.15, 40.0),
    "layers": Part(0.60, 5.0),
}
NETWORKS = ("inference", "training", "layers")
# the value of --only -> its parts
SECTIONS: dict[str, tuple[str, ...]] = {
    "host": ("host",),
    "gpu": ("gpu",),
    "cache": ("cache",),
    "store": ("store",),
    "operations": ("host operations", "operations"),
    "networks": NETWORKS,
}
TUNE_SECONDS = 5.0  # of a cell of the part gpu, if its budget allows

GPU_BATCH = 128
GPU_KINDS = [kind for kind in KINDS if kind.name in ("fp32 strict NCHW", "tf32 NHWC", "fp16 NHWC", "bf16 NHWC")]
GPU_LAYERS = tuple(  # of ResNet-50
    map(
        catalogue.layer,
        (
            "3x224x224 -> 64, 7x7, stride 2, padding 3",
            "64x56x56 -> 256, 1x1",
            "64x56x56 -> 64, 3x3, padding 1",
            "128x56x56 -> 128, 3x3, stride 2, padding 1",
            "128x28x28 -> 128, 3x3, padding 1",
            "256x14x14 -> 256, 3x3, padding 1",
            "512x7x7 -> 512, 3x3, padding 1",
        ),
    )
)


def gpu_cells() -> list[Cell]:
    """Return the cells of the part gpu: seven layers in four kinds of arithmetic and three directions."""
    return [
        Cell(layer, GPU_BATCH, kind, operation, ("resnet50",))
        for kind in GPU_KINDS
        for layer in GPU_LAYERS
        for operation in OPERATIONS
    ]


def tasks(torch: Any, parts: Iterable[str], seed: int, tune_seconds: float | None = None) -> list[Task]:
    """Return the tasks of some parts; the seed draws the order of operations and layers."""
    makers: dict[str, Callable[[], Iterator[Task]]] = {
        "host": lambda: (Task("host", dtype, partial(host.measure, torch, dtype)) for dtype in host.DTYPES),
        "gpu": lambda: (_cell(torch, "gpu", cell, tune_seconds) for cell in gpu_cells()),
        "cache": lambda: iter([Task("cache", "signatures", partial(cache.measure, torch))]),
        "store": lambda: (Task("store", cell.name, partial(stored.measure, torch, cell)) for cell in gpu_cells()[::7]),
        "host operations": lambda: operations.host_tasks(torch),
        "operations": lambda: operations.tasks(torch, seed),
        "inference": lambda: _programs(torch, INFERENCE, tune_seconds),
        "training": lambda: _programs(torch, TRAINING, tune_seconds),
        "layers": lambda: (_cell(torch, "layers", cell, tune_seconds) for cell in in_order(catalogue.read(), seed)),
    }
    return [task for part in parts for task in makers[part]()]


def _cell(torch: Any, part: str, cell: Cell, tune_seconds: float | None) -> Task:
    def measure(row: dict[str, Any], budget: Budget) -> None:
        seconds = tune_seconds
        if part == "gpu" and seconds is None:
            seconds = min(TUNE_SECONDS, max(0.6 * budget.left, 0.1))
        measure_layers.measure(torch, cell, row, seconds)

    return Task(part, cell.name, measure)


def _programs(torch: Any, programs: Sequence[measure_programs.Program], tune_seconds: float | None) -> Iterator[Task]:
    for program in programs:

        def measure(row: dict[str, Any], budget: Budget, program: measure_programs.Program = program) -> None:
            measure_programs.measure(torch, program, row, tune_seconds)

        yield Task(program.part, program.name, measure)
