"""NULL arguments: refused in Python where C would follow them, and left to C where it looks."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from ctypes import byref, c_float, c_int
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from cudnnpy import descriptors, raw
from cudnnpy.raw import _api


@pytest.fixture(scope="module")
def answers() -> dict[tuple[str, str], set[str]]:
    """(function, parameter) -> what came of NULL there, all other arguments being good: "called", "refused: ..."."""
    folder = str(Path(__file__).resolve().parents[2] / "shared")
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.append({folder!r}); import raw_arguments; raw_arguments.main()"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    *lines, last = done.stdout.split("\n")
    assert done.returncode == 0, f"NULL ended the process ({done.returncode}): {last}\n{done.stderr[-2000:]}"
    found: dict[tuple[str, str], set[str]] = {}
    for line in lines:
        name, parameter, _number, answer = line.split(" ", 3)
        found.setdefault((name, parameter), set()).add(answer)
    return found


def test_no_null_ends_the_process(answers: dict[tuple[str, str], set[str]]) -> None:
    assert len(answers) > 900
    assert len({name for name, _ in answers}) > 200


def test_what_is_refused_is_what_the_table_says_and_is_named(answers: dict[tuple[str, str], set[str]]) -> None:
    checked = 0
    for (name, parameter), found in answers.items():
        places = [raw.parameters(name)[at][0] for at in _api.NOT_NULL.get(name, ())]
        refused = {answer for answer in found if answer != "called"}
        if parameter in places or "handle" in places:  # the handle is NULL in all of these calls
            first = parameter if "handle" not in places else "handle"
            assert refused == found, (name, parameter)
            assert any(f"{name}: {n} must be " in answer for answer in refused for n in (first, parameter))
            checked += 1
        else:
            assert not refused, (name, parameter, refused)
    assert checked > 150


def test_a_null_that_c_would_follow_is_named() -> None:
    name = "cudnnNormalizationBackward"
    arguments = [None if kind.endswith("*") else 0 for _, kind, _ in raw.parameters(name)[1:]]
    with pytest.raises(ValueError, match=rf"^{name}: handle must be a cudnnHandle_t .*; got NULL$"):
        raw.cudnnNormalizationBackward(raw.cudnnHandle_t(), *arguments)


def test_what_c_lets_be_null_still_may() -> None:
    with (
        descriptors.RNNDescriptor() as rnn,
        descriptors.LRNDescriptor() as lrn,
        descriptors.TensorDescriptor((1, 1, 1, 1)) as one,
    ):
        for name in ("cudnnGetLRNDescriptor", "cudnnGetRNNDescriptor_v8"):
            wanted = len(raw.parameters(name)) - 1
            status = getattr(raw, name)(lrn if "LRN" in name else rnn, *[None] * wanted)
            assert status in (
                raw.CUDNN_STATUS_SUCCESS,
                raw.CUDNN_STATUS_NOT_INITIALIZED,
            )  # C's answer: nothing is set yet
        raw.call("cudnnSetTensor4dDescriptor", one, 0, 0, 1, 1, 1, 1)
    raw.call("cudnnSetCallback", 0, None, raw.cudnnCallback_t())
    for destroy in (name for name in raw.functions() if "Destroy" in name):
        assert getattr(raw, destroy)(None) // 1000 in (0, 2)  # BAD_PARAM or a kind of it


@pytest.mark.parametrize(
    ("name", "got"),
    [
        ("cudnnGetTensorSizeInBytes", 1),
        ("cudnnGetTensorSizeInBytes", 3),
        ("cudnnSetTensor4dDescriptor", 6),
        ("cudnnSetTensor4dDescriptor", 8),
        ("cudnnGetVersion", 1),
    ],
)
def test_a_wrong_number_of_arguments_is_refused(name: str, got: int) -> None:
    """ctypes does not name the function where there are too few, and passes on what is too many."""
    count = len(raw.parameters(name))
    message = rf"^{name}: the number of arguments must be {count}; got {got}\. The function is .* {name}\("
    for function in (getattr(raw, name), lambda *arguments: raw.call(name, *arguments)):
        with pytest.raises(TypeError, match=message):
            function(*[None] * got)


def test_a_wrong_argument_is_told_with_the_prototype() -> None:
    with descriptors.ConvolutionDescriptor((1, 1), (1, 1), (1, 1)) as given:
        arguments = (given, 2, [1, 1], [1, 1], [1, 1], raw.CUDNN_CONVOLUTION, raw.CUDNN_DATA_FLOAT)
        expected = r"^cudnnSetConvolutionNdDescriptor: argument 3: .*instead of list.*const int padA\[\]"
        with pytest.raises(ctypes.ArgumentError, match=expected) as raised:
            raw.cudnnSetConvolutionNdDescriptor(*arguments)
        with pytest.raises(TypeError) as called:
            raw.call("cudnnSetConvolutionNdDescriptor", *arguments)
    assert str(called.value) == str(raised.value)


def test_a_number_for_an_address_is_told_how_to_pass_it() -> None:
    handle = ctypes.cast(16, raw.cudnnHandle_t)  # ctypes refuses the call before C sees it
    expected = (
        r"\. alpha is the address of a number: byref\(c_float\(1\.5\)\), or byref\(c_double\(1\.5\)\) for float64$"
    )
    with descriptors.TensorDescriptor((1, 3, 8, 8)) as x, pytest.raises(ctypes.ArgumentError, match=expected):
        raw.cudnnScaleTensor(handle, x, 16, 1.5)


class TorchTensor:
    """A device tensor as torch has it."""

    shape = (1, 3, 8, 8)

    def data_ptr(self) -> int:
        return 16


@pytest.mark.parametrize(
    ("values", "advice"),
    [
        (
            {"y": np.ones((1, 3, 8, 8), np.float32)},
            "y is a device address; got a host array (numpy.ndarray): pass copy.pointer, of copy = cudnnpy.to_device(array)",
        ),
        ({"y": TorchTensor()}, "y is a device address; got a test_nulls.TorchTensor: pass array.data_ptr()"),
        (
            {"alpha": np.float32(1.5)},
            "alpha is the address of a number: byref(c_float(1.5)), or byref(c_double(1.5)) for float64",
        ),
        (
            {"alpha": np.ones(2)},
            "alpha is an address in host memory; got a host array (numpy.ndarray): pass array.ctypes.data",
        ),
        (
            {"alpha": c_float(1.5)},
            "alpha is the address of a number: byref(c_float(1.5)), or byref(c_double(1.5)) for float64",
        ),
    ],
)
def test_an_array_or_a_number_for_an_address_is_told_which_address_to_pass(
    values: dict[str, object], advice: str
) -> None:
    handle = ctypes.cast(16, raw.cudnnHandle_t)  # ctypes refuses the call before C sees it
    with descriptors.TensorDescriptor((1, 3, 8, 8)) as y:
        given = {"handle": handle, "yDesc": y, "y": 16, "alpha": 16} | values
        with pytest.raises(ctypes.ArgumentError) as raised:
            raw.cudnnScaleTensor(*given.values())
    assert str(raised.value).endswith(f". {advice}")


@pytest.mark.parametrize("sizes", [[1, 3, 8, 8], np.array([1, 3, 8, 8])])
def test_sizes_that_are_no_c_array_are_told_how_to_make_one(sizes: object) -> None:
    with descriptors.TensorDescriptor((1, 3, 8, 8)) as y, pytest.raises(ctypes.ArgumentError) as raised:
        raw.cudnnSetTensorNdDescriptor(y, raw.CUDNN_DATA_FLOAT, 4, sizes, (c_int * 4)(192, 64, 8, 1))
    assert str(raised.value).endswith(". dimA is a C array: (c_int * 4)(*values)")


def test_named_arguments_are_told_the_prototype() -> None:
    message = r"^cudnnDestroy: arguments must be positional, as in C; got handle=\. The function is .*\(cudnnHandle_t handle\)$"
    with pytest.raises(TypeError, match=message):
        raw.cudnnDestroy(handle=None)
    with pytest.raises(TypeError, match=message):
        raw.call("cudnnDestroy", handle=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["Tensor", "Filter", "Convolution", "RNN"])
def test_a_descriptor_that_is_destroyed_twice_is_refused_where_c_would_end_the_process(name: str) -> None:
    descriptor = getattr(raw, f"cudnn{name}Descriptor_t")()
    for _ in range(2):  # a variable may be used again
        raw.call(f"cudnnCreate{name}Descriptor", byref(descriptor))
        assert getattr(raw, f"cudnnDestroy{name}Descriptor")(descriptor) == 0
        for destroy in (
            getattr(raw, f"cudnnDestroy{name}Descriptor"),
            partial(raw.call, f"cudnnDestroy{name}Descriptor"),
        ):
            with pytest.raises(
                ValueError, match=r"cudnn\w+_t must be destroyed once; got one that is destroyed already$"
            ):
                destroy(descriptor)
