"""Arrays of other kinds than plain ones, given to the reference: read right, or refused with the conversion by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from messages import says
from reference_checks import assert_same, bad_outs, normal_numbers

from cudnnpy import reference
from cudnnpy.reference import Activation, Convolution, ConvolutionTranspose, FusedConvolution, Pooling, Softmax


class Guarded(np.ndarray):
    """A subclass that may be read as a plain array, and does no arithmetic."""

    def __array_ufunc__(self, *arguments: Any, **options: Any) -> Any:
        raise AssertionError("computed with a subclass")

    def __setitem__(self, *arguments: Any) -> None:
        raise AssertionError("written through a subclass")


X, W, P = (
    normal_numbers(0, (2, 4, 6, 6), np.float32),
    normal_numbers(1, (4, 4, 3, 3), np.float32),
    normal_numbers(2, (4,), np.float32),
)
Y, HALVES = normal_numbers(3, (2, 4, 4, 4), np.float32), normal_numbers(4, (2, 4, 3, 3), np.float32)
ONES = np.ones(4, np.float32)


def first(call: Callable[..., Any]) -> Callable[..., Any]:
    """The first of a call's results."""
    return lambda *arrays, **options: call(*arrays, **options)[0]


# Each operation with the arrays that it is called with.
CALLS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "Convolution.forward": (Convolution().forward, (X, W, P)),
    "Convolution.backward_data": (lambda dy, w, **o: Convolution().backward_data(dy, w, X.shape, **o), (Y, W)),
    "Convolution.backward_filter": (lambda dy, x, **o: Convolution().backward_filter(dy, x, W.shape, **o), (Y, X)),
    "Convolution.backward_bias": (Convolution().backward_bias, (Y,)),
    "ConvolutionTranspose.forward": (ConvolutionTranspose().forward, (Y, W, P)),
    "ConvolutionTranspose.backward_data": (
        lambda dy, w, **o: ConvolutionTranspose().backward_data(dy, w, Y.shape, **o),
        (X, W),
    ),
    "FusedConvolution.forward": (FusedConvolution().forward, (X, W, P, P, Y)),
    "Pooling.forward": (Pooling().forward, (X,)),
    "Pooling.backward": (Pooling().backward, (HALVES, X, HALVES)),
    "average Pooling.backward": (Pooling("average_exc_pad").backward, (HALVES, X, HALVES)),
    "Softmax.forward": (Softmax().forward, (X,)),
    "Softmax.backward": (Softmax().backward, (X, X)),
    "Activation.forward": (Activation("swish").forward, (X,)),
    "Activation.backward": (Activation("tanh").backward, (X, X, X)),
    "sigmoid": (reference.sigmoid, (X,)),
    "BatchNormalization.forward_training": (first(reference.BatchNormalization().forward_training), (X, P, P)),
    "BatchNormalization.forward_inference": (
        lambda x, scale, bias, mean, variance, **options: reference.BatchNormalization().forward_inference(
            x, scale, bias, mean=mean, variance=variance, **options
        ),
        (X, P, P, P, ONES),
    ),
    "BatchNormalization.backward": (first(reference.BatchNormalization().backward), (X, X, P)),
}


@pytest.fixture(params=list(CALLS))
def call(request: pytest.FixtureRequest) -> tuple[Callable[..., Any], tuple[np.ndarray, ...]]:
    return CALLS[request.param]


def test_subclasses_are_read_and_results_are_plain(call: Any, tmp_path: Path) -> None:
    operation, arrays = call
    expected = operation(*arrays)
    assert type(expected) is np.ndarray
    result = operation(*(array.view(Guarded) for array in arrays))
    assert type(result) is np.ndarray
    assert_same(result, expected)
    mapped = []
    for at, array in enumerate(arrays):
        np.save(tmp_path / f"{at}.npy", array)
        mapped.append(np.load(tmp_path / f"{at}.npy", mmap_mode="r"))
        assert isinstance(mapped[-1], np.memmap)
    result = operation(*mapped)
    assert type(result) is np.ndarray
    assert_same(result, expected)


def test_out_of_a_subclass_comes_back_itself(call: Any) -> None:
    operation, arrays = call
    expected = operation(*arrays)
    out = np.full_like(expected, 7).view(Guarded)
    assert operation(*arrays, out=out) is out
    assert_same(np.asarray(out), expected)


