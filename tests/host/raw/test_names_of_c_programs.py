"""Names of C programs beside cuDNN's own: variables of an enum, CUDA's functions, the macros that check a status."""

from __future__ import annotations

import pytest

from cudnnpy import raw


def test_an_enum_without_a_number_says_how_c_writes_to_one() -> None:
    with pytest.raises(TypeError) as caught:
        raw.cudnnMathType_t()
    assert str(caught.value) == (
        "cudnnMathType_t must be called with a number; got none. A variable that C writes is ctypes.c_int(), passed as "
        "byref(variable); cudnnMathType_t(variable.value) is its enumerator"
    )


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("cudaMalloc", "It is a name of CUDA: type from cuda.bindings import runtime, and runtime.cudaMalloc"),
        ("cudaError_t", "It is a name of CUDA: type from cuda.bindings import runtime, and runtime.cudaError_t"),
        ("checkCUDNN", "The macro that checks a status is raw.check: type raw.check(raw.cudnnXxx(...))"),
        ("CUDNN_CALL", "The macro that checks a status is raw.check: type raw.check(raw.cudnnXxx(...))"),
        ("CUDNN_CHECK", "The macro that checks a status is raw.check: type raw.check(raw.cudnnXxx(...))"),
    ],
)
def test_names_that_stand_beside_cudnns(name: str, ending: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(raw, name)
    assert str(caught.value) == f"cuDNN {raw.HEADER_VERSION} has no {name!r}. {ending}"
    if name.startswith("cuda"):
        from cuda.bindings import runtime

        assert hasattr(runtime, name)
