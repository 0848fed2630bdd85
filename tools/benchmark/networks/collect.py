"""Update torchvision's networks in the list: `python -m tools.benchmark.networks.collect` (needs torchvision, no GPU).

The models run once in training mode, on torch's "meta" device, which computes nothing; each convolution that they call is
recorded. The list's other networks stay as they are: they were written by hand from their papers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from tools.benchmark.networks.catalogue import FILE, Layer, Network, read, write

PICTURE, CLIP = (3, 224, 224), (3, 16, 112, 112)

# torchvision's name -> one input, and the batch that it is trained with here
MODELS: dict[str, tuple[tuple[int, ...], int]] = {
    "alexnet": (PICTURE, 128),
    "vgg16": (PICTURE, 32),
    "squeezenet1_0": (PICTURE, 64),
    "googlenet": (PICTURE, 64),
    "inception_v3": ((3, 299, 299), 32),
    "resnet18": (PICTURE, 128),
    "resnet50": (PICTURE, 64),
    "wide_resnet50_2": (PICTURE, 32),
    "resnext50_32x4d": (PICTURE, 64),
    "resnext101_32x8d": (PICTURE, 16),
    "densenet121": (PICTURE, 32),
    "mobilenet_v2": (PICTURE, 64),
    "mobilenet_v3_small": (PICTURE, 128),
    "mobilenet_v3_large": (PICTURE, 64),
    "shufflenet_v2_x1_0": (PICTURE, 128),
    "mnasnet1_0": (PICTURE, 64),
    "efficientnet_b0": (PICTURE, 64),
    "efficientnet_b4": ((3, 380, 380), 16),
    "efficientnet_v2_s": ((3, 300, 300), 32),
    "regnet_y_400mf": (PICTURE, 128),
    "regnet_y_8gf": (PICTURE, 32),
    "regnet_x_3_2gf": (PICTURE, 64),
    "convnext_tiny": (PICTURE, 64),
    "convnext_base": (PICTURE, 32),
    "vit_b_16": (PICTURE, 64),
    "vit_l_32": (PICTURE, 64),
    "swin_t": (PICTURE, 64),
    "swin_v2_b": ((3, 256, 256), 32),
    "maxvit_t": (PICTURE, 32),
    "deeplabv3_resnet50": ((3, 520, 520), 4),
    "deeplabv3_mobilenet_v3_large": ((3, 520, 520), 8),
    "fcn_resnet50": ((3, 520, 520), 4),
    "lraspp_mobilenet_v3_large": ((3, 520, 520), 8),
    "r3d_18": (CLIP, 8),
    "mc3_18": (CLIP, 8),
    "r2plus1d_18": (CLIP, 8),
    "s3d": ((3, 32, 224, 224), 4),
    "swin3d_t": ((3, 16, 224, 224), 4),
}

_WITH_BACKBONE = ("deeplabv3_resnet50", "deeplabv3_mobilenet_v3_large", "fcn_resnet50", "lraspp_mobilenet_v3_large")


def convolutions(torch: Any, run: Callable[[], object]) -> tuple[Layer, ...]:
    """Return the distinct convolutions of a call of PyTorch code, in their order."""
    from torch.utils._python_dispatch import TorchDispatchMode

    found: dict[Layer, None] = {}

    class Recorder(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.ops.aten.convolution.default:
                found[_layer(*args, **(kwargs or {}))] = None
            return function(*args, **(kwargs or {}))

    with Recorder(), torch.no_grad():
        run()
    return tuple(found)


def _layer(
    input: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Layer:
    """Return a convolution from the arguments of aten::convolution."""
    axes = input.dim() - 2

    def for_each_axis(value: Any) -> tuple[int, ...]:
        numbers = tuple(map(int, value))
        return numbers * axes if len(numbers) == 1 else numbers

    filters = weight.shape[1] * groups if transposed else weight.shape[0]
    channels, *size = map(int, input.shape[1:])
    kernel = tuple(map(int, weight.shape[2:]))
    return Layer(
        channels,
        tuple(size),
        int(filters),
        kernel,
        for_each_axis(stride),
        for_each_axis(padding),
        for_each_axis(dilation),
        for_each_axis(output_padding),
        groups,
        transposed,
        bias is not None,
    )


def of_torchvision() -> list[Network]:
    """Return the networks of MODELS from the installed torchvision."""
    import torch
    import torchvision

    made = []
    for name, (shape, batch) in MODELS.items():
        nothing = {"weights_backbone": None} if name in _WITH_BACKBONE else {}  # downloads nothing
        model = torchvision.models.get_model(name, weights=None, **nothing).to("meta")
        x = torch.empty(2, *shape, device="meta")  # batch norms in training refuse one value for each channel
        layers = convolutions(torch, lambda model=model, x=x: model(x))  # type: ignore[misc]
        release = torchvision.__version__.split("+")[0]
        size = "x".join(map(str, shape))
        made.append(Network(name, batch, f"torchvision {release}, {size}", layers))
        print(f"{name}: {len(layers)}")
    return made


def main() -> int:
    """Run the command; return the exit status."""
    networks = [*of_torchvision(), *(network for network in read() if network.name not in MODELS)]
    FILE.write_text(write(networks), encoding="utf-8")
    print(f"wrote {FILE.name}: {len(networks)} networks")
    return 0


if __name__ == "__main__":
    sys.exit(main())
