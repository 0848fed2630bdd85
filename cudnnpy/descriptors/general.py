"""Descriptors that are made empty, and set and read by the names of C."""

from __future__ import annotations

from typing import Any

from cudnnpy import raw
from cudnnpy._core.descriptor import GeneralDescriptor
from cudnnpy.names import enumerator


class TensorTransformDescriptor(GeneralDescriptor):
    """What cudnnTransformTensorEx does: cudnnSetTensorTransformDescriptor, cudnnGetTensorTransformDescriptor."""

    _create = "cudnnCreateTensorTransformDescriptor"
    _destroy = "cudnnDestroyTensorTransformDescriptor"


class SpatialTransformerDescriptor(GeneralDescriptor):
    """A spatial transformer: cudnnSetSpatialTransformerNdDescriptor."""

    _create = "cudnnCreateSpatialTransformerDescriptor"
    _destroy = "cudnnDestroySpatialTransformerDescriptor"


class RNNDescriptor(GeneralDescriptor):
    """A recurrent network: cudnnSetRNNDescriptor_v8, cudnnGetRNNDescriptor_v8, cudnnRNNSetClip_v9."""

    _create = "cudnnCreateRNNDescriptor"
    _destroy = "cudnnDestroyRNNDescriptor"


class RNNDataDescriptor(GeneralDescriptor):
    """A batch of sequences for a recurrent network: cudnnSetRNNDataDescriptor, cudnnGetRNNDataDescriptor."""

    _create = "cudnnCreateRNNDataDescriptor"
    _destroy = "cudnnDestroyRNNDataDescriptor"


class CTCLossDescriptor(GeneralDescriptor):
    """A CTC loss: cudnnSetCTCLossDescriptor_v9, cudnnGetCTCLossDescriptor_v9."""

    _create = "cudnnCreateCTCLossDescriptor"
    _destroy = "cudnnDestroyCTCLossDescriptor"


class SeqDataDescriptor(GeneralDescriptor):
    """A batch of sequences for attention: cudnnSetSeqDataDescriptor, cudnnGetSeqDataDescriptor."""

    _create = "cudnnCreateSeqDataDescriptor"
    _destroy = "cudnnDestroySeqDataDescriptor"


class AttnDescriptor(GeneralDescriptor):
    """Multi-head attention: cudnnSetAttnDescriptor, cudnnGetAttnDescriptor."""

    _create = "cudnnCreateAttnDescriptor"
    _destroy = "cudnnDestroyAttnDescriptor"


class _FusedOps(GeneralDescriptor):
    def __init__(self, ops: Any) -> None:
        with self._created(enumerator(raw.cudnnFusedOps_t, ops, "ops")):
            pass


class FusedOpsConstParamPack(_FusedOps):
    """The fixed parameters of a fused operation: cudnnSetFusedOpsConstParamPackAttribute."""

    _create = "cudnnCreateFusedOpsConstParamPack"
    _destroy = "cudnnDestroyFusedOpsConstParamPack"


class FusedOpsVariantParamPack(_FusedOps):
    """The pointers of a fused operation: cudnnSetFusedOpsVariantParamPackAttribute."""

    _create = "cudnnCreateFusedOpsVariantParamPack"
    _destroy = "cudnnDestroyFusedOpsVariantParamPack"


class FusedOpsPlan(_FusedOps):
    """A fused operation ready to run: get("cudnnMakeFusedOpsPlan", handle, pack) returns its workspace's bytes."""

    _create = "cudnnCreateFusedOpsPlan"
    _destroy = "cudnnDestroyFusedOpsPlan"
