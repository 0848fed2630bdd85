"""Device memory that runs out in a call: one policy for every operation, of dispatch. No GPU here.

The memory is a stand-in of a few MiB, which the free memory that the driver reports (1 GiB) does not tell of: as where
another process, or another allocator, has it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from made_up_candidates import made_up
from stand_in_device import OTHER, STREAM, Array, StandInDevice

import cudnnpy
from cudnnpy import Convolution, ConvolutionTranspose, FusedConvolution, Graph, TensorSpec
from cudnnpy._arrays import array_libraries, workspace
from cudnnpy._core.layouts import byte_extent
from cudnnpy._launch import plan_cache
from cudnnpy._planning import selection
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.chooser import Chooser, Chosen
from cudnnpy.errors import NoAlgorithmError
from cudnnpy.graph.problem import GraphProblem

MiB = 1 << 20
X, W, Y = (2, 4, 8, 8), (6, 4, 3, 3), (2, 6, 6, 6)
LAST = (256, 1, 32, 4)  # X, channels last


class Buffer:
    """Device memory, known by its `handle` as cuda.core's buffers are."""

    def __init__(self, handle: int) -> None:
        self.handle = handle


class Memory:
    """The device's memory: an allocator that has `free` bytes, and gets back what is no longer held."""

    def __init__(self, free: int) -> None:
        self.free, self.taken = free, 0

    def __call__(self, size: int, device: int, stream: int) -> Buffer:
        self.take(size)
        self.taken += 1
        buffer = Buffer(self.taken << 40)
        weakref.finalize(buffer, self.give, size)
        return buffer

    def take(self, size: int) -> None:
        if size > self.free:
            raise MemoryError(f"{size} bytes are more than {self.free}")
        self.free -= size

    def give(self, size: int) -> None:
        self.free += size


class Sizes(list[int]):
    """The workspace that the candidates of every problem need, the best one first, and the limits of the plans."""

    memory_limits: list[int | None]


@pytest.fixture
def memory(stand_in: StandInDevice) -> Memory:
    found = Memory(3 * MiB)
    workspace.set_allocator(found)
    return found


@pytest.fixture
def sizes(stand_in: StandInDevice, memory: Memory, monkeypatch: pytest.MonkeyPatch) -> Sizes:
    there = Sizes([8 * MiB, 2 * MiB, 0])
    there.memory_limits = []

    def candidates(uids: tuple[int, ...], operands: tuple[str, ...]) -> Iterator[Candidate]:
        for size in there:
            stand_in.workspace_size = size
            executable = stand_in.executable(uids, operands)
            yield made_up(f"{size} bytes", make=lambda made=executable: made)  # type: ignore[misc]

    def choose(chooser: Chooser) -> Chosen:
        request, problem = chooser.request, cast(Any, chooser.request.problem)
        there.memory_limits.append(None if request.may_run else request.limit)
        graph = problem.graph.in_memory if isinstance(problem, GraphProblem) else ()
        uids = graph or tuple(range(len(problem.operands)))
        for candidate in candidates(uids, problem.operands):
            planned = candidate.prepare()
            assert planned is not None
            if planned.workspace_size <= request.limit:
                return Chosen(candidate, list)
        raise NoAlgorithmError(str(problem), "less workspace", "  a table", [])

    monkeypatch.setattr(selection, "choose", choose)
    return there


def relu() -> Graph:
    made = Graph()
    made.output("y", made.pointwise("relu_fwd", made.tensor("x", TensorSpec(X))))
    return made


RELU = relu()
conv = Convolution()
# Calls whose plan is chosen, by what is launched beside it in scratch memory
CALLS: dict[str, Callable[..., Any]] = {
    "convolution": lambda **more: conv.forward(Array(*X), Array(*W), **more),
    "gradient": lambda **more: conv.backward_data(Array(*Y), Array(*W), X, **more),
    "graph": lambda **more: RELU.run(x=Array(*X), **more),
    "fused": lambda **more: FusedConvolution().forward(
        Array(*X, strides=LAST), Array(*W, strides=(36, 1, 12, 4)), out=Array(*Y, strides=(216, 1, 36, 6)), **more
    ),
    "fused, with copies": lambda **more: FusedConvolution().forward(Array(*X), Array(*W), **more),
    "extended": lambda **more: ConvolutionTranspose(dilation=3, output_padding=2).forward(
        Array(2, 6, 4, 4), Array(*W), **more
    ),
    "no channels": lambda **more: conv.forward(Array(2, 0, 8, 8), Array(6, 0, 3, 3), **more),
}
each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


