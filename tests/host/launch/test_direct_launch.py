"""Kernels are passed to the driver directly only where cuDNN's launch is known with certainty."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stand_in_graphs import Kernel, Pointers, StandInGraphs, stand_in_graphs

from cudnnpy import raw
from cudnnpy._launch.direct.direct_launch import DirectLaunch, make_direct_launch
from cudnnpy.errors import StatusError

STREAM = 0x5000
HERE: Pointers = (0x7F00_0010_0000, 0x7F00_0020_0000, 0x7F00_0030_0000, 0x7F00_0040_0000)
MASK = (1 << 64) - 1

Word = Callable[[Pointers], int]

counter = itertools.count(0x1111_1111_1111_1111, 0x0101_0101_0101_0101)


def address(operand: int, addend: int = 0) -> Word:
    return lambda pointers: pointers[operand] + addend


def constant(value: int) -> Word:
    return lambda pointers: value


def low_half(operand: int, addend: int, beside: int, above: bool) -> Word:
    """The low bits of an address, beside a constant."""

    def word(pointers: Pointers) -> int:
        low = pointers[operand] + addend & 0xFFFF_FFFF
        return low << 32 | beside if above else beside << 32 | low

    return word


def padding(pointers: Pointers) -> int:
    """Another number in each capture."""
    return next(counter)


def bare(*words: Word, **options: Any) -> Kernel:
    """A kernel with one parameter for each word."""
    return Kernel(lambda pointers: [struct.pack("Q", word(pointers) & MASK) for word in words], **options)


def kernel(*words: Word, **options: Any) -> Kernel:
    """The same with the addresses of all operands after them. The last address is that of the workspace."""
    return bare(*words, *map(address, range(3)), **options)


def made(graphs: StandInGraphs, *kernels: Kernel, pointers: Pointers = HERE) -> DirectLaunch | None:
    found = make_direct_launch(graphs.bind(kernels), graphs.handle, pointers)
    return None if isinstance(found, str) else found


# Words that follow the addresses in other ways, each with the addresses where this shows
UNCERTAIN: dict[str, Word] = {
    "pages": lambda p: p[0] >> 12,
    "a multiple": lambda p: 2 * p[0],
    "the negative": lambda p: -p[0],
    "a sum": lambda p: p[0] + p[1],
    "a difference": lambda p: p[0] - p[1],
    "the lesser": lambda p: min(p[0], p[1]),
    "the low half of a sum": lambda p: p[0] + p[1] & 0xFFFF_FFFF,
    "the low half, aligned down": lambda p: p[0] & 0xFFFF_FFE0,
    "the low half moved by 32 bits": lambda p: (p[0] & 0xFFFF_FFFF) + 0x500 & 0xFFFF_FFFF | p[0] >> 32 << 32,
    "the high half": lambda p: p[0] >> 32,
    "halves in turn": lambda p: p[0] >> 32 | p[0] << 32,
    "aligned to 32": lambda p: p[0] % 32 == 0,
    "aligned to 64": lambda p: p[1] % 64 == 0,
    "aligned to 256": lambda p: p[2] % 256 == 0,
    "aligned down": lambda p: p[0] & ~0xFF,
    "all aligned to 128": lambda p: not any(one % 128 for one in p),
    "far away": lambda p: p[0] + (1 << 32),
    "an address with a flag": lambda p: p[0] | (p[0] % 64 == 0),
    "which is first": lambda p: p[0] < p[1],
}


@pytest.mark.parametrize("word", UNCERTAIN.values(), ids=UNCERTAIN)
def test_words_that_follow_in_another_way_are_not_moved(graphs: StandInGraphs, word: Word) -> None:
    assert made(graphs, kernel(address(0), address(1), constant(7))) is not None
    assert made(graphs, kernel(address(0), word, address(1))) is None
    assert made(graphs, kernel(address(0), address(1)), kernel(constant(3), word, function=0x500)) is None
    assert graphs.capture is None
    assert graphs.graphs == {}


words = st.one_of(
    st.builds(address, st.integers(0, 3), st.integers(-(1 << 30), 1 << 30)),
    st.builds(constant, st.integers(0, MASK)),
    st.builds(low_half, st.integers(0, 3), st.integers(0, 1 << 33), st.integers(0, 0xFFFF_FFFF), st.booleans()),
    st.just(padding),
)
operands = [st.integers(1 << 28, (1 << 43) - 1).map(lambda place: 16 * place)] * 3
places = st.tuples(*operands, st.integers(1 << 28, (1 << 39) - 1).map(lambda place: 256 * place))


@given(kernels=st.lists(st.lists(words, min_size=1, max_size=9), min_size=1, max_size=4), here=places, there=places)
def test_what_is_moved_gets_the_parameters_of_a_plain_launch(
    kernels: list[list[Word]], here: Pointers, there: Pointers
) -> None:
    with stand_in_graphs() as graphs:
        queued = [kernel(*one, function=0x400 + at) for at, one in enumerate(kernels)]
        moved = made(graphs, *queued, pointers=here)
        assert moved is not None
        for pointers in (there, here, there):
            graphs.launched.clear()
            assert moved.launch(pointers, STREAM)
            assert {stream for _, stream in graphs.launched} == {STREAM}
            recorded = [values for (values,), _ in graphs.launched]
            graphs.queue(queued, pointers)
            for one, got, wanted in zip(kernels, recorded, graphs.launched[-1][0], strict=True):
                known = [word is not padding for word in one] + [True] * 3
                assert list(itertools.compress(got, known)) == list(itertools.compress(wanted, known))
        assert graphs.graphs == {}  # nothing is kept on the device


def test_parameters_of_any_size_keep_their_bytes(graphs: StandInGraphs) -> None:
    def parameters(pointers: Pointers) -> list[bytes]:
        tensor_map = struct.pack("QQ", pointers[1], 0x1234) + bytes(range(112))  # as of the tensor memory accelerator
        odd = struct.pack("<IQ", 5, 6) + b"abc"
        return [b"\1", odd, tensor_map, struct.pack("QI", pointers[0] + 64, 9), b"", struct.pack("Q", pointers[2])]

    moved = made(graphs, Kernel(parameters))
    assert moved is not None
    there = (*(pointer + 0x1230 for pointer in HERE[:3]), HERE[3] + 0x1300)
    assert moved.launch(there, STREAM)
    assert graphs.launched == [([parameters(there)], STREAM)]


def test_padding_that_holds_what_a_capture_before_left_is_no_address(graphs: StandInGraphs) -> None:
    before: list[int] = [0]

    def stale(pointers: Pointers) -> int:
        left, before[:] = before[0], [pointers[2]]
        return left

    moved = made(graphs, kernel(address(0), stale, address(1)))
    assert moved is not None
    assert moved.launch(HERE, STREAM)
    (((first, _, second, *_),), _) = graphs.launched[-1]
    assert (first, second) == tuple(struct.pack("Q", pointer) for pointer in HERE[:2])


def test_an_address_in_a_word_with_padding_is_not_moved(graphs: StandInGraphs) -> None:
    assert made(graphs, kernel(address(0), lambda p: p[1] << 8 & MASK | padding(p) & 0xFF)) is None


def aligned_up(operand: int, alignment: int) -> Word:
    return lambda pointers: -(-pointers[operand] // alignment) * alignment + 0x40


def test_a_workspace_that_the_engine_aligns_is_moved_where_it_is_aligned(graphs: StandInGraphs) -> None:
    for alignment in (128, 256):
        moved = made(graphs, kernel(aligned_up(3, alignment)))
        assert moved is not None
        assert not moved.launch((*HERE[:3], HERE[3] + 128), STREAM)
        assert moved.launch((*HERE[:3], HERE[3] + 256), STREAM)
        assert graphs.launched[-1][0][0][0] == struct.pack("Q", HERE[3] + 256 + 0x40)
    assert made(graphs, kernel(aligned_up(3, 512))) is None
    assert made(graphs, kernel(aligned_up(0, 32))) is None


@pytest.mark.parametrize(("word", "captures"), [(constant(7), 6), (padding, 8)], ids=["no padding", "padding"])
def test_captures_are_repeated_only_for_padding(graphs: StandInGraphs, word: Word, captures: int) -> None:
    """Three probes, each after a capture at the same addresses as the first one, and one of the direct launch itself."""
    assert made(graphs, kernel(address(0), word)) is not None
    assert (graphs.captures, graphs.confirmed) == (captures, 1)


@pytest.mark.parametrize("failing", ["cuStreamCreate", "cuStreamBeginCapture_v2", "cuStreamEndCapture"])
def test_a_capture_that_cannot_be_made_runs_nothing(graphs: StandInGraphs, failing: str) -> None:
    graphs.failing = failing
    assert made(graphs, kernel(address(0))) is None
    assert (graphs.launched, graphs.graphs, graphs.handle._address) == ([], {}, 0)


def test_an_operand_that_is_not_among_the_parameters_is_not_moved(graphs: StandInGraphs) -> None:
    """A texture, for example, has an address of its own."""
    assert made(graphs, bare(address(0), address(1), address(2))) is not None
    assert made(graphs, bare(address(0)), bare(address(2), address(1), function=0x500)) is not None
    assert made(graphs, bare(address(0), address(1), address(3))) is None
    assert made(graphs, bare(address(0), address(1), low_half(2, 0, 5, False))) is None


OTHER_NODES = {
    "memcpy": kernel(address(0), kind=1),
    "a fill that may begin early": bare(address(0), fill=(0, 1, 64, 1, 0), edge=(1, 0, 1)),
    "a fill of 8-byte items": bare(address(0), fill=(0, 8, 64, 1, 0)),
    "an event between kernels": kernel(address(0), edge=(2, 0, 1)),
    "no parameters": Kernel(lambda pointers: []),
    "another grid": kernel(address(0), grid=lambda pointers: 1 + (pointers[0] % 32 == 0)),
}


@pytest.mark.parametrize("other", OTHER_NODES.values(), ids=OTHER_NODES)
def test_what_is_no_plain_kernel_is_not_moved(graphs: StandInGraphs, other: Kernel) -> None:
    assert made(graphs, kernel(address(0), function=0x500), other) is None
    assert graphs.graphs == {}


def test_parameters_in_one_buffer(graphs: StandInGraphs) -> None:
    def parameters(pointers: Pointers) -> list[bytes]:
        low = pointers[2] & 0xFFFF_FFFF
        return [struct.pack("IIQQQI", 1, low, pointers[0] + 8, pointers[1], pointers[2], 5)]

    moved = made(graphs, Kernel(parameters, extra=True))
    assert moved is not None
    there = (*(pointer + 0x1230 for pointer in HERE[:3]), HERE[3] + 0x1300)
    assert moved.launch(there, STREAM)
    assert graphs.launched == [([parameters(there)], STREAM)]


def test_kernels_of_a_library_are_read_by_their_handles(graphs: StandInGraphs) -> None:
    moved = made(graphs, kernel(address(0), function=0, handle=0x600))
    assert moved is not None
    assert moved.launch(HERE, STREAM)


def test_another_number_of_kernels_elsewhere_is_not_moved(graphs: StandInGraphs) -> None:
    def bind(pointers: Pointers) -> Callable[[], int]:
        return lambda: graphs.queue([kernel(address(0))] * (1 + pointers[0] // 16 % 2), pointers)

    assert make_direct_launch(bind, graphs.handle, HERE) == "other kernels at other addresses"


def test_a_capture_that_fails_leaves_nothing(graphs: StandInGraphs) -> None:
    graphs.rejects = lambda pointers: pointers != HERE
    assert made(graphs, kernel(address(0))) is None
    graphs.rejects = lambda pointers: True
    assert made(graphs, kernel(address(0))) is None
    assert graphs.graphs == {}
    assert graphs.handle._address == 0
    graphs.rejects = lambda pointers: False
    for graphs.failing in ("cuGraphKernelNodeGetParams_v2", "cuLaunchKernelEx"):
        assert made(graphs, kernel(address(0))) is None
    assert graphs.graphs == {}


def test_a_capture_that_is_interrupted_is_ended(graphs: StandInGraphs) -> None:
    def bind(pointers: Pointers) -> Callable[[], int]:
        def launch() -> int:
            graphs.queue([kernel(address(0))], pointers)
            if pointers != HERE:
                raise KeyboardInterrupt
            return 0

        return launch

    with pytest.raises(KeyboardInterrupt):
        make_direct_launch(bind, graphs.handle, HERE)
    assert (graphs.capture, graphs.graphs) == (None, {})
    assert (graphs.handle._address, graphs.handle._in_use) == (0, None)


def test_addresses_that_cudnn_does_not_bind_leave_nothing(graphs: StandInGraphs) -> None:
    def bind(pointers: Pointers) -> Callable[[], int]:
        if pointers != HERE:
            raise raw.error_of(raw.CUDNN_STATUS_BAD_PARAM, "cudnnBackendFinalize")
        return graphs.bind([kernel(address(0))])(pointers)

    assert make_direct_launch(bind, graphs.handle, HERE) == (
        "cudnnBackendFinalize returned CUDNN_STATUS_BAD_PARAM at other addresses"
    )
    assert graphs.graphs == {}
    assert graphs.capture is None


def test_an_older_driver_moves_nothing(graphs: StandInGraphs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(StandInGraphs, "cuFuncGetParamInfo")
    assert made(graphs, kernel(address(0))) is None


def test_what_is_no_address_launches_nothing_and_does_no_harm(graphs: StandInGraphs) -> None:
    moved = made(graphs, kernel(address(0)))
    assert moved is not None
    for bad in (16.0, "16", None, 1 << 64, -(1 << 64)):
        assert not moved.launch((bad, *HERE[1:]), STREAM)  # type: ignore[arg-type]
    assert graphs.launched == []
    assert moved.launch(HERE, STREAM)


def test_nothing_is_launched_while_a_launch_is_being_queued(graphs: StandInGraphs) -> None:
    """Garbage collection may run any code before the driver has read the parameters."""
    moved = made(graphs, kernel(address(0)))
    assert moved is not None
    graphs.before_launch = lambda: nested.append(moved.launch(tuple(pointer + 256 for pointer in HERE), STREAM))
    nested: list[bool] = []
    assert moved.launch(HERE, STREAM)
    assert nested == [False]
    assert graphs.launched == [([[struct.pack("Q", HERE[at]) for at in (0, 0, 1, 2)]], STREAM)]
    assert moved.launch(HERE, STREAM)


def test_a_later_kernel_that_the_driver_rejects_raises_and_says_what_was_queued(graphs: StandInGraphs) -> None:
    fill = bare(address(3), fill=(0, 1, 64, 1, 0))
    moved = made(graphs, fill, kernel(address(0)), kernel(address(1), function=0x500))
    assert moved is not None
    graphs.failing = "cuLaunchKernelEx"
    incomplete = (
        r"kernel 2 of 3 \(CUresult 1\), with 1 queued before: the result is incomplete.*set_direct_launches\(False\)"
    )
    with pytest.raises(StatusError, match=rf"cuLaunchKernelEx returned CUDNN_STATUS_EXECUTION_FAILED.*{incomplete}"):
        moved.launch(HERE, STREAM)
    assert len(graphs.launched) == 1
    graphs.failing = ""
    assert moved.launch(HERE, STREAM)


def test_words_that_are_pointers_to_other_device_memory_are_counted(graphs: StandInGraphs) -> None:
    """cuDNN's own memory, or by accident a number beside padding."""
    other = 0x7F00_0F00_0000
    for known, count in ((set(), 0), ({other}, 2), ({other, 7, *HERE}, 3)):
        graphs.device_memory = known
        moved = made(graphs, kernel(address(0), constant(other), constant(7)), bare(constant(other), function=0x500))
        assert moved is not None
        assert moved.other_pointers == count


