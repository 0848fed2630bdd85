"""cudnnpy.raw: C's names, bound on first call, with facts of the headers."""

from __future__ import annotations

import ast
import ctypes
import re
from ctypes import byref
from typing import Any

import pytest
from fresh_process import python

from cudnnpy import names, raw
from cudnnpy.errors import FunctionNotAvailableError
from cudnnpy.raw import _api

LOADED = raw.version()


def number(version: str) -> int:
    major, minor, patch = map(int, version.split("."))
    return major * 10000 + minor * 100 + patch


OLDER = number(raw.HEADER_VERSION) > LOADED  # a newer library has every function of the headers


def test_importing_and_looking_load_no_library() -> None:
    assert python(
        "from cudnnpy import raw\n"
        "from cudnnpy.raw import _library\n"
        "raw.cudnnCreate, raw.CUDNN_DATA_FLOAT, raw.cudnnStatus_t, raw.cudnnCreate.__doc__\n"
        "[getattr(raw, name) for name in dir(raw)]\n"
        "print(_library._loaded, 'libcudnn' in open('/proc/self/maps').read())\n"
        "raw.cudnnGetVersion()\n"
        "print(_library._loaded is not None, 'libcudnn' in open('/proc/self/maps').read())"
    ).splitlines() == ["None False", "True True"]


def test_a_function_is_bound_once_and_stays_the_same_object() -> None:
    assert (
        python(
            "from cudnnpy import raw\n"
            "from cudnnpy.raw._library import bound\n"
            "first = raw.cudnnGetVersion\n"
            "print(first() == first(), first is raw.cudnnGetVersion, bound.cache_info().misses)"
        )
        == "True True 1\n"
    )


def test_every_function_is_in_the_library_or_says_what_it_needs() -> None:
    absent = {}
    for name in raw.functions():
        try:
            raw.bound(name)
        except FunctionNotAvailableError as error:
            absent[name] = str(error)
    assert bool(absent) == OLDER
    for name, message in absent.items():
        since = raw.since(name)
        assert since is None or number(since) > LOADED, name
        for told in (
            name,
            raw.version_text(LOADED),
            raw.path(),
            f"needs cuDNN {since}" if since else raw.HEADER_VERSION,
        ):
            assert told in message


@pytest.mark.skipif("not OLDER", reason="the loaded library has every function of the headers")
def test_an_absent_function_raises_when_called_not_when_named() -> None:
    function = raw.cudnnCausalConv1dForward
    with pytest.raises(FunctionNotAvailableError, match=r"needs cuDNN 9\.22\.0"):
        function()
    with pytest.raises(FunctionNotAvailableError):
        raw.call("cudnnCausalConv1dForward")


def test_a_name_that_the_headers_have_not_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"has no 'cudnnMakeCoffee'"):
        raw.cudnnMakeCoffee
    for ask in (raw.since, raw.deprecated, raw.parameters):
        with pytest.raises(AttributeError, match="cudnnMakeCoffee"):
            ask("cudnnMakeCoffee")
    assert not hasattr(raw, "_secret")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("cudnnCreat", "cudnnCreate"),
        ("cudnncreate", "cudnnCreate"),
        ("createTensorDescriptor", "cudnnCreateTensorDescriptor"),
        ("cudnn_data_float", "CUDNN_DATA_FLOAT"),
        ("TENSOR_NCHW", "CUDNN_TENSOR_NCHW"),
        ("cudnnGetFilter4dDescriptor_v4", "cudnnGetFilter4dDescriptor"),
        ("cudnnSetStreem", "cudnnSetStream"),
        ("CUDNN_DATA_FLAOT", "CUDNN_DATA_FLOAT"),
        ("cudnnBackendDescriptorType", "cudnnBackendDescriptorType_t"),
    ],
)
def test_a_mistyped_name_gets_a_suggestion(name: str, meant: str) -> None:
    asks = [raw.since, raw.deprecated, lambda one: getattr(raw, one)]
    if name.startswith("cudnn"):
        asks += [raw.call, raw.bound, raw.unchecked, raw.prototype, raw.parameters]
    for ask in asks:
        with pytest.raises(AttributeError) as error:
            ask(name)
        assert str(error.value) == f"cuDNN {raw.HEADER_VERSION} has no {name!r}. Did you mean {meant!r}?"


