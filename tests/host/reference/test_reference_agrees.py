"""The reference implementation accepts and rejects the same arguments as the classes on device arrays, with the same errors."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from stand_in_device import Array, StandInDevice

import cudnnpy
from cudnnpy import reference

Shape = tuple[int, ...]

CLASSES = ("Convolution", "ConvolutionTranspose")
METHODS = ("forward", "backward_data", "backward_filter", "backward_bias", "output_shape")
FUNCTIONS = {"run", "sigmoid", "tolerance"}  # which only the reference has
OPERATIONS = sorted(set(reference.__all__) - {*CLASSES, *FUNCTIONS})


@pytest.mark.parametrize("name", CLASSES)
def test_the_reference_leaves_out_only_what_needs_a_gpu(name: str) -> None:
    public = [
        {member for member in dir(kind) if not member.startswith("_") and callable(getattr(kind, member))}
        for kind in (getattr(cudnnpy, name), getattr(reference, name))
    ]
    assert set(METHODS) <= public[1]
    assert public[0] - public[1] == {"plan", "candidates"} & public[0]
    assert public[1] - public[0] == set()
    operation = getattr(reference, name)()
    assert not {"plan", "candidates"} & set(dir(operation))
    with pytest.raises(AttributeError, match=r"has no attribute 'plan'\. It has .*, forward, .*, output_shape, "):
        operation.plan


@pytest.mark.parametrize("name", CLASSES)
def test_out_may_stand_for_the_shape_of_a_gradient(name: str) -> None:
    kind = getattr(reference, name)(stride=2)
    rng = np.random.default_rng(0)
    x, w = rng.random((2, 4, 7, 7)), rng.random((4, 4, 3, 3))
    dy = rng.random(kind.output_shape(x.shape, w.shape))
    for method, first, second, like in (("backward_data", dy, w, x), ("backward_filter", dy, x, w)):
        gradient = getattr(kind, method)
        out = np.empty_like(like)
        assert gradient(first, second, out=out) is out
        np.testing.assert_array_equal(out, gradient(first, second, like.shape))
        if (name, method) == ("ConvolutionTranspose", "backward_data"):  # the shape follows
            np.testing.assert_array_equal(out, gradient(first, second))
            continue
        with pytest.raises(TypeError, match="_shape must be the shape of the result where out is None; got None"):
            gradient(first, second)


# The operations beside the convolutions


def public_of(kind: type) -> dict[str, Any]:
    """Public methods and properties of a class by name."""
    return {name: value for name, value in inspect.getmembers_static(kind) if not name.startswith("_")}


def calls_of(kind: Any) -> dict[str, Any]:
    """A class and its public methods by name."""
    return {"": kind, **{name: value for name, value in public_of(kind).items() if inspect.isfunction(value)}}


def test_every_reference_implementation_of_a_class_is_public() -> None:
    assert {*CLASSES, *OPERATIONS} == set(reference.__all__) & set(cudnnpy.__all__)
    assert set(reference.__all__) - set(cudnnpy.__all__) == FUNCTIONS
    assert len(OPERATIONS) == 6


@pytest.mark.parametrize("name", [*CLASSES, *OPERATIONS])
def test_signatures_and_docstrings_are_written_once(name: str) -> None:
    """The methods that both classes have are the same functions, of the class on device arrays."""
    ours, theirs = getattr(cudnnpy, name), getattr(reference, name)
    assert set(public_of(theirs)) - set(public_of(ours)) <= {"channels_last"}
    for method, function in calls_of(ours).items():
        if method and method not in ("plan", "candidates"):
            assert function is getattr(theirs, method)
            assert function.__module__ == ours.__module__
            assert "stream" in inspect.signature(function).parameters or method == "output_shape"
            assert "\n" in inspect.getdoc(function).strip(), method
    assert inspect.signature(ours) == inspect.signature(theirs)
    assert ours.__doc__ == theirs.__doc__
    assert "Parameters\n----------\n" in str(inspect.getdoc(ours))


# The same mistake has the same error

# options that are wrong, for every class that has them
BAD_OPTIONS: dict[str, tuple[Any, ...]] = {
    "causal": ("top_left", 1, None),
    "algorithm": (5, "nonsense", type(None)),
    "coefficient": ("1", None, True, 1j, float("nan"), 10**400),
    "compute_dtype": ("int8", "bfloat16", "coffee", object, 4),
    "deterministic": (1, None),
    "dilation": (0, (1, 0), (), "2", (1, 1, 1, 1)),
    "dropout": (-0.1, 1, "0", None, True, float("nan")),
    "epsilon": (-0.5, -1, "0", True, float("nan"), float("inf")),
    "groups": (0, 1.0, "1", (1,), True, np.ones(2, int), 2**70),
    "layout": ("CHWN", None, ["NCHW"]),
    "mode": ("nonsense", None, 1),
    "output_padding": (-1, (0, -1), 1.5),
    "padding": (
        -1,
        1.5,
        True,
        None,
        b"same",
        (),
        (1, 2, 3, 4),
        (1, "same"),
        ((1, 2), (3,)),
        ((1, 2), (3, -4)),
        (0, 2**63),
    ),
    "policy": ("always", 1),
    "prefer": ("quickest", None),
    "scale": ("1", True, float("inf")),
    "stride": (0, 10**5000, "2", {1, 2}, np.float32(2), np.array(2.0)),
    "tf32": (0, None),
    "tune_seconds": (0, -1, "5", float("nan"), float("inf")),
    "window": (0, (2, 0), (2, 2, 2, 2), "2", None),
    "workspace_limit": (-1, "1GiB", 1.5),
}

BAD_WINDOWS = (0, (2, -1), (2, 2, 2), "22", (1.5, None))  # of attention: the keys before and after


def error_of(call: Callable[[], Any]) -> tuple[type[Exception], str]:
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    return caught.type, re.sub(r" at 0x[0-9a-f]+", "", str(caught.value))


@pytest.mark.parametrize("name", [*CLASSES, *OPERATIONS])
def test_a_wrong_option_has_the_same_error_on_both(name: str) -> None:
    options = [option for option in inspect.signature(getattr(cudnnpy, name)).parameters if option in BAD_OPTIONS]
    assert options
    for option in options:
        for value in BAD_WINDOWS if (name, option) == ("Attention", "window") else BAD_OPTIONS[option]:
            kinds = [getattr(package, name) for package in (cudnnpy, reference)]
            ours, theirs = (error_of(partial(kind, **{option: value})) for kind in kinds)
            assert ours == theirs
            assert f"{option} must " in ours[1]
            assert "; got " in ours[1]


def test_every_option_has_wrong_values() -> None:
    kinds = [getattr(cudnnpy, name) for name in (*CLASSES, *OPERATIONS)]
    assert {option for kind in kinds for option in inspect.signature(kind).parameters} == set(BAD_OPTIONS)


ONES = {shape: np.ones(shape, np.float32) for shape in ((1, 2, 3, 3), (2, 2, 1, 1))}
X, W = ONES

# (what is called, its arrays, its other arguments)
BAD_CALLS: list[tuple[Callable[[Any], Any], tuple[Shape, ...], dict[str, Any]]] = [
    (lambda nn: nn.Convolution().forward, (X, W), {"beta": 1.0}),
    (lambda nn: nn.Convolution().forward, (X, W), {"alpha": float("nan")}),
    (lambda nn: nn.Convolution().forward, (X, W), {"alpha": 10**400}),
    (lambda nn: nn.Convolution().forward, (X, W), {"alpha": "1"}),
    (lambda nn: nn.Convolution().forward, (X, W), {"activation": "gelu"}),
    (lambda nn: nn.Convolution().forward, (X, W), {"activation": 3}),
    (lambda nn: nn.Convolution(stride=(1, 1, 1)).forward, (X, W), {}),
    (lambda nn: nn.Convolution(padding=(1, (1, 2), 1)).forward, (X, W), {}),
    (lambda nn: nn.Convolution(layout="NCW").forward, (X, W), {}),
    (lambda nn: nn.Convolution(compute_dtype="int32").forward, (X, W), {}),
    (lambda nn: nn.Convolution().backward_data, (X, W), {"x_shape": X, "beta": 0.5}),
    (lambda nn: nn.Convolution().backward_data, (X, W), {}),
    (lambda nn: nn.Convolution().backward_data, (X, W), {"x_shape": 7}),
    (lambda nn: nn.Convolution().backward_data, (X, W), {"x_shape": [1, 2, -3, 3]}),
    (lambda nn: nn.Convolution().backward_filter, (X, X), {"w_shape": W, "beta": 0.5}),
    (lambda nn: nn.Convolution().backward_filter, (X, X), {"w_shape": "3x3"}),
    (lambda nn: nn.Convolution().backward_bias, (X,), {"beta": 0.5}),
    (lambda nn: nn.FusedConvolution().forward, (X, W), {"activation": "swish6"}),
    (lambda nn: nn.Activation().forward, (X,), {"alpha": float("inf")}),
    (lambda nn: nn.Softmax().forward, (X,), {"beta": 1.0}),
    (lambda nn: nn.Pooling(window=(2,)).forward, (X,), {}),
    (lambda nn: nn.BatchNormalization().forward_training, (X,), {"average_factor": "1"}),
    (lambda nn: nn.BatchNormalization().forward_training, (X,), {"activation": "tanh"}),
    (lambda nn: nn.BatchNormalization().forward_training, (X,), {"activation": "relu", "alpha": 2.0}),
    (lambda nn: nn.BatchNormalization().backward, (X, X), {"bias": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("bound", "shapes", "given"), BAD_CALLS)
def test_a_wrong_argument_has_the_same_error_on_both(
    stand_in: StandInDevice, bound: Callable[[Any], Any], shapes: tuple[Shape, ...], given: dict[str, Any]
) -> None:
    ours = error_of(lambda: bound(cudnnpy)(*(Array(*shape) for shape in shapes), **given))
    theirs = error_of(lambda: bound(reference)(*(ONES[shape] for shape in shapes), **given))
    assert ours == theirs


# Options are given by keyword

# how many options of each class may be positional; the other classes' options are given by keyword alone
POSITIONAL = {
    "Activation": 2,
    "BatchNormalization": 2,
    "Pooling": 2,
    "Softmax": 2,
}


@pytest.mark.parametrize("name", [*CLASSES, *OPERATIONS])
def test_few_options_are_positional(name: str) -> None:
    for package in (cudnnpy, reference):
        kind = getattr(package, name)
        defaults = [parameter.default for parameter in inspect.signature(kind).parameters.values()]
        count = POSITIONAL.get(name, 0)
        assert kind(*defaults[:count]) == kind()
        if len(defaults) > count:
            with pytest.raises(TypeError, match="too many positional arguments"):
                kind(*defaults[: count + 1])
