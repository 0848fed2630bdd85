"""Descriptors set and read by the names of C: values come back, and wrong ones are rejected before C is called."""

from __future__ import annotations

import re
from ctypes import addressof, c_float, c_void_p, cast
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stand_in_library import stand_in_library

from cudnnpy import names, raw
from cudnnpy._core.descriptor import GeneralDescriptor
from cudnnpy.descriptors import (
    AttnDescriptor,
    CTCLossDescriptor,
    DropoutDescriptor,
    FusedOpsConstParamPack,
    RNNDataDescriptor,
    RNNDescriptor,
    SeqDataDescriptor,
    SpatialTransformerDescriptor,
    TensorDescriptor,
    TensorTransformDescriptor,
)
from cudnnpy.errors import SubLibraryError

GENERAL = [kind for kind in GeneralDescriptor.__subclasses__() if hasattr(kind, "_create")]  # those without arguments

# Descriptors set by the names of C


def test_a_recurrent_network() -> None:
    arguments = {
        "algo": raw.CUDNN_RNN_ALGO_STANDARD, "cellMode": raw.CUDNN_LSTM, "biasMode": raw.CUDNN_RNN_DOUBLE_BIAS,
        "dirMode": raw.CUDNN_BIDIRECTIONAL, "inputMode": raw.CUDNN_LINEAR_INPUT, "dataType": raw.CUDNN_DATA_FLOAT,
        "mathPrec": raw.CUDNN_DATA_FLOAT, "mathType": raw.CUDNN_DEFAULT_MATH, "inputSize": 8, "hiddenSize": 16,
        "projSize": 16, "numLayers": 2, "auxFlags": raw.CUDNN_RNN_PADDED_IO_ENABLED,
    }  # fmt: skip
    short = {name: names.short_name(value) if hasattr(value, "name") else value for name, value in arguments.items()}
    dropout = DropoutDescriptor()
    address = dropout.address
    with RNNDescriptor() as rnn:
        rnn.set("cudnnSetRNNDescriptor_v8", **short, dropoutDesc=dropout)
        del dropout  # the network keeps what it points to
        read = rnn.get("cudnnGetRNNDescriptor_v8")
        assert cast(read.pop("dropoutDesc"), c_void_p).value == address
        assert read == arguments
        assert [kept.address for given in rnn._kept.values() for kept in given] == [address]
        rnn.set("cudnnRNNSetClip_v9", "minmax", -1.5, 2.5)
        assert repr(rnn).startswith("<RNNDescriptor algo=CUDNN_RNN_ALGO_STANDARD, cellMode=CUDNN_LSTM, biasMode=")
        assert rnn.get("cudnnRNNGetClip_v9") == {"clipMode": raw.CUDNN_RNN_CLIP_MINMAX, "lclip": -1.5, "rclip": 2.5}


def test_a_batch_of_sequences() -> None:
    fill = c_float(7.0)
    with RNNDataDescriptor() as made:
        made.set("cudnnSetRNNDataDescriptor", "float32", "seq_major_unpacked", 5, 3, 8, (5, 4, 2), addressof(fill))
        read_fill = c_float()
        read = made.get("cudnnGetRNNDataDescriptor", 3, addressof(read_fill))
        assert read == {
            "dataType": raw.CUDNN_DATA_FLOAT, "layout": raw.CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED,
            "maxSeqLength": 5, "batchSize": 3, "vectorSize": 8, "seqLengthArray": (5, 4, 2),
        }  # fmt: skip
        assert read_fill.value == 7.0
        assert repr(made).endswith("LAYOUT_SEQ_MAJOR_UNPACKED, maxSeqLength=5, batchSize=3, vectorSize=8>")


def test_sequences_for_attention() -> None:
    axes = ("time_dim", "batch_dim", "beam_dim", "vect_dim")
    with SeqDataDescriptor() as made:
        made.set("cudnnSetSeqDataDescriptor", "float32", 4, (5, 3, 1, 8), axes, 3, (5, 4, 3), None)
        read = made.get("cudnnGetSeqDataDescriptor", 4, 3, None)
        assert (read["nbDims"], read["dimA"]) == (4, (5, 3, 1, 8))
        assert [names.short_name(axis) for axis in read["axes"]] == list(axes)
        assert (read["seqLengthArraySize"], read["seqLengthArray"]) == (3, (5, 4, 3))