def test_calling_a_removed_function_tells_the_way_on() -> None:
    with pytest.raises(AttributeError, match="call cudnnSetRNNDescriptor_v8, which takes every setting"):
        raw.call("cudnnSetRNNDescriptor_v6")
    with pytest.raises(AttributeError, match=r"Did you mean 'cudnnGetConvolutionForwardAlgorithm'\? \(cuDNN 9 has no"):
        raw.call("cudnnGetConvolutionForwardAlgoritm")
    with pytest.raises(AttributeError, match=r"'cudnnSetRNNDescriptor_v7'.*call cudnnSetRNNDescriptor_v8"):
        raw.call("cudnnSetRNNDescriptor_v7")
    with pytest.raises(AttributeError, match=r"has no CUDNN_ADD_SAME_C: cudnnAddTensor takes no mode"):
        raw.CUDNN_ADD_SAME_C


def test_a_wrong_handle_is_refused_before_c() -> None:
    tensor, filter_ = raw.cudnnTensorDescriptor_t(), raw.cudnnFilterDescriptor_t()
    raw.check(raw.cudnnCreateTensorDescriptor(byref(tensor)))
    try:
        with pytest.raises(
            ctypes.ArgumentError, match="expected cudnnFilterDescriptor_t instance instead of cudnnTensorDes"
        ):
            raw.cudnnDestroyFilterDescriptor(tensor)
        with pytest.raises(
            TypeError, match=r"(?s)cudnnCreateFilterDescriptor: argument 1.*cudnnFilterDescriptor_t.*filterDesc"
        ):
            raw.call("cudnnCreateFilterDescriptor", byref(tensor))
        with pytest.raises(ctypes.ArgumentError):
            raw.cudnnDestroyTensorDescriptor(ctypes.c_void_p(1))
        with pytest.raises(TypeError):
            raw.cudnnDestroyTensorDescriptor()
    finally:
        raw.check(raw.cudnnDestroyTensorDescriptor(tensor))
    assert not filter_


def test_every_enumerator_and_every_type_is_a_name_of_the_module() -> None:
    for kind in _api.ENUMS:
        assert getattr(raw, kind.__name__) is kind
        for name, member in kind.__members__.items():
            assert getattr(raw, name) is member
            assert name in dir(raw) or kind is raw.libraryPropertyType  # CUDA's own
    assert raw.CUDNN_DATA_BFLOAT16 == 9
    assert isinstance(raw.CUDNN_DATA_BFLOAT16, raw.cudnnDataType_t)
    assert issubclass(raw.cudnnHandle_t, ctypes._Pointer)


def test_docstrings_are_c_prototypes() -> None:
    text, note = raw.cudnnGetTensor4dDescriptor.__doc__.split("\n\n")
    assert text == raw.prototype("cudnnGetTensor4dDescriptor")
    assert note.startswith("Since cuDNN 9.0.0.")
    assert text.startswith("cudnnStatus_t cudnnGetTensor4dDescriptor(const cudnnTensorDescriptor_t tensorDesc,")
    assert raw.prototype("cudnnSetTensorNdDescriptor").endswith("int nbDims, const int dimA[], const int strideA[])")
    assert raw.prototype("cudnnGetVersion") == "size_t cudnnGetVersion(void)"


@pytest.mark.parametrize(
    ("name", "replacement"),
    [
        ("cudnnGetConvolutionForwardAlgorithm", "cudnnGetConvolutionForwardAlgorithm_v7"),
        ("cudnnConvolutionFwdPreference_t", "prefer"),
        ("CUDNN_CONVOLUTION_FWD_SPECIFY_WORKSPACE_LIMIT", "limited_workspace"),
        ("cudnnSetRNNDescriptor_v6", "cudnnSetRNNDescriptor_v8"),
        ("cudnnRNNForwardTraining", "cudnnRNNForward "),
        ("cudnnCreateAlgorithmDescriptor", "algorithm objects are gone"),
        ("cudnnCnnInferVersionCheck", "cudnnCnnVersionCheck"),
    ],
)
def test_the_removed_names_of_old_tutorials(name: str, replacement: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(replacement)):
        getattr(raw, name)


def test_since() -> None:
    assert raw.since("cudnnCreate") == "9.0.0"
    assert raw.since("cudnnCausalConv1dForward") == "9.22.0"
    assert raw.since("cudnnGnnAggSimpleForward") is None
    assert raw.since("CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED") == "9.2.0"
    assert raw.since("CUDNN_DATA_FLOAT") == "9.0.0"


