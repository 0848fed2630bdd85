"""PyTorch programs with cudnnpy.torch enabled on a GPU, beside the same programs without."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import opinfo
import pytest
import torch
from opinfo_samples import DTYPES, Sample, samples_of
from torch.nn import functional as F

import cudnnpy.torch
from cudnnpy.torch import fallback_stats

NAMES = [f"nn.functional.conv{kind}{rank}d" for kind in ("", "_transpose") for rank in (1, 2, 3)]
CONVOLUTIONS: dict[bool, list[Callable[..., torch.Tensor]]] = {
    False: [F.conv1d, F.conv2d, F.conv3d],
    True: [F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d],
}
LAST = {1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d}
LOOSE = 4.0  # of the bounds of opinfo.py: sums in float32 beside narrow types


@pytest.fixture(autouse=True)
def _counts() -> Iterator[None]:
    cudnnpy.torch.reset_stats()
    yield
    assert not cudnnpy.torch.is_enabled()
    cudnnpy.torch.reset_stats()


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0, device: str = "cuda") -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def leaf(tensor: torch.Tensor) -> torch.Tensor:
    """With the same strides."""
    return tensor.detach().clone(memory_format=torch.preserve_format).requires_grad_()


def alike(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """The same values and places in memory."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    strides = zip(found.shape, found.stride(), expected.stride(), strict=True)
    assert all(ours == theirs for size, ours, theirs in strides if size > 1)
    scale = float(expected.detach().abs().max()) if expected.numel() else 1.0
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * max(scale, 1.0))


TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 2e-2}


# PyTorch's samples


