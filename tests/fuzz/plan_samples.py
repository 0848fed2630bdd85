"""Plans' texts to be spoiled, planned for a described device: plain and composed plans, v7 algorithms, and graphs."""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from functools import cache
from typing import Any

import planning

from cudnnpy._layers.graph import Graph
from cudnnpy._layers.lowerings import convolution_candidates
from cudnnpy._layers.lowerings.convolution_lowerings import lowerings
from cudnnpy._planning import plan as plans
from cudnnpy._planning import selection
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.choice import Choice, digest
from cudnnpy._planning.options import PlanningOptions

sys.argv[1:] = [str(planning.profile())]  # which planner takes for its own
import planner  # noqa: E402
import sample_graphs  # noqa: E402
import test_planning  # noqa: E402

STEM = {"dtype": "float16", "last": True, **test_planning.STEM}
REQUESTS = [
    *(test_planning.PROBLEMS[name] for name in ("forward float32", "backward_data float16 channels last", "groups")),
    *(
        test_planning.PROBLEMS[name]
        for name in ("one axis", "three axes backward_filter", "asymmetric", "bias and relu")
    ),
    *(test_planning.PROBLEMS[name] for name in ("float64", "beta", "a filter with gaps", "flipped")),
    test_planning.problem(activation="sigmoid", dtype="float64"),
    test_planning.problem("backward_data", bias=[64], activation="relu"),
    test_planning.problem("backward_data", **STEM),
    test_planning.problem("backward_filter", y=(8, 64, 27, 28), options={"padding": [[0, 1], 1]}),
]


class Algorithm:
    """Stands for a v7 algorithm, which needs a GPU."""

    workspace_size = 0

    def __init__(self, problem: Any, name: str, strict: bool, handle: Any) -> None:
        self.strict = strict


def prepare() -> None:
    """Plans without a GPU; cuDNN's engines print about symbols that the stand-in driver lacks."""
    vars(plans).update(
        Target=lambda handle: planner.TARGET, Handle=planner.NoHandle, on_device=lambda device: nullcontext()
    )
    vars(convolution_candidates).update(LegacyExecutable=Algorithm)
    os.environ.setdefault("CUDNN_LOGLEVEL_DBG", "0")


@cache
def samples() -> tuple[str, ...]:
    """The texts."""
    prepare()
    found = []
    for request in json.loads(json.dumps(REQUESTS)):
        options, problem = planner.problem_of(request)
        everything = selection.survey(planner.chooser(problem, options))
        candidates = [candidate for candidate in everything if not candidate.rejection_reason]
        found += [plans.Plan(problem, candidate).to_json() for candidate in (candidates[0], candidates[-1])]

    def plain() -> Any:
        raise AssertionError("it is planned already")

    for request in (REQUESTS[0], REQUESTS[6], REQUESTS[8]):
        _, problem = planner.problem_of(json.loads(json.dumps(request)))
        lowering = next(
            lowering
            for lowering in lowerings(problem)
            if lowering.part.activation is None and lowering.part.bias is None
        )
        executable = lowering.complete(Algorithm(lowering.part, "gemm", False, None), planner.TARGET)  # type: ignore[arg-type]
        choice = Choice("gemm" + lowering.suffix, "legacy", lowering=lowering.part_text)
        made = Candidate(choice, plain, lowering, executable=executable)
        found.append(plans.Plan(problem, made).to_json())
    for function in (*sample_graphs.FUSED, *sample_graphs.OTHERS):
        problem = function(Graph()).problem()
        chooser = planner.chooser(problem, PlanningOptions())
        chosen = next(selection.planned_candidates(chooser.proposed(), chooser.request, []), None)
        assert chosen is not None
        found.append(plans.Plan(problem, chosen).to_json())
    return tuple(found)


def sealed(content: dict[str, Any]) -> str:
    """The text of a content with a digest that fits."""
    plain = {name: value for name, value in content.items() if name != "sha256"}
    return json.dumps({**plain, "sha256": digest(plain)})
