"""Descriptors that are created empty, and set and read by C's names: RNN, CTC loss, attention, transforms, fused operations."""

from __future__ import annotations

from ctypes import c_double

from cudnnpy import raw
from cudnnpy._core.descriptor import GeneralDescriptor
from cudnnpy._core.owned import PointerT
from cudnnpy.names import enumerator
from cudnnpy.typing import FusedOperations


class TensorTransformDescriptor(GeneralDescriptor[raw.cudnnTensorTransformDescriptor_t]):
    """A transform of cudnnTransformTensorEx: cudnnSetTensorTransformDescriptor, cudnnGetTensorTransformDescriptor.

    Examples
    --------
    >>> from cudnnpy.descriptors import TensorTransformDescriptor
    >>> with TensorTransformDescriptor() as transform:
    ...     transform.closed
    False
    """

    _reader = "cudnnGetTensorTransformDescriptor", raw.CUDNN_DIM_MAX


class SpatialTransformerDescriptor(GeneralDescriptor[raw.cudnnSpatialTransformerDescriptor_t]):
    """A spatial transformer: cudnnSetSpatialTransformerNdDescriptor.

    Examples
    --------
    >>> from cudnnpy.descriptors import SpatialTransformerDescriptor
    >>> with SpatialTransformerDescriptor() as descriptor:  # descriptor.set("cudnnSet...", ...) sets it
    ...     descriptor.closed
    False
    """


class RNNDescriptor(GeneralDescriptor[raw.cudnnRNNDescriptor_t]):
    """A recurrent neural network: cudnnSetRNNDescriptor_v8, cudnnGetRNNDescriptor_v8, cudnnRNNSetClip_v9.

    Examples
    --------
    >>> from cudnnpy.descriptors import RNNDescriptor
    >>> with RNNDescriptor() as descriptor:  # descriptor.set("cudnnSet...", ...) sets it
    ...     descriptor.closed
    False
    """

    _reader = ("cudnnGetRNNDescriptor_v8",)


class RNNDataDescriptor(GeneralDescriptor[raw.cudnnRNNDataDescriptor_t]):
    """A batch of sequences for a recurrent neural network: cudnnSetRNNDataDescriptor, cudnnGetRNNDataDescriptor.

    Examples
    --------
    >>> from cudnnpy.descriptors import RNNDataDescriptor
    >>> with RNNDataDescriptor() as descriptor:  # descriptor.set("cudnnSet...", ...) sets it
    ...     descriptor.closed
    False
    """

    _reader = "cudnnGetRNNDataDescriptor", 0, (c_double * 1)()  # C writes the padding value there


class CTCLossDescriptor(GeneralDescriptor[raw.cudnnCTCLossDescriptor_t]):
    """A CTC loss: cudnnSetCTCLossDescriptor_v9, cudnnGetCTCLossDescriptor_v9.

    Examples
    --------
    >>> from cudnnpy.descriptors import CTCLossDescriptor
    >>> with CTCLossDescriptor() as descriptor:  # descriptor.set("cudnnSet...", ...) sets it
    ...     descriptor.closed
    False
    """

    _reader = ("cudnnGetCTCLossDescriptor_v9",)


class SeqDataDescriptor(GeneralDescriptor[raw.cudnnSeqDataDescriptor_t]):
    """A batch of sequences for attention: cudnnSetSeqDataDescriptor, cudnnGetSeqDataDescriptor.

    Examples
    --------
    >>> from cudnnpy.descriptors import SeqDataDescriptor
    >>> with SeqDataDescriptor() as descriptor:  # descriptor.set("cudnnSet...", ...) sets it
    ...     descriptor.closed
    False
    """

    _reader = "cudnnGetSeqDataDescriptor", raw.CUDNN_SEQDATA_DIM_COUNT, 0, None


class AttnDescriptor(GeneralDescriptor[raw.cudnnAttnDescriptor_t]):
    """Multi-head attention: cudnnSetAttnDescriptor, cudnnGetAttnDescriptor.

    Examples
    --------
    >>> from cudnnpy.descriptors import AttnDescriptor
    >>> with AttnDescriptor() as descriptor:  # descriptor.set("cudnnSet...", ...) sets it
    ...     descriptor.closed
    False
    """

    _reader = ("cudnnGetAttnDescriptor",)


class _FusedOps(GeneralDescriptor[PointerT]):
    def __init__(self, ops: FusedOperations | raw.cudnnFusedOps_t) -> None:
        with self._created(enumerator(raw.cudnnFusedOps_t, ops, "ops")):
            pass


class FusedOpsConstParamPack(_FusedOps[raw.cudnnFusedOpsConstParamPack_t]):
    """The constant parameters of a fused operation: cudnnSetFusedOpsConstParamPackAttribute.

    Examples
    --------
    >>> from cudnnpy.descriptors import FusedOpsConstParamPack
    >>> with FusedOpsConstParamPack("scale_bias_activation_conv_bnstats") as owner:
    ...     owner.closed
    False
    """


class FusedOpsVariantParamPack(_FusedOps[raw.cudnnFusedOpsVariantParamPack_t]):
    """The pointers of a fused operation: cudnnSetFusedOpsVariantParamPackAttribute.

    Examples
    --------
    >>> from cudnnpy.descriptors import FusedOpsVariantParamPack
    >>> with FusedOpsVariantParamPack("scale_bias_activation_conv_bnstats") as owner:
    ...     owner.closed
    False
    """


class FusedOpsPlan(_FusedOps[raw.cudnnFusedOpsPlan_t]):
    """A fused operation that is ready to run.

    get("cudnnMakeFusedOpsPlan", handle, pack) prepares it, and returns the size of its workspace in bytes.

    Examples
    --------
    >>> from cudnnpy.descriptors import FusedOpsPlan
    >>> with FusedOpsPlan("scale_bias_activation_conv_bnstats") as owner:
    ...     owner.closed
    False
    """