def test_an_interrupt_while_addresses_are_written_leaves_none_of_them(graphs: StandInGraphs) -> None:
    moved = made(graphs, kernel(address(0)))
    assert moved is not None
    assert moved.launch(HERE, STREAM)
    write = moved._write

    def interrupted(pointers: Pointers) -> None:
        write(pointers)
        raise KeyboardInterrupt

    moved._write = interrupted
    with pytest.raises(KeyboardInterrupt):
        moved.launch(tuple(pointer + 256 for pointer in HERE), STREAM)
    moved._write = write
    graphs.launched.clear()
    assert moved.launch(HERE, STREAM)
    assert graphs.launched == [([[struct.pack("Q", HERE[at]) for at in (0, 0, 1, 2)]], STREAM)]


def test_an_interrupt_while_the_stream_changes_leaves_no_kernel_on_another(graphs: StandInGraphs) -> None:
    """A signal handler raises between two kernels, of which only the first one has the new stream."""
    moved = made(graphs, kernel(address(0)), kernel(address(1), function=0x500))
    assert moved is not None
    assert moved.launch(HERE, STREAM)
    configurations = moved._configurations

    def interrupted() -> Iterator[Any]:
        yield configurations[0]
        raise KeyboardInterrupt

    moved._configurations = interrupted()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        moved.launch(HERE, 0x6000)
    moved._configurations = configurations
    for stream in (0x6000, STREAM):
        graphs.launched.clear()
        assert moved.launch(HERE, stream)
        assert [at for _, at in graphs.launched] == [stream] * 2


