"""A program that answers what JAX's CPU build says of the operations: values, and gradients by jax.vjp, in float64.

Standard input has pickled questions (the name of an operation, its options, its arrays, a seed for the gradient of the
value), standard output the pickled answers. A process of its own keeps the threads, the GPU memory and the configuration
of JAX out of the tests.
"""

from __future__ import annotations

import math
import os
import pickle
import sys
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"  # compiles faster
)

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

jax.config.update("jax_enable_x64", True)


def convolve(x: Any, w: Any, padding: Any, stride: Any, dilation: Any, groups: int) -> Any:
    return lax.conv_general_dilated(
        x, w, stride, padding, rhs_dilation=dilation, feature_group_count=groups, precision=lax.Precision.HIGHEST
    )


def convolve_transposed(
    x: Any, w: Any, padding: Any, stride: Any, dilation: Any, groups: int, output_padding: Any
) -> Any:
    """By what the transposed convolution is defined by: the gradient of a convolution with respect to its input."""
    spatial = [
        (size - 1) * step + (taps - 1) * spread + 1 + extra - sum(pads)
        for size, step, taps, spread, extra, pads in zip(
            x.shape[2:], stride, w.shape[2:], dilation, output_padding, padding, strict=True
        )
    ]
    y = jax.ShapeDtypeStruct((x.shape[0], groups * w.shape[1], *spatial), x.dtype)
    down = jax.linear_transpose(lambda y: convolve(y, w, padding, stride, dilation, groups), y)
    return down(x)[0]


def pool(x: Any, mode: str, window: Any, padding: Any, stride: Any) -> Any:
    over = {
        "window_dimensions": (1, 1, *window),
        "window_strides": (1, 1, *stride),
        "padding": ((0, 0), (0, 0), *padding),
    }
    if mode.startswith("max"):
        return lax.reduce_window(x, -jnp.inf, lax.max, **over)
    total = lax.reduce_window(x, 0.0, lax.add, **over)
    if mode == "average_include_padding":
        return total / math.prod(window)
    return total / lax.reduce_window(jnp.ones_like(x), 0.0, lax.add, **over)


ACTIVATIONS = {
    "sigmoid": lambda x, c: jax.nn.sigmoid(x),
    "relu": lambda x, c: jax.nn.relu(x),
    "tanh": lambda x, c: jnp.tanh(x),
    "clipped_relu": lambda x, c: jnp.clip(x, 0, c),
    "elu": jax.nn.elu,
    "identity": lambda x, c: x,
    "swish": lambda x, c: jax.nn.silu(c * x) / c,
}
OPERATIONS = {
    "convolve": convolve,
    "convolve_transposed": convolve_transposed,
    "pool": pool,
    "activation": lambda x, mode, c: ACTIVATIONS[mode](x, c),
    "softmax": lambda x, axes, log: (jax.nn.log_softmax if log else jax.nn.softmax)(x, axes),
    "standardize": lambda x, axes, epsilon: jax.nn.standardize(x, axes, epsilon=epsilon),
}


def answer(name: str, options: dict[str, Any], arrays: list[np.ndarray], seed: int) -> tuple[Any, list[Any]]:
    def both(*arrays: Any) -> Any:
        value, pull = jax.vjp(lambda *arrays: OPERATIONS[name](*arrays, **options), *arrays)
        dy = np.random.default_rng(seed).standard_normal(value.shape)
        return value, pull(jnp.asarray(dy))

    value, gradients = jax.jit(both)(*arrays)
    return np.asarray(value), [np.asarray(gradient) for gradient in gradients]


if __name__ == "__main__":
    pickle.dump([answer(*question) for question in pickle.load(sys.stdin.buffer)], sys.stdout.buffer)
