"""The memory in which candidates are measured: disjoint, of its own, and taken once."""

from __future__ import annotations

import ctypes
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from cudnnpy import TensorSpec
from cudnnpy._core.layouts import extent
from cudnnpy._measuring import bench_buffers
from cudnnpy._measuring.bench_buffers import TimingMemory
from cudnnpy.convolution import problem
from cudnnpy.convolution.candidates import ConvolutionProblem

STREAM, INPUTS, RESULT, LIMIT = 0x5000, (1 << 40, 2 << 40), 3 << 40, 1 << 30
CACHE = 1 << 12


def asked(beta: float = 0.0) -> ConvolutionProblem:
    shapes = ((1, 8, 4, 4), (4, 8, 3, 3), (1, 4, 2, 2))
    options = problem.checked(problem.Options())
    specs = (TensorSpec(shape, "float32") for shape in shapes)
    return ConvolutionProblem(*problem.make_problem(options, "forward", *specs, beta=beta))


class Gpu:
    """Memory that is taken, and what the driver does with it."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, int]] = []
        self.most = 1 << 40  # bytes of one allocation
        self.copies: list[tuple[int, int, int]] = []  # (to, from, size)
        self.filled: dict[int, int] = {}  # bytes by their first address

    def take(self, size: int, device: int, stream: int) -> tuple[int, int, Any]:
        assert (device, stream) == (0, STREAM)
        if size > self.most:
            raise MemoryError("no more")
        self.taken.append(((len(self.taken) + 1) << 32, size))
        return (*self.taken[-1], object())

    def copy(self, to: int, source: int, size: int, stream: int) -> None:
        assert stream == STREAM
        self.copies.append((to, source, size))

    def fill(self, address: int, byte: int, size: int, stream: int) -> None:
        assert stream == STREAM
        self.filled[address] = byte

    def holds(self, address: int, size: int) -> bool:
        return any(start <= address and address + size <= start + length for start, length in self.taken)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made = Gpu()
    monkeypatch.setattr(bench_buffers, "take", made.take)
    monkeypatch.setattr(bench_buffers, "_cache_size", lambda device: CACHE)
    monkeypatch.setattr("cuda.bindings.driver.cuMemcpyDtoDAsync", made.copy)
    monkeypatch.setattr("cuda.bindings.driver.cuMemsetD8Async", made.fill)
    return made


def are_disjoint(parts: list[tuple[int, int]]) -> bool:
    ordered = sorted(parts)
    return all(start + size <= after for (start, size), (after, _) in pairwise(ordered))


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_candidates_read_the_callers_inputs_and_write_to_memory_of_their_own(gpu: Gpu, beta: float) -> None:
    given = asked(beta)
    sizes = [extent(spec) for spec in given.specs]
    memory = TimingMemory(given, INPUTS, RESULT, LIMIT, STREAM)
    assert len(gpu.taken) == 1
    first, *others = memory.sets
    assert len(others) * sum(sizes) >= 2 * CACHE
    assert first[:2] == INPUTS
    for copies in others:
        assert {(*pair, size) for *pair, size in zip(copies, INPUTS, sizes, strict=False)} <= set(gpu.copies)
    parts = [(address, size) for pointers in others for address, size in zip(pointers, sizes, strict=True)]
    parts += [(first[2], sizes[2]), (memory.kept[0], sizes[2]), memory.filler]
    parts.append((memory.workspace(5000), 5000))
    assert all(gpu.holds(*part) for part in parts)
    assert all(address % 256 == 0 for address, _ in parts)
    assert are_disjoint(parts)
    memory.reset()
    if beta:
        assert (first[2], RESULT, sizes[2]) in gpu.copies
    else:
        assert gpu.filled[first[2]] == 0xFF  # NaN, so that an element that is not written shows
    memory.keep()
    assert (memory.kept[0], first[2], sizes[2]) in gpu.copies
    assert not {to for to, *_ in gpu.copies} & {*INPUTS, RESULT}
    assert not gpu.filled.keys() & {*INPUTS, RESULT}


def test_without_memory_for_copies_the_inputs_are_used_alone(gpu: Gpu) -> None:
    gpu.most = 2 * CACHE
    memory = TimingMemory(asked(), INPUTS, None, LIMIT, STREAM)
    assert memory.sets == [(*INPUTS, memory.scratch[0])]
    gpu.most = 100
    with pytest.raises(MemoryError):
        TimingMemory(asked(), INPUTS, None, LIMIT, STREAM)


def test_the_workspace_grows_a_few_times_within_the_limit(gpu: Gpu) -> None:
    memory = TimingMemory(asked(), INPUTS, None, 9000, STREAM)
    gpu.taken.clear()
    for size in (0, 100, 3000, 4000, 5000, 9000, 100):
        address = memory.workspace(size)
        assert not size or gpu.holds(address, size)
    assert [size for _, size in gpu.taken] == [100, 3000, 6000, 9000]


def test_a_limit_does_not_bind_what_was_admitted_beyond_it(gpu: Gpu) -> None:
    """The guess; what others need is rounded up to no more than the limit."""
    memory = TimingMemory(asked(), INPUTS, None, 9000, STREAM)
    gpu.taken.clear()
    for size in (20_000, 8000, 30_000):
        assert gpu.holds(memory.workspace(size), size)
    assert [size for _, size in gpu.taken] == [20_000, 30_000]


def test_the_workspace_grows_by_what_is_needed_where_memory_is_scarce(gpu: Gpu) -> None:
    memory = TimingMemory(asked(), INPUTS, None, LIMIT, STREAM)
    memory.workspace(3000)
    gpu.most = 4000
    assert gpu.holds(memory.workspace(4000), 4000)
    assert gpu.taken[-1][1] == 4000
    with pytest.raises(MemoryError):
        memory.workspace(4001)


def test_random_numbers_take_the_place_of_the_inputs(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuda.bindings.driver.cuMemcpyHtoDAsync", lambda *_: None)
    monkeypatch.setattr("cuda.bindings.driver.cuStreamSynchronize", lambda stream: None)
    memory = TimingMemory(asked(0.5), INPUTS, RESULT, LIMIT, STREAM)
    memory.use_random_inputs()
    gpu.copies.clear()
    memory.copy_inputs()
    first, *others = memory.sets
    assert not {*first, memory.start} & {*INPUTS, RESULT}
    sources = {source for _, source, _ in gpu.copies}
    assert sources == set(first[:2])
    assert len(others) > 1


def test_made_up_tensors_are_not_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of x and dy alike a gradient to w sums squares, which overflow float16."""
    made: list[np.ndarray] = []

    def copy(to: int, at: int, size: int, stream: int) -> None:
        made.append(np.frombuffer((ctypes.c_char * size).from_address(at), np.float16).copy())

    monkeypatch.setattr("cuda.bindings.driver.cuMemcpyHtoDAsync", copy)
    monkeypatch.setattr("cuda.bindings.driver.cuStreamSynchronize", lambda stream: None)
    monkeypatch.setattr(bench_buffers, "take", lambda size, device, stream: (0, size, None))
    options = problem.checked(problem.Options(padding=1))
    shape = (8, 64, 56, 56)
    x, w, y = (TensorSpec(s, "float16") for s in (shape, (64, 64, 3, 3), shape))
    memory = TimingMemory.__new__(TimingMemory)
    memory._problem = ConvolutionProblem(*problem.make_problem(options, "backward_filter", x, w, y))
    memory.results, memory._stream, memory._owners = memory._problem.specs[-1:], 0, []
    memory.use_random_inputs()
    half = len(made) // 2
    one, two = (np.concatenate(part).astype(np.float64) for part in (made[:half], made[half:]))
    assert one.size == two.size == math.prod(shape)
    assert abs(one @ two) < 1e-2 * (one @ one)
    assert -1 <= one.min() < -0.99 < 0.99 < one.max() <= 1
