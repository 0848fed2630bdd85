"""The NumPy twins take what the GPU's classes take: the same names, kinds and defaults."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from stand_in_device import Array, StandInDevice

import cudnnpy
from cudnnpy import reference

CLASSES = ("Convolution", "ConvolutionTranspose")
METHODS = ("forward", "backward_data", "backward_filter", "backward_bias", "output_shape")
OPERATIONS = sorted(set(reference.__all__) - {*CLASSES, "sigmoid"})  # sigmoid is only there


def shape(function: Any) -> list[tuple[str, Any, Any]]:
    """Name, kind and default of each parameter; keyword-only ones by name, since their order means nothing."""
    found = [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]
    by_keyword = [p for p in found if p[1] is inspect.Parameter.KEYWORD_ONLY]
    return [p for p in found if p not in by_keyword] + sorted(by_keyword, key=lambda p: p[0])


@pytest.mark.parametrize("name", CLASSES)
def test_twins_are_made_with_the_same_options(name: str) -> None:
    ours, twins = shape(getattr(cudnnpy, name)), shape(getattr(reference, name))
    assert ours == twins
    assert len(ours) >= 14
    assert all(kind is inspect.Parameter.KEYWORD_ONLY for _, kind, _ in ours)


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("method", METHODS)
def test_twins_are_called_with_the_same_arguments(name: str, method: str) -> None:
    ours, twin = getattr(getattr(cudnnpy, name), method), getattr(getattr(reference, name), method)
    assert shape(ours) == shape(twin)
    assert len(shape(ours)) >= 3


@pytest.mark.parametrize("name", CLASSES)
def test_options_are_read_in_the_same_way(name: str) -> None:
    for package in (cudnnpy, reference):
        assert getattr(package, name)(padding=1, stride=(2, 3)).options.stride == (2, 3)


@pytest.mark.parametrize("given", [2, [1, 2], (1, 2), range(1, 3), np.array([1, 2]), np.array(2), np.int64(2)], ids=str)
def test_sequences_of_any_kind_are_taken(given: Any) -> None:
    wanted = 2 if np.ndim(given) == 0 else (1, 2)
    for package in (cudnnpy, reference):
        options = package.Convolution(stride=given, padding=given, tune_seconds=np.float32(2), dilation=given).options
        assert options.stride == options.dilation == wanted
        assert options.padding in (wanted, ((1, 1), (2, 2)))
        assert options.tune_seconds == 2


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda conv, x, w: conv.forward(x, w, beta=1.0), ValueError),
        (lambda conv, x, w: conv.forward(x, w, alpha=float("nan")), ValueError),
        (lambda conv, x, w: conv.forward(x, w, alpha=10**400), ValueError),
        (lambda conv, x, w: conv.forward(x, w, alpha="1"), TypeError),
        (lambda conv, x, w: conv.backward_data(x, w, (1, 2, 3, 3), beta=0.5), ValueError),
        (lambda conv, x, w: conv.backward_filter(x, x, (2, 2, 1, 1), beta=0.5), ValueError),
        (lambda conv, x, w: conv.backward_bias(x, beta=0.5), ValueError),
    ],
)
def test_twins_refuse_the_same_scales(stand_in: StandInDevice, call: Any, kind: type[Exception]) -> None:
    ones = np.ones((1, 2, 3, 3), np.float32), np.ones((2, 2, 1, 1), np.float32)
    for package, arrays in ((reference, ones), (cudnnpy, [Array(*a.shape) for a in ones])):
        with pytest.raises(kind, match=r"alpha|beta"):
            call(package.Convolution(), *arrays)


@pytest.mark.parametrize("name", CLASSES)
def test_the_twin_leaves_out_only_what_needs_a_gpu(name: str) -> None:
    public = [
        {member for member in dir(kind) if not member.startswith("_") and callable(getattr(kind, member))}
        for kind in (getattr(cudnnpy, name), getattr(reference, name))
    ]
    assert set(METHODS) <= public[1]
    assert public[0] - public[1] <= {"plan", "candidates"}
    assert public[1] - public[0] == set()


@pytest.mark.parametrize("name", CLASSES)
def test_options_read_the_same_on_both(name: str) -> None:
    given = {"padding": 1, "stride": (2, 1), "mode": "convolution", "prefer": "no_workspace", "tf32": False}
    ours, twin = getattr(cudnnpy, name)(**given), getattr(reference, name)(**given)
    for option in inspect.signature(type(ours)).parameters:
        got = getattr(ours.options, option)
        assert getattr(twin, option) == got, option


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
    """A class and its public methods, or a function, by name."""
    if not inspect.isclass(kind):
        return {kind.__name__: kind}
    return {"": kind, **{name: value for name, value in public_of(kind).items() if inspect.isfunction(value)}}


def test_every_twin_is_public_but_sigmoid() -> None:
    assert {*CLASSES, *OPERATIONS} == set(reference.__all__) & set(cudnnpy.__all__)
    assert set(reference.__all__) - set(cudnnpy.__all__) == {"sigmoid"}
    assert len(OPERATIONS) == 15


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_called_as_their_twins_are(name: str) -> None:
    """The same methods; parameters of the same names, kinds and defaults, in the same order."""
    ours, twins = calls_of(getattr(cudnnpy, name)), calls_of(getattr(reference, name))
    assert set(ours) == set(twins)
    for call, function in ours.items():
        assert shape(function) == shape(twins[call]), call
        assert len(shape(function)) >= 1, call
    stream = [call for call, function in ours.items() if call and "stream" in inspect.signature(function).parameters]
    assert set(ours) - set(stream) <= {"", "output_shape"}  # everything that runs takes a stream


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name[0].isupper()])
def test_options_of_operations_read_the_same_on_both(name: str) -> None:
    ours, twin = getattr(cudnnpy, name), getattr(reference, name)
    given: dict[str, Any] = {
        "epsilon": 1,
        "coefficient": 2,
        "window": [3, 2],
        "probability": 0.25,
        "size": 3,
        "padding": 1,
    }
    given = {option: value for option, value in given.items() if option in inspect.signature(ours).parameters}
    for options in ({}, given):
        one, other = ours(**options), twin(**options)
        for option in inspect.signature(ours).parameters:
            assert getattr(one, option) == getattr(other, option), option
            with pytest.raises(AttributeError):
                setattr(one, option, getattr(one, option))  # frozen
        if name != "Dropout":
            assert one == ours(**options)
            assert hash(one) == hash(ours(**options))
            assert repr(one) == repr(other)