def test_a_function_gets_its_shared_memory_again_where_another_plan_took_it(graphs: StandInGraphs) -> None:
    moved = made(graphs, kernel(address(0)), kernel(address(1), function=0x500))
    assert moved is not None
    graphs.shared_bytes[0x500] = 32
    assert moved.launch(HERE, STREAM)
    assert graphs.shared_bytes[0x500] == 64
    assert len(graphs.launched) == 2


def test_kernels_go_to_any_stream_in_their_order(graphs: StandInGraphs) -> None:
    fill = bare(address(3, 512), fill=(0xFF, 1, 4096, 1, 0))
    moved = made(graphs, fill, kernel(address(0)), kernel(address(3), function=0x500))
    assert moved is not None
    for stream in (STREAM, 0, 2, STREAM):
        graphs.launched.clear()
        assert moved.launch(HERE, stream)
        first = [values[0] for (values,), at in graphs.launched if at == stream]
        assert first == [struct.pack("Q", one) for one in (HERE[3] + 512, HERE[0], HERE[3])]


@pytest.mark.parametrize("fill", [(7, 1, 100, 1, 0), (1 << 31, 4, 9, 1, 0), (0, 1, 64, 3, 256)])
def test_fills_follow_their_operand(graphs: StandInGraphs, fill: tuple[int, ...]) -> None:
    moved = made(graphs, bare(address(2, 16), fill=fill), kernel(address(0)))
    assert moved is not None
    there = (*(pointer + 0x1230 for pointer in HERE[:3]), HERE[3] + 0x1300)
    assert moved.launch(there, STREAM)
    assert graphs.launched[0] == ([[struct.pack("Q", there[2] + 16)]], STREAM)


