"""Tensors that exceed one descriptor, as they are planned: in parts, carried out with NumPy, with a limit of 100 elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy_machine import run_steps, tensor_in

import cudnnpy
from cudnnpy import TensorSpec, reference
from cudnnpy._core import layouts
from cudnnpy._core.layouts import channels_last_strides, packed_strides
from cudnnpy._launch.dispatch import Call, Specs
from cudnnpy._launch.program import _function_names
from cudnnpy._layers import softmax

SHAPE = (5, 6, 3, 4)


def computed(op: Any, method: str, arrays: dict[str, np.ndarray], *arguments: Any) -> tuple[np.ndarray, list[str]]:
    """The last of the arrays, which the call writes, and the functions of its plan. Images are channels last."""
    specs, memories = {}, []
    for name, array in arrays.items():
        strides = channels_last_strides(array.shape) if array.ndim == 4 else packed_strides(array.shape)
        specs[name] = TensorSpec(array.shape, "float32", strides)
        memories.append(np.zeros(array.size, np.float32))
        tensor_in(memories[-1], specs[name])[...] = array
    program, _ = getattr(op, method)(Call(Specs(specs), {}, 0, 0, {}), *arguments)
    run_steps(program.steps, program.scratch, *memories)
    return tensor_in(memories[-1], list(specs.values())[-1]), list(_function_names(program.executable))


@pytest.mark.parametrize(
    ("kind", "options", "parts"),
    [
        ("Activation", {}, 4),  # of 90 elements
        ("Softmax", {"algorithm": "accurate"}, 4),  # of 15 rows, each of 6 channels
        ("Softmax", {"algorithm": "log", "mode": "instance"}, 5),
        ("Pooling", {"mode": "average_exclude_padding", "window": 2, "padding": 1, "stride": 1}, 5),
        ("Pooling", {"mode": "max", "window": 2}, 5),
    ],
)
def test_large_tensors_are_computed_in_parts(
    kind: str, options: dict[str, Any], parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layouts, "MAX_TENSOR_ELEMENTS", 100)
    monkeypatch.setattr(softmax, "_MANY_CHANNELS", 1)
    ours, theirs = (getattr(package, kind)(**options) for package in (cudnnpy, reference))
    rng = np.random.default_rng(0)
    x = rng.standard_normal(SHAPE).astype(np.float32)
    y = theirs.forward(x)
    found, names = computed(ours, "_forward", {"x": x, "out": np.ones_like(y)}, 2.0, 0.0)
    np.testing.assert_allclose(found, 2 * y, rtol=1e-5, atol=1e-5)
    assert names == [f"cudnn{kind}Forward"] * parts
    dy = rng.standard_normal(y.shape).astype(np.float32)
    given = {"dy": dy, "y": y} if kind == "Softmax" else {"dy": dy, "x": x, "y": y}
    found, names = computed(ours, "_backward", given | {"out": np.ones_like(x)}, 1.0, 0.0)
    np.testing.assert_allclose(found, theirs.backward(*given.values()), rtol=1e-5, atol=1e-5)
    assert names == [f"cudnn{kind}Backward"] * parts


def test_inference_of_a_large_batch_is_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part has all of the parameters."""
    monkeypatch.setattr(layouts, "MAX_TENSOR_ELEMENTS", 100)
    rng = np.random.default_rng(0)
    parameters = {name: rng.uniform(1, 2, 6).astype(np.float32) for name in ("scale", "bias", "mean", "variance")}
    arrays = {"x": rng.standard_normal(SHAPE).astype(np.float32)} | parameters
    found, names = computed(
        cudnnpy.BatchNormalization(), "_forward_inference", {**arrays, "out": arrays["x"]}, 1.0, 0.0
    )
    np.testing.assert_allclose(found, reference.BatchNormalization().forward_inference(**arrays), rtol=1e-5, atol=1e-5)
    assert names == ["cudnnBatchNormalizationForwardInference"] * 5
