"""Write docs/known-issues.md, the known issues of cuDNN, from the package's table.

    python -m tools.known_issues            # writes the page
    python -m tools.known_issues --check    # fails if the page differs from the table
    python -m tools.known_issues --faults choices.sqlite    # lists the faults of a store by engine, to write rows from

Engines are in cudnnpy/_planning/known_issues.json. AVOIDED, below, has functions and operations that cudnnpy does not use, so
nothing reads it at run time.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cudnnpy import raw, store
from cudnnpy._planning.known_issues import ISSUES, NEWEST, Issue, Remedy
from cudnnpy.store import Fault

ROOT = Path(__file__).resolve().parent.parent
PAGE = "docs/known-issues.md"

INTRODUCTION = """\
# Known issues of cuDNN

cuDNN offers the configurations below. They give a wrong result without an error, or they end the CUDA context. The property
tests of cudnnpy found most of them, and others were reported to other projects. cudnnpy avoids them, unless the tables say
otherwise.

"Measured in" names the releases and GPUs on which an issue was seen, or links the report of others. "Assumed in" names the
releases in which cudnnpy avoids an issue without a measurement. A release is assumed to have an issue until a measurement shows
that it does not. An issue that others reported is assumed only in the releases of the report. A release after {newest} is taken
to have every issue that {newest} has; `cudnnpy info` and the rejection reasons then say that it was not measured.

## GPUs on which nothing was measured

All measurements are from {devices}. On every other GPU:

- The tables apply unchanged, so they may reject an engine that is right there.
- An issue that only such a GPU has is not in the tables. A choice that is not from tuning is cuDNN's own proposal, and its
  result is not checked.
- Tuning checks each candidate on the GPU itself: between unmapped pages, and its result against float64 or other engines. A
  fault that repeats is stored for this GPU, and its configuration does not run there again ([Tuning](tuning.md)).
- `pytest tests/gpu/test_known_issues.py` reports which of the issues the GPU has
  ([From a fault to a known issue](dev/hunt.md)).

## How this page is made

`python -m tools.known_issues` writes this page. The table of engines is `cudnnpy/_planning/known_issues.json`, and
`pytest tests/gpu/test_known_issues.py` runs each engine on a problem that it gets wrong, and reports whether the loaded
release has the issue.
"""
ENGINES = """\
## Engines of the graph API

Engines have the numbers of cuDNN's global index, which differ between releases. Where every engine of a kind is taken to have
an issue, the engines that were seen to have it are in brackets. `Convolution.candidates` gives the effect as the reason of a
rejected engine.
"""
REMEDIES: dict[Remedy, str] = {
    "rejected": "the engine is rejected",
    "not called deterministic": "not called deterministic: `deterministic=True` rejects it, and a reduction uses "
    "cuDNN's functions",
    "not fused": "a plain convolution, with bias and activation in launches of their own",
    "padded": "the padding becomes zeros around x",
    "added apart": "no plan is asked for beta; `cudnnTransformTensor` adds it",
    "not proposed": "an engine that is compiled at run time is used only if cuDNN's heuristics propose it",
    "accepted": "accepted: the rounding that tf32 allows",
}
FUNCTIONS = """\
## Functions and operations

