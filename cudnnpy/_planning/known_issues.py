"""The table of known issues of cuDNN's engines, known_issues.json, and the rejection of engines by it.

An issue is a configuration that cuDNN offers and that gives a wrong result or ends the CUDA context, though no call returns
an error. An entry names the releases in which the issue was measured, and the releases in which it is assumed. Every release
is assumed to have an issue until a measurement shows that it does not. A rejection in a release after NEWEST says that it was
not measured. An issue that others reported names its source and is assumed only in the releases of the report. The candidates
and the lowerings read the table, tools/known_issues.py writes docs/known-issues.md from it, and tests/gpu/test_known_issues.py
runs each issue.

To add an issue, write a condition (below), an entry, problems that show it
(tests/gpu/known_issue_problems.py), and problems on both sides of the condition
(tests/host/planning/test_known_issues_table.py).
If a measurement shows that a release does not have an issue, its `assumed` ends before that release.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from cudnnpy import raw
from cudnnpy._core.layouts import (
    TensorSpec,
    are_channels_last,
    channels_last_strides,
    have_same_memory_format,
    is_dense,
)

# The properties of a problem, and the conditions. The docstring of a condition is the column "when" of docs/known-issues.md.

_ONE_AXIS, _THREE_AXES = 3, 5  # axes of a tensor with one spatial axis, and with three
_LONG_FILTER = 129  # positions of the shortest filter that was reported


class ProblemTraits(NamedTuple):
    """The properties of a problem that an issue may depend on, from Problem.traits or Graph.traits.

    `convolutions` are the (x, w, y) of each convolution, also for a gradient. `fused` names the operations that the same
    plan applies to the result ("bias", "tanh"). `is_aligned` means that every address is a multiple of 16. `facts` are other
    properties of a graph, by their names in cudnnpy/graph/graph_facts.py.
    """

    operation: str
    convolutions: tuple[tuple[TensorSpec, TensorSpec, TensorSpec], ...] = ()
    fused: frozenset[str] = frozenset()
    reductions: frozenset[str] = frozenset()
    is_aligned: bool = True
    pads_evenly: bool = True
    alpha: float = 1.0
    beta: float = 0.0
    facts: frozenset[str] = frozenset()


class HasFact(NamedTuple):
    """The condition that a graph has a property of cudnnpy/graph/graph_facts.py, which has the text of it."""

    name: str

    def __call__(self, traits: ProblemTraits) -> bool:
        """Return whether a problem has the property."""
        return self.name in traits.facts


def always(traits: ProblemTraits) -> bool:
    """all problems"""
    return True


def is_misaligned(traits: ProblemTraits) -> bool:
    """an address that is not a multiple of 16"""
    return not traits.is_aligned


def fuses_misaligned(traits: ProblemTraits) -> bool:
    """a bias or an activation fused after a convolution, and an address that is not a multiple of 16"""
    return bool(traits.convolutions and traits.fused) and not traits.is_aligned


def fuses_tanh(traits: ProblemTraits) -> bool:
    """tanh fused after a convolution"""
    return bool(traits.convolutions) and "tanh" in traits.fused


def mixes_orders(traits: ProblemTraits) -> bool:
    """a convolution with some tensors channels last, or x or y of one position, and others channels first"""
    return not all(have_same_memory_format(x, w, y) for x, w, y in traits.convolutions)


def fuses_in_mixed_orders(traits: ProblemTraits) -> bool:
    """a bias or an activation fused; some tensors channels last, or x or y of one position, and others channels first"""
    return bool(traits.fused) and mixes_orders(traits)


def has_gaps_channels_first(traits: ProblemTraits) -> bool:
    """x with gaps between its elements and channels that are not innermost"""
    return any(not is_dense(x) and x.strides is not None and x.strides[1] != 1 for x, _, _ in traits.convolutions)


def has_alpha(traits: ProblemTraits) -> bool:
    """alpha other than 1"""
    return traits.alpha != 1.0


def is_int8_to_int32(traits: ProblemTraits) -> bool:
    """x of int8, y of int32"""
    return any((x.dtype, y.dtype) == ("int8", "int32") for x, _, y in traits.convolutions)


def is_int8_to_float32_channels_first(traits: ProblemTraits) -> bool:
    """x of int8, y of float32 and not channels last"""
    return any(
        (x.dtype, y.dtype) == ("int8", "float32") and y.strides != channels_last_strides(y.shape)
        for x, _, y in traits.convolutions
    )


def has_beta(traits: ProblemTraits) -> bool:
    """beta other than 0"""
    return traits.beta != 0.0


def pads_unevenly(traits: ProblemTraits) -> bool:
    """padding that differs before and after"""
    return not traits.pads_evenly


def adds(traits: ProblemTraits) -> bool:
    """a reduction other than a minimum or a maximum"""
    return not traits.reductions <= {"min", "max", "amax"}


def fuses_bias_in_tf32(traits: ProblemTraits) -> bool:
    """float32 with a bias fused, where tf32 is allowed"""
    return "bias" in traits.fused and any(x.dtype == "float32" for x, _, _ in traits.convolutions)


def is_not_float16(traits: ProblemTraits) -> bool:
    """x of another type than float16, or no convolution"""
    return all(x.dtype != "float16" for x, _, _ in traits.convolutions)


def is_half_of_three_axes(traits: ProblemTraits) -> bool:
    """float16 or bfloat16, three spatial axes, a filter of several positions, and tensors that are not channels last"""
    return any(
        x.dtype in ("float16", "bfloat16")
        and len(x.shape) == _THREE_AXES
        and max(w.shape[2:]) > 1
        and not are_channels_last(x, y)
        for x, w, y in traits.convolutions
    )


def is_float32_of_three_axes(traits: ProblemTraits) -> bool:
    """float32 and three spatial axes, where tf32 is allowed"""
    return any(x.dtype == "float32" and len(x.shape) == _THREE_AXES for x, _, _ in traits.convolutions)


def is_grouped_or_half(traits: ProblemTraits) -> bool:
    """groups, float16 or bfloat16"""
    return any(w.shape[1] < x.shape[1] or x.dtype in ("float16", "bfloat16") for x, w, _ in traits.convolutions)


def is_depthwise(traits: ProblemTraits) -> bool:
    """a group for each channel of x"""
    return any(w.shape[1] == 1 < x.shape[1] for x, w, _ in traits.convolutions)


def is_grouped_with_long_filters(traits: ProblemTraits) -> bool:
    """float32, one spatial axis, groups, and filters of 129 positions or more"""
    return any(
        x.dtype == "float32" and len(x.shape) == _ONE_AXIS and w.shape[1] < x.shape[1] and w.shape[2] >= _LONG_FILTER
        for x, w, _ in traits.convolutions
    )


def fuses_bias_channels_first(traits: ProblemTraits) -> bool:
    """float32 with a bias fused, a filter of 3x3, and tensors that are not channels last"""
    return "bias" in traits.fused and any(
        x.dtype == "float32" and w.shape[2:] == (3, 3) and not are_channels_last(x, y)
        for x, w, y in traits.convolutions
    )


# Graphs


def sums_channels_first(traits: ProblemTraits) -> bool:
    """a convolution with x, w or y that is not channels last"""
    return not all(are_channels_last(*tensors) for tensors in traits.convolutions)


# The table

Operation = Literal["forward", "backward_data", "backward_filter", "graph"]
Remedy = Literal[
    "rejected", "not called deterministic", "not fused", "padded", "added apart", "not proposed", "accepted"
]
NEWEST = 92800  #: the newest release whose engines were compared with the measured ones


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
    kind: str | None = None
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
            "with stream_k": "stream_k" in notes,
            "compiled at run time": "runtime_compilation" in notes,
            "noted down_convert_inputs": "down_convert_inputs" in notes,
            "any": True,
        }
        return of_kind[self.kind]


def _read() -> Iterator[Issue]:
    """Yield the entries of known_issues.json, in which `condition` is a function above, or a property of graphs."""
    for row in json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8")):
        pairs = {"measured": tuple(map(tuple, row["measured"]))} if "measured" in row else {}
        lists = {name: tuple(row[name]) for name in ("operations", "engines", "assumed") if name in row}
        yield Issue(
            **{**row, **lists, **pairs, "condition": globals().get(row["condition"], HasFact(row["condition"]))}
        )


ISSUES = tuple(_read())


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
