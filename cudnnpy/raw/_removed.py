"""Replacements of the names that cuDNN 6 to 8 had and cuDNN 9 has not."""

from __future__ import annotations

_ALGORITHM_OBJECTS = "algorithm objects are gone: keep the algorithm's number, or a cudnnpy plan's to_json()"
_VERSION_CHECK = "call cudnnGraphVersionCheck, cudnnOpsVersionCheck, cudnnCnnVersionCheck or cudnnAdvVersionCheck"
_RNN_WEIGHTS = "call cudnnGetRNNWeightParams, once for each layer and linear layer"
_RNN_DESCRIPTOR = "call cudnnSetRNNDescriptor_v8, which takes every setting at once"
_PERSISTENT = "call cudnnBuildRNNDynamic(handle, rnnDesc, miniBatch)"


def _algorithm(direction: str, operation: str) -> str:
    return (
        f"call cudnnpy.descriptors.choose_algorithm({operation!r}, x, w, convolution, y, prefer='fastest' | "
        "'limited_workspace' | 'no_workspace', workspace_limit=bytes), on descriptors or raw handles; or filter the list "
        f"that cudnnGetConvolution{direction}Algorithm_v7 gives; or use cudnnpy.Convolution(prefer=...)"
    )


def _preference(value: str) -> str:
    return f"use cudnnpy.descriptors.choose_algorithm(..., prefer={value!r}), or cudnnpy.Convolution(prefer={value!r})"


