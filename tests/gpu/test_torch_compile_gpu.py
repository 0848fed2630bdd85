"""cudnnpy.torch under torch.compile on a GPU: no graph break, no second planning, and PyTorch's results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor import config

import cudnnpy.torch
from cudnnpy.torch import kernels

# CUDA graph trees capture an empty graph to make their memory pool; PyTorch 2.11 warns about it each time.
pytestmark = pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")

LAST = torch.channels_last
FORWARD, BACKWARD_DATA, BACKWARD_FILTER = 4, 3, 4  # operations of a step of `network`, whose input has no gradient
STEPS = 5  # with mode="reduce-overhead": a warm-up, the recording of CUDA graphs, replays
TOLERANCES = {torch.float32: 1e-4, torch.float16: 1e-2}
MODES = {"default": {}, "CUDA graphs": {"mode": "reduce-overhead"}}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    cudnnpy.torch.reset_stats()
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield
    assert not cudnnpy.torch.is_enabled()
    torch._dynamo.reset()  # frees the CUDA graphs


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions that planned, in any thread: autograd has one of its own."""
    calls: list[str] = []
    real = kernels.plan_and_cache

    def counted(key: Any, plan: Callable[..., Any], *arguments: Any) -> Any:
        calls.append(plan.__name__)
        return real(key, plan, *arguments)

    monkeypatch.setattr(kernels, "plan_and_cache", counted)
    return calls


def network(dtype: torch.dtype = torch.float32, memory_format: Any = torch.contiguous_format) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(8, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 16, 3, stride=2, padding=1, groups=2, bias=False),
        torch.nn.GELU(),
        torch.nn.ConvTranspose2d(16, 8, 2, 2),
        torch.nn.Conv2d(8, 4, 3, padding=1),
    )
    return layers.cuda().to(dtype=dtype, memory_format=memory_format)


def images(
    count: int = 4, seed: int = 0, dtype: torch.dtype = torch.float32, memory_format: Any = None
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(count, 8, 16, 16, generator=generator)
        .to("cuda", dtype)
        .contiguous(memory_format=memory_format or torch.contiguous_format)
    )


Step = tuple[torch.Tensor, ...]


def step(model: torch.nn.Module, run: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Step:
    """The result and the gradients, copied out of the memory of CUDA graphs."""
    torch.compiler.cudagraph_mark_step_begin()
    model.zero_grad(set_to_none=True)
    y = run(x)
    y.float().square().sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    return tuple(one.detach().clone(memory_format=torch.preserve_format) for one in (y, *gradients) if one is not None)


def alike(found: Step, expected: Step, dtype: torch.dtype = torch.float32) -> None:
    """The same values and places in memory."""
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        strides = zip(ours.shape, ours.stride(), theirs.stride(), strict=True)
        assert all(one == other for size, one, other in strides if size > 1)
        scale = max(float(theirs.abs().max()), 1.0)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCES[dtype] * scale)


def handled() -> int:
    assert cudnnpy.torch.stats().fallbacks == {}
    return sum(cudnnpy.torch.stats().handled.values())


def graphs() -> int:
    """The number of graphs that were compiled, each without a break."""
    assert not counters["graph_break"]
    return int(counters["stats"]["unique_graphs"])


def are_recorded() -> bool:
    """Whether inductor captured its code into CUDA graphs."""
    return not counters["inductor"]["cudagraph_skips"]