def launched(stand_in: StandInDevice) -> int:
    return stand_in.c_calls["cudnnBackendExecute"]


@each_call
def test_a_workspace_that_cannot_be_had_is_planned_for_anew_once(
    stand_in: StandInDevice, memory: Memory, sizes: Sizes, call: Callable[..., Any]
) -> None:
    """The largest that can be had decides, and the plan is remembered."""
    call()
    assert launched(stand_in) == 1
    assert plan_cache.cache_info()[:3:2] == (1, 2)  # one entry, planned twice
    assert 2 * MiB <= 3 * MiB - memory.free < 2 * MiB + 16384  # the second candidate's, and scratch memory
    call()
    assert launched(stand_in) == 2
    assert plan_cache.cache_info().misses == 2
    first, second = sizes.memory_limits
    assert first is None
    assert second is not None
    assert 2 * MiB <= second <= 3 * MiB


@each_call
def test_where_no_plan_fits_the_error_tells_the_sizes_and_what_to_do(
    stand_in: StandInDevice, memory: Memory, sizes: Sizes, call: Callable[..., Any]
) -> None:
    del sizes[1:]
    with pytest.raises(MemoryError) as caught:
        call()
    said = str(caught.value)
    assert "no algorithm for" in said
    for part in ("device 0", "bytes for results", "bytes of workspace", "release_workspace()", "workspace_limit"):
        assert part in said
    assert launched(stand_in) == 0
    assert memory.free == 3 * MiB
    memory.free = 9 * MiB  # what was planned first is still remembered
    call()
    assert launched(stand_in) == 1
    assert plan_cache.cache_info().misses == 1


@pytest.mark.parametrize("name", ["convolution", "graph", "fused"])
def test_a_stream_that_has_less_than_the_first_gets_another_plan(
    stand_in: StandInDevice, memory: Memory, sizes: Sizes, name: str
) -> None:
    memory.free = 10 * MiB
    CALLS[name](stream=STREAM)
    assert memory.free == 2 * MiB
    CALLS[name](stream=OTHER)
    assert memory.free == 0
    assert launched(stand_in) == 2
    assert plan_cache.cache_info().misses == 2


@pytest.mark.parametrize("name", ["convolution", "graph", "fused"])
def test_nothing_is_planned_or_released_in_a_capture(
    stand_in: StandInDevice, memory: Memory, sizes: Sizes, name: str
) -> None:
    memory.free = 10 * MiB
    CALLS[name](stream=STREAM)
    stand_in.capturing = {OTHER}
    with pytest.raises(MemoryError, match=f"the allocator has no {8 * MiB} bytes of memory on device 0"):
        CALLS[name](stream=OTHER)
    assert plan_cache.cache_info().misses == 1
    assert launched(stand_in) == 1
    assert memory.free == 2 * MiB


def test_a_plan_that_the_caller_chose_is_not_replaced(stand_in: StandInDevice, memory: Memory, sizes: Sizes) -> None:
    plan = conv.plan("forward", Array(*X), Array(*W))
    with pytest.raises(MemoryError, match=r"out of memory .* 8388608 bytes of workspace.*the allocator has no 8388608"):
        Convolution(algorithm=plan).forward(Array(*X), Array(*W))
    assert len(sizes.memory_limits) == 1
    assert launched(stand_in) == 0


# Operations that have nothing to choose from


BIG = (2, 4, 256, 256)  # 2 MiB
GAPS = (5 * 65536, 65536, 256, 1)


def softmax(**more: Any) -> Any:
    """Of an array with gaps, which is copied into scratch memory: 2 MiB."""
    return cudnnpy.Softmax().forward(Array(*BIG, strides=GAPS), Array(*BIG), **more)


def test_without_a_choice_the_error_tells_the_sizes(stand_in: StandInDevice, memory: Memory) -> None:
    memory.free = MiB
    with pytest.raises(MemoryError) as caught:
        softmax()
    said = str(caught.value)
    for part in (
        "Softmax.forward: out of memory on device 0",
        "2097152 bytes of workspace",
        "at most 1048576 bytes of workspace",
        "release_workspace()",
    ):
        assert part in said
    assert launched_by(stand_in) == []
    memory.free = 2 * MiB
    softmax()
    assert launched_by(stand_in) == ["cudnnTransformTensor", "cudnnSoftmaxForward"]


def launched_by(stand_in: StandInDevice) -> list[str]:
    return [launch.name for launch in stand_in.launches]


