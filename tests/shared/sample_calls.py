"""One good call of each operation beside the convolutions, on stand-in arrays, and what may be changed in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stand_in_device import Array

import cudnnpy

X, C, N = (2, 4, 6, 6), (4,), (2,)
# parameters are float32 (float64 for batch normalization of float64), whatever x is
PARAMETERS = frozenset(
    [
        "scale",
        "bias",
        "running_mean",
        "running_variance",
        "mean",
        "variance",
        "saved_mean",
        "saved_inverse_variance",
        "out_scale",
        "out_bias",
    ]
)
HALF = ("float16", "bfloat16", "float32")
FLOATS = (*HALF, "float64")

# The arrays that C's parameters are for, where they are not called so, and an operation takes no array of that name.
ROLES = {
    "y": "out",
    "dx": "out",
    "bnScale": "scale",
    "bnBias": "bias",
    "resultRunningMean": "running_mean",
    "resultRunningVariance": "running_variance",
    "estimatedMean": "mean",
    "estimatedVariance": "variance",
    "savedMean": "saved_mean",
    "savedInvVariance": "saved_inverse_variance",
    "dBnScaleResult": "out_scale",
    "dBnBiasResult": "out_bias",
}

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Sample:
    """A call: the arrays that it must have and those that it may have, by name; its result's shape; what it launches.

    `options` are the object's, each with another value; `keywords` those of the call itself. `in_place` names the array
    that out may be. `many` are the results that a call makes.
    """

    name: str
    arrays: dict[str, Shape]
    launch: str
    out: Shape | None = X
    optional: dict[str, Shape] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    keywords: dict[str, Any] = field(default_factory=dict)
    fixed: dict[str, Any] = field(default_factory=dict)  # the object's options in every call
    in_place: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = FLOATS
    many: int = 1
    roles: dict[str, str | int] = field(default_factory=dict)  # of C's parameters, beside ROLES

    def role(self, parameter: str) -> str | int:
        """What a parameter of the launch is for: the argument of that name, or the result of that number."""
        if parameter in self.arrays or parameter in self.roles:
            return self.roles.get(parameter, parameter)
        return ROLES.get(parameter, parameter)

    def operation(self, **options: Any) -> Callable[..., Any]:
        """What is called, of a new object."""
        kind, method = self.name.split(".")
        found: Callable[..., Any] = getattr(getattr(cudnnpy, kind)(**{**self.fixed, **options}), method)
        return found

    def array(self, name: str, dtype: str = "float32", device: int = 0, **more: Any) -> Array:
        """A new array for an argument."""
        shape = self.out if name == "out" and self.out is not None else {**self.arrays, **self.optional}.get(name, X)
        kind = dtype
        if name in PARAMETERS and not self.name.startswith("Fused"):
            kind = "float64" if dtype == "float64" else "float32"
        return Array(*more.pop("shape", shape), dtype=kind, device=device, **more)

    def given(self, dtype: str = "float32", device: int = 0, optional: bool = True) -> dict[str, Any]:
        """All arrays, out too."""
        names = [*self.arrays, *(self.optional if optional else ()), "out"]
        return {name: self.array(name, dtype, device) for name in names}


SCALES = {"alpha": 2.0, "beta": 0.5}
NORM = {"epsilon": 1e-3}
EXECUTE = "cudnnBackendExecute"
BATCH = "cudnnBatchNormalization"
LAYOUT = {"layout": "NHWC"}

SAMPLES = [
    Sample(
        "Activation.forward",
        {"x": X},
        "cudnnActivationForward",
        options={"mode": "tanh", "coefficient": 2.0},
        keywords=SCALES,
        in_place=("x",),
    ),
    Sample(
        "Activation.backward",
        {"dy": X, "x": X, "y": X},
        "cudnnActivationBackward",
        options={"mode": "elu", "coefficient": 2.0},
        keywords=SCALES,
        in_place=("dy",),
    ),
    Sample(
        "Pooling.forward",
        {"x": X},
        "cudnnPoolingForward",
        (2, 4, 3, 3),
        options={"mode": "average_include_padding", "stride": 2, "padding": 0},
        keywords=SCALES,
        fixed={"window": (2, 2)},
    ),
    Sample(
        "Pooling.backward",
        {"dy": (2, 4, 3, 3), "x": X, "y": (2, 4, 3, 3)},
        "cudnnPoolingBackward",
        options={"mode": "max_deterministic"},
        keywords=SCALES,
    ),
    Sample(
        "Softmax.forward",
        {"x": X},
        "cudnnSoftmaxForward",
        options={"algorithm": "log", "mode": "instance", **LAYOUT},
        keywords=SCALES,
        in_place=("x",),
    ),
    Sample(
        "Softmax.backward",
        {"dy": X, "y": X},
        "cudnnSoftmaxBackward",
        options={"algorithm": "fast", "mode": "instance", **LAYOUT},
        keywords=SCALES,
        in_place=("dy",),
    ),
    Sample(
        "BatchNormalization.forward_training",
        {"x": X, "scale": C, "bias": C},
        f"{BATCH}ForwardTraining",
        optional={"running_mean": C, "running_variance": C},
        options=NORM,
        keywords={**SCALES, "average_factor": 0.5},
        many=3,
        roles={"resultSaveMean": 1, "resultSaveInvVariance": 2},
    ),
    Sample(
        "BatchNormalization.forward_inference",
        {"x": X, "scale": C, "bias": C, "mean": C, "variance": C},
        f"{BATCH}ForwardInference",
        options=NORM,
        keywords=SCALES,
    ),
    Sample(
        "BatchNormalization.backward",
        {"dy": X, "x": X, "scale": C},
        f"{BATCH}Backward",
        optional={"saved_mean": C, "saved_inverse_variance": C, "out_scale": C, "out_bias": C},
        options=NORM,
        keywords={**SCALES, "parameter_alpha": 2.0, "parameter_beta": 0.5},
        many=3,
    ),
    Sample(
        "FusedConvolution.forward",
        {"x": (2, 6, 6, 4), "w": (8, 3, 3, 4)},
        EXECUTE,
        (2, 6, 6, 8),
        optional={"scale": (8,), "bias": (8,), "residual": (2, 6, 6, 8)},
        roles={"b": "scale", "b2": "bias", "b3": "residual"},  # the names of the graph's operations for them
        options={"mode": "convolution", "prefer": "no_workspace", "tf32": False, "workspace_limit": 1 << 20},
        keywords={"activation": "tanh"},
        fixed={"padding": 1, "layout": "NHWC"},
        dtypes=HALF,
    ),
]
BY_NAME = {sample.name: sample for sample in SAMPLES}