| issue | function or operation | condition | effect | remedy in cudnnpy |
|---|---|---|---|---|
"""
FOUND_IN = (
    "\nMeasured in {release} on an {device} where the row names no other, and assumed in every release of cuDNN 9.\n"
)


class Avoided(NamedTuple):
    """A function or an operation that cudnnpy does not use under a condition.

    `where` is the module of cudnnpy that avoids it; its comment names the issue. `test` shows the right result on a GPU.
    """

    id: str
    what: str
    when: str
    happens: str
    instead: str
    where: str
    test: str


_CALLS = "tests/gpu/test_operations.py::test_drawn_problems"
AVOIDED: tuple[Avoided, ...] = (
    Avoided(
        "bias-gradient-misaligned",
        "`cudnnConvolutionBackwardBias`",
        "an address that is not a multiple of 16",
        "illegal access; the context is lost",
        "`cudnnReduceTensor` or a graph",
        "_layers/lowerings/bias_gradient.py",
        "tests/gpu/test_convolution.py::test_bias_gradients_of_large_tensors_go_another_way",
    ),
    Avoided(
        "reduction-of-one-shape",
        "`cudnnReduceTensor`",
        "input and output of one shape",
        "CUDNN_STATUS_BAD_PARAM",
        "`cudnnTransformTensor`",
        "_layers/lowerings/bias_gradient.py",
        "tests/gpu/test_convolution.py::test_the_bias_gradient_of_single_positions",
    ),
    Avoided(
        "resample-gradient",
        "a graph's gradient of resampling",
        "a maximum, without an index tensor",
        "the process crashes",
        "`cudnnPoolingBackward`; `Graph` raises ValueError where planning crashes, for tensors that are channels last",
        "_layers/pooling.py",
        f"{_CALLS}[Pooling.backward]",
    ),
    Avoided(
        "attention-lengths",
        "attention as a graph of products",
        "two masks by lengths, one right after the other, with indices of the scores before both",
        "planning ends the process, with 9.19.0 and 9.28.0 for the profile of an H200",
        "`Graph` raises ValueError; `Attention` takes the indices from the scores that each masks",
        "graph/broken_rules.py",
        "tests/host/graph/test_broken_rules.py::test_masks_by_lengths_have_indices_of_their_own",
    ),
    Avoided(
        "attention-strides",
        "attention and its gradient as graphs of products",
        "a stride other than 1 on the axis of the head size, except for k and dq in the product for dq",
        "planning ends the process, with 9.19.0 and 9.28.0 for the profile of an H200",
        "`Graph` raises ValueError",
        "graph/broken_rules.py",
        "tests/host/graph/test_broken_rules.py::test_attention_of_heads_that_are_not_contiguous_is_rejected_by_name",
    ),
    Avoided(
        "attention-rows",
        "attention as a graph of products or in one operation",
        "a stride other than 1 on the last axis; rows or an address that are no multiples of 16 bytes",
        "CUDA error 716, or other elements are read",
        "`Graph` raises ValueError; `Attention` copies",
        "graph/broken_rules.py",
        "tests/host/graph/test_broken_rules.py::test_rows_of_attention_start_at_multiples_of_16_bytes",
    ),
    Avoided(
        "attention-queries",
        "attention and its gradient as graphs of products",
        "lengths or a bias with size 1 on the axis of the queries",
        "only the first row is right",
        "`Graph` raises ValueError; `Attention` describes them with all queries, by stride 0",
        "graph/broken_rules.py",
        "tests/host/graph/test_broken_rules.py::test_operands_of_attentions_scores_have_all_queries",
    ),
    Avoided(
        "attention-bias",
        "attention and its gradient as graphs of products",
        "a sum of the scores with a tensor of size 1 on the axis of the keys",
        "the results of one query, and the gradient of q, are wrong",
        "`Graph` and `Attention` raise ValueError",
        "graph/broken_rules.py",
        "tests/host/graph/test_broken_rules.py::test_operands_of_attentions_scores_have_all_keys",
    ),
    Avoided(
        "attention-lengths-alone",
        "attention of one query as a graph of products",
        "lengths of the keys, and no mask that compares the index of the query with theirs",
        "lengths are rounded up to multiples of 128",
        "`Graph` raises ValueError; `Attention` also selects the keys up to the last query's",
        "graph/broken_rules.py",
        "tests/host/graph/test_broken_rules.py::test_lengths_of_one_query_need_a_diagonal",
    ),
    Avoided(
        "attention-masks",
        "attention and its gradient as graphs of products",
        "`logical_and` or `logical_or`, or a selection after the softmax",
        "it is ignored",
        "`Graph` raises ValueError; `Attention` selects from the scores for each mask",
        "graph/broken_rules.py",
        "tests/host/graph/test_broken_rules.py::test_flags_of_attention_are_not_combined",
    ),
    Avoided(
        "attention-keys",
        "attention's gradient as a graph of products",
        "k and k transposed are two inputs",
        "the transposed one is read for both (engine 6)",
        "`Graph` raises ValueError; `reshape` makes one from the other",
        "graph/broken_rules.py",
        "tests/host/graph/test_broken_rules.py::test_the_gradient_of_attention_reads_k_once",
    ),
    Avoided(
        "attention-heads",
        "attention's gradient as a graph of products",
        "a sum of heads of a product in float32",
        "wrong numbers",
        "`Graph` raises ValueError; `Attention` sums numbers of q's type",
        "graph/broken_rules.py",
        "tests/host/graph/test_broken_rules.py::test_heads_of_attentions_gradient_are_summed_in_16_bits",
    ),
    Avoided(
        "product-sizes",
        "a graph's matrix product outside attention",
        "`m`, `n` or `k`, the numbers of valid rows",
        "they are ignored, as cuDNN's header says",
        "`Graph` raises ValueError",
        "graph/broken_rules.py",
        "tests/host/graph/test_broken_rules.py::test_numbers_of_valid_rows_are_for_attention_alone",
    ),
    Avoided(
        "resample-index",
        "a graph's resampling",
        "`index` as a result, tensors that are not channels last",
        "the indices are not written",
        "`Graph` raises ValueError",
        "graph/broken_rules.py",
        "tests/host/graph/test_broken_rules.py::test_the_places_of_maxima_are_for_tensors_that_are_channels_last",
    ),
    Avoided(
        "softmax-orders",
        "`cudnnSoftmaxForward`, `cudnnSoftmaxBackward`",
        "tensors in two memory formats, or with gaps",
        "some results are wrong",
        "copies in one memory format",
        "_layers/softmax.py",
        f"{_CALLS}[Softmax.backward]",
    ),
    Avoided(
        "softmax-in-place-beta",
        "`cudnnSoftmaxForward`, `cudnnSoftmaxBackward`",
        "in place, with beta other than 0",
        "elements are read after they were written",
        "results go to scratch memory first",
        "_layers/softmax.py",
        f"{_CALLS}[Softmax.forward]",
    ),
    Avoided(
        "softmax-five-axes",
        "`cudnnSoftmaxForward`, `cudnnSoftmaxBackward`",
        "over channels, five axes, channels last (float64; any type from about 1,025 channels)",
        "most of the result is not written",
        "the positions are one axis",
        "_layers/softmax.py",
        f"{_CALLS}[Softmax.forward]",
    ),
    Avoided(
        "clipped-relu-ceiling",
        "`cudnnActivationBackward`",
        "clipped relu, x at the ceiling: after a forward in place, every clipped element",
        "dy is passed on",
        "a ceiling one representable number lower",
        "_layers/activation.py",
        f"{_CALLS}[Activation.backward]",
    ),
    Avoided(
        "running-variance-of-one-value",
        "`cudnnBatchNormalizationForwardTraining`",
        "one value for each mean",
        "the running variance is NaN",
        "the running statistics are updated in steps of their own",
        "_layers/batch_normalization.py",
        f"{_CALLS}[BatchNormalization.forward_training]",
    ),
    Avoided(
        "slow-fill",
        "`cudnnSetTensor`",
        "any memory format but packed channels first",
        "it takes 20 to 560 times as long as the driver's fill",
        "the driver fills dense memory",
        "_launch/fill_executables.py",
        "tests/gpu/test_arrays_gpu.py::test_empty_batches_in_every_library",
    ),
)


def rendered() -> str:
    """Return the page's text."""
    release, device = ISSUES[0].measured[0]
    devices = " and ".join(dict.fromkeys(f"an {name}" for issue in ISSUES for _, name in issue.measured))
    found_in = FOUND_IN.format(release=raw.version_text(release), device=device)
    functions = "".join(f"| {' | '.join(avoided[:5])} |\n" for avoided in AVOIDED)
    return "\n".join(
        (
            INTRODUCTION.format(devices=devices, newest=raw.version_text(NEWEST)),
            ENGINES,
            "".join(_engines()),
            FUNCTIONS + functions + found_in,
        )
    )


