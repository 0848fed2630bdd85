"""cudnnpy.raw at the prompt and in the editor: signatures, help, and how statuses, handles and structs print."""

from __future__ import annotations

import copy
import inspect
import pickle
import pydoc
from ctypes import ArgumentError, byref, c_int, sizeof
from typing import Any

import pytest
from fresh_process import python

from cudnnpy import errors, raw
from cudnnpy.raw import _api, _library


def failed() -> Any:
    """The status of a call that cuDNN refuses."""
    tensor = raw.cudnnTensorDescriptor_t()
    raw.check(raw.cudnnCreateTensorDescriptor(byref(tensor)))
    try:
        return raw.cudnnSetTensor4dDescriptor(tensor, 0, 0, 1, 3, -4, 5)
    finally:
        assert raw.cudnnDestroyTensorDescriptor(tensor) is raw.CUDNN_STATUS_SUCCESS


# Functions


@pytest.mark.parametrize("name", raw.functions())
def test_a_signature_has_the_parameters_types_and_directions_of_c(name: str) -> None:
    signature = inspect.signature(getattr(raw, name))
    shown = [(one.name, one.annotation) for one in signature.parameters.values()]
    assert shown == [(n, f"{direction} {kind}".strip()) for n, kind, direction in raw.parameters(name)]
    assert raw.prototype(name).startswith(f"{signature.return_annotation} {name}(")


def test_signatures_and_help_need_no_library_and_stay_after_a_call() -> None:
    source = (
        "import inspect\n"
        "from cudnnpy import raw\n"
        "print(inspect.signature(raw.cudnnGetStream), 'libcudnn' in open('/proc/self/maps').read())\n"
        "try: raw.cudnnGetStream()\n"
        "except TypeError: print(inspect.signature(raw.cudnnGetStream), 'libcudnn' in open('/proc/self/maps').read())\n"
    )
    signature = "(handle: in cudnnHandle_t, streamId: out cudaStream_t *, /) -> cudnnStatus_t"
    assert python(source).splitlines() == [f"{signature} False", f"{signature} True"]
    shown = pydoc.render_doc(raw.cudnnQueryRuntimeError, renderer=pydoc.plaintext)
    assert "cudnnQueryRuntimeError in module cudnnpy.raw" in shown
    assert "handle: in cudnnHandle_t," in shown  # Python 3.13 has a line for each parameter
    assert "rstatus: out cudnnStatus_t *," in shown
    assert "Since cuDNN 9.0.0. Deprecated: use cudnnGetLastErrorString." in shown


# Statuses and enumerators


def test_a_status_prints_as_its_name_and_is_an_int() -> None:
    status = failed()
    assert (str(status), f"{status}", int(status)) == ("CUDNN_STATUS_BAD_PARAM", "CUDNN_STATUS_BAD_PARAM", 2000)
    assert repr(status) == repr(raw.CUDNN_STATUS_BAD_PARAM) == "<cudnnStatus_t.CUDNN_STATUS_BAD_PARAM: 2000>"
    assert status == raw.CUDNN_STATUS_BAD_PARAM
    assert raw.cudnnStatus_t(status) is raw.CUDNN_STATUS_BAD_PARAM
    assert {raw.CUDNN_STATUS_BAD_PARAM: "found"}[status] == "found"
    for same in (copy.deepcopy(status), pickle.loads(pickle.dumps(status))):
        assert (same, same.name, same.function) == (2000, "CUDNN_STATUS_BAD_PARAM", "cudnnSetTensor4dDescriptor")
    assert pickle.loads(pickle.dumps(raw.cudnnGetVersion)) is raw.cudnnGetVersion
    assert str(raw.CUDNN_STATUS_SUCCESS) == "CUDNN_STATUS_SUCCESS"
    assert [str(raw.CUDNN_DATA_HALF), f"{raw.CUDNN_DATA_HALF:d}"] == ["CUDNN_DATA_HALF", "2"]


