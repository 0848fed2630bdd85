"""Direct launches give the same bits as cuDNN's own launches at any addresses, and write to the same memory."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from drawing import EXAMPLES, SEED

import cudnnpy
from cudnnpy import Convolution, Plan, TensorSpec, availability, raw
from cudnnpy._core.layouts import byte_extent
from cudnnpy._launch.launcher import PROVEN
from cudnnpy._launch.steps import WORKSPACE_ALIGNMENT
from cudnnpy.errors import NoAlgorithmError
from cudnnpy.handle import Handle

BAND = 512  # bytes around each operand
POOL = 256 << 20  # bytes, of which all operands are parts
LARGEST = 48 << 20  # bytes of the operands and the workspace of one plan
NOT_A_NUMBER = 0xFF


@pytest.fixture(autouse=True)
def empty_cache(direct_launches: None) -> Iterator[None]:
    yield
    cudnnpy.clear_cache()
    torch.cuda.synchronize()


class Memory:
    """Random bytes, of which operands are parts at random places."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.bytes = torch.empty(POOL, dtype=torch.uint8, device="cuda")
        self.bytes.view(torch.float16).normal_()
        self.start = self.bytes.data_ptr()

    def addresses(self, sizes: list[int], alignment: int) -> list[int]:
        """Addresses of operands of some sizes, which are multiples of `alignment` and of no larger power of two."""
        order = self.draw.sample(range(len(sizes)), len(sizes))
        spare = POOL - sum(size + 2 * BAND + 2 * alignment for size in sizes)
        gaps = sorted(self.draw.randrange(spare) for _ in sizes)
        found, at, before = [0] * len(sizes), self.start, 0
        for number, gap in zip(order, gaps, strict=True):
            at += gap - before + BAND
            before = gap
            address = -(-at // alignment) * alignment
            found[number] = address + alignment * (address // alignment % 2 == 0)
            at = found[number] + sizes[number] + BAND
        return found

    def part(self, address: int, size: int) -> torch.Tensor:
        return self.bytes[address - self.start : address - self.start + size]


def channels_last(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [0] * len(shape), 1
    for axis in (1, *range(len(shape) - 1, 1, -1), 0):
        strides[axis], step = step, step * shape[axis]
    return tuple(strides)


def drawn_plan(draw: random.Random) -> tuple[str, Plan] | None:
    """A deterministic plan for a random convolution, or None if there is none."""
    rank = draw.choice((1, 2, 2, 2, 3))
    channels, filters = draw.choice((3, 8, 16, 24, 64, 128)), draw.choice((8, 16, 64, 128))
    groups = draw.choice((1, 1, 1, 1, 4, 0))
    if groups != 1:
        channels = filters = 64
    groups = groups or 64
    length = draw.choice((7, 14, 28, 33)) if rank < 3 else draw.choice((6, 8))
    size, stride = draw.choice((1, 3, 3, 5)), draw.choice((1, 1, 2))
    dtype = draw.choice(("float16", "bfloat16", "float32"))
    last = draw.random() < 0.7
    conv = Convolution(padding=size // 2, stride=stride, groups=groups, deterministic=True, tf32=draw.random() < 0.6)
    x = (draw.choice((1, 2, 8)), channels, *[length] * rank)
    w = (filters, channels // groups, *[size] * rank)
    y = conv.output_shape(x, w)
    operation = draw.choice(("forward", "forward", "backward_data", "backward_filter"))
    first, second, shape = {
        "forward": (x, w, None),
        "backward_data": (y, w, x),
        "backward_filter": (y, x, w),
    }[operation]
    specs = [TensorSpec(one, dtype, channels_last(one) if last else None) for one in (first, second)]
    more: dict[str, Any] = {}
    if operation == "forward" and draw.random() < 0.3:
        more = {"bias": TensorSpec((filters,), dtype), "activation": "relu"}
    try:
        plan = conv.plan(operation, *specs, shape, **more)  # type: ignore[call-overload, unused-ignore]
    except NoAlgorithmError:
        return None
    text = f"{operation} x {x}, w {w}, stride {stride}, groups {groups}, {dtype}, channels last {last}, {plan.name}"
    return text, plan


def plainly(plan: Plan, addresses: list[int], workspace: int, stream: int) -> None:
    handle = Handle.default(plan.device)
    handle.set_stream(stream)
    assert plan.executable.bind(handle, tuple(addresses), workspace)() == 0


def check(memory: Memory, text: str, plan: Plan) -> bool:
    """Whether the plan is launched directly; if so, its results at addresses of every alignment are cuDNN's."""
    sizes = [byte_extent(spec) for spec in plan.problem.specs]
    with_space = [*sizes, plan.workspace_size + WORKSPACE_ALIGNMENT] if plan.workspace_size else sizes
    stream = torch.cuda.current_stream().cuda_stream

    def drawn(alignment: int) -> tuple[list[int], int]:
        found = memory.addresses(with_space, alignment)
        return found[: len(sizes)], -(
            -found[-1] // WORKSPACE_ALIGNMENT
        ) * WORKSPACE_ALIGNMENT if plan.workspace_size else 0

    before = cudnnpy.cache_info().direct_launches
    for _ in range(2):
        addresses, space = drawn(256)
        plan.execute(*addresses, space, stream)
    if cudnnpy.cache_info().direct_launches == before:
        return False
    bound, bind = [0], plan.executable.bind

    def counted(*arguments: Any) -> Any:
        bound[0] += 1
        return bind(*arguments)

    plan.executable.bind = counted  # type: ignore[method-assign]
    for alignment in (16, 32, 128, 256, 4096):
        addresses, space = drawn(alignment)
        results = [memory.part(addresses[-1] - BAND, sizes[-1] + 2 * BAND)]
        if space:
            results.append(memory.part(space - BAND, plan.workspace_size + 2 * BAND))
        found = []
        for run in (plainly, lambda plan, addresses, *rest: plan.execute(*addresses, *rest)):
            memory.part(addresses[-1], sizes[-1]).fill_(NOT_A_NUMBER)
            if space:
                memory.part(space, plan.workspace_size).fill_(NOT_A_NUMBER)
            content = [part.clone() for part in results]
            run(plan, addresses, space, stream)  # type: ignore[no-untyped-call, unused-ignore]
            found.append(results[0].clone())
            for part, then in zip(results, content, strict=True):
                for band in (slice(None, BAND), slice(-BAND, None)):
                    assert torch.equal(part[band], then[band]), f"{text}: bytes around were changed"
        assert bound == [1], f"{text}: launched by cuDNN at addresses of alignment {alignment}"
        bound[0] = 0
        assert torch.equal(*found), f"{text}: other results at addresses of alignment {alignment}"
    del plan.executable.bind  # it refers to the plan, which would be freed late
    return True


def test_drawn_plans_give_the_same_at_any_addresses() -> None:
    draw = random.Random(SEED)
    memory = Memory(draw)
    plans, found_direct = 0, 0
    for _ in range(EXAMPLES):
        found = drawn_plan(draw)
        if found is None:
            continue
        text, plan = found
        if (
            sum(byte_extent(spec) for spec in plan.problem.specs) + plan.workspace_size > LARGEST
            or not plan.is_relocatable
        ):
            continue
        plans += 1
        found_direct += check(memory, text, plan)
        del plan, found
        cudnnpy.clear_cache()
    print(f"{found_direct} of {plans} plans are launched directly")
    assert found_direct > plans // 2


def tiny() -> tuple[Convolution, torch.Tensor, torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
    """A convolution that is launched directly, with inputs, and results to write into."""
    conv = Convolution(padding=1, deterministic=True)
    w = torch.randn(16, 16, 3, 3, device="cuda").half().to(memory_format=torch.channels_last)
    inputs = [torch.randn(2, 16, 8, 8, device="cuda").half().to(memory_format=torch.channels_last) for _ in range(24)]
    cudnnpy.set_direct_launches(False)
    wanted = [conv.forward(x, w) for x in inputs]
    cudnnpy.set_direct_launches(True)
    outs = [torch.empty_like(y) for y in wanted]
    return conv, w, torch.stack(wanted), inputs, outs


def run_all(conv: Convolution, w: torch.Tensor, inputs: list[torch.Tensor], outs: list[torch.Tensor]) -> torch.Tensor:
    for x, out in zip(inputs, outs, strict=True):
        out.fill_(torch.nan)
        conv.forward(x, w, out=out)
    return torch.stack(outs)


def test_an_engine_that_reads_textures_stays_right_among_others() -> None:
    """cuDNN makes a texture for the addresses of a launch: a kernel that is queued again later would read another one."""
    drawn = torch.Generator("cuda").manual_seed(SEED)
    plans, tensors = [], []
    for depth, channels in ((4, 64), (2, 128), (3, 32)):
        conv = Convolution(padding=(1, 0, 0), tf32=False)
        dy, x = (torch.randn((4, channels, depth, 9, 9), device="cuda", generator=drawn) for _ in range(2))
        shape = (channels, channels, 3, 1, 1)
        rows = [one for one in conv.candidates("backward_filter", dy, x, shape) if "use_tex=1" in one.name]
        rows = [one for one in rows if not one.rejection_reason]
        engines = [one.engine for one in rows] or [cudnnpy.Engine(20, {2: 1, 3: 1})]
        for engine in engines[:2]:
            forced = Convolution(padding=(1, 0, 0), tf32=False, algorithm=engine)
            try:
                plans.append(forced.plan("backward_filter", dy, x, shape))
            except NoAlgorithmError:
                continue
            tensors.append((dy, x, torch.empty(shape, device="cuda")))
    if not plans:
        pytest.skip("this release of cuDNN has no engine that reads textures for these problems")
    assert not any(plan.is_relocatable for plan in plans)
    stream = torch.cuda.current_stream().cuda_stream
    space = torch.empty(max(plan.workspace_size for plan in plans) + 256, dtype=torch.uint8, device="cuda")
    start = -(-space.data_ptr() // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT
    for number in range(60):
        for plan, (dy, x, dw) in zip(plans, tensors, strict=True):
            if number % 3 == 2:  # other addresses, whose content differs
                dy, x = dy.flip(0).contiguous(), x.flip(0).mul(2)
            dw.fill_(torch.nan)
            plan.execute(dy.data_ptr(), x.data_ptr(), dw.data_ptr(), start if plan.workspace_size else 0, stream)
            if number % 7 == 0:
                right = torch.nn.grad.conv3d_weight(x.double(), dw.shape, dy.double(), padding=(1, 0, 0))
                torch.testing.assert_close(dw.double(), right, rtol=1e-4, atol=1e-2)


def test_the_default_follows_the_table_for_this_machine() -> None:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    release = subprocess.run(query, capture_output=True, text=True, check=True).stdout.partition(".")[0]
    capability = ".".join(map(str, torch.cuda.get_device_capability()))
    is_proven = (capability, raw.version(), raw.cudnnGetCudartVersion() // 1000, int(release)) in PROVEN
    conv, w, wanted, inputs, outs = tiny()
    cudnnpy.set_direct_launches(None)
    assert torch.equal(run_all(conv, w, inputs, outs), wanted)
    assert cudnnpy.cache_info().direct_launches == is_proven
    (launches, *_) = availability.report().launches
    assert launches.startswith("direct" if is_proven else "by cuDNN (unproven: ")


def test_launches_by_cudnn_at_returning_addresses_are_right() -> None:
    """Among them addresses of workspace that was freed and allocated again, and numbers by value."""
    cudnnpy.set_direct_launches(False)
    x, w = (torch.randn(shape, device="cuda") for shape in ((4, 16, 12, 11), (32, 16, 3, 3)))
    conv = Convolution(padding=1)
    plans = [
        Convolution(padding=1, algorithm=found.engine).plan("forward", x, w)
        for found in conv.candidates("forward", x, w)
        if not found.rejection_reason and found.workspace_size and found.engine is not None
    ]
    assert plans
    graph = cudnnpy.Graph()
    images = [one.half().contiguous(memory_format=torch.channels_last) for one in (x, x + 1)]
    graph.output("y", graph.pointwise("mul", graph.tensor("x", images[0]), graph.number(3)))
    stream = torch.cuda.current_stream().cuda_stream
    inputs = [x, x.flip(0).contiguous(), x.mul(2)]
    outs = [torch.empty((4, 32, 12, 11), device="cuda") for _ in inputs]
    right = [torch.nn.functional.conv2d(one.double(), w.double(), padding=1) for one in inputs]
    for plan in plans[:4]:
        spaces = set()
        for at in (0, 0, 1, 0, 1, 2, 1, 0, 0):
            space = torch.empty(plan.workspace_size + 256, dtype=torch.uint8, device="cuda")
            space.fill_(NOT_A_NUMBER)
            start = -(-space.data_ptr() // 256) * 256
            spaces.add(start)
            outs[at].fill_(torch.nan)
            plan.execute(inputs[at].data_ptr(), w.data_ptr(), outs[at].data_ptr(), start, stream)
            torch.testing.assert_close(outs[at].double(), right[at], rtol=1e-2, atol=5e-2)
            del space
            if at == 1:
                torch.cuda.empty_cache()
        assert len(spaces) < 9  # addresses return
    for at in (0, 0, 1, 0):
        torch.testing.assert_close(graph.run(x=images[at]), 3 * images[at])


def test_a_stream_that_waits_does_not_hold_up_another() -> None:
    conv, w, wanted, inputs, outs = tiny()
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    for stream in streams:
        with torch.cuda.stream(stream):
            run_all(conv, w, inputs, outs)
    torch.cuda.synchronize()
    with torch.cuda.stream(streams[0]):
        torch.cuda._sleep(2_000_000_000)  # about a second
        conv.forward(inputs[0], w, out=outs[0])
    with torch.cuda.stream(streams[1]):
        conv.forward(inputs[1], w, out=outs[1])
        done = streams[1].record_event()
    done.synchronize()
    assert not streams[0].query()
    streams[0].synchronize()
    assert torch.equal(torch.stack(outs[:2]), wanted[:2])


def test_launches_that_are_queued_keep_their_addresses() -> None:
    conv, w, wanted, inputs, outs = tiny()
    run_all(conv, w, inputs, outs)
    assert cudnnpy.cache_info().direct_launches == 1
    torch.cuda._sleep(100_000_000)  # all of them are queued before the first one runs
    assert torch.equal(run_all(conv, w, inputs, outs), wanted)


def test_a_capture_takes_direct_launches_of_any_addresses() -> None:
    conv, w, wanted, inputs, outs = tiny()
    run_all(conv, w, inputs, outs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for x, out in zip(inputs, reversed(outs), strict=True):  # pairs that were not launched before
            conv.forward(x, w, out=out)
    assert torch.equal(run_all(conv, w, inputs, outs), wanted)
    for out in outs:
        out.fill_(torch.nan)
    graph.replay()
    assert torch.equal(torch.stack(outs[::-1]), wanted)
