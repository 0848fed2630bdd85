"""The plan of a cell, and the descriptions of both in a row."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import cudnnpy
from tools.benchmark.networks.cells import Cell
from tools.benchmark.networks.tensors import Operands, plan_arguments


def facts(cell: Cell) -> dict[str, Any]:
    """Return the description of a cell, as text and as a problem, of which a table can be made."""
    layer, batch, kind = cell.layer, cell.batch, cell.kind
    itemsize = {"float16": 2, "bfloat16": 2, "float32": 4}[kind.dtype]
    with_bias = layer.bias and cell.operation == "forward"
    problem = {
        "x": layer.x_shape(batch),
        "w": layer.w_shape,
        "y": layer.y_shape(batch),
        **layer._asdict(),
        "dtype": kind.dtype,
        "channels_last": kind.channels_last,
        "tf32": kind.tf32,
        "with_bias": with_bias,
    }
    return {
        "layer": layer.text,
        "networks": list(cell.networks),
        "batch": batch,
        "kind": kind.name,
        "operation": cell.operation,
        "depthwise": layer.depthwise,
        "problem": problem,
        "flop": layer.operations(batch),
        "bytes": layer.moved_bytes(batch, itemsize),
    }


def plan_facts(plan: Any) -> dict[str, Any]:
    """Return the description of a plan, with its engine and knobs."""
    return {
        "name": plan.name,
        "source": plan.source,
        "operation": plan.operation,
        "engine": plan.engine and dataclasses.asdict(plan.engine),
        "workspace": plan.workspace_size,
        "notes": list(plan.notes),
        "deterministic": plan.deterministic,
        "ms": plan.milliseconds,
    }


def options(cell: Cell) -> Mapping[str, Any]:
    """Return the options of a Convolution for a cell, without its preference."""
    layer = cell.layer
    return {
        "padding": layer.padding,
        "stride": layer.stride,
        "dilation": layer.dilation,
        "groups": layer.groups,
        "tf32": cell.kind.tf32,
    }


def timed_plan(torch: Any, cell: Cell, o: Operands, **chosen: Any) -> tuple[Any, float]:
    """Return a plan, and the seconds that planning took."""
    convolution = cudnnpy.Convolution(**options(cell), **chosen)
    given = plan_arguments(cell, o)
    torch.cuda.empty_cache()  # torch's cached memory is not available to a workspace
    torch.cuda.synchronize()
    begin = time.perf_counter()
    plan = convolution.plan(given.operation, given.first, given.second, given.shape, bias=given.bias, out=o.out)
    torch.cuda.synchronize()
    return plan, time.perf_counter() - begin
