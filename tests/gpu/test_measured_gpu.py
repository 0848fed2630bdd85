"""What the package's table of measurements proposes runs here, and gives right results."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import cudnnpy
from cudnnpy import Convolution
from cudnnpy._planning import measurement_table
from cudnnpy._planning.engines import Target
from cudnnpy._planning.problem import is_strict
from cudnnpy.convolution.table_features import features
from cudnnpy.handle import Handle
from tools.benchmark.networks import catalogue, measure_layers
from tools.benchmark.networks.cells import KINDS, Cell, in_order
from tools.benchmark.networks.tensors import compared, operands, plan_arguments, plan_call, torch_call
from tools.ranking.problems import problem_of

MOST_BYTES = 64 << 20
EACH = 4  # cells of a kind


def cells(kind: str) -> list[Cell]:
    """The first cells of a kind for which the table proposes something."""
    table = measurement_table.table_for(Target(Handle.default(0)))
    if table is None:
        pytest.skip("the package has no table of measurements for this GPU and release of cuDNN")
    found: list[Cell] = []
    for cell in in_order(catalogue.read(), 1):
        if cell.kind.name != kind or len(found) == EACH:
            continue
        problem, options = problem_of(cell)
        looked_up = features(problem, is_strict(problem, options))
        small = cell.layer.moved_bytes(cell.batch, torch.empty(0, dtype=getattr(torch, cell.kind.dtype)).itemsize)
        if small <= MOST_BYTES and looked_up is not None and table.proposals(looked_up):
            found.append(cell)
    return found


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_what_the_table_proposes_gives_right_results(kind: str) -> None:
    taken = []
    for cell in cells(kind):
        o = operands(torch, cell)[0]
        given = plan_arguments(cell, o)
        conv = Convolution(**measure_layers.options(cell))
        plan = conv.plan(given.operation, given.first, given.second, given.shape, bias=given.bias, out=o.out)
        workspace = torch.empty(max(plan.workspace_size, 1), device="cuda", dtype=torch.uint8)
        ours: dict[str, Any] = {"fastest": plan_call(torch, cell, o, plan, workspace)}
        torch.backends.cudnn.allow_tf32 = cell.kind.tf32
        try:
            _, wrong = compared(torch, cell, o, torch_call(torch, cell, o), ours)
        finally:
            torch.backends.cudnn.allow_tf32 = True
        assert not wrong, f"{cell.name}: {plan.source}, {plan.name}: {wrong}"
        taken.append(plan.source)
    cudnnpy.clear_cache()
    assert any(source.startswith("measured for ") for source in taken)