def test_what_a_stream_has_outgrown_makes_room(stand_in: StandInDevice, memory: Memory) -> None:
    """The buffer that the stream had is given back before less is planned for."""
    workspace.workspace(2 * MiB - 4096, 0, STREAM)
    assert memory.free < 2 * MiB
    softmax()
    assert plan_cache.cache_info().misses == 1
    assert memory.free == MiB


# New results


class OutOfMemoryError(RuntimeError):
    """As PyTorch has it."""


@pytest.fixture
def results(stand_in: StandInDevice, memory: Memory, monkeypatch: pytest.MonkeyPatch) -> Memory:
    """Results come from the same memory as the workspace."""
    library = array_libraries._libraries[Array]

    def maker(shape: Any, strides: Any, dtype: Any, device: int) -> Callable[[], Array]:
        make, size = library.maker(shape, strides, dtype, device), byte_extent(TensorSpec(shape, dtype.name, strides))

        def taken() -> Array:
            try:
                memory.take(size)
            except MemoryError as error:
                raise OutOfMemoryError(str(error)) from error
            made: Array = make()
            weakref.finalize(made, memory.give, size)
            return made

        return taken

    monkeypatch.setitem(array_libraries._libraries, Array, library._replace(maker=maker))
    return memory


def test_workspace_that_is_kept_makes_room_for_a_result(stand_in: StandInDevice, results: Memory) -> None:
    kept = workspace.workspace(2 * MiB, 0, OTHER)
    assert kept
    y = cudnnpy.Activation().forward(Array(*BIG))
    assert y.shape == BIG
    assert results.free == MiB
    assert launched_by(stand_in) == ["cudnnActivationForward"]
    assert plan_cache.cache_info().misses == 1  # its plan needs no workspace: it is not planned anew
    del y
    assert results.free == 3 * MiB


@pytest.mark.parametrize("name", ["convolution", "graph", "fused, with copies"])
def test_a_plan_shrinks_for_a_result(stand_in: StandInDevice, results: Memory, sizes: Sizes, name: str) -> None:
    """The result first, then as much workspace as is left."""
    results.free = 8 * MiB + 65536
    first = CALLS[name]()
    results.free = 0
    second = CALLS[name]()
    assert second.shape == first.shape
    assert launched(stand_in) == 2
    assert plan_cache.cache_info()[:3:2] == (1, 2)
    assert 6 * MiB - 65536 < results.free < 6 * MiB + 65536


def test_a_result_that_cannot_be_had_tells_the_sizes(stand_in: StandInDevice, results: Memory) -> None:
    results.free = MiB
    with pytest.raises(MemoryError, match=r"needs 2097152 bytes for results and 0 bytes of workspace: 2097152"):
        cudnnpy.Activation().forward(Array(*BIG))
    assert launched_by(stand_in) == []
    stand_in.capturing = {STREAM}
    with pytest.raises(OutOfMemoryError):  # in a capture, the library's own
        cudnnpy.Activation().forward(Array(*BIG))


def test_a_call_of_several_results_makes_them_all_or_none(stand_in: StandInDevice, results: Memory) -> None:
    results.free = 2 * MiB + 8
    call = cudnnpy.BatchNormalization().forward_training
    with pytest.raises(MemoryError, match=r"needs 2097184 bytes for results"):
        call(Array(*BIG), Array(4), Array(4))
    assert results.free == 2 * MiB + 8
    results.free = 3 * MiB
    assert len(call(Array(*BIG), Array(4), Array(4))) == 3
    assert len(launched_by(stand_in)) == 1


def test_results_that_were_made_before_one_failed_are_freed_first(stand_in: StandInDevice, results: Memory) -> None:
    """Else they would be in the memory that the second attempt needs."""
    assert workspace.workspace(MiB - 16, 0, OTHER)
    assert results.free == 2 * MiB + 16  # for the first two of three results
    found = cudnnpy.BatchNormalization().forward_training(Array(*BIG), Array(4), Array(4))
    assert len(found) == 3
    assert results.free == MiB - 32


def test_other_errors_of_a_library_are_its_own(stand_in: StandInDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is tried again."""
    tried: list[int] = []

    def maker(*_: Any) -> Callable[[], Array]:
        def make() -> Array:
            tried.append(1)
            raise RuntimeError("no such device")

        return make

    monkeypatch.setitem(array_libraries._libraries, Array, array_libraries._libraries[Array]._replace(maker=maker))
    with pytest.raises(RuntimeError, match="no such device"):
        cudnnpy.Activation().forward(Array(*BIG))
    assert tried == [1]
    assert plan_cache.cache_info().misses == 1