class Layer:
    """A convolution of torch.nn.functional and its gradients by autograd, as an operation of cudnnpy."""

    def __init__(self, is_transposed: bool, options: dict[str, Any]) -> None:
        self.functions, self.options = CONVOLUTIONS[is_transposed], options

    def forward(self, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        given = [None if one is None else one.detach().requires_grad_() for one in (x, w, bias)]
        with warnings.catch_warnings(action="ignore"):  # of even windows that are padded to the same size
            self.y = self.functions[x.ndim - 3](*given, **self.options)
        self.leaves = [one for one in given if one is not None]
        return self.y.detach()

    def gradient(self, number: int, dy: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(self.y, self.leaves, dy, retain_graph=True)[number]

    def backward_data(self, dy: torch.Tensor, *_: Any) -> torch.Tensor:
        return self.gradient(0, dy)

    def backward_filter(self, dy: torch.Tensor, *_: Any) -> torch.Tensor:
        return self.gradient(1, dy)

    def backward_bias(self, dy: torch.Tensor) -> torch.Tensor:
        return self.gradient(2, dy)


class Functions:
    """The classes of cudnnpy that opinfo_calls.py needs."""

    @staticmethod
    def Convolution(**options: Any) -> Layer:
        return Layer(False, options)

    @staticmethod
    def ConvolutionTranspose(**options: Any) -> Layer:
        return Layer(True, options)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    return samples_of(NAMES, tmp_path_factory.mktemp("opinfo"))


def to_float64(tensor: torch.Tensor) -> np.ndarray:
    return tensor.cpu().double().numpy()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_pytorchs_samples(samples: list[Sample], name: str, dtype: str) -> None:
    chosen = [sample for sample in samples if (sample.name, sample.dtype) == (name, dtype)]
    with cudnnpy.torch.enable(tf32=False):
        assert opinfo.failures(Functions, chosen, lambda tensor: tensor.cuda(), to_float64, LOOSE) == ""
    assert cudnnpy.torch.stats().fallbacks.keys() <= {"tensors on the CPU"}  # for the expected results
    assert min(cudnnpy.torch.stats().handled.values()) >= len(chosen)


# Memory


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_results_lie_in_memory_as_pytorchs(rank: int, is_transposed: bool, dtype: torch.dtype) -> None:
    function, sizes = CONVOLUTIONS[is_transposed][rank - 1], (9, 8, 7)[:rank]
    for groups in (1, 16):
        for x_last, w_last, dy_last in ((0, 0, 0), (1, 1, 1), (1, 0, 0), (0, 1, 1), (0, 0, 1)):

            def placed(tensor: torch.Tensor, last: int) -> torch.Tensor:
                return tensor.contiguous(memory_format=LAST[rank]) if last else tensor

            x = placed(draw(2, 16, *sizes, dtype=dtype), x_last)
            w = placed(draw(16, 16 // groups, *(3,) * rank, dtype=dtype, seed=1), w_last)
            b = draw(16, dtype=dtype, seed=2)

            def call(x: Any = x, w: Any = w, b: Any = b, dy_last: int = dy_last, groups: int = groups) -> Any:
                leaves = [one.detach().requires_grad_() for one in (x, w, b)]
                y = function(*leaves, padding=1, groups=groups)
                dy = placed(draw(*y.shape, dtype=dtype, seed=3), dy_last)
                return (y, *torch.autograd.grad(y, leaves, dy))

            with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
                expected = call()
                with cudnnpy.torch.enable():
                    found = call()
            for ours, theirs in zip(found, expected, strict=True):
                alike(ours, theirs, TOLERANCES[dtype])
    assert cudnnpy.torch.stats().fallbacks == {}


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("channels", [64, 16])
def test_large_depthwise_convolutions_of_volumes_are_pytorchs(channels: int, last: bool) -> None:
    """Its kernels take half the time of cuDNN's. Channels last it runs cuDNN, too."""
    x = draw(2, channels, 8, 16, 16).contiguous(memory_format=LAST[3] if last else torch.contiguous_format)
    w = draw(channels, 1, 3, 3, 3, seed=1)

    def call() -> Any:
        leaves = [one.detach().requires_grad_() for one in (x, w)]
        y = F.conv3d(*leaves, padding=1, groups=channels)
        return (y, *torch.autograd.grad(y, leaves, draw(*y.shape, seed=2)))

    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        expected = call()
        with cudnnpy.torch.enable():
            found = call()
    for ours, theirs in zip(found, expected, strict=True):
        alike(ours, theirs, TOLERANCES[x.dtype])
    assert cudnnpy.torch.stats().fallbacks == ({fallback_stats.DEPTHWISE: 2} if channels == 64 and not last else {})


def depthwise(x: torch.Tensor, w: torch.Tensor, **options: Any) -> None:
    """Compares a depthwise convolution and its gradients with PyTorch's."""
    conv = CONVOLUTIONS[False][x.dim() - 3]

    def call() -> Any:
        leaves = [one.detach().requires_grad_() for one in (x, w)]
        y = conv(*leaves, padding=w.shape[-1] // 2, groups=x.shape[1])
        return (y, *torch.autograd.grad(y, leaves, draw(*y.shape, seed=2)))

    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        expected = call()
        with cudnnpy.torch.enable(**options):
            found = call()
    for ours, theirs in zip(found, expected, strict=True):
        alike(ours, theirs, TOLERANCES[x.dtype])


def test_autotune_takes_pytorchs_depthwise_kernel_where_it_is_faster() -> None:
    """A gradient of this convolution with one spatial axis takes cuDNN longer."""
    depthwise(draw(16, 512, 800), draw(512, 1, 75, seed=1), prefer="autotune", tune_seconds=2.0)
    stats = cudnnpy.torch.stats()
    assert stats.fallbacks[fallback_stats.DEPTHWISE] >= 1
    assert sum(stats.handled.values()) < 3


@pytest.mark.parametrize(("size", "fallbacks"), [(11, {fallback_stats.DEPTHWISE: 2}), (7, {})])
def test_pytorchs_kernels_run_large_depthwise_filters(size: int, fallbacks: dict[str, int]) -> None:
    """Forward, and the gradient with respect to x."""
    depthwise(draw(2, 64, 16, 16), draw(64, 1, size, size, seed=1), prefer="fastest")
    assert cudnnpy.torch.stats().fallbacks == fallbacks
    assert cudnnpy.torch.stats().handled["backward_filter"] == 1


def test_no_memory_is_kept_beside_the_result() -> None:
    """PyTorch's allocator has the workspace again."""
    x, w = draw(32, 64, 56, 56, dtype=torch.float16), draw(64, 64, 3, 3, dtype=torch.float16)
    with cudnnpy.torch.enable():
        F.conv2d(x, w, padding=1)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        y = F.conv2d(x, w, padding=1)
        assert torch.cuda.memory_allocated() - before - y.nbytes < 1 << 21  # what the allocator rounds up
    assert cudnnpy.torch.stats().handled["forward"] == 2


# Networks


class Block(torch.nn.Module):
    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        n = torch.nn
        self.body = n.Sequential(
            n.Conv2d(channels, out, 1, bias=False),
            n.BatchNorm2d(out),
            n.ReLU(),
            n.Conv2d(out, out, 3, stride, 1, groups=out // 8, bias=False),
            n.BatchNorm2d(out),
            n.ReLU(),
            n.Conv2d(out, out, 1, bias=False),
            n.BatchNorm2d(out),
        )
        self.shortcut = n.Conv2d(channels, out, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    n = torch.nn
    stem = [n.Conv2d(3, 16, 7, 2, 3, bias=False), n.BatchNorm2d(16), n.ReLU(), n.MaxPool2d(3, 2, 1)]
    head = [n.ConvTranspose2d(64, 32, 2, 2), n.AdaptiveAvgPool2d(1), n.Flatten(), n.Linear(32, 10)]
    return n.Sequential(*stem, Block(16, 32, 1), Block(32, 64, 2), *head).cuda()


def losses(steps: int, last: bool, cast: torch.dtype | None) -> list[float]:
    model = network()
    images, labels = draw(8, 3, 64, 64), torch.arange(8, device="cuda")
    if last:
        model, images = model.to(memory_format=torch.channels_last), images.contiguous(memory_format=LAST[2])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cuda", cast) if cast else contextlib.nullcontext():
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize(
    ("prefer", "last", "cast", "tolerance"),
    [
        ("fastest", False, None, 1e-3),
        ("fastest", True, None, 1e-3),
        ("fastest", True, torch.bfloat16, 5e-2),
        ("autotune", True, torch.bfloat16, 5e-2),
    ],
)
def test_a_network_learns_the_same(prefer: Any, last: bool, cast: torch.dtype | None, tolerance: float) -> None:
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        expected = losses(5, last, cast)
        with cudnnpy.torch.enable(prefer=prefer, tune_seconds=0.2):
            found = losses(5, last, cast)
    assert found == pytest.approx(expected, rel=tolerance)
    assert cudnnpy.torch.stats() == ({"forward": 50, "backward_data": 45, "backward_filter": 50}, {})


# CUDA graphs, streams, threads, devices


def training_step(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = F.conv2d(x, w, padding=1).relu()
    return y, torch.autograd.grad(y.square().sum(), w)[0]


@pytest.mark.parametrize("is_planned", [True, False])
def test_a_captured_step(is_planned: bool) -> None:
    """What is not planned before the capture is captured with PyTorch's own kernels."""
    cudnnpy.clear_cache()
    x, w = draw(4, 8, 16, 16), leaf(draw(8, 8, 3, 3))
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        with cudnnpy.torch.enable() if is_planned else contextlib.nullcontext():
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(6):  # direct launches begin
                    training_step(w, x)
            torch.cuda.current_stream().wait_stream(side)
        cudnnpy.torch.reset_stats()
        graph = torch.cuda.CUDAGraph()
        with cudnnpy.torch.enable(), torch.cuda.graph(graph):
            found = training_step(w, x)
        handled, fallbacks = cudnnpy.torch.stats()
        x.copy_(draw(4, 8, 16, 16, seed=5))
        filler = [draw(4, 8, 16, 16, seed=6) for _ in range(8)]  # writes where freed memory was
        graph.replay()
        expected = training_step(leaf(w), x)  # the graph that was recorded during the capture is still alive
    for ours, theirs in zip(found, expected, strict=True):
        alike(ours, theirs, 1e-4)
    assert fallbacks == ({} if is_planned else {fallback_stats.CAPTURE: 2})
    assert sum(handled.values()) == (2 if is_planned else 0)
    del filler


def test_threads() -> None:
    failures: list[Exception] = []

    def work(seed: int) -> None:
        try:
            x, w = draw(2, 8, 16, 16, seed=seed), leaf(draw(8, 8, 3, 3, seed=seed))
            with torch.cuda.stream(torch.cuda.Stream()):
                x = x + 0
                for _ in range(20):
                    y = F.conv2d(x, w, padding=1)
                    (dw,) = torch.autograd.grad(y.square().sum(), w)
                torch.cuda.current_stream().synchronize()
            exact = F.conv2d(x.double().cpu(), w.double().cpu().detach().requires_grad_(), padding=1)
            torch.testing.assert_close(y.cpu().double(), exact.detach(), rtol=1e-4, atol=1e-3)
            assert dw.isfinite().all()
        except Exception as error:
            failures.append(error)

    with cudnnpy.torch.enable(tf32=False):
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    handled, fallbacks = cudnnpy.torch.stats()
    assert handled == {"forward": 120, "backward_data": 0, "backward_filter": 120}
    assert fallbacks == {"tensors on the CPU": 6}  # the expected results


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")
def test_two_devices() -> None:
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for device in ("cuda:1", "cuda:0"):  # whichever is current
            x, w = draw(2, 8, 16, 16, device=device), leaf(draw(8, 8, 3, 3, device=device))
            expected = training_step(w, x)
            with cudnnpy.torch.enable():
                for ours, theirs in zip(training_step(w, x), expected, strict=True):
                    assert ours.device == theirs.device
                    alike(ours, theirs, 1e-4)
            with cudnnpy.torch.enable(), pytest.raises(RuntimeError):
                F.conv2d(x, draw(8, 8, 3, 3, device="cuda:0" if device == "cuda:1" else "cuda:1"))
    assert cudnnpy.torch.stats().fallbacks == {fallback_stats.ARGUMENTS: 2}


# On and off


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_the_problems_of_host_tensors_are_the_ones_of_the_gpu(rank: int, last: bool) -> None:
    """On the meta device and on the CPU a recording lists what the same network plans on the GPU."""
    convolution, transposed = (getattr(torch.nn, f"{name}{rank}d") for name in ("Conv", "ConvTranspose"))
    formats = {2: torch.channels_last, 3: torch.channels_last_3d} if last else {}
    memory_format = formats.get(rank, torch.contiguous_format)

    def recorded(device: str) -> tuple[str, ...]:
        network = torch.nn.Sequential(
            convolution(8, 16, 3, padding=1), convolution(16, 16, 3, groups=2, bias=False), transposed(16, 8, 2, 2)
        ).to(device)
        x = torch.ones(4, 8, *(12,) * rank, device=device)
        if rank > 1:
            network, x = network.to(memory_format=memory_format), x.contiguous(memory_format=memory_format)
        with cudnnpy.record() as recording, cudnnpy.torch.enable():
            network(x).sum().backward()
        return recording.problems

    expected = recorded("cuda")
    assert len(expected) > 5
    assert set(recorded("meta")) == set(recorded("cpu")) == set(expected)
