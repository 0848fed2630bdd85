"""Device memory that is given back to the driver, where PyTorch finds it: after autotune, and by release_workspace."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from cuda.bindings import driver
from planted import Planted, arguments, tune

import cudnnpy
from cudnnpy import Convolution
from cudnnpy._arrays import workspace
from cudnnpy.handle import on_device

GIB = 1 << 30
SIZE = 4 * GIB  # of a workspace
LITTLE = GIB // 4  # what the memory of the driver may change by in between


@pytest.fixture(autouse=True)
def _all_given_back() -> Iterator[None]:
    torch.cuda.empty_cache()
    cudnnpy.release_workspace()
    if torch.cuda.mem_get_info()[0] < SIZE + 2 * GIB:
        pytest.skip("less than 6 GiB of the GPU's memory are free")
    yield
    cudnnpy.release_workspace()


def held_unused() -> int:
    """The bytes that cuda.core's pool holds unused."""
    with on_device(0):
        return workspace._unused(0)


def test_memory_to_tune_in_goes_back_to_the_driver() -> None:
    before, free = held_unused(), torch.cuda.mem_get_info()[0]
    _, planted, _ = tune(lambda executable: Planted(executable, None, size=SIZE), limit=SIZE)
    assert not planted.rejection_reason
    assert planted.milliseconds
    assert held_unused() <= max(before, GIB)
    assert torch.cuda.mem_get_info()[0] >= free - GIB - LITTLE


def test_what_needs_most_of_the_memory_is_measured_only_within_a_limit_that_is_given() -> None:
    total = torch.cuda.mem_get_info()[1]
    size = total // 4 + (1 << 20)
    chosen, bad, real = tune(lambda executable: Planted(executable, None, size=size))
    assert bad.rejection_reason.startswith("not measured: needs ")
    assert bad.rejection_reason.endswith(", more than a quarter of the device's memory; workspace_limit= admits it")
    assert chosen in real
    if torch.cuda.mem_get_info()[0] < size + 2 * GIB:
        pytest.skip("a quarter of the GPU's memory is not free")
    _, good, _ = tune(lambda executable: Planted(executable, None, size=size), limit=total)
    assert not good.rejection_reason
    assert held_unused() <= GIB


def test_memory_for_specs_goes_back_too() -> None:
    """The operands, which are made up, and the copies of them are larger than what is kept."""
    x, w = cudnnpy.TensorSpec((128, 64, 256, 256), "float16"), cudnnpy.TensorSpec((64, 64, 1, 1), "float16")
    plan = Convolution(prefer="autotune", tune_seconds=2.0, workspace_limit=GIB).plan("forward", x, w)
    assert plan.milliseconds is not None
    assert held_unused() <= GIB


@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
def test_released_workspace_is_there_for_pytorch(is_busy: bool) -> None:
    """Also that of work that is still running, which is waited for."""

    def gained() -> int:
        """The bytes by which the memory that is free grows; the tests of other processes may change it, too."""
        streams = torch.cuda.current_stream(), torch.cuda.Stream()
        for stream in streams:
            address = workspace.workspace(SIZE // 2, 0, stream.cuda_stream)
            with torch.cuda.stream(stream):
                if is_busy:
                    torch.cuda._sleep(100_000_000)
            (status,) = driver.cuMemsetD8Async(address, 1, SIZE // 2, stream.cuda_stream)
            assert status == driver.CUresult.CUDA_SUCCESS
        before = torch.cuda.mem_get_info()[0]
        cudnnpy.release_workspace()
        assert all(stream.query() for stream in streams)
        assert held_unused() <= LITTLE
        return int(torch.cuda.mem_get_info()[0] - before)

    assert any(gained() >= SIZE - LITTLE for _ in range(3))


def test_a_capture_during_which_workspace_is_released_stays_intact() -> None:
    x, w = arguments("forward")
    conv = Convolution(padding=1, prefer="no_workspace")
    right = conv.forward(x, w)
    cudnnpy.empty((GIB // 2,), "uint8")  # freed at once, and stays in the pool
    torch.cuda.synchronize()
    before = held_unused()
    assert before >= GIB // 2
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = conv.forward(x, w)
        cudnnpy.release_workspace()
    assert held_unused() == before
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured, right)


def test_a_workspace_of_another_allocator_leaves_the_pool_alone() -> None:
    cudnnpy.empty((GIB // 2,), "uint8")  # freed at once, and stays in the pool
    torch.cuda.synchronize()
    before = held_unused()
    assert before >= GIB // 2
    cudnnpy.set_allocator(lambda size, device, stream: torch.empty(size, dtype=torch.uint8, device=f"cuda:{device}"))
    tune(lambda executable: Planted(executable, None, size=SIZE), limit=SIZE)
    cudnnpy.release_workspace()
    assert held_unused() == before
