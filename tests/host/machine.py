"""A machine of NumPy's for the few steps there are: what a program's C functions do, on arrays as memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cudnnpy import raw
from cudnnpy.dtypes import dtype_of
from cudnnpy.layouts import TensorSpec
from cudnnpy.programs import At, Function, Step


def view(memory: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """A tensor in memory; every element of it is inside."""
    assert spec.strides is not None
    size = dtype_of(spec.dtype).itemsize
    assert memory.itemsize == size
    last = sum((n - 1) * s for n, s in zip(spec.shape, spec.strides, strict=True))
    assert last < memory.size
    return np.lib.stride_tricks.as_strided(memory, spec.shape, [s * size for s in spec.strides])


def carried_out(steps: Sequence[Step], scratch: Sequence[int], *operands: np.ndarray) -> None:
    """The steps on the operands' memory; what is scratch begins as NaN. A plan has run(*memories)."""
    memories = [*operands, *(np.full(size // 4, np.nan, np.float32) for size in scratch)]
    assert all(size % 4 == 0 for size in scratch)
    for step in steps:
        here = [memories[place] for place in step.places]
        if isinstance(step.executable, Function):
            _CALLS[step.executable.name](here, *step.executable.arguments)
        else:
            step.executable.run(*here)  # type: ignore[attr-defined]


def _tensor(memories: list[np.ndarray], at: At, descriptor: Any) -> np.ndarray:
    memory = memories[at.place]
    assert at.offset % memory.itemsize == 0
    spec = TensorSpec(descriptor.shape, descriptor.dtype, descriptor.strides)
    return view(memory[at.offset // memory.itemsize :], spec)


def _transform(memories: list[np.ndarray], alpha: Any, x: Any, at: At, beta: Any, y: Any, to: At) -> None:
    source, target = _tensor(memories, at, x), _tensor(memories, to, y)
    assert source.shape == target.shape
    kept = beta.value * target if beta.value else 0
    target[...] = alpha.value * source.astype(np.float64) + kept


def _set(memories: list[np.ndarray], y: Any, at: At, value: Any) -> None:
    _tensor(memories, at, y)[...] = value.value


def _add(memories: list[np.ndarray], alpha: Any, a: Any, at: At, beta: Any, c: Any, to: At) -> None:
    target = _tensor(memories, to, c)
    target[...] = alpha.value * _tensor(memories, at, a) + beta.value * target


def _activate(memories: list[np.ndarray], how: Any, alpha: Any, x: Any, at: At, beta: Any, y: Any, to: At) -> None:
    assert (how.mode, alpha.value, beta.value) == ("relu", 1.0, 0.0)
    _tensor(memories, to, y)[...] = np.maximum(_tensor(memories, at, x), 0)


def _root(memories: list[np.ndarray], how: Any, _: Any, x: Any, at: At, *others: Any) -> None:
    assert how.get("cudnnGetOpTensorDescriptor")["opTensorOp"] == raw.CUDNN_OP_TENSOR_SQRT
    target = _tensor(memories, at, x)
    target[...] = np.sqrt(target)


_CALLS = {
    "cudnnTransformTensor": _transform,
    "cudnnSetTensor": _set,
    "cudnnAddTensor": _add,
    "cudnnActivationForward": _activate,
    "cudnnOpTensor": _root,
}