CLUSTER = struct.pack("III", 2, 1, 1).ljust(64, b"\0")
ATTRIBUTES = {
    "a cooperative launch": ((2, (1).to_bytes(64, "little")),),
    "a cluster of one block": ((4, struct.pack("III", 1, 1, 1).ljust(64, b"\0")),),
    "a cluster and its policy": ((4, CLUSTER), (5, (1).to_bytes(64, "little"))),
    "a preferred cluster": ((4, CLUSTER), (11, CLUSTER)),
}


@pytest.mark.parametrize("attributes", ATTRIBUTES.values(), ids=ATTRIBUTES)
def test_attributes_of_a_launch_are_passed(graphs: StandInGraphs, attributes: tuple[tuple[int, bytes], ...]) -> None:
    """The capture of the record's own launch, which has them too, confirms it."""
    before = graphs.confirmed
    assert made(graphs, kernel(address(0), attributes=attributes), kernel(address(1), edge=(1, 0, 1))) is not None
    assert graphs.confirmed == before + 1


def test_attributes_that_are_not_passed_are_left_to_cudnn(graphs: StandInGraphs) -> None:
    window = (1, struct.pack("QQ", HERE[0], 4096).ljust(64, b"\0"))
    assert made(graphs, kernel(address(0), attributes=(window,))) is None


def test_a_policy_of_clusters_is_not_passed_without_a_cluster(graphs: StandInGraphs) -> None:
    """It has a default, which the driver tells of every kernel."""
    policy = ((5, (1).to_bytes(64, "little")),)
    graphs.defaults = dict(policy)
    assert made(graphs, kernel(address(0), attributes=policy)) is not None
    graphs.defaults = {}
    assert made(graphs, kernel(address(0), attributes=policy)) is None
