"""The measuring process with candidates that crash, run for 20 s or read outside their operands, and their kernels.

Its first argument names the faults. Each is a candidate that comes after the first one that can be used. Endless work ends
itself after 20 s, so that no GPU stays busy for ever.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from cudnnpy import Engine
from cudnnpy._layers.lowerings.convolution_candidates import ConvolutionProblem
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.choice import Choice, SerializedPlan
from cudnnpy.tuning.measuring import child, search

SOURCE = r"""
extern "C" __global__ void endless(float *y) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    while (now - begin < 20000000000ull);
    y[0] = 0;
}
extern "C" __global__ void past_the_end(const float *x, float *y, long long count) { y[0] = x[count]; }
extern "C" __global__ void lost(float *y) { asm volatile("trap;"); y[0] = 0; }
"""
FIRST = 900  # the index of the first planted engine
FAULTS = ("abort", "endless", "past_the_end", "lost", "waits")


def kernel(name: str, *arguments: Any) -> int:
    """Queue a kernel of one thread on the default stream."""
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions, Stream, launch

    device = Device(0)
    device.set_current()
    program = Program(SOURCE, "c++", ProgramOptions(arch=f"sm_{device.arch}"))
    compiled = program.compile("cubin").get_kernel(name)
    launch(Stream.from_handle(0), LaunchConfig(grid=1, block=1), compiled, *arguments)
    return 0


class Faulty:
    """The executable of a planted candidate."""

    workspace_size = 0

    def __init__(self, fault: str, problem: ConvolutionProblem) -> None:
        self.fault, self.count = (
            fault,
            problem.x.shape[0] * problem.x.shape[1] * problem.x.shape[2] * problem.x.shape[3],
        )

    def bind(self, handle: Any, pointers: tuple[int, ...], workspace: int) -> Callable[[], int]:
        x, y = pointers[0], pointers[-1]
        launches: dict[str, Callable[[], int]] = {
            "abort": os.abort,
            "endless": lambda: kernel("endless", y),
            "past_the_end": lambda: kernel("past_the_end", x, y, self.count),
            "lost": lambda: kernel("lost", y),
            "waits": lambda: sys.stdin.buffer.raw.readall() and 0,  # type: ignore[attr-defined]
        }
        return launches[self.fault]


def planted(fault: str, problem: ConvolutionProblem) -> Candidate:
    name = f"engine {FIRST + FAULTS.index(fault)}"
    found = Candidate(Choice(name, "heuristics"), make=lambda: Faulty(fault, problem))
    found.engine = Engine(FIRST + FAULTS.index(fault))
    return found


def main(faults: list[str]) -> None:
    real, serialized = search.tuning_order, search.serialized_candidate

    def tuning_order(problem: Any, options: Any, target: Any, **given: Any) -> Iterator[Candidate]:
        candidates = real(problem, options, target, **given)
        for candidate in candidates:
            yield candidate
            if not candidate.rejection_reason:
                break
        yield from (planted(fault, problem) for fault in faults)
        yield from candidates

    def with_planted(content: SerializedPlan, problem: Any, target: Any) -> Candidate:
        engine = content.choice.engine
        if engine is not None and engine.index >= FIRST:
            return planted(FAULTS[engine.index - FIRST], problem)
        return serialized(content, problem, target)

    vars(search).update(tuning_order=tuning_order, serialized_candidate=with_planted)
    child.main()


if __name__ == "__main__":
    main(sys.argv[1].split(","))
