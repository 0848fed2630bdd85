"""A child process that plans convolutions with prefer="autotune" and the store of CUDNNPY_STORE.

    python tests/gpu/store_child.py TUNE_SECONDS [START]

It prints a line of JSON: for each problem what was chosen, the seconds in which something was measured, and the milliseconds
to plan with the store and with prefer="fastest". With START it begins when that file exists, as its siblings do.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import cudnnpy
from cudnnpy import Convolution, TensorSpec, store
from cudnnpy._core.layouts import channels_last_strides
from cudnnpy.tuning.chooser import TuningChooser

BATCH = 16
# channels, filters, size of the image, size of the filter, stride: those of ResNet-50
LAYERS = (
    (3, 64, 224, 7, 2),
    (64, 64, 56, 1, 1),
    (64, 64, 56, 3, 1),
    (64, 256, 56, 1, 1),
    (128, 128, 28, 3, 1),
    (256, 512, 56, 1, 2),
    (256, 256, 14, 3, 1),
    (512, 512, 7, 3, 1),
)
TIMES = 10

seconds = 0.0


def timed(chooser: TuningChooser, *given: Any) -> Any:
    """In place of TuningChooser._measured: notes how long it takes."""
    global seconds
    begin = time.perf_counter()
    try:
        return measure(chooser, *given)
    finally:
        seconds += time.perf_counter() - begin


measure = TuningChooser._measured


def problems() -> list[tuple[int, int, str, tuple[Any, ...]]]:
    """The padding and the stride, the operation and the arguments of each problem."""
    found = []
    for channels, filters, size, kernel, stride in LAYERS:
        shapes = (
            (BATCH, channels, size, size),
            (filters, channels, kernel, kernel),
            (BATCH, filters, *[size // stride] * 2),
        )
        x, w, y = (TensorSpec(shape, "float16", channels_last_strides(shape)) for shape in shapes)
        of = {"forward": (x, w), "backward_data": (y, w, shapes[0]), "backward_filter": (y, x, shapes[1])}
        found += [(kernel // 2, stride, operation, given) for operation, given in of.items()]
    return found


def milliseconds(conv: Convolution, operation: Any, given: tuple[Any, ...]) -> float:
    """The time to plan."""
    begin = time.perf_counter()
    conv.plan(operation, *given)
    return (time.perf_counter() - begin) * 1e3


def main(tune_seconds: float, start: Path | None = None) -> None:
    TuningChooser._measured = timed  # type: ignore[method-assign]
    cudnnpy.Handle.default(0)
    while start is not None and not start.exists():
        time.sleep(0.01)
    chosen: dict[str, Any] = {}
    stored: list[float] = []
    fastest: list[float] = []
    tuned, empty = store.default(), store.Store("")  # "fastest" is timed by itself
    for padding, stride, operation, given in problems():
        conv = Convolution(padding=padding, stride=stride, prefer="autotune", tune_seconds=tune_seconds)
        guess = Convolution(padding=padding, stride=stride)
        plan = conv.plan(operation, *given)  # type: ignore[call-overload]
        chosen[str(plan.problem)] = [plan.name, plan.workspace_size, plan.milliseconds, plan.store_layer]
        for convolution, found, times in ((conv, tuned, stored), (guess, empty, fastest)):
            store.use(found)
            times.append(median(milliseconds(convolution, operation, given) for _ in range(TIMES)))
        store.use(tuned)
    print(json.dumps({"chosen": chosen, "seconds": seconds, "stored": stored, "fastest": fastest}))


if __name__ == "__main__":
    main(float(sys.argv[1]), *map(Path, sys.argv[2:]))
