"""Every call of the operations beside the convolutions, by its name; and the fused convolution."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import operation_normalizations as norms
import operation_tensors as tensors
from operation_problem import Arrays, Float64, Kind, Problem, uniform
from tolerance import allowed

from cudnnpy import reference


class Fused(Kind):
    """tolerance.allowed, with |scale| times the sum of products, and |bias| + |residual| added."""

    tensors = 3
    factors = ()
    is_bound = True
    dtypes = ("float16", "bfloat16", "float32")

    def inputs(self, p: Problem, random: np.random.Generator) -> Arrays:
        def numbers(shape: Sequence[int]) -> Float64:
            if p.data == "whole":
                return random.integers(-2, 3, shape).astype(np.float64)
            return uniform(random, shape)

        made = {"x": numbers(p.in_layout(p.shape)), "w": numbers(p.in_layout(p.other))}
        out = reference.FusedConvolution(**p.options).output_shape(made["x"].shape, made["w"].shape)
        shapes = {"scale": (p.other[0],), "bias": (p.other[0],), "residual": tuple(out)}
        return made | {name: numbers(shape) for name, shape in shapes.items() if name in p.given}

    def dtype_of(self, p: Problem, name: str) -> str:
        return p.other_dtype or p.dtype if name in ("scale", "bias") else p.dtype

    def errors(self, p: Problem, a: Arrays, f: Arrays) -> Arrays:
        conv = reference.FusedConvolution(**p.options)
        optional = {name: a[name] for name in p.given}
        # float32 is the widest type that the reference accepts; its rounding is far below the bound
        narrow = {name: array.astype(np.float32) for name, array in (a | optional).items()}
        z = conv.forward(**narrow, activation=None).astype(np.float64)
        sizes = {name: np.abs(array) for name, array in narrow.items() if name in ("x", "w", "scale")}
        products = conv.forward(**sizes, activation=None).astype(np.float64)
        axis = p.channel_axis
        bias = optional.get("bias", np.zeros(()))
        spread = bias.reshape([-1 if a == axis else 1 for a in range(z.ndim)]) if bias.ndim else bias
        added = np.abs(spread) + np.abs(optional.get("residual", np.zeros(())))
        return {
            "y": allowed(
                z,
                f["y"],
                products,
                added,
                inputs=p.dtype,
                stored=p.dtype,
                length=math.prod(p.other[1:]),
                tf32=p.dtype == "float32" and p.options.get("tf32", True),
                exact=p.data == "whole",
                epilogue=True,
                activation=p.keywords.get("activation", "relu"),
            )
        }

    def is_deterministic(self, p: Problem) -> bool:
        return bool(p.options.get("deterministic", False))


KINDS: dict[str, Kind] = {
    "Activation.forward": tensors.ActivationForward(),
    "Activation.backward": tensors.ActivationBackward(),
    "Pooling.forward": tensors.PoolingForward(),
    "Pooling.backward": tensors.PoolingBackward(),
    "Softmax.forward": tensors.SoftmaxForward(),
    "Softmax.backward": tensors.SoftmaxBackward(),
    "BatchNormalization.forward_training": norms.BatchTraining(),
    "BatchNormalization.forward_inference": norms.BatchInference(),
    "BatchNormalization.backward": norms.BatchBackward(),
    "FusedConvolution.forward": Fused(),
}
