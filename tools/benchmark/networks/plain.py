"""The networks that run whole, written from their papers, for machines without torchvision.

They have the convolutions of torchvision's models (catalogue.txt); names and the order of parameters differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

CLASSES = 1000


def residual(torch: Any, body: Any, shortcut: Any, after: Any) -> Any:
    """after(body(x) + shortcut(x))."""

    class Residual(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.body, self.shortcut, self.after = body, shortcut, after

        def forward(self, x: Any) -> Any:
            y = self.body(x)
            y += self.shortcut(x)
            return self.after(y)

    return Residual()


def conv_norm(
    torch: Any, inside: int, outside: int, size: int = 1, stride: int = 1, groups: int = 1, act: Any = None
) -> list[Any]:
    """A convolution that keeps the size at stride 1, its batch normalization, and an activation."""
    n = torch.nn
    convolution = n.Conv2d(inside, outside, size, stride, size // 2, groups=groups, bias=False)
    return [convolution, n.BatchNorm2d(outside), *([act(inplace=True)] if act else [])]


def head(torch: Any, channels: int, dropout: float = 0.0) -> list[Any]:
    """The mean of each channel, and a linear layer."""
    n = torch.nn
    return [
        n.AdaptiveAvgPool2d(1),
        n.Flatten(),
        *([n.Dropout(dropout)] if dropout else []),
        n.Linear(channels, CLASSES),
    ]


def resnet50(torch: Any) -> Any:
    """He et al., 2015, with the stride in the 3x3 convolution of a block."""
    n = torch.nn
    layer = partial(conv_norm, torch)
    layers = [*layer(3, 64, 7, 2, act=n.ReLU), n.MaxPool2d(3, 2, 1)]
    inside = 64
    for width, blocks, first in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            stride, outside = first if block == 0 else 1, 4 * width
            body = [*layer(inside, width, act=n.ReLU), *layer(width, width, 3, stride, act=n.ReLU)]
            short = n.Sequential(*layer(inside, outside, 1, stride)) if block == 0 else n.Identity()
            body += layer(width, outside)
            layers.append(residual(torch, n.Sequential(*body), short, n.ReLU(inplace=True)))
            inside = outside
    return n.Sequential(*layers, *head(torch, inside))


def mobilenet_v2(torch: Any) -> Any:
    """Sandler et al., 2018."""
    table = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    rows = [(expansion, 3, first, outside, blocks) for expansion, outside, blocks, first in table]
    return _inverted_residuals(torch, rows, torch.nn.ReLU6, has_excitation=False)


def _excitation(torch: Any, channels: int, squeezed: int) -> Any:
    n = torch.nn

    class Excitation(n.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            narrow, wide = n.Conv2d(channels, squeezed, 1), n.Conv2d(squeezed, channels, 1)
            self.scale = n.Sequential(n.AdaptiveAvgPool2d(1), narrow, n.SiLU(inplace=True), wide, n.Sigmoid())

        def forward(self, x: Any) -> Any:
            return self.scale(x) * x

    return Excitation()


def efficientnet_b0(torch: Any) -> Any:
    """Tan and Le, 2019, without stochastic depth, which inference does not have."""
    table = (
        (1, 3, 1, 16, 1),
        (6, 3, 2, 24, 2),
        (6, 5, 2, 40, 2),
        (6, 3, 2, 80, 3),
        (6, 5, 1, 112, 3),
        (6, 5, 2, 192, 4),
        (6, 3, 1, 320, 1),
    )
    return _inverted_residuals(torch, table, torch.nn.SiLU, has_excitation=True)


def _inverted_residuals(
    torch: Any, table: Sequence[tuple[int, int, int, int, int]], act: Any, has_excitation: bool
) -> Any:
    """A network of inverted residual blocks. A row: expansion, size of the filters, first stride, filters, and blocks."""
    n = torch.nn
    layer = partial(conv_norm, torch)
    layers, inside = layer(3, 32, 3, 2, act=act), 32
    for expansion, size, first, outside, blocks in table:
        for block in range(blocks):
            stride, wide = first if block == 0 else 1, inside * expansion
            body = layer(inside, wide, act=act) if expansion > 1 else []
            body += layer(wide, wide, size, stride, wide, act)
            if has_excitation:
                body.append(_excitation(torch, wide, inside // 4))
            whole = n.Sequential(*body, *layer(wide, outside))
            same = stride == 1 and inside == outside
            layers.append(residual(torch, whole, n.Identity(), n.Identity()) if same else whole)
            inside = outside
    return n.Sequential(*layers, *layer(inside, 1280, act=act), *head(torch, 1280, 0.2))


def convnext_tiny(torch: Any) -> Any:
    """Liu et al., 2022, without stochastic depth."""
    n = torch.nn

    class Turned(n.Module):  # type: ignore[misc, name-defined]
        """Modules on images whose channels are the last axis, and a scale of each channel."""

        def __init__(self, *modules: Any, scaled: int = 0) -> None:
            super().__init__()
            self.body = n.Sequential(*modules)
            self.scale = n.Parameter(torch.full((scaled, 1, 1), 1e-6)) if scaled else None

        def forward(self, x: Any) -> Any:
            y = self.body(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            return y if self.scale is None else self.scale * y

    def block(width: int) -> Any:
        inner = [n.LayerNorm(width, eps=1e-6), n.Linear(width, 4 * width), n.GELU(), n.Linear(4 * width, width)]
        body = n.Sequential(n.Conv2d(width, width, 7, 1, 3, groups=width), Turned(*inner, scaled=width))
        return residual(torch, body, n.Identity(), n.Identity())

    widths, depths = (96, 192, 384, 768), (3, 3, 9, 3)
    layers = [n.Conv2d(3, widths[0], 4, 4), Turned(n.LayerNorm(widths[0], eps=1e-6))]
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        layers += [block(width) for _ in range(depth)]
        for a, b in list(pairwise(widths))[stage : stage + 1]:
            layers += [Turned(n.LayerNorm(a, eps=1e-6)), n.Conv2d(a, b, 2, 2)]
    wide = widths[-1]
    last = [n.AdaptiveAvgPool2d(1), Turned(n.LayerNorm(wide, eps=1e-6)), n.Flatten(), n.Linear(wide, CLASSES)]
    return n.Sequential(*layers, *last)


MODELS: dict[str, Callable[[Any], Any]] = {
    made.__name__: made for made in (resnet50, mobilenet_v2, efficientnet_b0, convnext_tiny)
}
