"""Write docs/graph-kinds.md, the kinds of operations of the graph API, from the package's table.

    python -m tools.graph_kinds            # writes the page
    python -m tools.graph_kinds --check    # fails if the page differs from the table

PLANNED and RUN, below, are measured facts. tests/host/tuning/test_plans_of_kinds.py holds PLANNED to the loaded release.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from cudnnpy import raw
from cudnnpy.graph.kinds import KINDS, Kind

ROOT = Path(__file__).resolve().parent.parent
PAGE = "docs/graph-kinds.md"

_ANY = {
    *(
        "convolution_forward",
        "convolution_backward_data",
        "convolution_backward_filter",
        "pointwise",
        "reduction",
        "matmul",
    ),
    *("resample_fwd", "resample_bwd", "norm_forward", "norm_backward", "gen_stats", "bn_finalize", "bn_bwd_weights"),
    *("concat", "reshape", "rng", "paged_cache_load", "block_scale_dequantize", "sdpa_fwd", "moe_grouped_matmul"),
}
# release -> the kinds whose example (docs/examples/graph_kinds.py) has a plan for the profile of an H200
PLANNED: dict[str, set[str]] = {
    "9.19": _ANY,
    "9.28": {*_ANY, "slice", "diagonal_band_mask", "softmax", "sdpa_bwd"},
}
# the kinds that ran on a GPU and were compared with float64
RUN = {
    *("convolution_forward", "convolution_backward_data", "convolution_backward_filter", "pointwise", "reduction"),
    *("matmul", "resample_fwd", "resample_bwd", "norm_forward", "norm_backward", "gen_stats", "bn_finalize"),
    *("bn_bwd_weights", "reshape", "rng", "block_scale_dequantize", "sdpa_fwd", "moe_grouped_matmul"),
}
# kind -> the method of Graph, if there is one
_METHODS = {
    "convolution_forward": "convolution",
    **{
        name: name
        for name in ("convolution_backward_data", "convolution_backward_filter", "pointwise", "reduction", "matmul")
    },
    "resample_fwd": "resample",
    "resample_bwd": "resample_backward",
    "norm_forward": "normalization",
    "norm_backward": "normalization_backward",
}

INTRODUCTION = """\
# The kinds of operations

cuDNN's graph API has {count} kinds of operations. Each is a row of the table `KINDS` in `cudnnpy/graph/kinds.py`.
[`Graph.add(kind, ...)`](graphs.md) adds it with the operands and options below, which are cuDNN's attributes in lower case, and
returns its results by name. Optional operands and results are in brackets; `add` has a result in brackets where `results=`
names it. A star marks a list of operands. The kinds that most graphs have are methods of `Graph`, too.

[One graph for each kind](examples/graph_kinds.py) is computed in NumPy and planned without a GPU:

```bash
python docs/examples/graph_kinds.py --device h200
```

- **Since**: the release of cuDNN that has the kind. An older one is refused by name.
- **Planned**: the releases that have a plan for the example on the profile of an H200. Other releases were not tried. Where
  none is named, no engine for an H200 was found.
- **Run**: on a GPU, compared with float64.
- **NumPy**: whether `cudnnpy.reference.run` evaluates it. The function has the kind's name in
  `cudnnpy/reference/_kinds.py`, and its docstring says what was not confirmed by a run.

`python -m tools.graph_kinds` writes this page.

| kind | `Graph` method | operands -> results | options | since | planned | run | NumPy |
|---|---|---|---|---|---|---|---|
"""


def _names(given: dict[str, str]) -> str:
    return ", ".join(
        f"[{name}{'*' * ('*' in end)}]" if end.endswith("?") else f"{name}{'*' * ('*' in end)}"
        for name, end in given.items()
    )


def _row(name: str, kind: Kind) -> Iterator[str]:
    yield f"`{name}`"
    yield f"`{_METHODS[name]}`" if name in _METHODS else "-"
    yield f"{_names(dict(kind.operands))} -> {_names(dict(kind.results))}"
    yield ", ".join(kind.all_options)
    yield re.sub(r"\.0$", "", raw.since(kind.descriptor_name) or "")
    yield ", ".join(release for release, kinds in PLANNED.items() if name in kinds) or "-"
    yield "yes" if name in RUN else "-"
    yield "with the GPU's bits" if name == "rng" else "yes"


def rendered() -> str:
    """Return the page's text."""
    rows = (f"| {' | '.join(_row(name, kind))} |\n" for name, kind in KINDS.items())
    return INTRODUCTION.format(count=len(KINDS)) + "".join(rows)


def main(arguments: list[str] | None = None) -> int:
    """Write the page, or check it; return the exit status."""
    parser = argparse.ArgumentParser(description="Write docs/graph-kinds.md from the table of the kinds of operations.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page differs")
    file, text = ROOT / PAGE, rendered()
    if not parser.parse_args(arguments).check:
        file.write_text(text)
        return 0
    if file.is_file() and file.read_text() == text:
        return 0
    print(f"{PAGE} is not what the table says: run python -m tools.graph_kinds", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
