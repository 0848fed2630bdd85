"""Runs of plans on PyTorch's tensors, with a new workspace."""

from __future__ import annotations

import torch

from cudnnpy import Plan


def execute(plan: Plan, *tensors: torch.Tensor) -> None:
    """Run a plan on the current stream, and wait until the result, which is the last tensor, is there."""
    space = torch.empty(max(plan.workspace_size, 1), dtype=torch.uint8, device="cuda")
    addresses = [*(tensor.data_ptr() for tensor in tensors), space.data_ptr() if plan.workspace_size else 0]
    plan.execute(*addresses, torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()


def result_of(plan: Plan, *inputs: torch.Tensor) -> torch.Tensor:
    """The result of a plan of one output, on new memory that was NaN."""
    spec = plan.problem.specs[-1]
    out = torch.empty_strided(spec.shape, spec.strides, dtype=getattr(torch, spec.dtype), device="cuda")
    execute(plan, *inputs, out.fill_(torch.nan))
    return out
