"""The memory in which candidates are measured: disjoint, of its own, and taken once."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_stand_in import GRAIN, Memory
from stand_in_driver import DriverFixture, StandInDriver, stand_in_driver

from cudnnpy import TensorSpec
from cudnnpy._convolution import specification
from cudnnpy._convolution.options import ConvolutionOptions
from cudnnpy._core.layouts import byte_extent
from cudnnpy._layers.lowerings.convolution_candidates import ConvolutionProblem
from cudnnpy.tuning.measuring.bench_buffers import BenchBuffers, GuardedMemory

SHAPES = ((1, 8, 4, 4), (4, 8, 3, 3), (1, 4, 2, 2))
CACHE = 1 << 12


def asked(beta: float = 0.0, gaps: int = 0, alignment: int = 16, dtype: Any = "float32") -> ConvolutionProblem:
    options = ConvolutionOptions()
    specs = [TensorSpec(shape, dtype, alignment=alignment) for shape in SHAPES]
    if gaps:
        for at in (0, 2):
            _, c, h, w = SHAPES[at]
            specs[at] = specs[at]._replace(strides=((c + 2) * h * (w + gaps), h * (w + gaps), w + gaps, 1))
    return ConvolutionProblem(*specification.make_problem(options, "forward", *specs, beta=beta))


@pytest.fixture
def driver(cuda_driver: DriverFixture) -> StandInDriver:
    return cuda_driver()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, driver: StandInDriver) -> Memory:
    return Memory(monkeypatch, driver, CACHE)


def are_disjoint(parts: list[tuple[int, int]]) -> bool:
    ordered = sorted(parts)
    return all(start + size <= after for (start, size), (after, _) in pairwise(ordered))


@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("gaps", [0, 3])
def test_all_parts_are_disjoint_and_the_copies_outlast_the_cache(gpu: Memory, beta: float, gaps: int) -> None:
    given = asked(beta, gaps)
    sizes = [byte_extent(spec) for spec in given.specs]
    memory = BenchBuffers(given)
    assert len(gpu.taken) == 1
    assert len(memory.timing_sets) * sum(sizes) >= 3 * CACHE
    parts = [(at, size) for pointers in memory.timing_sets for at, size in zip(pointers, sizes, strict=True)]
    assert all(address % 256 == 0 for address, _ in parts)
    parts += zip(memory.pointers, sizes, strict=True)
    parts += [(memory.kept[0], sizes[2]), (memory.compared[0], sizes[2]), memory.filler, (memory.workspace(5000), 5000)]
    assert all(gpu.holds(*part) for part in parts)
    assert are_disjoint(parts)


@pytest.mark.parametrize("alignment", [4, 8, 16, 256])
def test_copies_have_the_alignment_that_is_declared_and_no_more(gpu: Memory, alignment: int) -> None:
    memory = BenchBuffers(asked(alignment=alignment))
    for pointers in memory.timing_sets:
        for address in pointers:
            assert address % alignment == 0
            assert address % 16 == (alignment if alignment < 16 else 0)


# Mappings


def guarded(sizes: tuple[int, ...] = (100, 5000), alignment: int = 4, **options: Any) -> GuardedMemory:
    return GuardedMemory([TensorSpec((size // 4,), "float32", (1,), alignment) for size in sizes], 0, **options)


@pytest.mark.parametrize("alignment", [4, 16])
def test_operands_are_flush_with_one_end_of_a_mapping_of_their_own(gpu: Memory, alignment: int) -> None:
    sizes = (100, 3 * GRAIN, 5000)
    memory = guarded(sizes, alignment)
    assert len(gpu.mapped) == len(gpu.reserved) == 3
    for address, size, (start, mapped) in zip(memory.pointers, sizes, gpu.mapped.items(), strict=True):
        assert start <= address
        assert 0 <= start + mapped - (address + size) < alignment
    memory.is_at_end = False
    assert list(memory.pointers) == list(gpu.mapped)
    for (start, mapped), (base, reserved) in zip(gpu.mapped.items(), gpu.reserved.items(), strict=True):
        assert min(start - base, base + reserved - (start + mapped)) >= max(sizes)
    memory.close()
    assert gpu.count == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 40_000), min_size=1, max_size=6))
def test_a_workspace_is_inside_its_mapping_and_aligned_to_16_bytes_alone(sizes: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch, stand_in_driver() as driver:
        gpu = Memory(patch, driver)
        memory = guarded()
        for size in sizes:
            for at_end in (True, False):
                memory.is_at_end = at_end
                address = memory.workspace(size)
                assert bool(address) == bool(size)
                if size:
                    assert gpu.holds(address, size)
                    assert address % 16 == 0 != address % 256
            aligned = memory.aligned_workspace(size)
            assert not size or (gpu.holds(aligned, size) and aligned % 256 == 0)
        memory.close()
        assert gpu.count == 0


def test_another_error_of_a_mapping_is_told(gpu: Memory, driver: StandInDriver) -> None:
    from cudnnpy.errors import CudnnError

    driver.functions["cuMemSetAccess"] = lambda *_: (driver.CUresult.CUDA_ERROR_NOT_SUPPORTED,)
    with pytest.raises(CudnnError, match="could not be mapped: the driver reported CUDA_ERROR_NOT_SUPPORTED"):
        guarded()
    assert gpu.count == 0


# What is drawn
