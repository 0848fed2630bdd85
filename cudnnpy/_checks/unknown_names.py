"""The error for a name that `cudnnpy` does not have: what to type in place of another library's name, or a similar name."""

from __future__ import annotations

import re
from collections.abc import Collection
from importlib import import_module

from cudnnpy._checks.suggestions import did_you_mean, near

# Public modules that `import cudnnpy` does not make available, and modules whose names people look for in the package itself.
_OWN_IMPORTS = ("torch", "typing", "availability")
_MODULES = ("descriptors", "errors", "names", "store", "workspace", "availability", "backend", "typing", "reference")

_CONVOLUTION = "cudnnpy.Convolution(padding=, stride=, dilation=, groups=)"
_FORWARD = f"type {_CONVOLUTION}.forward(x, w, bias)"
_REFERENCE = "type cudnnpy.reference.Convolution(padding=, stride=), which computes with NumPy"
_DESCRIPTION = "no descriptor is needed: the arrays' shapes and the options of cudnnpy.{} say the same"
_NORMALIZATION = "type cudnnpy.Graph().normalization({}, epsilon), and normalization_backward for the gradients"
_GRAPH = "type cudnnpy.Graph(): tensor, convolution, matmul, pointwise, reduction, resample, normalization, output, run, plan"

# What to type -> names of PyTorch, TensorFlow, JAX, CuPy, cudnn-frontend, Theano, SINGA and MXNet, in any case.
_NAMES: dict[str, str] = {
    _FORWARD: """
        conv conv1d conv2d conv3d convolve convolution2d convolution3d conv_general_dilated
        convolution_forward conv_fprop dnn_conv dnn_conv3d GpuDnnConv GpuDnnConv3d GpuConvForward
    """,
    f"type {_CONVOLUTION}.backward_data(dy, w, x_shape)": """
        conv1d_input conv2d_input conv3d_input convolution_backward_data conv_dgrad
        dnn_gradinput dnn_gradinput3d GpuDnnConvGradI GpuDnnConv3dGradI GpuConvBackwardx
    """,
    f"type {_CONVOLUTION}.backward_filter(dy, x, w_shape)": """
        conv1d_weight conv2d_weight conv3d_weight convolution_backward_filter conv_wgrad
        dnn_gradweight dnn_gradweight3d GpuDnnConvGradW GpuDnnConv3dGradW GpuConvBackwardW
    """,
    f"type {_CONVOLUTION}.backward_bias(dy)": "convolution_backward_bias GpuConvBackwardb",
    "type cudnnpy.ConvolutionTranspose(padding=, stride=, output_padding=).forward(x, w, bias)": """
        conv_transpose conv_transpose1d conv_transpose2d conv_transpose3d conv1d_transpose conv2d_transpose conv3d_transpose
        deconv deconvolution transposed_convolution
    """,
    'type cudnnpy.Pooling("max", window, padding=, stride=): forward(x), backward(dy, x, y)': """
        pool pool2d max_pool max_pool1d max_pool2d max_pool3d avg_pool avg_pool1d avg_pool2d avg_pool3d MaxPooling1D
        MaxPooling2D MaxPooling3D AveragePooling2D AveragePooling3D reduce_window pooling_forward pooling_backward
        dnn_pool GpuDnnPool GpuDnnPoolBase GpuDnnPoolGrad GpuPoolingForward GpuPoolingBackward
    """,
    'type cudnnpy.Softmax("accurate", "channel"), or "log": forward(x), backward(dy, y)': """
        log_softmax softmax_forward softmax_backward GpuDnnSoftmax GpuDnnSoftmaxBase GpuDnnSoftmaxGrad SoftmaxActivation
    """,
    'type cudnnpy.Activation(mode), with mode "relu", "sigmoid" and others: forward(x), backward(dy, x, y)': """
        relu sigmoid tanh elu swish silu clipped_relu leaky_relu activation_forward activation_backward
    """,
    'type cudnnpy.Graph().pointwise("gelu_fwd", x)': "gelu",
    'type cudnnpy.BatchNormalization("spatial"): forward_training, forward_inference, backward': """
        batch_norm BatchNorm1d BatchNorm2d BatchNorm3d batch_normalization_forward_training
        batch_normalization_forward_inference batch_normalization_backward dnn_batch_normalization_train
        dnn_batch_normalization_test GpuDnnBatchNorm GpuDnnBatchNormInference GpuBatchNormForwardTraining
        GpuBatchNormForwardInference GpuBatchNormBackward
    """,
    _NORMALIZATION.format('"layer_norm", x, scale, bias'): "LayerNormalization layer_norm",
    _NORMALIZATION.format('"rms_norm", x, scale, None'): "RMSNormalization rms_norm",
    _NORMALIZATION.format('"instance_norm", x, scale, bias'): """
        InstanceNormalization instance_norm InstanceNorm1d InstanceNorm2d InstanceNorm3d
    """,
    "type cudnnpy.raw.cudnnLRNCrossChannelForward, with cudnnpy.descriptors.LRNDescriptor(size, alpha, beta, k)": """
        LocalResponseNormalization local_response_norm lrn
    """,
    "type cudnnpy.raw.cudnnDropoutForward, with cudnnpy.descriptors.DropoutDescriptor(handle, probability, states=, "
    "states_size=, seed=)": "Dropout dropout2d dropout3d DropoutStates dropout_forward dropout_backward",
    'type cudnnpy.Graph().pointwise("add", a, b), or cudnnpy.raw.cudnnAddTensor': "add_tensor",
    'type cudnnpy.Graph().pointwise("mul", x, graph.number(alpha)), or cudnnpy.raw.cudnnScaleTensor': "scale_tensor",
    "type cudnnpy.raw.cudnnSetTensor, with cudnnpy.descriptors.TensorDescriptor(shape, dtype)": "set_tensor",
    'type cudnnpy.raw.cudnnTransformTensor, or cudnnpy.Graph().pointwise("identity", x), with dtype= and strides= of output': (
        "transform_tensor"
    ),
    'type cudnnpy.Graph().reduction("add", x, axes), or cudnnpy.raw.cudnnReduceTensor': "reduce_tensor",
    "type cudnnpy.Graph().matmul(a, b)": "linear matmul dense FullyConnected",
    _GRAPH: "pygraph",
    f"modes are names in lower case; {_GRAPH}": """
        pointwise_mode reduction_mode resample_mode norm_forward_phase convolution_mode
    """,
    # The rows of docs/not-here.md
    "type cudnnpy.Attention().forward(q, k, v), without projections": """
        sdpa scaled_dot_product_attention dot_product_attention flash_attention MultiheadAttention
    """,
    "recurrent networks are functions of C: type cudnnpy.raw.cudnnRNNForward, with cudnnpy.descriptors.RNNDescriptor and "
    "RNNDataDescriptor; PyTorch has torch.nn.LSTM, which uses cuDNN": """
        RNN RNNCell RNNBase LSTM LSTMCell GRU GRUCell rnn_forward dnn_rnn RNNBlock GpuRNNForwardTraining CudnnRNNHandle
    """,
    "CTC loss is a function of C: type cudnnpy.raw.cudnnCTCLoss_v8, with cudnnpy.descriptors.CTCLossDescriptor; PyTorch has "
    "torch.nn.functional.ctc_loss": "CTCLoss ctc ctc_loss gpu_ctc",
    "the spatial transformer is functions of C: type cudnnpy.raw.cudnnSpatialTfSamplerForward, with "
    "cudnnpy.descriptors.SpatialTransformerDescriptor; PyTorch has torch.nn.functional.grid_sample": """
        SpatialTransformer GridGenerator BilinearSampler grid_sample affine_grid dnn_spatialtf
    """,
    "the operations are names of the package: type cudnnpy.Convolution, for example": """
        nn functional layers keras nd gluon dnn theano singa mxnet
    """,
    "type `cudnnpy info` in a shell, or cudnnpy.availability.report()": "info report collect_env show_config",
    "type `cudnnpy edges` in a shell": "edges edge_detector",
    'type `cudnnpy tune` in a shell, or the option prefer="autotune" of an operation': "tune",
    "type `cudnnpy faults` in a shell, or cudnnpy.store.default().faults()": "faults",
    "the C API is a module: type from cudnnpy import raw, and raw.cudnnCreate": "cudnn libcudnn capi bindings",
    "type cudnnpy.to_device(array) for a copy on the GPU, cudnnpy.empty(shape, dtype) for a new array": """
        tensor array asarray zeros ones from_numpy empty_like zeros_like cuda gpuarray copy_to_device
    """,
    "type cudnnpy.to_numpy(array)": "numpy asnumpy to_cpu cpu copy_to_host",
    'a data type is a name or a NumPy dtype: type "float16"': "dtype data_type float16 float32 bfloat16",
    "type cudnnpy.is_available(), or cudnnpy.why_unavailable() for the missing part": """
        enabled available is_acceptable dnn_available dnn_present
    """,
    "type cudnnpy.raw.version() for cuDNN's version (92800 is 9.28.0), cudnnpy.__version__ for the package's": """
        version get_version backend_version backend_version_string dnn_version
    """,
    'type an option of the operation: prefer="autotune", deterministic=True, tf32=False': """
        benchmark deterministic allow_tf32 flags set_flags
    """,
    'type an option of the operation: prefer="fastest", "limited_workspace", "no_workspace" or "autotune"': """
        heur_mode build_plan_policy autotune
    """,
    'type an option of the operation: prefer="autotune" or "fastest", and policy="once" for one choice': """
        time_once time_on_shape_change guess_once guess_on_shape_change
    """,
    "type algorithm= as an option of cudnnpy.Convolution; Theano's names are taken": """
        workmem algo algo_fwd algo_bwd_data algo_bwd_filter
    """,
    "each direction is a method: forward, backward_data, backward_filter": "direction_hint",
    "type plan.notes, or deterministic=True and tf32=False as options": "numerical_note behavior_note",
    'type prefer="limited_workspace", workspace_limit=bytes as options': "set_max_workspace_size get_max_workspace_size",
    "type `cudnnpy plan` in a shell to plan without a GPU": "create_device_properties create_kernel_cache",
    "except cudnnpy.NoAlgorithmError, whose text has the rejection reason of every candidate": "cudnnGraphNotSupportedError",
    "type cudnnpy.raw.last_error(); exceptions have this text": "get_last_error_string",
    "each thread has a handle: type cudnnpy.Handle.default(), or cudnnpy.Handle(device, stream) for one of your own": """
        create_handle destroy_handle get_handle InitCudnn
    """,
    "type stream= in the call; without it PyTorch's or CuPy's current stream is used": """
        stream set_stream get_stream current_stream
    """,
    "type device= in the call, or make a device current with cuda.core.Device": "device_count get_device set_device",
    "type cudnnpy.descriptors.TensorDescriptor(shape, dtype) and its like": """
        create_tensor_descriptor create_filter_descriptor create_convolution_descriptor create_pooling_descriptor
    """,
    _DESCRIPTION.format("Convolution"): "GpuDnnConvDesc",
    _DESCRIPTION.format("Pooling"): "GpuDnnPoolDesc",
    f"the library sets up each signature once: {_FORWARD}": """
        CudnnConvHandle CudnnConvHandles InitCudnnConvHandles SetupConv SetupRecorder Recorder
        CuDNNConvolutionOp CuDNNDeconvolutionOp CuDNNBatchNormOp
    """,
    _REFERENCE: """
        ConvHandle ConvHandles InitCpuHandle CpuConvForward CpuConvBackwardx CpuConvBackwardW CpuConvBackwardb
        MKLDNNConvForward MKLDNNConvBackward MKLDNNConvSignature MKLDNNDeconvForward MKLDNNBNForward GetConvFwd GetConvBwd
    """,
    "no key is needed: plans are cached by options, shapes, data types and device; cudnnpy.cache_info() counts them": """
        OpSignature ParamOpSign GetCuDNNConvOp GetCuDNNDeconvOp GetCuDNNBatchNormOp
    """,
}