@pytest.mark.parametrize("memory", ["negative", "zero", "gaps"])
def test_strides_of_any_kind_are_read_right(call: Any, memory: str) -> None:
    """What a GPU refuses, with the advice to make the array contiguous, NumPy reads as it lies."""
    operation, arrays = call
    others = []
    for array in arrays:
        if memory == "negative":
            others.append(np.flip(np.flip(array).copy()))
            assert max(others[-1].strides) < 0
        elif memory == "zero":
            others.append(np.broadcast_to(array.flat[0], array.shape))
            assert not any(others[-1].strides)
        else:
            others.append(np.repeat(array, 2, axis=-1)[..., ::2])
    assert_same(operation(*others), operation(*(other.copy() for other in others)))


def test_arrays_that_do_not_fit_are_refused_by_name_and_nothing_is_written(call: Any) -> None:
    """Of each array another rank, no elements, twice as many, and types that are not taken, or not beside the others."""
    operation, arrays = call
    out = np.full_like(operation(*arrays), 7)
    for at, array in enumerate(arrays):
        wrongs = [np.ones((2,) * 6, np.float32), array[..., :0], array.astype(np.int32), array.astype(complex)]
        if len(arrays) > 1:
            wrongs += [np.concatenate([array] * 2), array.astype(np.float16)]
        for wrong in wrongs:
            with pytest.raises((TypeError, ValueError), match=says("... must ...; got ...")):
                operation(*arrays[:at], wrong, *arrays[at + 1 :], out=out)
    for factor in ("alpha", "beta"):
        with pytest.raises(TypeError, match=f"{factor} must be a finite number; got '1'|got '{factor}'"):
            operation(*arrays, out=out, **{factor: "1"})
    assert (out == 7).all()


def test_an_out_that_does_not_fit_is_refused(call: Any) -> None:
    operation, arrays = call
    for case, out, error, message in bad_outs(operation(*arrays).shape):
        if operation is reference.sigmoid and "dtype" in case:
            continue
        with pytest.raises(error, match=says(message)):
            operation(*arrays, out=out)


def of(package: str) -> type:
    """A class of another library's arrays. PyTorch's own are in tests/torch."""
    return type("Array", (), {"__module__": package})


CONVERSIONS: list[tuple[str, Callable[[np.ndarray], object], str]] = [
    ("masked", lambda a: np.ma.masked_less(a, 0), "numpy.ndarray; got .... Convert it with {}.filled(value)"),
    (
        "matrix",
        lambda a: a.reshape(a.shape[0], -1).view(np.matrix),
        "numpy.ndarray; ... Convert it with numpy.asarray({})",
    ),
    ("torch", lambda a: of("torch")(), "{} must ...; got a torch.Array. Convert it with {}.numpy(force=True)"),
    ("cupy", lambda a: of("cupy")(), "{} must be a numpy.ndarray; got a cupy.Array. Convert it with cupy.asnumpy({})"),
    (
        "cudnnpy",
        lambda a: of("cudnnpy._arrays.device_array")(),
        "{} must ...; got .... Convert it with cudnnpy.to_numpy({})",
    ),
    ("list", np.ndarray.tolist, "{} must be...; got a builtins.list. Convert it with numpy.asarray({}, dtype)"),
    ("tuple", lambda a: tuple(a.tolist()), "Convert it with numpy.asarray({}, dtype)"),
    ("number", lambda a: 2.0, "{} must be a numpy.ndarray; got a builtins.float. Convert it with numpy.asarray({})"),
    ("array interface", lambda a: memoryview(a), "must be a numpy.ndarray; got a builtins.memoryview"),
]


@pytest.mark.parametrize(("convert", "message"), [case[1:] for case in CONVERSIONS], ids=[c[0] for c in CONVERSIONS])
def test_what_is_no_array_is_refused_with_the_conversion(call: Any, convert: Any, message: str) -> None:
    operation, arrays = call
    for at, array in enumerate(arrays):
        given = [*arrays[:at], convert(array), *arrays[at + 1 :]]
        with pytest.raises(TypeError, match=says(message.replace("{}", "..."))):
            operation(*given)


def test_the_conversions_convert() -> None:
    """What the messages advise is taken then."""
    x = X.astype(ml_dtypes.bfloat16)
    assert_same(Softmax().forward(np.ma.masked_less(X, 0).filled(0)), Softmax().forward(np.maximum(X, 0)))
    assert_same(Softmax().forward(np.asarray(X[0, 0].view(np.matrix))), Softmax().forward(X[0, 0]))
    assert_same(Softmax().forward(np.asarray(x.tolist(), x.dtype)), Softmax().forward(x))


def test_a_masked_out_is_refused() -> None:
    for operation, arrays in CALLS.values():
        out = np.ma.masked_less(np.zeros_like(operation(*arrays)), 0)
        with pytest.raises(
            TypeError,
            match=r"^out must be a numpy\.ndarray; got a numpy\.ma\.MaskedArray\. Convert it with out\.filled\(value\)$",
        ):
            operation(*arrays, out=out)
