"""The benchmark of graphs compares equal programs: each in torch gives the results that the reference gives for the graph."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import cudnnpy
from tools.benchmark.graph_cases import Case, drawn, graph_of, inputs, program


def small(case: Case) -> Case:
    """The case in float32 with sizes that the reference computes at once."""
    most = (3, 24, 40, 16) if case.is_product else (5, 64, 7, 6)
    return case._replace(dtype="float32", sizes=tuple(map(min, case.sizes, most)))


@pytest.mark.parametrize("case", [pytest.param(case, id=case.text) for case in drawn()])
def test_the_program_in_torch_computes_the_graph(case: Case) -> None:
    case = small(case)
    given = inputs(torch, case, device="cpu")
    expected = cudnnpy.reference.run(graph_of(case), {name: tensor.numpy() for name, tensor in given.items()})
    torch._dynamo.reset()
    # the operations into which torch.compile takes apart what the CPU has no kernel for
    run = torch.compile(program(torch, case), backend="aot_eager_decomp_partition", dynamic=False)
    for found, (name, right) in zip(run(*given.values()), expected.items(), strict=True):
        assert right.std() or name == "mean"
        np.testing.assert_allclose(found.reshape(right.shape), right, rtol=1e-4, atol=1e-5, err_msg=name)