def missing(name: str, public: Collection[str]) -> str:
    """Return the message for a name that the package lacks, with the name to type if there is one. `public` are its names."""
    text = f"module 'cudnnpy' has no attribute {name!r:.80}"
    return text if name.startswith("_") else f"{text}{_suggest(name, public)}"


def missing_in_reference(name: str, public: Collection[str]) -> str:
    """Return the message for a name that `cudnnpy.reference` lacks; what to type is a name there if it has it."""
    text = f"module 'cudnnpy.reference' has no attribute {name!r:.80}"
    if name.startswith("_"):
        return text
    if name in import_module("cudnnpy").__all__:
        return f"{text}: type cudnnpy.{name}"
    return text + re.sub(rf"\bcudnnpy\.(?=(?:{'|'.join(public)})\b)", "cudnnpy.reference.", _suggest(name, public))


def _suggest(name: str, public: Collection[str]) -> str:
    if name in _OWN_IMPORTS:
        return f". It is a module of its own: type import cudnnpy.{name} first"
    plain = _plain(name)
    if plain.startswith("cuda") and plain != "cuda":
        return f": {_in_raw(name)}"
    if same := [known for known in public if _plain(known) == plain]:
        return did_you_mean(same)
    for sentence, names in _NAMES.items():
        if plain in map(_plain, names.split()):
            return f": {sentence}"
    if plain.startswith("cudnn"):
        return f": {_in_raw(name)}"
    for module in _MODULES:
        if name in import_module(f"cudnnpy.{module}").__all__:
            return f": type cudnnpy.{module}.{name}"
    return did_you_mean(near(name, public)) or ". help(cudnnpy) lists the names"


def _in_raw(name: str) -> str:
    """Return what to type for a name of C, or why cuDNN 9 does not have it."""
    raw = import_module("cudnnpy.raw")
    return f"type cudnnpy.raw.{name}" if name in raw.__all__ else raw.missing(name)


def _plain(name: str) -> str:
    return name.lower().replace("_", "")