def _engines() -> Iterator[str]:
    columns = "issue", "operation", "engines", "condition", "effect", "remedy in cudnnpy", "measured in", "assumed in"
    yield f"| {' | '.join(columns)} |\n"
    yield f"|{'---|' * len(columns)}\n"
    for issue in ISSUES:
        happens = issue.reason + (f" ({issue.detail})" if issue.detail else "")
        measured = ", ".join(f"{raw.version_text(release)} on an {device}" for release, device in issue.measured)
        if issue.source:
            measured = f"{measured or 'nothing'}; [report]({issue.source})"
        row = (
            issue.id,
            ", ".join(issue.operations),
            _of(issue),
            issue.condition.__doc__ or "",
            happens,
            REMEDIES[issue.remedy],
            measured,
            _assumed(*issue.assumed),
        )
        yield f"| {' | '.join(row)} |\n"


def _of(issue: Issue) -> str:
    numbers = ", ".join(map(str, issue.engines))
    return f"{issue.kind} ({numbers or 'not reported'})" if issue.kind else numbers


def _assumed(first: int, after: int | None) -> str:
    end = f" to {raw.version_text(NEWEST)}" if after is None else f", before {raw.version_text(after)}"
    return f"from {raw.version_text(first)}{end}"


def faults_by_engine(path: str) -> Iterator[str]:
    """Yield the faults of a store or export, as lines: an engine with the symptoms and releases, then its problems."""
    by_engine: dict[str, list[Fault]] = {}
    for fault in store.open(path, read_only=True).faults():
        engine = re.match(r"engine \d+", fault.candidate)
        by_engine.setdefault(engine[0] if engine else fault.candidate, []).append(fault)
    for name, faults in sorted(by_engine.items(), key=lambda item: (-len(item[1]), item[0])):
        counts = Counter((fault.symptom, raw.version_text(fault.key.cudnn), fault.key.gpu) for fault in faults)
        seen = (f"{count} {what} with cuDNN {on} on an {gpu}" for (what, on, gpu), count in sorted(counts.items()))
        yield f"{name}: {'; '.join(seen)}"
        yield from (f"    {fault.text}: {fault.candidate}: {fault.symptom}: {fault.detail}" for fault in faults)


def main(arguments: list[str] | None = None) -> int:
    """Write the page, or check it; return the exit status."""
    parser = argparse.ArgumentParser(description="Write docs/known-issues.md from the table of known issues.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page differs")
    parser.add_argument("--faults", metavar="STORE", help="write nothing; list the faults of a store by engine")
    given = parser.parse_args(arguments)
    if given.faults is not None:
        print(*faults_by_engine(given.faults), sep="\n")
        return 0
    file, text = ROOT / PAGE, rendered()
    if not given.check:
        file.write_text(text)
        return 0
    if file.is_file() and file.read_text() == text:
        return 0
    print(f"{PAGE} is not what the table says: run python -m tools.known_issues", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