@pytest.mark.parametrize(
    ("dtype", "memory_format"), [(torch.float32, torch.contiguous_format), (torch.float16, LAST)], ids=["NCHW", "NHWC"]
)
@pytest.mark.parametrize("mode", MODES)
def test_enabled_before_compiling(mode: str, dtype: torch.dtype, memory_format: Any, planned: list[str]) -> None:
    model = network(dtype, memory_format)
    batches = [images(seed=seed, dtype=dtype, memory_format=memory_format) for seed in range(STEPS)]
    expected = [step(model, model, x) for x in batches]
    counts = []
    with cudnnpy.torch.enable():
        compiled = torch.compile(model, fullgraph=True, **MODES[mode])
        for x, theirs in zip(batches, expected, strict=True):
            alike(step(model, compiled, x), theirs, dtype)
            counts.append((handled(), len(planned)))
    assert graphs() == 1
    each = FORWARD + BACKWARD_DATA + BACKWARD_FILTER
    plans = {number for _, number in counts}
    assert plans == {FORWARD + BACKWARD_FILTER}  # all in the first step: one call computes both gradients of a layer
    if mode == "default":
        assert [number for number, _ in counts] == [each * number for number in range(1, STEPS + 1)]
    else:
        first, _, *replayed = (number for number, _ in counts)
        assert (are_recorded(), first) == (True, each)
        assert len(set(replayed)) == 1  # replays call no kernel


@pytest.mark.parametrize("mode", MODES)
def test_enabled_after_compiling(mode: str, planned: list[str]) -> None:
    """Without compiling again. CUDA graphs that were recorded before replay the kernels that they have."""
    model, x = network(), images()
    expected = step(model, model, x)
    compiled = torch.compile(model, fullgraph=True, **MODES[mode])
    for _ in range(3):
        alike(step(model, compiled, x), expected)
    assert (handled(), planned, graphs()) == (0, [], 1)
    with cudnnpy.torch.enable():
        for _ in range(3):
            alike(step(model, compiled, x), expected)
    each = FORWARD + BACKWARD_DATA + BACKWARD_FILTER
    if mode == "default":
        assert (handled(), len(planned)) == (3 * each, FORWARD + BACKWARD_FILTER)
    else:
        assert are_recorded()
        assert handled() == 0
    before = handled()
    alike(step(model, compiled, x), expected)
    assert (handled(), graphs()) == (before, 1)


def test_recorded_kernels_outlive_enable_and_the_plan_cache() -> None:
    model, x = network(), images()
    expected = step(model, model, x)
    with cudnnpy.torch.enable():
        compiled = torch.compile(model, fullgraph=True, mode="reduce-overhead")
        for _ in range(3):
            step(model, compiled, x)
    before = handled()
    assert before
    cudnnpy.clear_cache()
    filler = [torch.full((1 << 20,), torch.nan, device="cuda") for _ in range(8)]  # writes where freed memory was
    other = images(seed=7)
    for _ in range(2):
        alike(step(model, compiled, x), expected)
        alike(step(model, compiled, other), step(model, model, other))
    assert (handled(), are_recorded()) == (before, True)
    del filler


@pytest.mark.parametrize("is_forced", [False, True])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, LAST], ids=["NCHW", "NHWC"])
def test_inductors_layouts(is_forced: bool, memory_format: Any, planned: list[str]) -> None:
    """Inductor may compute channels last where the program does not; results have the program's memory format."""
    model, x = network(memory_format=memory_format), images(memory_format=memory_format)
    expected = step(model, model, x)
    with config.patch(force_layout_optimization=is_forced), cudnnpy.torch.enable():
        compiled = torch.compile(model, fullgraph=True)
        for _ in range(2):
            alike(step(model, compiled, x), expected)
    assert graphs() == 1
    assert len(planned) == FORWARD + BACKWARD_FILTER
    assert handled() == 2 * (FORWARD + BACKWARD_DATA + BACKWARD_FILTER)


def test_autocast_and_inference_mode(planned: list[str]) -> None:
    model, x = network(memory_format=LAST).eval(), images(memory_format=LAST)
    with torch.inference_mode(), torch.autocast("cuda", torch.float16):
        expected = model(x)
        with cudnnpy.torch.enable():
            compiled = torch.compile(model, fullgraph=True)
            for _ in range(2):
                alike((compiled(x),), (expected,), torch.float16)
    assert graphs() == 1
    assert planned == ["plan_forward"] * FORWARD
    assert handled() == 2 * FORWARD
