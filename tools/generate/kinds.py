"""Which kinds of descriptor a backend attribute holds, from the headers' comments or a reviewed table; and what cuDNN needs.

cuDNN follows the address of a descriptor of another kind as it is, and mostly ends the process. It does not check
everything else that it needs, either: reviewed tables say what.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tools.generate.records import Record

# Reviewed by hand: attributes of whose kind the comments say nothing, by their names without CUDNN_ATTR_. cuDNN 9.28
# takes an open descriptor of the kind for each that can be set (tests/host/raw/test_attribute_kinds.py).
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

# Attributes that cuDNN needs and does not check: it ends the process without them. Measured with 9.0 and 9.28
# (tests/host/raw/test_fatal_combinations.py).
# Kinds are without CUDNN_BACKEND_ and _DESCRIPTOR, attributes without CUDNN_ATTR_. A condition gives attributes their values;
# None is any value.
#
# What a descriptor holds before it is finalized: the kind, a condition, and attributes of which one is set. Descriptors in
# them are finalized.
_REQUIRED: list[tuple[str, dict[str, str | None], str]] = [
    ("ENGINECFG", {}, "ENGINECFG_ENGINE"),
    ("EXECUTION_PLAN", {}, "EXECUTION_PLAN_ENGINE_CONFIG EXECUTION_PLAN_JSON_REPRESENTATION"),
    (
        "EXECUTION_PLAN",
        {"EXECUTION_PLAN_JSON_REPRESENTATION": None},
        "EXECUTION_PLAN_HANDLE EXECUTION_PLAN_DEVICEPROP",
    ),
    (
        "OPERATION_POINTWISE",
        {},
        """OPERATION_POINTWISE_XDESC OPERATION_POINTWISE_BDESC OPERATION_POINTWISE_TDESC
        OPERATION_POINTWISE_YDESC OPERATION_POINTWISE_DXDESC OPERATION_POINTWISE_DYDESC""",
    ),
    ("OPERATION_NORM_FORWARD", {"OPERATION_NORM_FWD_MODE": "CUDNN_INSTANCE_NORM"}, "OPERATION_NORM_FWD_EPSILON_DESC"),
    (
        "OPERATION_NORM_FORWARD",
        {"OPERATION_NORM_FWD_MODE": "CUDNN_INSTANCE_NORM", "OPERATION_NORM_FWD_PHASE": "CUDNN_NORM_FWD_TRAINING"},
        "OPERATION_NORM_FWD_INV_VARIANCE_DESC",
    ),
]

# The operation that a graph of a mode has: the kind and a condition.
_OPERATIONS: dict[str, tuple[str, dict[str, str | None]]] = {
    "CUDNN_OPERATIONGRAPH_MODE_CONV_FORWARD": ("OPERATION_CONVOLUTION_FORWARD", {}),
    "CUDNN_OPERATIONGRAPH_MODE_CONV_BWD_DATA": ("OPERATION_CONVOLUTION_BACKWARD_DATA", {}),
    "CUDNN_OPERATIONGRAPH_MODE_CONV_BWD_FILTER": ("OPERATION_CONVOLUTION_BACKWARD_FILTER", {}),
    "CUDNN_OPERATIONGRAPH_MODE_NORM_FWD_TRAIN": (
        "OPERATION_NORM_FORWARD",
        {"OPERATION_NORM_FWD_PHASE": "CUDNN_NORM_FWD_TRAINING"},
    ),
    "CUDNN_OPERATIONGRAPH_MODE_NORM_BWD": ("OPERATION_NORM_BACKWARD", {}),
}

# The least and the largest number that an attribute takes.
_RANGES = {
    "OPERATION_CONCAT_AXIS": (0, 7),  # cuDNN reads this size of a tensor of up to CUDNN_DIM_MAX axes
    "TENSOR_DIMENSIONS": (1, (1 << 63) - 1),  # matmul, reduction, SDPA and MoE operations divide by sizes
}


def _kinds_in(comments: Iterable[str]) -> dict[str, set[str]]:
    """Whatever kind is named between an attribute's own line and the next one's is that attribute's."""
    found: dict[str, set[str]] = {}
    for comment in comments:
        name = ""
        for line in comment.splitlines():
            text = line.strip().lstrip("*").strip()
            if begins := re.match(r"(?:-\s+)?(CUDNN_ATTR_\w+)(?:\s+\(|$)", text):
                name = begins[1]
            elif text.endswith(":"):  # "Finalization:" and the like end the attributes
                name = ""
            if name:
                found.setdefault(name, set()).update(re.findall(r"CUDNN_BACKEND_[\w*]+_DESCRIPTOR\b", text))
    return found


def complete(records: list[Record], comments: Iterable[str]) -> None:
    """Tells of attributes which kinds they "hold" and their "range", of kinds what they "require", of modes the "operation".

    Raises ValueError for a gap.
    """
    enumerators, found = {r["name"]: r for r in records if r["kind"] == "enumerator"}, _kinds_in(comments)
    kinds = [n for n, r in enumerators.items() if r["enum"] == "cudnnBackendDescriptorType_t"]
    problems = [f"{n}: in the reviewed table, but no header knows it" for n in _TABLE if n not in enumerators]
    for record in enumerators.values():
        name = record["name"]
        if "CUDNN_TYPE_BACKEND_DESCRIPTOR" not in record.get("types", ()):
            continue
        told = found.get(name, set())
        if name in _TABLE and told and name not in _CORRECTED:
            problems.append(f"{name}: in the reviewed table, though the comments tell its kind now")
        pattern = {_TABLE[name]} if name in _TABLE else told
        record["holds"] = [k for k in kinds if any(re.fullmatch(p.replace("*", r"\w+"), k) for p in pattern)]
        if len(pattern) != 1 or not record["holds"]:
            problems.append(f"{name}: no source tells its kind ({told or 'silent'}); review it and add it to kinds.py")

    def known(name: str) -> str:
        if name not in enumerators:
            problems.append(f"{name}: in the table of what cuDNN needs, but no header knows it")
        return name

    def kind_of(name: str) -> str:
        return known(f"CUDNN_BACKEND_{name}_DESCRIPTOR")

    def when(condition: dict[str, str | None]) -> dict[str, str | None]:
        return {known(f"CUDNN_ATTR_{name}"): value and known(value) for name, value in condition.items()}

    nothing: Record = {}  # takes what a table says of a name that no header knows
    for name, condition, alternatives in _REQUIRED:
        needs = [when(condition), [known(f"CUDNN_ATTR_{attribute}") for attribute in alternatives.split()]]
        enumerators.get(kind_of(name), nothing).setdefault("requires", []).append(needs)
    for name, (kind, condition) in _OPERATIONS.items():
        enumerators.get(known(name), nothing)["operation"] = [kind_of(kind), when(condition)]
    for name, limits in _RANGES.items():
        enumerators.get(known(f"CUDNN_ATTR_{name}"), nothing)["range"] = list(limits)
    if problems:
        raise ValueError("kinds of backend descriptors:\n  " + "\n  ".join(problems))
