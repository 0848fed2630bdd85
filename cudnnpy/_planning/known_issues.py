"""The table of known issues of cuDNN's engines, ISSUES, and the rejection of engines by it.

An issue is a configuration that cuDNN offers and that gives a wrong result or ends the CUDA context, though no call returns
an error. An entry names the releases in which the issue was measured, and the releases in which it is assumed. Every release
is assumed to have an issue until a measurement shows that it does not. A rejection in a release after NEWEST says that it was
not measured. An issue that others reported names its source and is assumed only in the releases of the report. The candidates
and the lowerings read the table, tools/known_issues.py writes docs/known-issues.md from it, and tests/gpu/test_known_issues.py
runs each issue.

To add an issue, write a condition (issue_conditions.py), an entry, problems that show it
(tests/gpu/known_issue_problems.py), and problems on both sides of the condition
(tests/host/planning/test_known_issues_table.py).
If a measurement shows that a release does not have an issue, its `assumed` ends before that release.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Literal, NamedTuple

from cudnnpy import raw
from cudnnpy._planning.issue_conditions import (
    ProblemTraits,
    adds,
    always,
    broadcasts_beside_convolution,
    compares_narrow,
    computes_first_operand,
    converts_uneven_int8,
    fuses_bias_channels_first,
    fuses_bias_in_tf32,
    fuses_in_mixed_orders,
    fuses_misaligned,
    fuses_tanh,
    has_alpha,
    has_beta,
    has_gaps_channels_first,
    has_gradient_of_result,
    has_index,
    has_signed_block_scales,
    has_two_formats,
    indexes_rows_of_batches,
    is_depthwise,
    is_float32_of_three_axes,
    is_grouped_or_half,
    is_grouped_with_long_filters,
    is_half_of_three_axes,
    is_int8_to_float32_channels_first,
    is_int8_to_int32,
    is_misaligned,
    is_not_float16,
    mixes_orders,
    only_reduces_uneven_channels,
    pads_unevenly,
    resamples_result,
    scales_float8_otherwise,
    selects_by_numbers,
    sums_channels_first,
)

Operation = Literal["forward", "backward_data", "backward_filter", "graph"]
Remedy = Literal[
    "rejected", "not called deterministic", "not fused", "padded", "added apart", "not proposed", "accepted"
]
Kind = Literal[
    "with tensor cores",
    "without tensor cores",
    "with textures",
    "compiled at run time",
    "noted down_convert_inputs",
    "any",
]

NEWEST = 92800  #: the newest release whose engines were compared with the measured ones

_XLA_LIST = "https://github.com/openxla/xla/blob/main/xla/service/gpu/hlo_algorithm_denylist.cc"
_ORDERS = "misreads tensors if some are channels last, or of one position, and others are not"


class Issue(NamedTuple):
    """One known issue of engines.

    `engines` are the global indices of the engines that were seen to have the issue; with a `kind`, every engine of that
    kind is assumed to have it. `reason` is the rejection reason of a candidate, and `detail` is further text for the page.
    Releases are numbers from cudnnGetVersion. `assumed` is a half-open range: the first release, and the first one without
    the issue, or None. `source` is the address of the report if others found the issue. `test` shows the issue on a GPU.
    """

    id: str
    operations: tuple[Operation, ...]
    engines: tuple[int, ...]
    condition: Callable[[ProblemTraits], bool]
    reason: str
    remedy: Remedy = "rejected"
    kind: Kind | None = None
    detail: str = ""
    measured: tuple[tuple[int, str], ...] = ((91900, "NVIDIA H200"),)
    assumed: tuple[int, int | None] = (90000, None)
    source: str = ""

    @property
    def test(self) -> str:
        """The pytest identifier of the test that runs it."""
        return f"tests/gpu/test_known_issues.py::test_an_issue_is_seen[{self.id}]"

    def is_in(self, release: int) -> bool:
        """Return whether a release has the issue, by measurement or by assumption."""
        first, after = self.assumed
        return release in dict(self.measured) or (first <= release and (after is None or release < after))

    def is_of(self, engine: int, notes: Collection[str]) -> bool:
        """Return whether an engine with these notes (EngineConfiguration.notes) has the issue."""
        if self.kind is None:
            return engine in self.engines
        of_kind = {
            "with tensor cores": "tensor_core" in notes,
            "without tensor cores": "tensor_core" not in notes,
            "with textures": "texture" in notes,
            "compiled at run time": "runtime_compilation" in notes,
            "noted down_convert_inputs": "down_convert_inputs" in notes,
            "any": True,
        }
        return of_kind[self.kind]


ISSUES: tuple[Issue, ...] = (
    Issue(
        "converted-to-float16",
        ("forward", "backward_data", "backward_filter", "graph"),
        (9, 10, 15, 22, 23, 24, 27, 33, 37, 39, 40, 43, 45, 46, 47, 49, 57, 59, 62, 64, 65, 67, 73),
        is_not_float16,
        "converts its inputs to float16, in which 1e5 is infinite and 1e-8 is 0",
        kind="noted down_convert_inputs",
        detail="float32 inputs of 1e6 give NaN, of 1e-12 zeros, and of 1e-6 an error of 2 to 41 %; "
        "the heuristics do not propose such engines",
    ),
    Issue(
        "weight-gradient-nan",
        ("backward_filter",),
        (70,),
        always,
        "gives NaN for some problems",
        detail="seen for grouped and for small problems, with a workspace full of NaN",
    ),
    Issue(
        "weight-gradient-texture",
        ("backward_filter",),
        (1, 20),
        is_grouped_or_half,
        "reads outside its operands through a texture, or is wrong",
        kind="with textures",
        detail="an illegal access where the memory after an operand is not mapped; with bfloat16 wrong results, too",
    ),
    Issue(
        "depthwise-endless",
        ("forward", "backward_filter"),
        (3, 18),
        is_depthwise,
        "takes longer than 20 s for some problems",
        detail="100 s were not enough for engine 3 forward, and 50 s for engine 18; the heuristics propose both, and neither "
        "was the fastest for any of 51 problems",
    ),
    Issue(
        "weight-gradient-misaligned",
        ("backward_filter",),
        (67,),
        is_misaligned,
        "faults on addresses that are not multiples of 16",
        detail="an illegal access; the context is lost",
    ),
    Issue(
        "data-gradient-unwritten",
        ("backward_data",),
        (78,),
        always,
        "leaves some results unwritten",
        detail="seen for small images",
    ),
    Issue(
        "forward-gaps",
        ("forward",),
        (71,),
        has_gaps_channels_first,
        "misreads an x with gaps that is not channels last",
        detail="x is read as if it had no gaps; seen where y is channels last",
    ),
    Issue(
        "forward-alpha",
        ("forward",),
        (71,),
        has_alpha,
        "loses alpha",
        detail="it takes filters of one position, and filters as large as the image; it loses beta, too, which is added apart",
    ),
    Issue("fused-tanh", ("forward", "graph"), (0,), fuses_tanh, "gives NaN for the tanh of large numbers"),
    Issue(
        "int8-to-int32",
        ("forward",),
        (0, 28),
        is_int8_to_int32,
        "gives wrong int32 results",
        kind="without tensor cores",
        detail="engine 71 is right",
    ),
    Issue(
        "int8-to-float32",
        ("forward",),
        (71,),
        is_int8_to_float32_channels_first,
        "gives wrong float32 results channels first",
        kind="with tensor cores",
        detail="engines 0 and 72 are right",
    ),
    Issue(
        "graph-orders",
        ("graph",),
        (4, 7, 52),
        mixes_orders,
        _ORDERS,
        kind="compiled at run time",
        detail="the filter is misread, or one image's result is written over another's, or the context is lost",
    ),
    Issue(
        "fused-orders",
        ("forward",),
        (4, 7, 52),
        fuses_in_mixed_orders,
        _ORDERS,
        "not fused",
        kind="compiled at run time",
        detail="the filter is misread, or one image's result is written over another's, or the context is lost",
    ),
    Issue(
        "fused-misaligned",
        ("forward",),
        (4,),
        fuses_misaligned,
        "misreads tensors at addresses that are not multiples of 16",
        "not fused",
        kind="compiled at run time",
        detail="wrong results, NaN",
    ),
    Issue(
        "graph-misaligned",
        ("graph",),
        (4,),
        fuses_misaligned,
        "misreads tensors at addresses that are not multiples of 16",
        kind="compiled at run time",
        detail="wrong results, NaN; arrays of a Graph are aligned as its tensors are, to 16 bytes by default",
    ),
    Issue(
        "gradient-padding",
        ("backward_data", "backward_filter"),
        (1, 20, 50),
        pads_unevenly,
        "takes the padding before for the padding after",
        "padded",
        kind="any",
        detail="backward_filter by engines 1 and 20 (one of tf32 loses the context), backward_data by engine 50",
    ),
    Issue(
        "data-gradient-beta",
        ("backward_data",),
        (22, 64),
        has_beta,
        "loses beta * out",
        "added apart",
        kind="any",
        detail="with a stride above 1, elements without a product are written without it",
    ),
    Issue(
        "weight-gradient-beta",
        ("backward_filter",),
        (20,),
        has_beta,
        "loses beta * out",
        "added apart",
        kind="any",
        detail="grouped, float16",
    ),
    Issue(
        "graph-sums",
        ("graph",),
        (1,),
        adds,
        "adds in an order that differs from run to run",
        "not called deterministic",
        kind="compiled at run time",
        detail="the last bits of float32 sums; no note of the engine says so",
    ),
    Issue(
        "forward-not-proposed",
        ("forward",),
        (72,),
        always,
        "gives wrong results for some problems",
        "not proposed",
        detail="a 4x1 filter in float16; cuDNN's heuristics do not propose it",
    ),
    Issue(
        "fused-bias-tf32",
        ("forward",),
        (26, 29),
        fuses_bias_in_tf32,
        "rounds to tf32 once more than the sum needs",
        "accepted",
        detail="whole numbers are rounded, too",
    ),
    Issue(
        "graph-broadcast",
        ("graph",),
        (4, 7),
        broadcasts_beside_convolution,
        "misreads an operand that is broadcast along some axes",
        kind="compiled at run time",
        detail="seen for (N, 1, 1, 1), (1, 1, H, 1), (1, 1, 1, W), (N, K, 1, 1), (1, 1, H, W), (1, K, H, W), (1, K, H, 1) and "
        "(N, K, H, 1) beside convolutions and data gradients; at times the context is lost",
    ),
    Issue(
        "graph-first",
        ("graph",),
        (7,),
        sums_channels_first,
        "misreads tensors that are not channels last",
        detail="seen for convolutions with a reduction, filters of 1x1 and 3x3; engine 4 is right",
    ),
    Issue(
        "graph-first-operand",
        ("graph",),
        (4,),
        computes_first_operand,
        "misreads images that are not channels last, whose operand is computed",
        kind="compiled at run time",
        detail="seen for a scale and a bias before a filter of 1x1, with a reduction along the channels as the only output",
    ),
    Issue(
        "graph-formats",
        ("graph",),
        (1, 8),
        has_two_formats,
        "misreads images that are not channels last beside others, or leaves them unwritten",
        detail="engine 8 after a convolution or a data gradient, engine 1 (not compiled) with bn_bwd_weights",
    ),
    Issue(
        "graph-activation-gradient",
        ("graph",),
        (8,),
        has_gradient_of_result,
        "computes the gradient of an activation wrongly",
        detail="all eight modes; right where x is in memory and dy is the result",
    ),
    Issue(
        "graph-comparison",
        ("graph",),
        (1,),
        compares_narrow,
        "takes a comparison of a tensor that is broadcast for false",
        kind="compiled at run time",
        detail="seen for (N, 1, 1, 1) and (1, 1, H, 1) compared with a number, as a flag and as a factor of (N, K, 1, 1) and "
        "(1, K, H, 1)",
    ),
    Issue(
        "graph-resampled-result",
        ("graph",),
        (1,),
        resamples_result,
        "leaves all results unwritten",
        kind="compiled at run time",
        detail="any operation before resample_fwd, in any mode; write its result to memory, and resample that by another graph",
    ),
    Issue(
        "graph-resampled-sums",
        ("graph",),
        (1,),
        only_reduces_uneven_channels,
        "faults on channels that do not fill a multiple of 16 bytes",
        kind="compiled at run time",
        detail="a misaligned address; right where what is reduced is an output, too",
    ),
    Issue(
        "graph-index-rows",
        ("graph",),
        (1, 2, 4, 7),
        indexes_rows_of_batches,
        "generates wrong indices of matrices and rows",
        kind="compiled at run time",
        detail="engines 2, 4 and 7 of axes 0 and 1, engine 1 of axis 0; right with one batch",
    ),
    Issue(
        "graph-index-columns",
        ("graph",),
        (2,),
        has_index,
        "generates wrong indices of the innermost axis",
        detail="the last axis of matrix products, and the channels of convolutions and data gradients",
    ),
    Issue(
        "attention-gradient",
        ("graph",),
        (7,),
        selects_by_numbers,
        "computes a wrong gradient of v",
        detail="engine 6 is right",
    ),
    Issue(
        "graph-float8-number",
        ("graph",),
        (0,),
        scales_float8_otherwise,
        "faults on numbers by value, or fails",
        detail="an illegal access in a product of float8 with amax and a number by value; CUDNN_STATUS_EXECUTION_FAILED_CUBLAS "
        "where the result is float16",
    ),
    Issue(
        "graph-int8-rows",
        ("graph",),
        (7,),
        converts_uneven_int8,
        "misreads int8 rows that do not start at multiples of 16 bytes, or faults",
        kind="compiled at run time",
        detail="an int8 factor that is converted; seen for rows of 7, 15, 31 and 61 elements and for an alignment of 2; rows "
        "of 8 and 24 are right",
    ),
    Issue(
        "graph-block-scales",
        ("graph",),
        (7,),
        has_signed_block_scales,
        "loses the sign of scales",
        detail="block_scale_dequantize before a matrix product; engine 0, which takes blocks of 128, is right",
    ),
    # reported by others, not measured
    Issue(
        "three-axes-half",
        ("forward",),
        (),
        is_half_of_three_axes,
        "gives wrong results for some problems with three spatial axes",
        kind="with tensor cores",
        detail="reported for bfloat16, x of 1x16x124x1282x722 and filters of 1x3x3; PyTorch does not use "
        "cuDNN for such problems, whatever their size",
        measured=(),
        assumed=(90800, 91500),
        source="https://github.com/pytorch/pytorch/issues/163539",
    ),
    Issue(
        "three-axes-tf32",
        ("forward", "backward_data", "backward_filter"),
        (),
        is_float32_of_three_axes,
        "gives wrong results in tf32 for some problems with three spatial axes",
        kind="with tensor cores",
        detail="reported without the problems' limits; PyTorch does not use tf32 for such problems",
        measured=(),
        assumed=(91000, 91600),
        source="https://github.com/pytorch/pytorch/pull/167024",
    ),
    Issue(
        "long-filters",
        ("forward",),
        (0,),
        is_grouped_with_long_filters,
        "is on the list of engines that XLA does not use",
        detail="6 groups, filters of 129, 257 and 513 positions, on GPUs of compute capability 9.0; the list gives no symptom",
        measured=(),
        assumed=(91000, 91100),
        source=_XLA_LIST,
    ),
    Issue(
        "fused-bias-float32",
        ("forward",),
        (14,),
        fuses_bias_channels_first,
        "is on the list of engines that XLA does not use",
        detail="images of 7x7 and 32x32, on GPUs of compute capability 7.0 and 7.5; the list gives no symptom",
        measured=(),
        assumed=(90000, 90200),
        source=_XLA_LIST,
    ),
)


def _found(traits: ProblemTraits, engine: int, notes: Collection[str], remedy: Remedy) -> Issue | None:
    """Return the first issue with a remedy that an engine of the loaded release has for a problem."""
    found = _issues_of(traits, raw.version())
    return next((issue for issue in found if issue.remedy == remedy and issue.is_of(engine, notes)), None)


@lru_cache(maxsize=8)  # many candidates of a few problems
def _issues_of(traits: ProblemTraits, release: int) -> list[Issue]:
    """Return the issues that engines of a release have for a problem."""
    return [
        issue
        for issue in ISSUES
        if traits.operation in issue.operations and issue.condition(traits) and issue.is_in(release)
    ]


def rejection_by_issues(traits: ProblemTraits, engine: int, notes: Collection[str]) -> str:
    """Return the reason to reject an engine for a problem although cuDNN offers it; "" if there is none.

    `notes` are from EngineConfiguration.notes.
    """
    issue = _found(traits, engine, notes, "rejected")
    if issue is None:
        return ""
    is_newer = raw.version() >= NEWEST + 100
    return f"{issue.reason} (assumed: not measured for {raw.version_text(raw.version())})" if is_newer else issue.reason


def release_note() -> str:
    """Return, as a sentence, that the known issues are assumed in the loaded release; "" if they were measured there."""
    loaded, measured = raw.version(), {release for issue in ISSUES for release, _ in issue.measured}
    if any(release // 100 == loaded // 100 for release in measured):
        return ""
    known = ", ".join(raw.version_text(release) for release in sorted(measured))
    is_newer = loaded >= NEWEST + 100
    newer = f", which is newer than the table ({raw.version_text(NEWEST)})" if is_newer else ""
    return f"known issues of engines were measured with cuDNN {known}, and are assumed in {raw.version_text(loaded)}{newer}"


def rejects_tensor_cores(traits: ProblemTraits) -> bool:
    """Return whether every engine with tensor cores is rejected for a problem."""
    return bool(rejection_by_issues(traits, -1, ("tensor_core",)))


def requires_heuristics_proposal(traits: ProblemTraits, engine: int, notes: Collection[str]) -> bool:
    """Return whether an engine may be used for a problem only if the heuristics propose it."""
    return _found(traits, engine, notes, "not proposed") is not None


def is_deterministic(traits: ProblemTraits, engine: int, notes: Collection[str]) -> bool:
    """Return whether an engine gives the same bits every time, according to its notes and the known issues."""
    return "nondeterministic" not in notes and _found(traits, engine, notes, "not called deterministic") is None


def remedies(traits: ProblemTraits) -> frozenset[Remedy]:
    """Return the remedies of the issues that any engine may have for a problem. The lowerings apply them."""
    return frozenset(issue.remedy for issue in _issues_of(traits, raw.version()))
