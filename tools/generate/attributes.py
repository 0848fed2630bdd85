"""The type of every backend attribute: from the headers' comments, from the naming rule, or from a reviewed table."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tools.generate.records import Record

# What a value of each attribute type is in C, where the comment does not name a type that the headers declare.
_C_TYPES = {
    "CUDNN_TYPE_BOOLEAN": "bool",
    "CUDNN_TYPE_INT64": "int64_t",
    "CUDNN_TYPE_INT32": "int32_t",
    "CUDNN_TYPE_FLOAT": "float",
    "CUDNN_TYPE_DOUBLE": "double",
    "CUDNN_TYPE_VOID_PTR": "void *",
    "CUDNN_TYPE_CHAR": "char",
}

_BN_FINALIZE = "CUDNN_ATTR_OPERATION_BN_FINALIZE_"

# Names in the comments that are not the enumerator's own name.
_MISSPELT = {
    "CUDNN_ATTR_CONVOLUTION_MODE": "CUDNN_ATTR_CONVOLUTION_CONV_MODE",
    f"{_BN_FINALIZE}EXP_AVERAGE_FACTOR_DESC": f"{_BN_FINALIZE}EXP_AVERATE_FACTOR_DESC",
    "CUDNN_TYPE_NAN_PROPAGATION": "CUDNN_TYPE_NAN_PROPOGATION",
}

# Attributes that the comments describe and no header declares.
_UNDECLARED = {"CUDNN_ATTR_OPERATIONGRAPH_ENGINE_SUPPORTED_COUNT"}

# Reviewed by hand: attributes whose type is neither in the comments nor told by the name.
_REVIEWED = {
    # cudnnBackendSetAttribute of 9.28 takes this type and refuses every other (tests/host/raw/test_attributes.py)
    "confirmed": {
        "CUDNN_TYPE_BACKEND_DESCRIPTOR": """
            CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_BIAS CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH
            CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH""",
        "CUDNN_TYPE_BOOLEAN": """
            CUDNN_ATTR_OPERATIONGRAPH_IS_OVERRIDE_SHAPE_ENABLED CUDNN_ATTR_TENSOR_IS_BY_VALUE
            CUDNN_ATTR_ENGINE_DISABLE_CLUSTER_COOPERATIVE CUDNN_ATTR_REDUCTION_IS_DETERMINISTIC
            CUDNN_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_NEG_SCALE CUDNN_ATTR_OPERATION_SDPA_FWD_UNFUSE_FMA""",
        "CUDNN_TYPE_DATA_TYPE": """
            CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC CUDNN_ATTR_OPERATION_BN_FINALIZE_MATH_PREC
            CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MATH_PREC CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_BWD_MATH_PREC""",
        "CUDNN_TYPE_DOUBLE": """
            CUDNN_ATTR_RNG_UNIFORM_DIST_MAXIMUM CUDNN_ATTR_RNG_UNIFORM_DIST_MINIMUM
            CUDNN_ATTR_RNG_BERNOULLI_DIST_PROBABILITY""",
        "CUDNN_TYPE_FLOAT": """
            CUDNN_ATTR_OPERATION_ROPE_FWD_OUTPUT_SCALE CUDNN_ATTR_OPERATION_ROPE_BWD_OUTPUT_SCALE
            CUDNN_ATTR_OPERATION_EXPAND_BAND_MATRIX_PAD_VALUE CUDNN_ATTR_OPERATION_CONTRACT_BAND_MATRIX_PAD_VALUE
            CUDNN_ATTR_OPERATION_SDPA_FWD_DROPOUT_PROBABILITY""",
        "CUDNN_TYPE_FLOAT CUDNN_TYPE_DOUBLE": """
            CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1 CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2""",
        "CUDNN_TYPE_FLOAT CUDNN_TYPE_DOUBLE CUDNN_TYPE_INT64 CUDNN_TYPE_INT32": "CUDNN_ATTR_MATMUL_PADDING_VALUE",
        "CUDNN_TYPE_INT32": "CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_TOP_K",
        "CUDNN_TYPE_INT64": """
            CUDNN_ATTR_VARIANT_PACK_OVERRIDE_UNIQUE_IDS CUDNN_ATTR_OPERATION_TRANSPOSE_PERMUTATION
            CUDNN_ATTR_OPERATION_SLICE_START_INDICES CUDNN_ATTR_OPERATION_SLICE_LIMIT_INDICES
            CUDNN_ATTR_OPERATION_SLICE_STRIDES CUDNN_ATTR_OPERATION_ROPE_FWD_ROPE_DIM
            CUDNN_ATTR_OPERATION_ROPE_BWD_ROPE_DIM CUDNN_ATTR_OPERATION_EXPAND_BAND_MATRIX_LOWER_BANDWIDTH
            CUDNN_ATTR_OPERATION_EXPAND_BAND_MATRIX_UPPER_BANDWIDTH CUDNN_ATTR_OPERATION_EXPAND_BAND_MATRIX_AXIS
            CUDNN_ATTR_OPERATION_CONTRACT_BAND_MATRIX_LOWER_BANDWIDTH
            CUDNN_ATTR_OPERATION_CONTRACT_BAND_MATRIX_UPPER_BANDWIDTH CUDNN_ATTR_OPERATION_CONTRACT_BAND_MATRIX_AXIS
            CUDNN_ATTR_OPERATION_CONTRACT_BAND_MAX_TOKEN_VALUE CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_INPUT_UID
            CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_OUTPUT_UID CUDNN_ATTR_OPERATION_SDPA_BWD_MAX_TOTAL_SEQ_LEN_Q
            CUDNN_ATTR_OPERATION_SDPA_BWD_MAX_TOTAL_SEQ_LEN_KV CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_INPUT_UID
            CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_OUTPUT_UID""",
        "CUDNN_TYPE_GENSTATS_MODE": "CUDNN_ATTR_OPERATION_GENSTATS_MODE",
        "CUDNN_TYPE_OPERATIONGRAPH_MODE": "CUDNN_ATTR_OPERATIONGRAPH_MODE",
        "CUDNN_TYPE_POINTWISE_MODE": "CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE",
        "CUDNN_TYPE_RESHAPE_MODE": "CUDNN_ATTR_OPERATION_RESHAPE_MODE",
        "CUDNN_TYPE_TENSOR_REORDERING_MODE": "CUDNN_ATTR_TENSOR_REORDERING_MODE",
        "CUDNN_TYPE_VOID_PTR": "CUDNN_ATTR_VARIANT_PACK_OVERRIDE_SHAPES CUDNN_ATTR_VARIANT_PACK_OVERRIDE_STRIDES",
    },
    # read-only, or refused with every type by the library as it is called without a GPU
    "by meaning": {
        "CUDNN_TYPE_ATTRIB_NAME": "CUDNN_ATTR_INTERMEDIATE_INFO_DEPENDENT_ATTRIBUTES",
        "CUDNN_TYPE_BACKEND_DESCRIPTOR": "CUDNN_ATTR_OPERATION_REDUCTION_SUBGRAPH",
        "CUDNN_TYPE_BOOLEAN": "CUDNN_ATTR_OPERATIONGRAPH_IS_SAME_TOPOLOGY",
        "CUDNN_TYPE_DATA_TYPE": "CUDNN_ATTR_OPERATION_REDUCTION_SUBGRAPH_COMPUTE_TYPES",
        "CUDNN_TYPE_INT64": """
            CUDNN_ATTR_KNOB_INFO_MAXIMUM_VALUE CUDNN_ATTR_KNOB_INFO_MINIMUM_VALUE CUDNN_ATTR_KNOB_INFO_STRIDE
            CUDNN_ATTR_OPERATION_REDUCTION_DIMS CUDNN_ATTR_OPERATION_REDUCTION_SUBGRAPH_ACCUMULATOR_UIDS
            CUDNN_ATTR_OPERATION_REDUCTION_SUBGRAPH_CURRENT_UIDS CUDNN_ATTR_OPERATION_REDUCTION_SUBGRAPH_OUTPUT_UIDS""",
        "CUDNN_TYPE_KNOB_TYPE": "CUDNN_ATTR_KNOB_INFO_TYPE",
        # one pointer to a value of the tensor's type; for the tensor, taken only where IS_BY_VALUE was set before
        "CUDNN_TYPE_VOID_PTR": "CUDNN_ATTR_TENSOR_CONSTANT_VALUE CUDNN_ATTR_OPERATION_REDUCTION_INIT_VALUES",
    },
}

# attributes that take two elements, though the header says one (tried with 9.19 and 9.28: the sizes of a block on two axes)
_SEVERAL = {"CUDNN_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_BLOCK_SIZE"}

_FROM_TABLE = {
    name: (types.split(), f"reviewed, {how}")
    for how, table in _REVIEWED.items()
    for types, names in table.items()
    for name in names.split()
}


def c_type_of(name: str, comment: str) -> str:
    """The C type behind a CUDNN_TYPE_* enumerator."""
    if name in _C_TYPES:
        return _C_TYPES[name]
    named = re.search(r"(cudnn\w+_t) value", comment)
    if not named:
        raise ValueError(f"{name}: the comment names no C type; add it to tools/generate/attributes.py")
    return named.group(1)


class _Told:
    """Attribute types read from the comments on the descriptor types."""

    def __init__(self, comments: Iterable[str]) -> None:
        self.types: dict[str, list[str]] = {}
        self.single: set[str] = set()
        for comment in comments:
            self._add(comment)

    def _add(self, comment: str) -> None:
        """Reads both forms: `- NAME (TYPE or TYPE, count)`, and NAME on a line with `- TYPE; count` below it."""
        waiting: list[str] = []
        typed = True
        for line in comment.splitlines():
            text = line.strip().lstrip("*").strip()
            if form := re.match(r"-\s+(CUDNN_ATTR_\w+)\s+\((CUDNN_TYPE_[^,)]*)(, 1 element)?", text):
                self._set([form[1]], re.findall(r"CUDNN_TYPE_\w+", form[2]), single=bool(form[3]))
            elif name := re.fullmatch(r"(CUDNN_ATTR_\w+)", text):
                waiting = [name[1]] if typed else [*waiting, name[1]]
                typed = False
            elif waiting and not typed and (form := re.match(r"-\s+CUDNN_TYPE_[^;.]*(; one element)?", text)):
                self._set(waiting, re.findall(r"CUDNN_TYPE_\w+", text), single=bool(form[1]))
                typed = True
            elif text.startswith("-"):  # what is said of a name ends without a type: the next line's is another's
                waiting = []

    def _set(self, names: list[str], types: list[str], single: bool) -> None:
        types = [_MISSPELT.get(kind, kind) for kind in types]
        for name in (_MISSPELT.get(name, name) for name in names):
            if self.types.setdefault(name, types) != types:
                raise ValueError(f"{name}: two types in the comments, {self.types[name]} and {types}")
            if single and types != ["CUDNN_TYPE_CHAR"]:  # text is many characters, whatever the comment says
                self.single.add(name)


def complete(records: list[Record], comments: Iterable[str]) -> None:
    """Gives every attribute its "types" and where they come from; raises if one is missing or a source is stale."""
    told = _Told(comments)
    attributes = [r for r in records if r.get("enum") == "cudnnBackendAttributeName_t"]
    names = {r["name"] for r in attributes}
    known = {r["name"] for r in records if r.get("enum") == "cudnnBackendAttributeType_t"}
    problems = [
        f"{n}: in the comments, not in the enum (a misspelling? see _MISSPELT)"
        for n in told.types
        if n not in names | _UNDECLARED
    ]
    problems += [
        f"{n}: in the reviewed table, but the headers know no such attribute" for n in _FROM_TABLE if n not in names
    ]
    for record in attributes:
        name = record["name"]
        if name in told.types:
            record["types"], record["from"] = told.types[name], "comment"
            if name in _FROM_TABLE:
                problems.append(f"{name}: in the reviewed table, though the comments tell its type now")
        elif re.search(r"(DESC|DESCS|DESCRIPTOR|DESCRIPTORS)$", name):
            record["types"], record["from"] = ["CUDNN_TYPE_BACKEND_DESCRIPTOR"], "name"
        elif name in _FROM_TABLE:
            record["types"], record["from"] = _FROM_TABLE[name]
        else:
            problems.append(f"{name}: no source tells its type; review it and add it to tools/generate/attributes.py")
            continue
        if name in told.single and name not in _SEVERAL:
            record["count"] = 1
        problems += [f"{name}: unknown attribute type {t}" for t in record["types"] if t not in known]
    if problems:
        raise ValueError("backend attributes:\n  " + "\n  ".join(problems))