def test_attention() -> None:
    sizes = {"qSize": 8, "kSize": 8, "vSize": 8, "qProjSize": 4, "kProjSize": 4, "vProjSize": 4, "oProjSize": 8}
    lengths = {"qoMaxSeqLength": 5, "kvMaxSeqLength": 6, "maxBatchSize": 3, "maxBeamSize": 1}
    with DropoutDescriptor() as one, DropoutDescriptor() as two, AttnDescriptor() as made:
        precision = "float32", "float32", "default_math"
        made.set("cudnnSetAttnDescriptor", 0, 2, 1.5, *precision, one, two, **sizes, **lengths)
        read = made.get("cudnnGetAttnDescriptor")
        assert {name: read[name] for name in {**sizes, **lengths}} == {**sizes, **lengths}
        assert (read["nHeads"], read["smScaler"], read["mathType"]) == (2, 1.5, raw.CUDNN_DEFAULT_MATH)


@given(
    normal=st.sampled_from(list(raw.cudnnLossNormalizationMode_t)),
    grad=st.sampled_from(list(raw.cudnnCTCGradMode_t)),
    length=st.integers(0, 256),
)
def test_a_ctc_loss(normal: Any, grad: Any, length: int) -> None:
    with CTCLossDescriptor() as made:
        made.set("cudnnSetCTCLossDescriptor_v9", "float32", normal, names.short_name(grad), length)
        assert made.get("cudnnGetCTCLossDescriptor_v9") == {
            "compType": raw.CUDNN_DATA_FLOAT,
            "normMode": normal,
            "ctcGradMode": grad,
            "maxLabelLength": length,
        }


def test_a_tensor_transformation() -> None:
    with TensorTransformDescriptor() as made:
        before, after = (0, 0, 1, 2), (0, 3, 0, 0)
        with pytest.raises(ValueError, match=r"^foldA must have 2 elements, as nbDims says.*; got 1$"):
            made.set("cudnnSetTensorTransformDescriptor", 4, "nhwc", before, after, (2,), "fold")
        try:
            made.set("cudnnSetTensorTransformDescriptor", 4, "nhwc", before, after, (2, 3), "fold")
            made.set("cudnnSetTensorTransformDescriptor", 4, "nhwc", before, after, None, "fold")
        except SubLibraryError as error:
            pytest.skip(f"this release of cuDNN loads the driver for that: {error.name}")
        read = made.get("cudnnGetTensorTransformDescriptor", 4)
        assert (read["padBeforeA"], read["padAfterA"]) == (before, after)
        assert (read["destFormat"], read["direction"]) == (raw.CUDNN_TENSOR_NHWC, raw.CUDNN_TRANSFORM_FOLD)


@pytest.mark.parametrize("kind", [*GENERAL, DropoutDescriptor])
def test_an_unset_descriptor_and_a_closed_one_are_printed(kind: Any) -> None:
    made = kind()
    assert re.match(rf"<{kind.__name__} (0x\w+|\w+=.*)>$", repr(made))
    made.close()
    assert [repr(made), repr(object.__new__(kind))] == [f"<{kind.__name__} closed>"] * 2


def test_a_spatial_transformer() -> None:
    with SpatialTransformerDescriptor() as made:
        setter = "cudnnSetSpatialTransformerNdDescriptor"
        made.set(setter, "bilinear", "float32", 4, (1, 2, 3, 4))
        with pytest.raises(TypeError, match="dimA must be a sequence; got None"):  # which pooling's setter follows
            made.set(setter, "bilinear", "float32", 4, None)


def test_fused_operations() -> None:
    with FusedOpsConstParamPack("scale_bias_activation_conv_bnstats") as pack, TensorDescriptor((1, 8, 4, 4)) as x:
        setter, getter = (f"cudnn{verb}FusedOpsConstParamPackAttribute" for verb in ("Set", "Get"))
        pack.set(setter, raw.CUDNN_PARAM_XDESC, x)
        assert list(pack._kept.values()) == [(x,)]
        with TensorDescriptor((1, 1, 1, 1)) as copy:
            read = pack.get(getter, raw.CUDNN_PARAM_XDESC, copy)
            assert read == {"isNULL": 0}
            assert copy.shape == (1, 8, 4, 4)