REMOVED: dict[str, str] = {
    "cudnnGetConvolutionForwardAlgorithm": _algorithm("Forward", "forward"),
    "cudnnGetConvolutionBackwardDataAlgorithm": _algorithm("BackwardData", "backward_data"),
    "cudnnGetConvolutionBackwardFilterAlgorithm": _algorithm("BackwardFilter", "backward_filter"),
    **{
        f"cudnnConvolution{kind}Preference_t": "the preference enums are gone: cudnnpy.descriptors.choose_algorithm(..., "
        "prefer=...) and cudnnpy.Convolution(prefer=...) take 'fastest', 'limited_workspace', 'no_workspace' and 'autotune'"
        for kind in ("Fwd", "BwdData", "BwdFilter")
    },
    **{
        f"CUDNN_CONVOLUTION_{kind}_{old}": _preference(new)
        for kind in ("FWD", "BWD_DATA", "BWD_FILTER")
        for old, new in (
            ("NO_WORKSPACE", "no_workspace"),
            ("PREFER_FASTEST", "fastest"),
            ("SPECIFY_WORKSPACE_LIMIT", "limited_workspace"),
        )
    },
    "cudnnSetRNNDescriptor_v5": _RNN_DESCRIPTOR,
    "cudnnSetRNNDescriptor_v6": _RNN_DESCRIPTOR,
    "cudnnSetRNNDescriptor": _RNN_DESCRIPTOR,
    "cudnnGetRNNDescriptor_v6": "call cudnnGetRNNDescriptor_v8",
    "cudnnGetRNNDescriptor": "call cudnnGetRNNDescriptor_v8",
    "cudnnSetRNNMatrixMathType": "give the math type to cudnnSetRNNDescriptor_v8",
    "cudnnGetRNNMatrixMathType": "read the math type with cudnnGetRNNDescriptor_v8",
    "cudnnSetRNNBiasMode": "give the bias mode to cudnnSetRNNDescriptor_v8",
    "cudnnGetRNNBiasMode": "read the bias mode with cudnnGetRNNDescriptor_v8",
    "cudnnSetRNNProjectionLayers": "give projSize to cudnnSetRNNDescriptor_v8",
    "cudnnGetRNNProjectionLayers": "read projSize with cudnnGetRNNDescriptor_v8",
    "cudnnSetRNNPaddingMode": "give CUDNN_RNN_PADDED_IO_ENABLED as auxFlags to cudnnSetRNNDescriptor_v8",
    "cudnnGetRNNPaddingMode": "read auxFlags with cudnnGetRNNDescriptor_v8",
    "cudnnRNNSetClip": "call cudnnRNNSetClip_v9",
    "cudnnRNNGetClip": "call cudnnRNNGetClip_v9",
    "cudnnRNNForwardInference": "call cudnnRNNForward with CUDNN_FWD_MODE_INFERENCE",
    "cudnnRNNForwardTraining": "call cudnnRNNForward with CUDNN_FWD_MODE_TRAINING",
    "cudnnRNNForwardInferenceEx": "call cudnnRNNForward with CUDNN_FWD_MODE_INFERENCE and cudnnRNNDataDescriptor_t",
    "cudnnRNNForwardTrainingEx": "call cudnnRNNForward with CUDNN_FWD_MODE_TRAINING and cudnnRNNDataDescriptor_t",
    "cudnnRNNBackwardData": "call cudnnRNNBackwardData_v8",
    "cudnnRNNBackwardDataEx": "call cudnnRNNBackwardData_v8",
    "cudnnRNNBackwardWeights": "call cudnnRNNBackwardWeights_v8",
    "cudnnRNNBackwardWeightsEx": "call cudnnRNNBackwardWeights_v8",
    "cudnnGetRNNWorkspaceSize": "call cudnnGetRNNTempSpaceSizes, which gives both sizes",
    "cudnnGetRNNTrainingReserveSize": "call cudnnGetRNNTempSpaceSizes, which gives both sizes",
    "cudnnGetRNNParamsSize": "call cudnnGetRNNWeightSpaceSize",
    "cudnnGetRNNLinLayerMatrixParams": _RNN_WEIGHTS,
    "cudnnGetRNNLinLayerBiasParams": _RNN_WEIGHTS,
    "cudnnCreatePersistentRNNPlan": _PERSISTENT,
    "cudnnSetPersistentRNNPlan": _PERSISTENT,
    "cudnnDestroyPersistentRNNPlan": _PERSISTENT,
    "cudnnPersistentRNNPlan_t": _PERSISTENT,
    **{f"cudnn{verb}AlgorithmDescriptor": _ALGORITHM_OBJECTS for verb in ("Create", "Set", "Get", "Copy", "Destroy")},
    **{f"cudnn{verb}AlgorithmPerformance": _ALGORITHM_OBJECTS for verb in ("Create", "Set", "Get", "Destroy")},
    **dict.fromkeys(
        (
            "cudnnGetAlgorithmSpaceSize",
            "cudnnSaveAlgorithm",
            "cudnnRestoreAlgorithm",
            "cudnnAlgorithm_t",
            "cudnnAlgorithmDescriptor_t",
            "cudnnAlgorithmPerformance_t",
            "cudnnSetRNNAlgorithmDescriptor",
            "cudnnGetRNNForwardInferenceAlgorithmMaxCount",
            "cudnnFindRNNForwardInferenceAlgorithmEx",
            "cudnnGetRNNForwardTrainingAlgorithmMaxCount",
            "cudnnFindRNNForwardTrainingAlgorithmEx",
            "cudnnGetRNNBackwardDataAlgorithmMaxCount",
            "cudnnFindRNNBackwardDataAlgorithmEx",
            "cudnnGetRNNBackwardWeightsAlgorithmMaxCount",
            "cudnnFindRNNBackwardWeightsAlgorithmEx",
        ),
        _ALGORITHM_OBJECTS,
    ),
    **{
        f"cudnn{part}{phase}VersionCheck": _VERSION_CHECK
        for part in ("Ops", "Cnn", "Adv")
        for phase in ("Infer", "Train")
    },
    "cudnnSetConvolution2dDescriptor_v4": "call cudnnSetConvolution2dDescriptor, which takes the compute type last",
    "cudnnSetConvolution2dDescriptor_v5": "call cudnnSetConvolution2dDescriptor",
    "cudnnSetConvolutionNdDescriptor_v3": "call cudnnSetConvolutionNdDescriptor",
    "cudnnAddTensor_v2": "call cudnnAddTensor",
    "cudnnAddTensor_v3": "call cudnnAddTensor",
    "cudnnSetFilter4dDescriptor_v4": "call cudnnSetFilter4dDescriptor, which takes the tensor format third",
    "cudnnSetFilterNdDescriptor_v4": "call cudnnSetFilterNdDescriptor, which takes the tensor format third",
    "cudnnSetPooling2dDescriptor_v4": "call cudnnSetPooling2dDescriptor, which takes the NaN propagation third",
    "cudnnSetPoolingNdDescriptor_v4": "call cudnnSetPoolingNdDescriptor, which takes the NaN propagation third",
    "cudnnSetActivationDescriptor_v4": "call cudnnSetActivationDescriptor",
    "cudnnActivationForward_v4": "call cudnnActivationForward with an activation descriptor",
    "cudnnActivationBackward_v4": "call cudnnActivationBackward with an activation descriptor",
    "cudnnConvolutionBackwardFilter_v3": "call cudnnConvolutionBackwardFilter",
    "cudnnConvolutionBackwardData_v3": "call cudnnConvolutionBackwardData",
}
