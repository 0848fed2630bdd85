"""Candidates with kernels that access what is not theirs, or leave undone what is (endless ones: faulty_worker.py).

    python tests/gpu/faulty_kernels.py read_after

tunes with one of them among real candidates, and prints how it was found. One that ends the CUDA context ends its process.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from planted import Planted, X, Y, tune

from cudnnpy import Candidate, TensorSpec
from cudnnpy.tuning.measuring.timing import ContextLost

_CODE = """
extern "C" __global__ void read_float(const char* base, long long offset) {
    volatile float value = *(const volatile float*)(base + offset);
    (void)value;
}
extern "C" __global__ void write_float(char* base, long long offset) { *(float*)(base + offset) = 0.0f; }
extern "C" __global__ void copy_float(char* to, const char* from) { *(float*)to = *(const float*)from; }
extern "C" __global__ void add_product(char* to, const char* from) { *(float*)to += 0.0f * *(const float*)from; }
"""
SPACE = 1024  # bytes of workspace
GAPS = TensorSpec(Y, "float32", ((Y[1] + 4) * Y[2] * Y[3], Y[2] * Y[3], Y[3], 1))  # 4 channels after each image


def _size(shape: tuple[int, ...]) -> int:
    count = 4
    for length in shape:
        count *= length
    return count


@cache
def _compiled() -> Any:
    from cuda.core import Device, Program, ProgramOptions

    device = Device(0)
    device.set_current()
    major, minor = device.compute_capability
    return Program(_CODE, "c++", ProgramOptions(arch=f"sm_{major}{minor}")).compile("cubin")


def _run(name: str, base: int, other: int) -> int:
    from cuda.core import LaunchConfig, Stream, launch

    launch(Stream.from_handle(0), LaunchConfig(grid=1, block=1), _compiled().get_kernel(name), base, other)
    return 0


@cache
def _saved() -> int:
    """The address of a float that is kept for a moment."""
    from cuda.bindings import driver

    _compiled()
    return int(driver.cuMemAlloc(4)[1])


Spoil = Callable[[Any, tuple[int, ...], int], int]
SPOILS: dict[str, Spoil] = {
    "read_after": lambda _, operands, space: _run("read_float", operands[0], _size(X)),
    "read_far_after": lambda _, operands, space: _run("read_float", operands[1], 1 << 20),
    "write_after": lambda _, operands, space: _run("write_float", operands[2], _size(Y)),
    "read_before": lambda _, operands, space: _run("read_float", operands[0], -4),
    "write_after_workspace": lambda _, operands, space: _run("write_float", space, SPACE + 32),
    "unwritten": lambda _, operands, space: _run("copy_float", operands[2], _saved()),
    "workspace": lambda _, operands, space: _run("add_product", operands[2], space),
    "gap": lambda _, operands, space: _run("write_float", operands[2], _size(Y[1:])),
    "nothing": lambda *_: 0,
}


def tuned(name: str) -> tuple[Candidate, Candidate, list[Candidate]]:
    """Tune with a faulty candidate as the default choice, which is verified however slow: as `tune` does."""

    def planted(executable: Any) -> Planted:
        before = (lambda operands: _run("copy_float", _saved(), operands[2])) if name == "unwritten" else None
        return Planted(executable, SPOILS[name], size=SPACE, before=before)

    return tune(planted, default=True, out=GAPS if name == "gap" else None)


def main(name: str) -> None:
    """Print how a faulty candidate was found."""
    try:
        _, bad, _ = tuned(name)
        found = {"refused": bad.rejection_reason}
    except ContextLost as lost:
        found = {"lost": lost.name, "error": lost.error}
    print(json.dumps(found), flush=True)
    os._exit(0)  # nothing of the lost context can be freed


if __name__ == "__main__":
    main(sys.argv[1])
