"""What the operations beside the convolutions refuse, before any call of C: by the argument's name, what was given, and
what is expected.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sample_calls import BY_NAME, PARAMETERS, SAMPLES, C, Sample, X
from stand_in_device import Array, StandInDevice, calls_of_c

import cudnnpy
from cudnnpy._launch import plan_cache

nn: Any = cudnnpy  # whose types forbid what is tried here
NAN = float("nan")


def arrays_of(sample: Sample) -> list[str]:
    return list({**sample.arrays, **sample.optional, "out": None})


def cases(*left_out: str) -> pytest.MarkDecorator:
    """Every array of every operation, but for some operations and some arrays."""
    each = [
        (sample, name)
        for sample in SAMPLES
        for name in arrays_of(sample)
        if not {sample.name, name, f"{sample.name} {name}"} & set(left_out)
    ]
    return pytest.mark.parametrize(("sample", "name"), each, ids=lambda given: getattr(given, "name", given))


def refused(stand_in: StandInDevice, sample: Sample, given: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text) as caught:
        sample.operation()(**given)
    assert type(caught.value) is kind
    assert calls_of_c(stand_in) == {}
    assert stand_in.planned_graphs == []
    assert stand_in.allocated == []
    assert plan_cache.cache_info().size == 0


# One array is wrong, of any operation


@cases()
def test_host_arrays(stand_in: StandInDevice, sample: Sample, name: str) -> None:
    given = {**sample.given(), name: sample.array(name, device=-1)}
    refused(
        stand_in, sample, given, TypeError, rf"^{name} must be an array on a CUDA device; got a host array .*reference"
    )


@cases()
@pytest.mark.parametrize("wrong", ["text", 3.0, [1.0]], ids=["text", "number", "list"])
def test_what_is_no_array(stand_in: StandInDevice, sample: Sample, name: str, wrong: Any) -> None:
    refused(stand_in, sample, {**sample.given(), name: wrong}, TypeError, rf"^{name} must be a device array .*; got")


@cases()
def test_arrays_on_another_device(stand_in: StandInDevice, sample: Sample, name: str) -> None:
    first = next(iter(sample.arrays))
    given = {**sample.given(), name: sample.array(name, device=1)}
    if name == first:  # then the next is on another
        name = next((other for other in arrays_of(sample) if other != first), first)
    place = 0 if given[first].device == 1 else 1
    refused(stand_in, sample, given, ValueError, rf"^{name} must be on device {1 - place}, as {first}; got .* {place}$")


@cases()
def test_types_that_no_operation_takes(stand_in: StandInDevice, sample: Sample, name: str) -> None:
    for dtype in ("int32", "int8", "float8_e4m3fn"):
        given = {**sample.given(), name: Array(*sample.array(name).shape, dtype=dtype)}
        refused(stand_in, sample, given, TypeError, rf"^{name} must be (float16|float32).*; got {dtype}")
    given = {**sample.given(), name: Array(*sample.array(name).shape, dtype="complex64")}
    refused(stand_in, sample, given, TypeError, r"^dtype must be one of .*; got 'complex64'")


@cases()
def test_types_that_the_others_are_not_of(stand_in: StandInDevice, sample: Sample, name: str) -> None:
    """With one input alone it is out that is of another type."""
    given = {**sample.given(), name: Array(*sample.array(name).shape, dtype="float16")}
    if sample.name.startswith("Fused") and name in PARAMETERS:
        given[name] = Array(*sample.array(name).shape, dtype="bfloat16")
    refused(stand_in, sample, given, TypeError, r"^\w+ must be \w+.*; got (float16|float32|bfloat16)")


@pytest.mark.parametrize(
    "sample", [sample for sample in SAMPLES if "float64" not in sample.dtypes], ids=lambda sample: sample.name
)
def test_float64_where_there_is_none(stand_in: StandInDevice, sample: Sample) -> None:
    first = next(iter(sample.arrays))
    text = rf"^{first} must be float16 or bfloat16 or float32.*; got float64$"
    refused(stand_in, sample, sample.given("float64"), TypeError, text)


@cases()
def test_shapes_that_do_not_fit(stand_in: StandInDevice, sample: Sample, name: str) -> None:
    shape = sample.array(name).shape
    axis = min(1, len(shape) - 1)
    longer = tuple(size + 1 if at == axis else size for at, size in enumerate(shape))
    given = {**sample.given(), name: sample.array(name, shape=longer)}
    refused(stand_in, sample, given, ValueError, r"^\w+ must have (shape|the shape of|\d+ channels)")
    given[name] = sample.array(name, shape=(1,) * 6)
    refused(stand_in, sample, given, ValueError, r"^\w+ must have .*; got shape|^layout must have \d axes")


IMAGE, KERNEL, RESULT = (2, 16, 17, 3), (5, 3, 2, 3), (2, 14, 16, 5)


@pytest.mark.parametrize(
    ("call", "shapes"),
    [
        (lambda plan: plan("forward", IMAGE, (5, 3, 2, 4)), f"got 3 (x has shape {IMAGE}, w (5, 3, 2, 4))"),
        (lambda plan: plan("forward", IMAGE[:3], KERNEL), f"got shape {KERNEL} (x has shape {IMAGE[:3]})"),
        (lambda plan: plan("forward", (2, 0, 17, 3), KERNEL), "got shape (2, 0, 17, 3)"),
        (
            lambda plan: plan("forward", IMAGE, KERNEL, out=(2, 1, 2, 5)),
            f"out must have shape {RESULT}; got shape (2, 1, 2, 5)",
        ),
        (
            lambda plan: plan("backward_data", (2, 14, 15, 5), KERNEL, IMAGE),
            f"dy must have shape {RESULT}; got shape (2, 14, 15, 5)",
        ),
        (lambda plan: plan("forward", IMAGE, KERNEL, strides=(1000, 51, 3, 0)), "got strides (1000, 51, 3, 0)"),
    ],
)
def test_errors_have_the_axis_order_of_the_arrays(call: Callable[[Any], None], shapes: str) -> None:
    """With layout="NHWC" a shape of an error is one that the caller knows."""

    def plan(
        operation: Any, one: Any, two: Any, shape: Any = None, *, out: Any = None, strides: Any = None
    ) -> cudnnpy.Plan:
        first, second = cudnnpy.TensorSpec(one, "float32", strides), cudnnpy.TensorSpec(two)
        result = None if out is None else cudnnpy.TensorSpec(out)
        return cudnnpy.Convolution(layout="NHWC").plan(operation, first, second, shape, out=result, device=0)

    with pytest.raises(ValueError, match=re.escape(shapes)):
        call(plan)


def test_errors_of_the_reference_and_of_other_layers_have_the_axis_order_of_the_arrays() -> None:
    x, w = np.ones(IMAGE, np.float32), np.ones((5, 3, 2, 4), np.float32)
    with pytest.raises(ValueError, match=re.escape(f"got 3 (x has shape {IMAGE}, w (5, 3, 2, 4))")):
        cudnnpy.reference.Convolution(layout="NHWC").forward(x, w)
    with pytest.raises(ValueError, match=re.escape(f"got 3 (x has shape {IMAGE}, w (4, 3, 2, 5))")):
        cudnnpy.ConvolutionTranspose(layout="NHWC").output_shape(IMAGE, (4, 3, 2, 5))
    with pytest.raises(ValueError, match=re.escape("got shape (2, 0, 17, 3)")):
        cudnnpy.Pooling(layout="NHWC").output_shape((2, 0, 17, 3))


@cases()
def test_empty_arrays_beside_others(stand_in: StandInDevice, sample: Sample, name: str) -> None:
    shape = sample.array(name).shape
    given = {**sample.given(), name: sample.array(name, shape=(*shape[:-1], 0))}
    refused(stand_in, sample, given, ValueError, r"^\w+ must have (shape|the shape of|sizes of 1 or more|\d+ channels)")


@cases()
def test_elements_that_overlap_each_other(stand_in: StandInDevice, sample: Sample, name: str) -> None:
    shape = sample.array(name).shape
    for strides in ((0,) * len(shape), (-1,) * len(shape)):
        if max(shape) > 1:
            given = {**sample.given(), name: sample.array(name, strides=strides)}
            refused(stand_in, sample, given, ValueError, rf"^{name} must have strides of 1 or more; got strides")


def test_parameters_are_packed(stand_in: StandInDevice) -> None:
    sample = BY_NAME["BatchNormalization.forward_inference"]
    for parameter in PARAMETERS & set(sample.arrays):
        strides = tuple(2 * stride for stride in sample.array(parameter).strides)
        given = {**sample.given(), parameter: sample.array(parameter, strides=strides)}
        text = rf"^{parameter} must be packed.*; got strides {re.escape(str(strides))}"
        refused(stand_in, sample, given, ValueError, text)


@cases()
def test_addresses_that_no_element_can_have(stand_in: StandInDevice, sample: Sample, name: str) -> None:
    given = {**sample.given(), name: sample.array(name, pointer=(1 << 30) + 2)}
    refused(
        stand_in,
        sample,
        given,
        ValueError,
        rf"^{name} must be aligned to the size of a float32; got address 0x40000002",
    )


@pytest.mark.parametrize(
    ("sample", "name"),
    [(sample, name) for sample in SAMPLES for name in sample.arrays if name not in ("out", "scale", "bias")],
    ids=lambda given: getattr(given, "name", given),
)
def test_arrays_that_are_missing(stand_in: StandInDevice, sample: Sample, name: str) -> None:
    refused(stand_in, sample, {**sample.given(), name: None}, TypeError, rf"^{name} must be a device array.*; got None")


# Results


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_results_that_cannot_be_written(stand_in: StandInDevice, sample: Sample) -> None:
    given = {**sample.given(), "out": sample.array("out", writable=False)}
    refused(stand_in, sample, given, ValueError, "^out must be a writable array; got a read-only one")


@pytest.mark.parametrize("name", ["running_mean", "running_variance"])
def test_running_statistics_that_cannot_be_written(stand_in: StandInDevice, name: str) -> None:
    sample = BY_NAME["BatchNormalization.forward_training"]
    given = {**sample.given(), name: sample.array(name, writable=False)}
    refused(stand_in, sample, given, ValueError, f"^{name} must be a writable array; got a read-only one")


@cases("out")
def test_results_that_overlap_an_input(stand_in: StandInDevice, sample: Sample, name: str) -> None:
    given = sample.given()
    given["out"] = sample.array("out", pointer=given[name].pointer + 4)
    results = r"out|out_scale|out_bias|running_mean|running_variance"
    refused(stand_in, sample, given, ValueError, rf"^({results}) must not overlap ({name}|out) in memory")
    same = sample.array("out", pointer=given[name].pointer)
    if name not in sample.in_place:
        refused(
            stand_in,
            sample,
            {**given, "out": same},
            ValueError,
            rf"^({results}) must not overlap ({name}|out) in memory",
        )
    else:
        sample.operation()(**{**given, "out": same})
        assert stand_in.launches


@pytest.mark.parametrize(
    ("name", "one", "two"),
    [
        ("BatchNormalization.forward_training", "running_mean", "running_variance"),
        ("BatchNormalization.forward_training", "running_mean", "scale"),
        ("BatchNormalization.backward", "out_scale", "out_bias"),
        ("BatchNormalization.backward", "out_bias", "saved_mean"),
    ],
)
def test_results_that_overlap_each_other(stand_in: StandInDevice, name: str, one: str, two: str) -> None:
    given = BY_NAME[name].given()
    given[two] = given[one]
    refused(stand_in, BY_NAME[name], given, ValueError, rf"^{one} must not overlap {two} in memory")


@pytest.mark.parametrize(
    ("sample", "option"),
    [(s, option) for s in SAMPLES for option in s.keywords if option.endswith("beta")],
    ids=lambda given: getattr(given, "name", given),
)
def test_beta_without_out(stand_in: StandInDevice, sample: Sample, option: str) -> None:
    out = "out_scale" if option == "parameter_beta" else "out"
    text = rf"^{option} must be 0 where {out} is None; got 0.5"
    refused(stand_in, sample, {**sample.given(), out: None, option: 0.5}, ValueError, text)


@pytest.mark.parametrize(
    ("sample", "option"),
    [(s, option) for s in SAMPLES for option in s.keywords if option.endswith(("alpha", "beta"))],
    ids=lambda given: getattr(given, "name", given),
)
@pytest.mark.parametrize("wrong", ["1", True, NAN, float("inf"), 1j, None, [1.0]], ids=str)
def test_factors_that_are_no_finite_numbers(stand_in: StandInDevice, sample: Sample, option: str, wrong: Any) -> None:
    text = rf"^{option} must be a finite number; got {re.escape(repr(wrong))}$"
    kind = ValueError if type(wrong) is float else TypeError  # not finite; no number
    refused(stand_in, sample, {**sample.given(), option: wrong}, kind, text)


# Options, and what belongs to one operation

W = (8, 4, 3, 3)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: nn.Activation().forward(Array()), ValueError, r"x must have 1 to 5 axes.*; got shape \(\)"),
        (
            lambda: nn.Activation().forward(Array(*(1,) * 6)),
            ValueError,
            r"x must have 1 to 5 axes.*; got shape \(1, 1,",
        ),
        (
            lambda: nn.Softmax(layout="NCDHW").forward(Array(*X)),
            ValueError,
            "layout must have 4 axes, as x; got 'NCDHW'",
        ),
        (lambda: nn.Pooling(padding=2), ValueError, r"padding must be less than the window, \(2,\).*; got \(2,\)"),
        (lambda: nn.Pooling(window=(2, 2), stride=(1, 1, 1)), ValueError, r"stride must be .*; got \(1, 1, 1\)"),
        (lambda: nn.Pooling(window=7).forward(Array(*X)), ValueError, r"window must be at most 6, the padded.*; got 7"),
        (lambda: nn.Pooling(window=(2, 2)).forward(Array(2, 4, 6)), ValueError, r"window must .*; got \(2, 2\)"),
        (
            lambda: nn.Pooling().output_shape((2, 4, 0, 6)),
            ValueError,
            r"x must have sizes of 1.*; got shape \(2, 4, 0, 6\)",
        ),
        (lambda: nn.Pooling().output_shape(5), TypeError, r"x_shape must be a tuple of sizes of 0 or more.*; got 5"),
        (lambda: nn.Pooling().output_shape((2, 4)), ValueError, r"x must have 3, 4 or 5 axes; got shape \(2, 4\)"),
        (lambda: nn.Softmax().forward(Array(4)), ValueError, r"x must have 2 to 5 axes.*; got shape \(4,\)"),
        (
            lambda: training(running_variance=None),
            ValueError,
            "running_mean and running_variance must be passed together; got None for running_variance",
        ),
        (
            lambda: training(x=Array(*X, dtype="float16"), scale=Array(*C, dtype="bfloat16")),
            TypeError,
            r"scale must be float32 or float16.*; got bfloat16",
        ),
        (
            lambda: training(x=Array(*X, dtype="float16"), bias=Array(*C, dtype="float16"), out=None),
            TypeError,
            r"bias must be float32, as scale.*; got float16",
        ),
        (lambda: training(average_factor=NAN), ValueError, r"average_factor must be a finite number.*; got nan"),
        (lambda: training(x=Array(2, 0, 6)), ValueError, r"scale must have shape \(0,\).*; got shape \(4,\)"),
        (
            lambda: nn.BatchNormalization().forward_training(Array(2, 0), Array(0)),
            ValueError,
            "scale must be None for an x of 0 channels; got an array",
        ),
        (
            lambda: nn.BatchNormalization().backward(Array(*X), Array(*X), out_scale=Array(*C)),
            ValueError,
            "out_scale must be None where there is no scale; got an array",
        ),
        (
            lambda: nn.BatchNormalization().backward(Array(*X), Array(*X), Array(*C), out_bias=Array(*C), bias=False),
            ValueError,
            "out_bias must be None where there is no bias; got an array",
        ),
        (
            lambda: nn.BatchNormalization().backward(Array(*X), Array(*X), Array(*C), Array(*C)),
            ValueError,
            "saved_mean and saved_inverse_variance must be passed together; got None for saved_inverse_variance",
        ),
        (lambda: fused(activation="gelu"), ValueError, r"activation must be one of 'relu', 'sigmoid'.*; got 'gelu'"),
        (lambda: fused(bias=Array(4)), ValueError, r"bias must have shape \(8,\).*; got shape \(4,\)"),
        (lambda: fused(scale=Array(1, 8, 1, 1)), ValueError, r"scale must have 1 to 1 axes; got shape \(1, 8, 1, 1\)"),
        (lambda: fused(residual=Array(*X)), ValueError, r"residual must have shape \(2.*; got shape \(2, 4, 6, 6\)"),
    ],
)
def test_bad_options_and_arguments(
    stand_in: StandInDevice, call: Callable[[], Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=f"^{text}"):
        call()
    assert calls_of_c(stand_in) == {}
    assert plan_cache.cache_info().size == 0


def training(**changes: Any) -> Any:
    sample = BY_NAME["BatchNormalization.forward_training"]
    return sample.operation()(**{**sample.given(), **changes})


def fused(**arguments: Any) -> Any:
    return nn.FusedConvolution().forward(Array(*X), Array(*W), **arguments)
