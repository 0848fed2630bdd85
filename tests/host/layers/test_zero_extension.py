"""Transposed convolutions whose output_padding is the stride or more, and convolutions without channels.

Their steps are carried out with NumPy; the plan in them is the reference's plain convolution.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_up_candidates import made_up
from numpy_machine import run_steps, tensor_in
from test_lowering import Planned

from cudnnpy import ConvolutionTranspose, TensorSpec, reference
from cudnnpy._arrays import workspace as memory
from cudnnpy._core.layouts import byte_extent, in_layout, packed_strides, to_logical
from cudnnpy._launch.dispatch import Call, Specs
from cudnnpy._launch.program import Program
from cudnnpy._layers.transpose import INPUT_NAMES, surplus_of
from cudnnpy._planning import selection
from cudnnpy._planning.chooser import Chooser, Chosen
from cudnnpy.handle import Handle


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Plans are the reference; the problems that were planned."""
    asked: list[Any] = []

    def choose(chooser: Chooser) -> Chosen:
        problem: Any = chooser.request.problem
        asked.append(problem)
        found = made_up("planned", "reference", make=lambda: Planned(problem))
        found.prepare()
        return Chosen(found, lambda: [found])

    monkeypatch.setattr(selection, "choose", choose)
    monkeypatch.setattr(Handle, "default", classmethod(lambda cls, device=None: None))
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1 << 30)
    monkeypatch.setattr(memory, "workspace", lambda size, device, stream: 0)
    return asked


def spec_of(shape: tuple[int, ...], gap: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(shape, dtype, tuple(stride * gap for stride in packed_strides(shape)))


def values(spec: TensorSpec, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(-4, 5, byte_extent(spec) // 4).astype(spec.dtype)


def planned(of: Any, name: str, specs: dict[str, TensorSpec], *arguments: Any) -> tuple[Any, list[TensorSpec]]:
    call = Call(Specs(specs), {}, 0, 0, {})
    return getattr(of, f"_{name}")(call, *arguments)  # type: ignore[no-any-return]


@st.composite
def transposes(draw: st.DrawFn) -> tuple[dict[str, Any], tuple[int, ...], tuple[int, ...]]:
    """Options, of which output_padding reaches the stride on an axis, and logical shapes of x and w."""
    rank = draw(st.integers(1, 3))
    small = st.integers(1, 3)
    groups, filters, channels = draw(st.integers(1, 2)), draw(small), draw(small)
    dilation = (draw(st.integers(2, 4)), *(draw(small) for _ in range(rank - 1)))
    stride = (draw(st.integers(1, dilation[0] - 1)), *(draw(small) for _ in range(rank - 1)))
    extra = [draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True)]
    extra[0] = draw(st.integers(stride[0], dilation[0] - 1))
    kernel = tuple(draw(small) for _ in range(rank))
    options = {
        "stride": stride,
        "dilation": dilation,
        "output_padding": tuple(extra),
        "padding": tuple((draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in range(rank)),
        "groups": groups,
        "layout": draw(st.sampled_from(["NCHW", "NHWC"])),
    }
    x = (draw(st.integers(1, 2)), groups * filters, *(draw(st.integers(1, 4)) for _ in range(rank)))
    return options, x, (groups * filters, channels, *kernel)


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(transposes(), st.sampled_from([(1.0, 0.0), (2.0, 0.0), (-0.5, 3.0)]), st.integers(0, 2**32 - 1), st.booleans())
def test_output_padding_beyond_the_stride(
    planner: list[Any], drawn: Any, scales: tuple[float, float], seed: int, with_bias: bool
) -> None:
    options, x_logical, w_logical = drawn
    last = options["layout"] == "NHWC"
    up, by_numpy = ConvolutionTranspose(**options), reference.ConvolutionTranspose(**options)
    x, w = (in_layout(spec_of(shape, gap), last) for shape, gap in ((x_logical, 2), (w_logical, 1)))
    try:
        y_shape = by_numpy.output_shape(x.shape, w.shape)
    except ValueError:
        return
    y = in_layout(spec_of(to_logical(y_shape, last), 1), last)
    assert any(surplus_of(up, len(x_logical) - 2))
    assert up.output_shape(x.shape, w.shape) == y_shape
    bias = TensorSpec((y_shape[-1 if last else 1],), "float32", (1,))
    extras = {"bias": bias} if with_bias else {}
    alpha, beta = scales
    activation = "relu" if with_bias else None
    calls: list[tuple[str, dict[str, TensorSpec], tuple[Any, ...], TensorSpec]] = [
        ("forward", {"x": x, "w": w, **extras}, (activation, alpha, beta), y),
        ("backward_data", {"dy": y, "w": w}, (alpha, beta), x),
        ("backward_filter", {"x": x, "dy": y}, (alpha, beta, *w.shape), w),
    ]
    assert [tuple(inputs)[:2] for _, inputs, _, _ in calls] == [
        INPUT_NAMES[name] for name in ("backward_data", "forward", "backward_filter")
    ]
    for name, inputs, arguments, result in calls:
        rng = np.random.default_rng(seed)
        program, results = planned(up, name, {**inputs, "out": result}, *arguments)
        assert [tuple(found.shape) for found in results] == [result.shape]
        assert isinstance(program, Program)
        memories = {name: values(spec, rng) for name, spec in {**inputs, "out": result}.items()}
        kept = {name: memory.copy() for name, memory in memories.items()}
        run_steps(program.steps, program.scratch, *memories.values())
        arrays = {key: tensor_in(kept[key], spec) for key, spec in {**inputs, "out": result}.items()}
        out = arrays.pop("out").copy()
        if name == "forward":
            by_numpy.forward(arrays["x"], arrays["w"], arrays.get("bias"), activation, out, alpha, beta)
        elif name == "backward_data":
            by_numpy.backward_data(arrays["dy"], arrays["w"], out=out, alpha=alpha, beta=beta)
        else:
            by_numpy.backward_filter(arrays["dy"], arrays["x"], out=out, alpha=alpha, beta=beta)
        np.testing.assert_allclose(tensor_in(memories["out"], result), out, rtol=1e-5, atol=1e-4)
        for key in inputs:
            np.testing.assert_array_equal(memories[key], kept[key])


def test_a_result_of_another_shape_is_refused(planner: list[Any]) -> None:
    up = ConvolutionTranspose(dilation=3, output_padding=2)
    dy, w = spec_of((1, 3, 9), 1), spec_of((2, 3, 2), 1)
    assert planned(up, "backward_data", {"dy": dy, "w": w}, 1.0, 0.0)[1][0].shape == (1, 2, 4)
    with pytest.raises(
        ValueError, match=r"^dy must have shape \(1, 3, 11\), .* of shape \(1, 2, 6\); got .* \(1, 3, 9\)$"
    ):
        planned(up, "backward_data", {"dy": dy, "w": w, "out": spec_of((1, 2, 6), 1)}, 1.0, 0.0)
    with pytest.raises(ValueError, match=r"^out must have shape \(1, 2, 4\).*; got shape \(1, 2, 6\)$"):
        planned(up, "backward_data", {"dy": dy, "w": w, "out": spec_of((1, 2, 6), 1)}, 1.0, 0.0, 1, 2, 4)
    with pytest.raises(ValueError, match=r"^beta must be 0 where out is None; got 1.0"):
        planned(up, "backward_data", {"dy": dy, "w": w}, 1.0, 1.0)
