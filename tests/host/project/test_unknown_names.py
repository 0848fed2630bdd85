"""Names that people type and `cudnnpy` lacks: the error has the name to type, and that exists."""

from __future__ import annotations

import re

import pytest
from fresh_process import python
from pages import ROOT

import cudnnpy
from cudnnpy import raw
from cudnnpy._checks import unknown_names
from cudnnpy._checks.other_names import advice
from cudnnpy._checks.unknown_names import _plain

FOREIGN = advice("package")

# The names of the libraries that this package follows, each on the page for them.
SEEDS = {
    "singa.md": """
        SetupRecorder Recorder InitCudnnConvHandles CudnnConvHandles SetupConv InitCudnn InitCpuHandle CudnnConvHandle
        ConvHandle GpuConvForward GpuConvBackwardx GpuConvBackwardW GpuConvBackwardb CpuConvForward CpuConvBackwardx
        CpuConvBackwardW CpuConvBackwardb GpuBatchNormForwardTraining GpuBatchNormForwardInference GpuBatchNormBackward
        GpuPoolingForward GpuPoolingBackward
    """,
    "theano.md": """
        dnn_conv dnn_conv3d dnn_gradinput dnn_gradinput3d dnn_gradweight dnn_gradweight3d dnn_pool GpuDnnPoolGrad
        GpuDnnSoftmax GpuDnnSoftmaxGrad dnn_batch_normalization_train dnn_batch_normalization_test dnn_available
        GpuDnnConvDesc GpuDnnPoolDesc GpuDnnConv GpuDnnConv3dGradI GpuDnnSoftmaxBase workmem direction_hint time_once
        time_on_shape_change guess_once guess_on_shape_change
    """,
    "mxnet.md": """
        Deconvolution SoftmaxActivation GetCuDNNConvOp OpSignature ParamOpSign MKLDNNConvForward MKLDNNConvBackward
        MKLDNNConvSignature GetConvFwd
    """,
    "cupy.md": """
        convolution_forward convolution_backward_data convolution_backward_filter pooling_forward softmax_forward get_handle
    """,
    "torch.md": "conv1d conv2d conv3d conv_transpose2d max_pool2d avg_pool2d log_softmax batch_norm layer_norm",
    "cudnn-frontend.md": """
        pygraph create_handle destroy_handle set_stream heur_mode build_plan_policy data_type backend_version
        cudnnGraphNotSupportedError sdpa numerical_note behavior_note get_last_error_string
    """,
}


def message(name: str) -> str:
    with pytest.raises(AttributeError) as caught:
        getattr(cudnnpy, name)
    text = str(caught.value)
    assert text.startswith(f"module 'cudnnpy' has no attribute {name!r}")
    return text.removeprefix(f"module 'cudnnpy' has no attribute {name!r}")


@pytest.mark.parametrize("name", FOREIGN)
def test_a_name_of_another_library_says_what_to_type(name: str) -> None:
    for spelling in {name, name.lower(), name.replace("_", "")}:
        assert re.match(r": .*\b(type|except|is a method|no descriptor|no key)\b", message(spelling)), spelling


@pytest.mark.parametrize("sentence", dict.fromkeys(FOREIGN.values()))
def test_what_a_sentence_names_exists(sentence: str) -> None:
    for dotted in re.findall(r"cudnnpy((?:\.\w+)+)", sentence):
        found = cudnnpy
        for part in dotted.removeprefix(".").split("."):
            found = getattr(found, part)
    assert all(
        hasattr(cudnnpy.Graph, method) for method in re.findall(r"\bgraph(?:\(\))?\.(\w+)", sentence, re.IGNORECASE)
    )
    for method in re.findall(r"Graph\(\): ([\w, ]+)", sentence):
        assert all(hasattr(cudnnpy.Graph, name) for name in method.split(", "))


