"""What the operations beside the convolutions refuse, before any call of C: by the argument's name, what was given, and
what is expected.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from calls import BY_NAME, PARAMETERS, SAMPLES, C, Sample, X
from standins import Array, World, made

import cudnnpy
from cudnnpy._runtime import plan_cache

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


# What Dropout asks C first: how large the reserve is.
ASKED = {"cudnnDropoutGetReserveSpaceSize", "cudnnCreateTensorDescriptor", "cudnnSetTensor4dDescriptor"}


def refused(world: World, sample: Sample, given: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text) as caught:
        sample.operation()(**given)
    assert type(caught.value) is kind
    assert set(made(world)) <= (ASKED if sample.name.startswith("Dropout") else set())
    assert world.graphs == []
    assert world.allocated == []
    assert plan_cache.cache_info().size == 0


# One array is wrong, of any operation


@cases()
def test_host_arrays(world: World, sample: Sample, name: str) -> None:
    given = {**sample.given(), name: sample.array(name, device=-1)}
    refused(
        world, sample, given, TypeError, rf"^{name} is a host array .*expected an array on a CUDA device.*reference"
    )


@cases()
@pytest.mark.parametrize("wrong", ["text", 3.0, [1.0]], ids=["text", "number", "list"])
def test_what_is_no_array(world: World, sample: Sample, name: str, wrong: Any) -> None:
    refused(world, sample, {**sample.given(), name: wrong}, TypeError, rf"^{name} is .*; expected a device array")


@cases("set_tensor")
def test_arrays_on_another_device(world: World, sample: Sample, name: str) -> None:
    first = next(iter(sample.arrays))
    given = {**sample.given(), name: sample.array(name, device=1)}
    if name == first:  # then the next is on another
        name = next((other for other in arrays_of(sample) if other != first), first)
    place = 0 if given[first].device == 1 else 1
    refused(
        world,
        sample,
        given,
        ValueError,
        rf"^{name} is on device {place}; expected device {1 - place}, where {first} is",
    )


@cases()
def test_types_that_no_operation_takes(world: World, sample: Sample, name: str) -> None:
    for dtype in ("int32", "int8", "float8_e4m3fn"):
        given = {**sample.given(), name: Array(*sample.array(name).shape, dtype=dtype)}
        refused(world, sample, given, TypeError, rf"^{name}: {dtype} given; expected (float16|uint8|float32)")
    given = {**sample.given(), name: Array(*sample.array(name).shape, dtype="complex64")}
    refused(world, sample, given, TypeError, "complex64.*expected one of float32")


@cases("transform_tensor", "set_tensor")
def test_types_that_the_others_are_not_of(world: World, sample: Sample, name: str) -> None:
    """With one input alone it is out that is of another type."""
    given = {**sample.given(), name: Array(*sample.array(name).shape, dtype="float16")}
    if sample.name.startswith("Fused") and name in PARAMETERS:
        given[name] = Array(*sample.array(name).shape, dtype="bfloat16")
    refused(world, sample, given, TypeError, r"^\w+: (float16|float32|bfloat16) given; expected \w+")


@pytest.mark.parametrize(
    "sample", [sample for sample in SAMPLES if "float64" not in sample.dtypes], ids=lambda sample: sample.name
)
def test_float64_where_there_is_none(world: World, sample: Sample) -> None:
    first = next(iter(sample.arrays))
    text = rf"^{first}: float64 given; expected float16 or bfloat16 or float32$"
    refused(world, sample, sample.given("float64"), TypeError, text)


@cases("set_tensor", "reduce_tensor x")
def test_shapes_that_do_not_fit(world: World, sample: Sample, name: str) -> None:
    shape = sample.array(name).shape
    axis = min(1, len(shape) - 1)
    longer = tuple(size + 1 if at == axis else size for at, size in enumerate(shape))
    given = {**sample.given(), name: sample.array(name, shape=longer)}
    refused(world, sample, given, ValueError, r"^\w+: (logical )?shape .* given; expected|^w takes 3 channels|^w takes")
    given[name] = sample.array(name, shape=(1,) * 6)
    refused(world, sample, given, ValueError, r"^\w+: shape .* (given; expected|has 6 axes)|^w has|^x has|^layout: ")


@cases("set_tensor", "reduce_tensor x")
def test_empty_arrays_beside_others(world: World, sample: Sample, name: str) -> None:
    shape = sample.array(name).shape
    given = {**sample.given(), name: sample.array(name, shape=(*shape[:-1], 0))}
    refused(
        world,
        sample,
        given,
        ValueError,
        rf"^{name}: shape .* is empty; expected sizes of 1 or more|^`?\w+`?: shape .* given; expected|^`[xw]` must have sizes"
        "|^w takes",
    )


@cases("reduce_tensor out")  # of one element
def test_elements_that_overlap_each_other(world: World, sample: Sample, name: str) -> None:
    shape = sample.array(name).shape
    for strides in ((0,) * len(shape), (-1,) * len(shape)):
        if max(shape) > 1:
            given = {**sample.given(), name: sample.array(name, strides=strides)}
            refused(
                world, sample, given, ValueError, rf"^{name}: strides .* are not all above 0; make the array contiguous"
            )


@pytest.mark.parametrize("name", ["BatchNormalization.forward_inference", "LayerNormalization.backward"])
def test_parameters_are_packed(world: World, name: str) -> None:
    sample = BY_NAME[name]
    for parameter in PARAMETERS & set(sample.arrays):
        shape = sample.array(parameter).shape
        strides = tuple(2 * stride for stride in sample.array(parameter).strides)
        given = {**sample.given(), parameter: sample.array(parameter, strides=strides)}
        text = rf"^{parameter}: strides {re.escape(str(strides))} given; expected it packed"
        refused(world, sample, given, ValueError, text)
        assert len(shape) in (1, 2)


@cases("reserve")  # bytes are anywhere
def test_addresses_that_no_element_can_have(world: World, sample: Sample, name: str) -> None:
    given = {**sample.given(), name: sample.array(name, pointer=(1 << 30) + 2)}
    refused(world, sample, given, ValueError, rf"^{name}: address 0x40000002 is no multiple of the size of a float32")


@pytest.mark.parametrize(
    ("sample", "name"),
    [(sample, name) for sample in SAMPLES for name in sample.arrays if name not in ("out", "scale", "bias")],
    ids=lambda given: getattr(given, "name", given),
)
def test_arrays_that_are_missing(world: World, sample: Sample, name: str) -> None:
    refused(world, sample, {**sample.given(), name: None}, TypeError, rf"^{name} is None; expected a device array")


# Results


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_results_that_cannot_be_written(world: World, sample: Sample) -> None:
    given = {**sample.given(), "out": sample.array("out", writable=False)}
    refused(world, sample, given, ValueError, "^out: a read-only array given; expected one that can be written")


@pytest.mark.parametrize("name", ["running_mean", "running_variance"])
def test_running_statistics_that_cannot_be_written(world: World, name: str) -> None:
    sample = BY_NAME["BatchNormalization.forward_training"]
    given = {**sample.given(), name: sample.array(name, writable=False)}
    refused(world, sample, given, ValueError, f"^{name}: a read-only array given; expected one that can be written")


@cases("out")
def test_results_that_overlap_an_input(world: World, sample: Sample, name: str) -> None:
    given = sample.given()
    given["out"] = sample.array("out", pointer=given[name].pointer + 4)
    results = r"out|out_scale|out_bias|running_mean|running_variance"
    refused(
        world, sample, given, ValueError, rf"^({results}) overlaps ({name}|out) in memory; give a result of its own"
    )
    same = sample.array("out", pointer=given[name].pointer)
    if name not in sample.in_place:
        refused(world, sample, {**given, "out": same}, ValueError, rf"^({results}) overlaps ({name}|out) in memory")
    else:
        sample.operation()(**{**given, "out": same})
        assert world.launches


@pytest.mark.parametrize(
    ("name", "one", "two"),
    [
        ("BatchNormalization.forward_training", "running_mean", "running_variance"),
        ("BatchNormalization.forward_training", "running_mean", "scale"),
        ("BatchNormalization.backward", "out_scale", "out_bias"),
        ("BatchNormalization.backward", "out_bias", "saved_mean"),
    ],
)
def test_results_that_overlap_each_other(world: World, name: str, one: str, two: str) -> None:
    given = BY_NAME[name].given()
    given[two] = given[one]
    refused(world, BY_NAME[name], given, ValueError, rf"^{one} overlaps {two} in memory")


@pytest.mark.parametrize(
    ("sample", "option"),
    [(s, option) for s in SAMPLES for option in s.keywords if option.endswith("beta") and s.name != "add_tensor"],
    ids=lambda given: getattr(given, "name", given),
)
def test_beta_without_out(world: World, sample: Sample, option: str) -> None:
    out = "out_scale" if option == "parameter_beta" else "out"
    text = rf"^beta: 0.5 given without {out}; beta \* {out} needs the array that it reads"
    refused(world, sample, {**sample.given(), out: None, option: 0.5}, ValueError, text)


@pytest.mark.parametrize(
    ("sample", "option"),
    [(s, option) for s in SAMPLES for option in s.keywords if option.endswith(("alpha", "beta"))],
    ids=lambda given: getattr(given, "name", given),
)
@pytest.mark.parametrize("wrong", ["1", True, NAN, float("inf"), 1j, None, [1.0]], ids=str)
def test_factors_that_are_no_finite_numbers(world: World, sample: Sample, option: str, wrong: Any) -> None:
    text = rf"^{option.removeprefix('parameter_')}: {re.escape(repr(wrong))} given; expected a finite number"
    kind = ValueError if type(wrong) is float else TypeError  # not finite; no number
    refused(world, sample, {**sample.given(), option: wrong}, kind, text)


# Options, and what belongs to one operation

W = (8, 4, 3, 3)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: nn.Activation("gelu"), ValueError, "mode: 'gelu' given; expected one of 'sigmoid', 'relu', 'tanh'"),
        (lambda: nn.Activation(None), TypeError, "mode: None given; expected one of"),
        (lambda: nn.Activation(coefficient="1"), TypeError, "coefficient: '1' given; expected a number"),
        (lambda: nn.Activation(coefficient=NAN), ValueError, "coefficient: nan given; expected a"),
        (lambda: nn.Pooling("avg"), ValueError, "mode: 'avg' given; expected one of 'max'"),
        (lambda: nn.Pooling(window=0), ValueError, "window: 0 given; expected an integer of 1 or more"),
        (lambda: nn.Pooling(window=(2, 2.0)), TypeError, "window: 2.0 given; expected an integer of 1 or more"),
        (
            lambda: nn.Pooling(window=(2,) * 4),
            ValueError,
            r"window: \(2, 2, 2, 2\) given; expected an integer of 1 or more, or one",
        ),
        (lambda: nn.Pooling(padding=2), ValueError, r"padding: \(2,\) given; expected less than the window, \(2,\)"),
        (lambda: nn.Pooling(padding=-1), ValueError, "padding: -1 given; expected an integer of 0 or more"),
        (
            lambda: nn.Pooling(window=(2, 2), stride=(1, 1, 1)),
            ValueError,
            r"(window|stride): .* given; expected a number",
        ),
        (lambda: nn.Pooling(stride=0), ValueError, "stride: 0 given; expected an integer of 1 or more"),
        (
            lambda: nn.Pooling(window=7).forward(Array(*X)),
            ValueError,
            r"window: 7 given; expected at most 6, the padded",
        ),
        (
            lambda: nn.Pooling(window=(2, 2)).forward(Array(2, 4, 6)),
            ValueError,
            r"window: \(2, 2\) given; expected a number",
        ),
        (
            lambda: nn.Pooling().output_shape((2, 4, 0, 6)),
            ValueError,
            r"`x` must have sizes of 1 or more, but for a batch of 0; got \(2, 4, 0, 6\)",
        ),
        (lambda: nn.Pooling().output_shape(5), TypeError, "x_shape: 5 given; expected a tuple of sizes of 0 or more"),
        (lambda: nn.Pooling().output_shape((2, 4)), ValueError, r"x: shape \(2, 4\) has 2 axes; expected 3, 4 or 5"),
        (lambda: nn.Softmax("slow"), ValueError, "algorithm: 'slow' given; expected one of 'fast', 'accurate', 'log'"),
        (lambda: nn.Softmax(mode="batch"), ValueError, "mode: 'batch' given; expected one of 'channel', 'instance'"),
        (lambda: nn.Softmax().forward(Array(4)), ValueError, r"x: shape \(4,\) given; expected 2 to 5 axes"),
        (lambda: nn.LocalResponseNormalization(size=17), ValueError, "size: 17 given; expected an integer of 1 to 16"),
        (
            lambda: nn.LocalResponseNormalization(beta=0.001),
            ValueError,
            "beta: 0.001 given; expected a finite number of 0.01 or more",
        ),
        *(
            (
                lambda name=name, wrong=wrong: nn.LocalResponseNormalization(**{name: wrong}),
                ValueError,
                f"{name}: {wrong} given; expected",
            )
            for name in ("alpha", "beta", "k")
            for wrong in (float("inf"), float("-inf"), NAN)
        ),
        (
            lambda: nn.LocalResponseNormalization(k=0),
            ValueError,
            "k: 0 given; expected a finite number of 1e-05 or more",
        ),
        (lambda: nn.LocalResponseNormalization(alpha=None), TypeError, "alpha: None given; expected a finite number"),
        (
            lambda: nn.LocalResponseNormalization().forward(Array(2, 4)),
            ValueError,
            r"x: shape \(2, 4\) given; expected 3 to 5 axes",
        ),
        (lambda: nn.Dropout(1.0), ValueError, "probability: 1.0 given; expected a number of 0 or more and below 1"),
        (lambda: nn.Dropout(-0.1), ValueError, "probability: -0.1 given; expected a number of 0 or more and below 1"),
        (
            lambda: nn.Dropout(seed=1 << 64),
            ValueError,
            "seed: 18446744073709551616 given; expected an integer of 0 to 18446744073709551615",
        ),
        (lambda: nn.Dropout(seed=0.5), TypeError, "seed: 0.5 given; expected an integer of 0 to"),
        (
            lambda: nn.add_tensor(Array(4), Array(*X)),
            ValueError,
            r"a: shape \(4,\) given; expected \(2, 4, 6, 6\), as b",
        ),
        (
            lambda: nn.add_tensor(Array(3, 4, 6, 6), Array(*X)),
            ValueError,
            r"a: shape \(3, 4, 6, 6\) given; .* or 1 for any",
        ),
        (lambda: nn.set_tensor(Array(*X), "1"), TypeError, "value: '1' given; expected a number"),
        (lambda: nn.set_tensor(None, 1.0), TypeError, "out is None; expected a device array"),
        (
            lambda: nn.transform_tensor(Array(*X), layout="NHWC"),
            ValueError,
            "layout: 'NHWC' given; expected one of 'C', 'cha",
        ),
        (
            lambda: nn.transform_tensor(Array(2, 3), layout="channels_last"),
            ValueError,
            "layout: 'channels_last' given for 2 axes of x; expected 3, 4 or 5",
        ),
        (lambda: nn.transform_tensor(Array(*X), dtype="int8"), TypeError, "dtype: 'int8' given; expected float16 or"),
        (lambda: nn.transform_tensor(Array(*X), dtype="half?"), TypeError, "dtype: 'half.' is no element type"),
        (lambda: nn.reduce_tensor(Array(*X), "median"), ValueError, "op: 'median' given; expected one of 'add', 'avg'"),
        (
            lambda: nn.reduce_tensor(Array(*X), axes=(4,)),
            ValueError,
            r"axes: \(4,\) given; expected -4 to 3 for the 4 axes",
        ),
        (lambda: nn.reduce_tensor(Array(*X), axes=1), TypeError, "axes: 1 given; expected"),
        (lambda: nn.reduce_tensor(Array(*X), axes=()), ValueError, r"axes: \(\) given; expected one axis or more"),
        (
            lambda: nn.BatchNormalization("all"),
            ValueError,
            "mode: 'all' given; expected one of 'spatial', 'per_activation'",
        ),
        (
            lambda: nn.BatchNormalization(epsilon=-1.0),
            ValueError,
            "epsilon: -1.0 given; expected a finite number of 0 or more",
        ),
        (
            lambda: nn.LayerNormalization(float("inf")),
            ValueError,
            "epsilon: inf given; expected a finite number of 0 or more",
        ),
        (lambda: nn.RMSNormalization("1"), TypeError, "epsilon: '1' given; expected a finite number of 0 or more"),
        (lambda: nn.InstanceNormalization(layout="HWC"), ValueError, "layout: 'HWC' given; expected one of 'NCW'"),
        (lambda: training(running_variance=None), ValueError, "running_variance: None given; expected both"),
        (lambda: training(average_factor=NAN), ValueError, "average_factor: nan given; expected a finite number"),
        (lambda: training(average_factor="1"), TypeError, "average_factor: '1' given; expected a finite number"),
        (lambda: training(x=Array(2, 0, 6)), ValueError, r"scale: shape \(4,\) given; expected \(0,\)"),
        (
            lambda: nn.BatchNormalization().forward_training(Array(2, 0), Array(0)),
            ValueError,
            "`scale` must be None for an x of 0 channels; got an array",
        ),
        (
            lambda: nn.BatchNormalization().backward(Array(*X), Array(*X), out_scale=Array(*C)),
            ValueError,
            "`out_scale` must be None where there is no scale; got an array",
        ),
        (
            lambda: nn.BatchNormalization().backward(Array(*X), Array(*X), Array(*C), out_bias=Array(*C), bias=False),
            ValueError,
            "`out_bias` must be None where there is no bias; got an array",
        ),
        (
            lambda: nn.BatchNormalization().backward(Array(*X), Array(*X), Array(*C), bias=1),
            TypeError,
            "bias: 1 given; expected True or False",
        ),
        (lambda: training(activation="tanh"), ValueError, "activation: 'tanh' given; expected one of 'relu'"),
        (lambda: training(activation="relu", alpha=2.0), ValueError, r"alpha, beta: 2.0, 0.0 given with an activation"),
        (
            lambda: nn.BatchNormalization().backward(Array(*X), Array(*X), Array(*C), Array(*C)),
            ValueError,
            "saved_inverse_variance: None given; expected both saved_mean and saved_inverse_variance, or neither",
        ),
        (
            lambda: nn.LayerNormalization().forward_inference(Array(*X), Array(6, 4), Array(6, 4)),
            ValueError,
            r"scale: shape \(6, 4\) given; expected that of the last axes of x, \(2, 4, 6, 6\)",
        ),
        (
            lambda: nn.LayerNormalization().forward_inference(Array(*X), None, Array(6, 4)),
            ValueError,
            r"bias: shape \(6, 4\) given; expected that of the last axes of x, \(2, 4, 6, 6\)",
        ),
        (
            lambda: nn.LayerNormalization().forward_inference(Array(*X), Array(6), Array(6, dtype="float16")),
            TypeError,
            "bias: float16 given; expected float32",
        ),
        (
            lambda: nn.LayerNormalization().forward_inference(
                Array(*X, dtype="float16"), Array(6), Array(6, dtype="float16")
            ),
            TypeError,
            "bias: float16 given; expected float32, as scale",
        ),
        (
            lambda: nn.RMSNormalization().forward_training(Array(*X, dtype="float16"), Array(6, dtype="bfloat16")),
            TypeError,
            "scale: bfloat16 given; expected float32 or float16",
        ),
        *(
            (lambda given=given, kind=kind: kind().forward_training(Array(*X), normalized_shape=given), error, text)
            for kind in (nn.LayerNormalization, nn.RMSNormalization)
            for given, error, text in (
                (None, TypeError, "`normalized_shape` must be the sizes of x's last axes where there is no scale"),
                (
                    (),
                    ValueError,
                    r"`normalized_shape` must be None, an integer .* or a tuple of one or more .*; got \(\)",
                ),
                (
                    5,
                    ValueError,
                    r"`normalized_shape` must be the sizes of the last axes of x, \(2, 4, 6, 6\); got \(5,\)",
                ),
                ((1, *X), ValueError, r"`normalized_shape` must be the sizes of .*; got \(1, 2, 4, 6, 6\)"),
                (
                    6.0,
                    TypeError,
                    "`normalized_shape` must be None, an integer of 0 or more, or a tuple of one or more of them; got 6.0",
                ),
                ((6.0,), TypeError, r"`normalized_shape` must be None, an integer .*; got \(6.0,\)"),
                ("6", TypeError, "`normalized_shape` must be None, an integer .*; got '6'"),
                (True, TypeError, "`normalized_shape` must be None, an integer .*; got True"),
                ((6, True), TypeError, r"`normalized_shape` must be None, an integer .*; got \(6, True\)"),
                (-6, ValueError, "`normalized_shape` must be None, an integer .*; got -6"),
            )
        ),
        (
            lambda: nn.RMSNormalization().forward_training(Array(*X), Array(6), normalized_shape=(6, 6)),
            ValueError,
            r"scale: shape \(6,\) given; expected \(6, 6\)",
        ),
        (
            lambda: nn.RMSNormalization().backward(Array(*X), Array(*X), None, Array(2, 6)),
            ValueError,
            r"inverse_rms: shape \(2, 6\) given; expected that of the first axes of x, \(2, 4, 6, 6\)",
        ),
        (
            lambda: nn.LayerNormalization().backward(Array(*X), Array(*X), None, Array(*X), Array(*X)),
            ValueError,
            r"mean: shape \(2, 4, 6, 6\) given; expected that of the first axes of x, \(2, 4, 6, 6\)",
        ),
        (
            lambda: nn.LayerNormalization().backward(*[Array(*X)] * 2, None, *[Array(2, 4)] * 2, bias=Array(6, 6)),
            TypeError,
            "bias: .*Array.* given; expected True or False",
        ),
        (
            lambda: nn.InstanceNormalization().forward_inference(Array(2, 0, 6), None, Array(0)),
            ValueError,
            "`bias` must be None for an x of 0 channels; got an array",
        ),
        (lambda: nn.FusedConvolution(groups=0), ValueError, "groups: 0 given; expected an integer of 1 or more"),
        (lambda: nn.FusedConvolution(prefer="best"), ValueError, "prefer: 'best' given; expected one of 'fastest'"),
        (lambda: fused(activation="gelu"), ValueError, "activation: 'gelu' given; expected one of 'relu', 'sigmoid'"),
        (lambda: fused(bias=Array(4)), ValueError, r"bias: shape \(4,\) given; expected \(8,\)"),
        (lambda: fused(scale=Array(1, 8, 1, 1)), ValueError, r"scale: shape \(1, 8, 1, 1\) given; expected 1"),
        (
            lambda: fused(residual=Array(*X)),
            ValueError,
            r"residual: shape \(2, 4, 6, 6\) given; expected \(2, 8, 4, 4\)",
        ),
    ],
)
def test_bad_options_and_arguments(world: World, call: Callable[[], Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=f"^{text}"):
        call()
    assert made(world) == {}
    assert plan_cache.cache_info().size == 0


def training(**changes: Any) -> Any:
    sample = BY_NAME["BatchNormalization.forward_training"]
    return sample.operation()(**{**sample.given(), **changes})


def fused(**arguments: Any) -> Any:
    return nn.FusedConvolution().forward(Array(*X), Array(*W), **arguments)
