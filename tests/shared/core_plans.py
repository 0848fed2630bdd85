"""Plan convolutions with the real libcudnn for a device profile, by the core of the package alone: see test_core_alone.py.

The argument is the profile's file. The device is the profile's wherever a plan would ask for the GPU.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from cudnnpy import Convolution, TensorSpec
from cudnnpy._arrays import workspace
from cudnnpy._layers import convolution
from cudnnpy._planning import plan, selection
from cudnnpy._planning.engines import Target
from cudnnpy.handle import Handle

X, W = TensorSpec((8, 64, 28, 28), "float16"), TensorSpec((64, 64, 3, 3), "float16")
LIMIT = 1 << 20


def plan_for_profile(profile: str) -> dict[str, Any]:
    """Return the workspace of each preference's plan, and the number of the candidates."""
    target = Target(profile=profile)
    for module in (selection, convolution, plan):
        vars(module)["Target"] = lambda handle: target
    for module in (convolution, plan, selection):
        vars(module)["on_device"] = lambda device: nullcontext()
    vars(workspace)["free_bytes"] = lambda device: 1 << 37
    Handle.default = classmethod(lambda cls, device: None)  # type: ignore[method-assign, assignment]
    sizes = {}
    for prefer, limit in (("fastest", None), ("limited_workspace", LIMIT), ("no_workspace", None)):
        conv = Convolution(padding=1, prefer=prefer, workspace_limit=limit)
        for name, second in (("forward", W), ("backward_data", W)):
            sizes[f"{prefer} {name}"] = conv.plan(
                name, X, second, X.shape if name == "backward_data" else None, device=0
            )
    candidates = Convolution(padding=1).candidates("forward", X, W, device=0)
    return {
        "sizes": {name: made.workspace_size for name, made in sizes.items()},
        "usable": sum(not candidate.rejection_reason for candidate in candidates),
        "rejected": sum(bool(candidate.rejection_reason) for candidate in candidates),
    }


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the engines print about symbols that the stub driver lacks
    json.dump(plan_for_profile(Path(sys.argv[1]).read_text()), answers)
    answers.close()
