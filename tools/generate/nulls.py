"""Which parameters of a function may not be NULL, so that Python refuses what would end the process.

What C answers with a status stays C's: most functions check their arguments. Two groups do not, and both are here:

- outputs with a type (`size_t *size`, `int dimA[]`). Most getters write to them unasked, and a NULL output is of no use
  where the function has one to give. The rule goes by the generated facts, for the libraries in which it holds.
- handles, descriptors and arrays that a function reads unasked. No fact tells them apart from the optional ones, so they
  are a table of what was measured: every function of cuDNN 9.0.0 and of 9.28.0 was called in a child process with each of
  its pointers NULL in turn. tests/host/raw/test_nulls.py repeats that with the loaded release.
"""

from __future__ import annotations

from tools.generate.records import Record

# The getters of the other libraries take NULL for what the caller does not ask for.
_LIBRARIES = frozenset({"graph", "ops", "cnn"})

# Outputs of these libraries that C allows to be NULL.
_OPTIONAL = {
    "cudnnQueryRuntimeError": ("tag",),
    "cudnnBackendGetAttribute": ("elementCount",),
    "cudnnInitTransformDest": ("destSizeInBytes",),
    "cudnnGetLRNDescriptor": ("lrnN", "lrnAlpha", "lrnBeta", "lrnK"),
}

_MEASURED = {
    "cudnnGetLastErrorString": ("message",),
    "cudnnSetTensorNdDescriptor": ("dimA", "strideA"),
    "cudnnSetTensorNdDescriptorEx": ("dimA",),
    "cudnnGetTensorSizeInBytes": ("tensorDesc",),
    "cudnnInitTransformDest": ("srcDesc",),
    "cudnnGetReductionIndicesSize": ("reduceTensorDesc",),
    "cudnnGetReductionWorkspaceSize": ("reduceTensorDesc", "aDesc", "cDesc"),
    "cudnnSetFilterNdDescriptor": ("filterDimA",),
    "cudnnTransformFilter": ("srcDesc", "destDesc"),
    "cudnnSetPoolingNdDescriptor": ("windowDimA", "paddingA", "strideA"),
    "cudnnGetPoolingNdForwardOutputDim": ("inputTensorDesc",),
    "cudnnGetPooling2dForwardOutputDim": ("inputTensorDesc",),
    "cudnnSetLRNDescriptor": ("normDesc",),
    "cudnnGetLRNDescriptor": ("normDesc",),
    "cudnnLRNCrossChannelForward": ("handle",),
    "cudnnDivisiveNormalizationForward": ("handle",),
    "cudnnDeriveBNTensorDescriptor": ("xDesc",),
    "cudnnBatchNormalizationForwardInference": ("handle",),
    "cudnnDeriveNormTensorDescriptor": ("xDesc",),
    "cudnnNormalizationForwardInference": ("handle",),
    "cudnnLRNCrossChannelBackward": ("handle",),
    "cudnnDivisiveNormalizationBackward": ("handle",),
    "cudnnBatchNormalizationBackward": ("handle",),
    "cudnnBatchNormalizationBackwardEx": ("handle",),
    "cudnnNormalizationBackward": ("handle",),
    "cudnnSetRNNDataDescriptor": ("seqLengthArray",),
    "cudnnSetSeqDataDescriptor": ("dimA",),
    "cudnnCTCLoss": ("probsDesc", "hostLabelLengths", "hostInputLengths"),
    "cudnnCTCLoss_v8": ("ctcLossDesc", "probsDesc"),
    "cudnnGetCTCLossWorkspaceSize": ("probsDesc", "labelLengths", "inputLengths"),
    "cudnnGetCTCLossWorkspaceSize_v8": ("ctcLossDesc", "probsDesc"),
    "cudnnSetConvolutionNdDescriptor": ("padA", "filterStrideA", "dilationA"),
    "cudnnGetConvolutionForwardAlgorithm_v7": ("handle",),
    "cudnnIm2Col": ("handle", "xDesc", "wDesc", "convDesc"),
    "cudnnGetConvolutionBackwardDataAlgorithm_v7": ("handle",),
    "cudnnGetConvolutionBackwardFilterAlgorithm_v7": ("handle",),
    "cudnnFusedOpsExecute": ("plan",),
}


def not_null(function: Record) -> tuple[int, ...]:
    """The places of the parameters that may not be NULL. Raises ValueError for a reviewed name that the header lacks."""
    name, parameters = function["name"], function["parameters"]
    optional, measured = _OPTIONAL.get(name, ()), _MEASURED.get(name, ())
    absent = {*optional, *measured} - {parameter for parameter, _, _ in parameters}
    if absent:
        raise ValueError(f"{name} has no {', '.join(sorted(absent))}: correct tools/generate/nulls.py")
    outputs = function["header"] in _LIBRARIES
    return tuple(
        at
        for at, (parameter, kind, direction) in enumerate(parameters)
        if parameter in measured or (outputs and parameter not in optional and _is_typed_output(kind, direction))
    )


def _is_typed_output(kind: str, direction: str) -> bool:
    return direction == "out" and kind.endswith(("*", "[]")) and kind.rstrip("*[] ") not in ("void", "char")
