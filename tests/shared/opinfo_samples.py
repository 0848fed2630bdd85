"""PyTorch's own sample inputs (torch.testing's OpInfo), made by a program of their own.

The import of torch's test suite changes the settings of hypothesis and the flags of torch.backends, so a child process makes
the samples and writes them to a file::

    python opinfo_samples.py FILE NAME...      # names of operations as torch's suite has them: nn.functional.conv2d
"""

from __future__ import annotations

import subprocess
import sys
import types
import unittest
from pathlib import Path
from typing import Any, NamedTuple

import torch

DTYPES = ("float64", "float32", "float16", "bfloat16")


class Sample(NamedTuple):
    name: str  # of the operation, with the variant's after a comma if it has one
    dtype: str
    arguments: list[Any]  # the input first
    keywords: dict[str, Any]

    def __str__(self) -> str:
        def short(value: Any) -> str:
            return f"{tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)

        given = [*map(short, self.arguments), *(f"{name}={short(value)}" for name, value in self.keywords.items())]
        return f"{self.name}({', '.join(given)}) in {self.dtype}"


def samples_of(names: list[str], folder: Path) -> list[Sample]:
    """The samples of some operations; a name that torch's suite does not have is a KeyError."""
    file = folder / "samples.pt"
    command = [sys.executable, __file__, str(file), *{name.partition(",")[0] for name in names}]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    found = [Sample(*row) for row in torch.load(file, weights_only=False)]
    if missing := set(names) - {sample.name for sample in found}:
        raise KeyError(f"torch {torch.__version__} has no samples of {sorted(missing)}")
    return [sample for sample in found if sample.name in names]


def _make(file: str, names: list[str]) -> None:
    if "expecttest" not in sys.modules:  # the suite's base class of tests; no sample needs it
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in
    from torch.testing._internal.common_methods_invocations import op_db

    rows = []
    for operation in op_db:
        if operation.name not in names:
            continue
        name = operation.name + (f",{operation.variant_test_name}" if operation.variant_test_name else "")
        for dtype in DTYPES:
            kind = getattr(torch, dtype)
            if not any(operation.supports_dtype(kind, device) for device in ("cpu", "cuda")):
                continue
            torch.manual_seed(0)
            rows += [
                (name, dtype, [sample.input, *sample.args], dict(sample.kwargs))
                for sample in operation.sample_inputs("cpu", kind, requires_grad=False)
            ]
    torch.save(rows, file)


if __name__ == "__main__":
    _make(sys.argv[1], sys.argv[2:])