@pytest.mark.parametrize(
    ("use", "kind", "message"),
    [
        (
            lambda d: d.set("cudnnSetTensor4dDescriptor"),
            TypeError,
            r"function must be one that takes a CTCLossDescriptor; got cudnnSetTensor4dDescriptor \(cudnnStatus_t",
        ),
        (lambda d: d.set("cudnnSetCoffee"), AttributeError, "cuDNN .* has no 'cudnnSetCoffee'"),
        (
            lambda d: d.set("cudnnSetCTCLossDescriptor"),
            TypeError,
            r"arguments of cudnnSetCTCLossDescriptor must be \(compType\); got 0 by position and \[\] by name",
        ),
        (
            lambda d: d.set("cudnnSetCTCLossDescriptor", "float32", 1),
            TypeError,
            r"arguments of cudnnSetCTCLossDescriptor must be \(compType\); got 2 by position and \[\] by name",
        ),
        (lambda d: d.set("cudnnSetCTCLossDescriptor", compType="x"), ValueError, r"compType must .*; got 'x'"),
        (
            lambda d: d.set("cudnnSetCTCLossDescriptor_v8", "float32", "none", "propagate_nan", 1 << 31),
            ValueError,
            "maxLabelLength must be an integer that fits c_int; got 2147483648",
        ),
        (
            lambda d: d.set("cudnnDestroyCTCLossDescriptor"),
            TypeError,
            r"function must be a cudnnSet function.*; got cudnnDestroyCTCLossDescriptor \(cudnnpy\.raw",
        ),
        (
            lambda d: d.get("cudnnSetCTCLossDescriptor"),
            TypeError,
            r"function must be a cudnnGet function.*; got cudnnSetCTCLossDescriptor \(cudnnpy\.raw has every function\)",
        ),
        (lambda d: d.get(7), TypeError, "function must be the name of a C function; got 7"),
        (
            lambda d: d.get("cudnnGetCTCLossWorkspaceSize_v8", None, "deterministic", d, d),
            TypeError,
            "handle must be a cudnnHandle_t; got None",
        ),
    ],
)
def test_a_wrong_call_by_the_names_of_c(use: Any, kind: type[Exception], message: str) -> None:
    with CTCLossDescriptor() as made, pytest.raises(kind, match=message):
        use(made)


@pytest.mark.parametrize(
    ("use", "kind", "message"),
    [
        (
            lambda d: d.get("cudnnGetTensorNdDescriptor", 2**31 - 1),
            ValueError,
            "nbDimsRequested must be an integer of 0 to 1048576; got 2147483647",
        ),
        (lambda d: d.get("cudnnGetTensorNdDescriptor", -1), ValueError, r"nbDimsRequested must be .*; got -1"),
        (
            lambda d: d._set("cudnnSetTensorNdDescriptor", "float32", 1000, (1,) * 1000, (1,) * 1000),
            ValueError,
            "nbDims must be an integer of 0 to 8; got 1000",
        ),
        (
            lambda d: d._set("cudnnSetTensorNdDescriptor", "float32", 5, (1,) * 5, (1,) * 4),
            ValueError,
            r"strideA must have 5 elements, as nbDims says.*; got 4",
        ),
        (lambda d: d.get("cudnnGetFoldedConvBackwardDataDescriptors", None, *[d] * 12), TypeError, "handle must be a "),
        (lambda d: d.get("cudnnGetReductionWorkspaceSize", 0x1230, d, d), TypeError, r"handle must .*; got 4656"),
    ],
)
def test_what_c_would_follow_is_refused(use: Any, kind: type[Exception], message: str) -> None:
    with TensorDescriptor((1, 2, 3, 4)) as made:
        with stand_in_library() as library, pytest.raises(kind, match=message):
            use(made)
        assert not library.names
        assert made.shape == (1, 2, 3, 4)


def test_a_batch_is_as_long_as_it_says() -> None:
    with RNNDataDescriptor() as made:
        given: tuple[Any, ...] = ("float32", "seq_major_unpacked", 5, 3, 8)
        with pytest.raises(ValueError, match=r"seqLengthArray must have 3 elements, as batchSize says.*; got 2"):
            made.set("cudnnSetRNNDataDescriptor", *given, (5, 4), None)
        made.set("cudnnSetRNNDataDescriptor", *given, (5, 4, 2), None)  # fewer than vectorSize


def test_a_descriptor_keeps_what_it_was_set_to_last() -> None:
    arguments = (
        "standard", "lstm", "double_bias", "bidirectional", "linear_input", "float32", "float32", "default_math",
        8, 16, 16, 2,
    )  # fmt: skip
    with RNNDescriptor() as rnn:
        for _ in range(50):
            dropout = DropoutDescriptor()
            rnn.set("cudnnSetRNNDescriptor_v8", *arguments, dropout, 0)
        assert [kept for given in rnn._kept.values() for kept in given] == [dropout]