def test_deprecated() -> None:
    assert raw.deprecated("cudnnCreate") is None
    assert raw.deprecated("cudnnQueryRuntimeError") == ("cudnnGetLastErrorString",)
    assert raw.deprecated("cudnnConvolutionForward") is not None
    assert raw.deprecated("CUDNN_STATUS_ALLOC_FAILED") == ("CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",)
    assert raw.deprecated("CUDNN_DATA_FLOAT") is None
    assert sum(raw.deprecated(name) is not None for name in raw.functions()) == 135


def test_the_stub_has_the_same_functions_with_the_same_parameters() -> None:
    stub = _api.__file__ + "i"
    with open(stub) as file:
        declared = dict(re.findall(r"^def (\w+)\((.*)\) -> \w+: .+$", file.read(), re.MULTILINE))
    assert list(declared) == list(raw.functions())
    for name, text in declared.items():
        assert re.findall(r"(\w+): ", text) == [parameter for parameter, _kind, _direction in raw.parameters(name)]


def test_every_name_of_c_is_exported_at_run_time_and_for_type_checkers() -> None:
    with open(_api.__file__ + "i") as file:
        stub = ast.parse(file.read())
    (listed,) = [node.value for node in stub.body if isinstance(node, ast.Assign) and node.targets[0].id == "__all__"]
    declared = set()
    for node in stub.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            declared.add(node.name)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            declared.add((node.target if isinstance(node, ast.AnnAssign) else node.targets[0]).id)
    tables = {"HEADER_VERSION", "ENUMS", "FUNCTIONS", "NOT_NULL", "SINGLE_ATTRIBUTES", "REQUIRED_ATTRIBUTES"}
    tables |= {"ATTRIBUTE_C_TYPES", "ATTRIBUTE_TYPES", "ATTRIBUTE_KINDS", "ATTRIBUTE_RANGES", "MODE_OPERATIONS"}
    tables |= {"ENUMERATORS_SINCE", "ENUMERATORS_DEPRECATED"}
    public = {name for name in declared if not name.startswith("_")} - tables
    assert set(ast.literal_eval(listed)) == set(_api.__all__) == public
    assert set(raw.functions()) < set(_api.__all__) < set(raw.__all__)
    assert set(dir(raw)) == set(raw.__all__)


def test_a_star_import_brings_every_name_of_c_and_loads_no_library() -> None:
    assert python(
        "from cudnnpy.raw import *\n"
        "from cudnnpy.raw import _library\n"
        "print(cudnnHandle_t.__name__, cudnnCreate.__name__, int(CUDNN_DATA_HALF), _library._loaded)"
    ).split() == ["cudnnHandle_t", "cudnnCreate", "2", "None"]


def test_an_enumerator_of_another_enum_is_refused_where_cudnn_would_take_its_number() -> None:
    tensor = raw.cudnnTensorDescriptor_t()
    raw.call("cudnnCreateTensorDescriptor", byref(tensor))
    swapped = (tensor, raw.CUDNN_DATA_FLOAT, raw.CUDNN_TENSOR_NHWC, 1, 2, 3, 4)
    error = "format must be a cudnnTensorFormat_t; got CUDNN_DATA_FLOAT, a cudnnDataType_t"
    for call in (raw.cudnnSetTensor4dDescriptor, lambda *given: raw.call("cudnnSetTensor4dDescriptor", *given)):
        with pytest.raises(TypeError, match=error):
            call(*swapped)
    for right in ((raw.CUDNN_TENSOR_NHWC, raw.CUDNN_DATA_FLOAT), (1, 0), (ctypes.c_int(1), 0)):
        assert raw.cudnnSetTensor4dDescriptor(tensor, *right, 1, 2, 3, 4) is raw.CUDNN_STATUS_SUCCESS
    assert raw.bound("cudnnSetTensor4dDescriptor")(*swapped) == 0  # as in C
    raw.call("cudnnDestroyTensorDescriptor", tensor)


@pytest.mark.parametrize(
    ("function", "argument", "kind", "message"),
    [
        (raw.ctype, "foo_t", ValueError, "spelling must be a C type of cuDNN, .*; got 'foo_t'"),
        (raw.version_text, "9", TypeError, "number must be an int, .*; got '9'"),
        (names.short_name, "relu", TypeError, "member must be an enumerator, .*; got 'relu'"),
    ],
)
def test_texts_that_name_nothing(function: Any, argument: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"^{message}$"):
        function(argument)
