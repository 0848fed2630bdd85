"""Which kinds of descriptor a backend attribute holds: from the headers' comments, or from a reviewed table.

cuDNN follows the address of a descriptor of another kind as it is, and mostly ends the process.
"""

from __future__ import annotations

import re
from typing import Any

Record = dict[str, Any]

# Reviewed by hand: attributes of whose kind the comments say nothing, by their names without CUDNN_ATTR_. cuDNN 9.28
# takes an open descriptor of the kind for each that can be set (tests/host/test_attribute_kinds.py).
_REVIEWED = {
    "OPERATIONGRAPH": """
        ENGINEHEUR_OPERATION_GRAPH OPERATION_REDUCTION_SUBGRAPH OPERATION_SDPA_FWD_SUBGRAPH OPERATION_SDPA_BWD_SUBGRAPH""",
    "ENGINECFG": "KERNEL_CACHE_IS_ENGINECFG_KERNEL_CACHED",
    "POINTWISE": "OPERATION_POINTWISE_PW_DESCRIPTOR",
    "REDUCTION": "OPERATION_REDUCTION_DESC",  # a tensor, says its comment; the library refuses one
    "OPERATION_SOFTMAX": "OPERATION_SDPA_FWD_SOFTMAX_DESC",
    "TENSOR": """
        TENSOR_RAGGED_OFFSET_DESC
        OPERATION_POINTWISE_XDESC OPERATION_POINTWISE_BDESC OPERATION_POINTWISE_YDESC
        OPERATION_POINTWISE_DXDESC OPERATION_POINTWISE_DYDESC OPERATION_POINTWISE_TDESC
        OPERATION_GENSTATS_XDESC OPERATION_GENSTATS_SUMDESC OPERATION_GENSTATS_SQSUMDESC
        OPERATION_BN_FINALIZE_EXP_AVERATE_FACTOR_DESC OPERATION_REDUCTION_GROUP_OFFSET_DESC
        OPERATION_BN_BWD_WEIGHTS_MEAN_DESC OPERATION_BN_BWD_WEIGHTS_INVSTD_DESC OPERATION_BN_BWD_WEIGHTS_BN_SCALE_DESC
        OPERATION_BN_BWD_WEIGHTS_X_DESC OPERATION_BN_BWD_WEIGHTS_DY_DESC OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC
        OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC
        OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC OPERATION_BN_BWD_WEIGHTS_EQ_BIAS
        OPERATION_TRANSPOSE_XDESC OPERATION_TRANSPOSE_YDESC OPERATION_SLICE_XDESC OPERATION_SLICE_YDESC
        OPERATION_ROPE_FWD_XDESC OPERATION_ROPE_FWD_YDESC OPERATION_ROPE_FWD_FREQSDESC
        OPERATION_ROPE_BWD_DYDESC OPERATION_ROPE_BWD_DXDESC OPERATION_ROPE_BWD_FREQSDESC
        OPERATION_SDPA_FWD_DROPOUT_SEED_DESC OPERATION_SDPA_FWD_DROPOUT_OFFSET_DESC
        OPERATION_SDPA_FWD_DROPOUT_RNG_DUMP_DESC OPERATION_SDPA_FWD_CU_SEQ_LEN_QDESC
        OPERATION_SDPA_FWD_CU_SEQ_LEN_KVDESC OPERATION_SDPA_FWD_DESCALE_QDESC OPERATION_SDPA_FWD_DESCALE_KDESC
        OPERATION_SDPA_FWD_DESCALE_VDESC OPERATION_SDPA_FWD_SCALE_SDESC OPERATION_SDPA_FWD_AMAX_SDESC
        OPERATION_SDPA_BWD_SINK_DESC OPERATION_SDPA_BWD_DSINK_DESC
        OPERATION_MOE_GROUPED_MATMUL_BWD_TOKEN_DESC OPERATION_MOE_GROUPED_MATMUL_BWD_DWEIGHT_DESC
        OPERATION_MOE_GROUPED_MATMUL_BWD_FIRST_TOKEN_OFFSET_DESC OPERATION_MOE_GROUPED_MATMUL_BWD_DOUTPUT_DESC
        OPERATION_DIAGONAL_BAND_MASK_CU_SEQ_LEN_KVDESC OPERATION_DIAGONAL_BAND_MASK_CU_SEQ_LEN_QDESC""",
}
_TABLE = {
    f"CUDNN_ATTR_{name}": f"CUDNN_BACKEND_{kind}_DESCRIPTOR"
    for kind, names in _REVIEWED.items()
    for name in names.split()
}
_CORRECTED = {"CUDNN_ATTR_OPERATION_REDUCTION_DESC"}  # in the table though a comment tells a kind

# What a descriptor holds before it is finalized, or cuDNN 9.28 ends the process: one of these attributes, and the
# descriptors in it are finalized.
_REQUIRED = {
    "CUDNN_BACKEND_ENGINECFG_DESCRIPTOR": ["CUDNN_ATTR_ENGINECFG_ENGINE"],
    "CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR": [
        "CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG",
        "CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION",
    ],
}


class Kinds:
    """Kinds of descriptors read from the comments on the descriptor types."""

    def __init__(self) -> None:
        self.found: dict[str, set[str]] = {}

    def add(self, comment: str) -> None:
        """Whatever kind is named between an attribute's own line and the next one's is that attribute's."""
        name = ""
        for line in comment.splitlines():
            text = line.strip().lstrip("*").strip()
            if begins := re.match(r"(?:-\s+)?(CUDNN_ATTR_\w+)(?:\s+\(|$)", text):
                name = begins[1]
            elif text.endswith(":"):  # "Finalization:" and the like end the attributes
                name = ""
            if name:
                self.found.setdefault(name, set()).update(re.findall(r"CUDNN_BACKEND_[\w*]+_DESCRIPTOR\b", text))


def complete(records: list[Record], comments: Kinds) -> None:
    """Tells of every attribute which kinds it "holds" and of every kind what it "requires"; raises for a gap."""
    enumerators = {r["name"]: r for r in records if r["kind"] == "enumerator"}
    kinds = [n for n, r in enumerators.items() if r["enum"] == "cudnnBackendDescriptorType_t"]
    problems = [f"{n}: in the reviewed table, but no header knows it" for n in _TABLE if n not in enumerators]
    for record in enumerators.values():
        name = record["name"]
        if "CUDNN_TYPE_BACKEND_DESCRIPTOR" not in record.get("types", ()):
            continue
        told = comments.found.get(name, set())
        if name in _TABLE and told and name not in _CORRECTED:
            problems.append(f"{name}: in the reviewed table, though the comments tell its kind now")
        pattern = {_TABLE[name]} if name in _TABLE else told
        record["holds"] = [k for k in kinds if any(re.fullmatch(p.replace("*", r"\w+"), k) for p in pattern)]
        if len(pattern) != 1 or not record["holds"]:
            problems.append(f"{name}: no source tells its kind ({told or 'silent'}); review it and add it to kinds.py")
    for name, alternatives in _REQUIRED.items():
        missing = [n for n in (name, *alternatives) if n not in enumerators]
        problems += [f"{n}: in the table of what is required, but no header knows it" for n in missing]
        if not missing:
            enumerators[name]["requires"] = alternatives
    if problems:
        raise ValueError("kinds of backend descriptors:\n  " + "\n  ".join(problems))
