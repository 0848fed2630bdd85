"""Arrays of small whole numbers, whose convolutions are exact in every type: what is wrong is off by 1 or more."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cudnnpy import reference


def whole_numbers(
    *shape: int, dtype: str = "float32", seed: int = 0, last: bool = False, device: Any = "cuda"
) -> torch.Tensor:
    """A tensor of whole numbers from -2 to 2; `last` puts the channels last in memory."""
    numbers = np.random.default_rng([seed, *shape]).integers(-2, 3, shape).astype(np.float32)
    tensor = torch.from_numpy(numbers).to(device).to(getattr(torch, dtype))
    if not last:
        return tensor
    order = (0, *range(2, len(shape)), 1)
    return tensor.permute(order).contiguous().permute(0, len(shape) - 1, *range(1, len(shape) - 1))


def to_host(tensor: Any) -> Any:
    """A tensor's values in NumPy's float64; anything else as it is."""
    return tensor.detach().cpu().double().numpy() if isinstance(tensor, torch.Tensor) else tensor


def exact_result(operation: str, *arguments: Any, transpose: bool = False, **options: Any) -> np.ndarray:
    """What the reference says, in float64. Options of the call and of the convolution together."""
    names = ("bias", "activation", "out", "alpha", "beta")
    call = {name: to_host(options.pop(name)) for name in names if name in options}
    if call.get("out") is not None:
        call["out"] = call["out"].copy()
    kind = reference.ConvolutionTranspose if transpose else reference.Convolution
    return np.asarray(getattr(kind(**options), operation)(*map(to_host, arguments), **call))


def assert_same(found: Any, right: np.ndarray) -> None:
    """Equal, but for the rounding of a stored result and the arithmetic of a transform."""
    values = to_host(found)
    assert values.shape == right.shape
    few_bits = {torch.bfloat16: 2.0**-8, torch.float8_e4m3fn: 2.0**-4, torch.float8_e5m2: 2.0**-3}
    np.testing.assert_allclose(values, right, rtol=few_bits.get(getattr(found, "dtype", None), 2.0**-11), atol=0.05)
