"""The networks that run whole: torchvision's, or plain.py's without it, with random weights, and a U-Net."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from tools.benchmark.networks import plain

DEVICE = "cuda"
SETTLING_BATCH = 8


def unet(torch: Any, channels: int = 3, classes: int = 2, width: int = 64, levels: int = 4) -> Any:
    """Ronneberger's U-Net with padding and batch norms: unet_padded in the catalogue."""
    nn = torch.nn

    def pair(inside: int, outside: int) -> Any:
        layers: list[Any] = []
        for before in (inside, outside):
            layers += [nn.Conv2d(before, outside, 3, padding=1, bias=False), nn.BatchNorm2d(outside), nn.ReLU()]
        return nn.Sequential(*layers)

    class UNet(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            wide = [width << level for level in range(levels + 1)]
            self.down = nn.ModuleList(pair(a, b) for a, b in zip([channels, *wide], wide, strict=False))
            self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(wide))
            self.join = nn.ModuleList(pair(2 * a, a) for a in wide[:-1])
            self.pool, self.last = nn.MaxPool2d(2), nn.Conv2d(width, classes, 1)

        def forward(self, x: Any) -> Any:
            skips = []
            for level, block in enumerate(self.down):
                x = block(x if level == 0 else self.pool(x))
                skips.append(x)
            for up, join, other in zip(reversed(self.up), reversed(self.join), reversed(skips[:-1]), strict=True):
                x = join(torch.cat([other, up(x)], 1))
            return self.last(x)

    return UNet()


# name -> the size of its pictures
SIZES = {"resnet50": 224, "mobilenet_v2": 224, "efficientnet_b0": 224, "convnext_tiny": 224, "unet": 256}


def source(name: str) -> str:
    """Return the origin of a network that `build` returns."""
    if name == "unet":
        return "tools/benchmark"
    return "torchvision" if importlib.util.find_spec("torchvision") else "tools/benchmark, without torchvision"


def build(torch: Any, name: str) -> Any:
    """Return a network of SIZES in float32 with seeded random weights and the batch statistics of one batch."""
    torch.manual_seed(0)
    if name == "unet":
        model = unet(torch)
    elif source(name) == "torchvision":
        model = importlib.import_module("torchvision.models").get_model(name, weights=None)
    else:
        model = plain.MODELS[name](torch)
    model = model.to(DEVICE)
    norms = [module for module in model.modules() if isinstance(module, torch.nn.modules.batchnorm._BatchNorm)]
    before = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        model.train()(pictures(torch, name, SETTLING_BATCH))
    for norm, momentum in zip(norms, before, strict=True):
        norm.momentum = momentum
    return model


def pictures(torch: Any, name: str, batch: int) -> Any:
    """Return normally distributed images, the same ones each time."""
    generator = torch.Generator(device=DEVICE).manual_seed(1)
    return torch.randn(batch, 3, SIZES[name], SIZES[name], device=DEVICE, generator=generator)


@contextmanager
def exact_float32(torch: Any) -> Iterator[None]:
    """No tf32 inside, and no search."""
    cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, cudnn.benchmark, products.allow_tf32
    cudnn.allow_tf32 = cudnn.benchmark = products.allow_tf32 = False
    try:
        yield
    finally:
        cudnn.allow_tf32, cudnn.benchmark, products.allow_tf32 = before


def off(torch: Any, result: Any, expected: Any) -> float:
    """Return |result - expected| / |expected|; NaN if either has one."""
    wide = expected.float()
    return float(torch.linalg.vector_norm(result.float() - wide) / torch.linalg.vector_norm(wide))


def poison(torch: Any, megabytes: int = 2048) -> None:
    """Fill the memory that torch's allocator returns next with NaN of every data type."""
    free = torch.cuda.mem_get_info()[0] >> 20
    torch.full((min(megabytes, free // 2) << 20,), 255, device=DEVICE, dtype=torch.uint8)


def wall_timer(torch: Any, call: Callable[[], object], count: int) -> Callable[[], float]:
    """Return a timer of `count` calls in a row, until the GPU is done: the milliseconds of one call, as a user waits for it."""

    def timed() -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / count * 1e3

    return timed