@pytest.mark.parametrize("page", SEEDS)
def test_a_name_of_a_seed_has_a_suggestion_and_a_line_on_its_page(page: str) -> None:
    text = (ROOT / "docs" / "porting" / page).read_text()
    rows = "\n".join(line for line in text.splitlines() if line.startswith("| "))
    for name in SEEDS[page].split():
        assert message(name), name
        assert re.search(rf"\b{name}\b", rows), f"{page} has no line for {name}"


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("to_devcie", ". Did you mean 'to_device'?"),
        ("softmax", ". Did you mean 'Softmax'?"),
        ("convolution_transpose", ". Did you mean 'ConvolutionTranspose'?"),
        ("cache_inf", ". Did you mean 'cache_info'?"),
        ("TensorDescriptor", ": type cudnnpy.descriptors.TensorDescriptor"),
        ("NotSupportedError", ": type cudnnpy.errors.NotSupportedError"),
        ("cudnnCreate", ": type cudnnpy.raw.cudnnCreate"),
        ("CUDNN_TENSOR_NHWC", ": type cudnnpy.raw.CUDNN_TENSOR_NHWC"),
        ("cudnnCreat", ": cuDNN ... has no 'cudnnCreat'. Did you mean 'cudnnCreate'?"),
        ("cudnnSetRNNDescriptor_v6", ": cuDNN 9 has no cudnnSetRNNDescriptor_v6: call cudnnSetRNNDescriptor_v8, ..."),
        (
            "cudaMalloc",
            ": cuDNN ... It is a name of CUDA: type from cuda.bindings import runtime, and runtime.cudaMalloc",
        ),
        ("info", ": type `cudnnpy info` in a shell, or cudnnpy.availability.report()"),
        ("libcudnn", ": the C API is a module: type from cudnnpy import raw, and raw.cudnnCreate"),
        ("LSTM", ": recurrent networks are functions of C: type cudnnpy.raw.cudnnRNNForward, with ..."),
        ("CTCLoss", ": CTC loss is a function of C: type cudnnpy.raw.cudnnCTCLoss_v8, with ..."),
        ("anything_else", ". help(cudnnpy) lists the names"),
        ("_private", ""),
        ("__wrapped__", ""),
    ],
)
def test_other_names(name: str, ending: str) -> None:
    before, _, after = ending.partition("...")
    text = message(name)
    assert text.startswith(before)
    assert text.endswith(after) if "..." in ending else text == ending


def test_the_reference_names_its_own_classes() -> None:
    for name, ending in (
        ("conv2d", ": type cudnnpy.reference.Convolution(padding=, stride=, dilation=, groups=).forward(x, w, bias)"),
        ("ConvHandle", ": type cudnnpy.reference.Convolution(padding=, stride=), which computes with NumPy"),
        ("Convolutoin", ". Did you mean 'Convolution'?"),
        ("softmax", ". Did you mean 'Softmax'?"),
        ("to_device", ": type cudnnpy.to_device"),
        ("_private", ""),
    ):
        with pytest.raises(AttributeError) as caught:
            getattr(cudnnpy.reference, name)
        assert str(caught.value) == f"module 'cudnnpy.reference' has no attribute {name!r}{ending}"


def test_a_long_name_is_shortened() -> None:
    assert len(unknown_names.missing("x" * 10_000, cudnnpy.__all__)) < 200


def test_the_suggestions_load_nothing_for_a_probe() -> None:
    """hasattr of names that tools probe for imports neither NumPy nor the C API; cudnnpy.torch is no name before its import."""
    program = (
        "import sys, cudnnpy\n"
        "try:\n"
        "    cudnnpy.torch.enable()\n"
        "except AttributeError as error:\n"
        "    assert str(error).endswith('It is a module of its own: type import cudnnpy.torch first')\n"
        "assert not any(hasattr(cudnnpy, name) for name in ('__wrapped__', '_pytest', 'torch', 'conv2d'))\n"
        "assert not {'numpy', 'cudnnpy.raw'} & set(sys.modules)\n"
    )
    python(program)


def test_the_names_of_c_are_not_repeated_in_the_table() -> None:
    assert not {_plain(name) for name in FOREIGN} & {_plain(name) for name in raw.functions()}