def test_check_names_the_function_that_returned_the_status() -> None:
    with pytest.raises(
        errors.BadParameterError, match=r"^cudnnSetTensor4dDescriptor returned CUDNN_STATUS_BAD_"
    ) as told:
        raw.check(failed())
    assert told.value.function == "cudnnSetTensor4dDescriptor"
    assert raw.error_of(failed()).function == "cudnnSetTensor4dDescriptor"
    assert raw.error_of(failed(), "step 2").function == "step 2"
    assert raw.error_of(2000).function == ""
    raw.check(raw.CUDNN_STATUS_SUCCESS)


def test_an_unknown_status_is_an_int_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_library, "bound", lambda _name: lambda *_: 7777)
    status = _library.function("cudnnCreate")(byref(raw.cudnnHandle_t()))
    assert (status, str(status), repr(status)) == (7777, "unknown_7777", "<cudnnStatus_t.unknown_7777: 7777>")
    assert pickle.loads(pickle.dumps(status)) == 7777
    with pytest.raises(errors.StatusError, match=r"^cudnnCreate returned an unknown status \(7777\)"):
        raw.check(status)


# Handles and structs


@pytest.mark.parametrize("name", [name for name in dir(raw) if name.endswith(("Descriptor_t", "Handle_t", "Plan_t"))])
def test_a_handle_prints_its_type_and_address(name: str) -> None:
    kind = getattr(raw, name)
    assert repr(kind()) == f"<{name} NULL>"
    assert repr(kind.from_buffer_copy((0x7F0012).to_bytes(8, "little"))) == f"<{name} 0x7f0012>"


def test_a_struct_prints_its_fields_and_has_enumerators() -> None:
    perf = raw.cudnnConvolutionFwdAlgoPerf_t(raw.CUDNN_CONVOLUTION_FWD_ALGO_GEMM, status=3000, time=1.5, memory=64)
    assert perf.algo is raw.CUDNN_CONVOLUTION_FWD_ALGO_GEMM
    assert perf.status is raw.CUDNN_STATUS_NOT_SUPPORTED
    assert repr(perf) == (
        "cudnnConvolutionFwdAlgoPerf_t(algo=CUDNN_CONVOLUTION_FWD_ALGO_GEMM, status=CUDNN_STATUS_NOT_SUPPORTED, "
        "time=1.5, memory=64, determinism=CUDNN_NON_DETERMINISTIC, mathType=CUDNN_DEFAULT_MATH)"
    )
    perf.algo = 99
    assert (perf.algo, type(perf.algo)) == (99, int)
    assert "(algo=99, " in repr(perf)
    array = (raw.cudnnConvolutionFwdAlgoPerf_t * 2)()
    array[1].mathType = raw.CUDNN_FMA_MATH
    assert [one.mathType for one in array] == [raw.CUDNN_DEFAULT_MATH, raw.CUDNN_FMA_MATH]
    assert "handle=<cudnnHandle_t NULL>" in repr(raw.cudnnDebug_t())
    assert repr(raw.cudnnFraction_t(1, 2)) == "cudnnFraction_t(numerator=1, denominator=2)"


def test_every_field_of_an_enum_is_read_as_an_enumerator() -> None:
    structs = {one for one in vars(_api).values() if isinstance(one, type) and hasattr(one, "_fields_")}
    fields = {(struct, name): enum for struct in structs for name, enum in struct._enums_.items()}
    assert len(fields) == 15
    for (struct, name), enum in fields.items():
        assert getattr(struct, name).size == sizeof(c_int)
        assert getattr(struct(), name) in enum
        assert isinstance(getattr(struct(), name), enum)


def test_what_is_no_status_function_or_enumerator_is_refused() -> None:
    for status in (None, "success"):
        with pytest.raises(TypeError, match=f"status must be a status that a function returned; got {status!r}"):
            raw.check(status)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="name must be the C name of a function, such as 'cudnnCreate'; got <function"):
        raw.call(raw.cudnnCreate)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"cudnnTensorFormat_t must be one of 0 \(CUDNN_TENSOR_NCHW\), .*; got 'nhwc'"):
        raw.cudnnTensorFormat_t("nhwc")
    with pytest.raises(ArgumentError, match=r"argument 2: TypeError: .*; format got 'nhwc'"):
        raw.cudnnSetTensor4dDescriptor(raw.cudnnTensorDescriptor_t(), "nhwc", 0, 1, 1, 1, 1)
