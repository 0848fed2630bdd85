"""A machine of NumPy's for the few steps there are: what a program's C functions do, on arrays as memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from cudnnpy import raw
from cudnnpy.convolution.folding import Cut, Transform, can_cut
from cudnnpy.dtypes import dtype_of
from cudnnpy.layouts import TensorSpec
from cudnnpy.programs import At, Function, Step


def view(memory: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """A tensor in memory; every element of it is inside. Memory of bytes takes any type."""
    assert spec.strides is not None
    size = dtype_of(spec.dtype).itemsize
    memory = memory.view(spec.dtype) if memory.dtype == np.uint8 else memory
    assert memory.itemsize == size
    last = sum((n - 1) * s for n, s in zip(spec.shape, spec.strides, strict=True))
    assert last < memory.size
    return np.lib.stride_tricks.as_strided(memory, spec.shape, [s * size for s in spec.strides])


def carried_out(steps: Sequence[Step], scratch: Sequence[int], *operands: np.ndarray) -> None:
    """The steps on the operands' memory; what is scratch begins as NaN. A plan has run(*memories)."""
    memories = [*operands, *(np.full(size, 0xFF, np.uint8) for size in scratch)]
    for step in steps:
        here = [memories[place] for place in step.places]
        if isinstance(step.executable, Transform):
            _fold(here, step.executable)
        elif isinstance(step.executable, Function):
            _CALLS[step.executable.name](here, *step.executable.arguments)
        else:
            step.executable.run(*here)  # type: ignore[attr-defined]


def _tensor(memories: list[np.ndarray], at: At, descriptor: Any) -> np.ndarray:
    return view(memories[at.place], TensorSpec(descriptor.shape, descriptor.dtype, descriptor.strides))


def _transform(memories: list[np.ndarray], alpha: Any, x: Any, at: At, beta: Any, y: Any, to: At) -> None:
    source, target = _tensor(memories, at, x), _tensor(memories, to, y)
    assert source.shape == target.shape
    kept = beta.value * target if beta.value else 0
    target[...] = alpha.value * source.astype(np.float64) + kept


def apart(x: np.ndarray, cut: Cut) -> np.ndarray:
    """A tensor in blocks, as cudnnTransformTensorEx folds it."""
    for axis, (before, after) in enumerate(zip(cut.before, cut.after, strict=True), 2):
        x = x.take(range(max(-before, 0), x.shape[axis] + min(after, 0)), axis)
        x = np.pad(x, [(max(before, 0), max(after, 0)) if at == axis else (0, 0) for at in range(x.ndim)])
    sizes = [(size // length, length) for size, length in zip(x.shape[2:], cut.block, strict=True)]
    x = x.reshape(*x.shape[:2], *(n for pair in sizes for n in pair))
    rank = len(sizes)
    x = x.transpose(0, *range(3, 3 + 2 * rank, 2), 1, *range(2, 2 + 2 * rank, 2))  # the pixel in its block, then C
    return x.reshape(x.shape[0], -1, *x.shape[2 + rank :])


def together(blocks: np.ndarray, cut: Cut, shape: tuple[int, ...]) -> np.ndarray:
    """And as it unfolds them: each element comes from where folding puts it."""
    where = apart(np.arange(1.0, math.prod(shape) + 1).reshape(shape), cut)
    whole = np.full(math.prod(shape), np.nan, blocks.dtype)
    whole[where[where > 0].astype(int) - 1] = blocks[where > 0]
    return whole.reshape(shape)


def _fold(memories: list[np.ndarray], how: Transform) -> None:
    folds = how.direction == raw.CUDNN_TRANSFORM_FOLD
    assert can_cut(how.whole)
    whole, blocks = memories if folds else reversed(memories)
    there, here = view(whole, how.whole), view(blocks, how.cut.of(how.whole))
    if folds:
        assert not how.beta
        here[...] = apart(there, how.cut)
    else:
        there[...] = together(here, how.cut, there.shape) + (how.beta * there if how.beta else 0)


def _add(memories: list[np.ndarray], alpha: Any, a: Any, at: At, beta: Any, c: Any, to: At) -> None:
    target = _tensor(memories, to, c)
    target[...] = alpha.value * _tensor(memories, at, a) + beta.value * target


def _activate(memories: list[np.ndarray], how: Any, alpha: Any, x: Any, at: At, beta: Any, y: Any, to: At) -> None:
    assert (how.mode, alpha.value, beta.value) == ("relu", 1.0, 0.0)
    _tensor(memories, to, y)[...] = np.maximum(_tensor(memories, at, x), 0)


def _average(memories: list[np.ndarray], how: Any, alpha: Any, x: Any, at: At, beta: Any, y: Any, to: At) -> None:
    source, target = _tensor(memories, at, x), _tensor(memories, to, y)
    assert (how.mode, how.window, how.stride) == ("average_include_padding", source.shape[2:], source.shape[2:])
    means = source.astype(np.float64).mean((2, 3), keepdims=True)
    target[...] = alpha.value * means + (beta.value * target if beta.value else 0)


def _root(memories: list[np.ndarray], how: Any, _: Any, x: Any, at: At, *others: Any) -> None:
    assert how.get("cudnnGetOpTensorDescriptor")["opTensorOp"] == raw.CUDNN_OP_TENSOR_SQRT
    target = _tensor(memories, at, x)
    target[...] = np.sqrt(target)


_CALLS = {
    "cudnnTransformTensor": _transform,
    "cudnnAddTensor": _add,
    "cudnnActivationForward": _activate,
    "cudnnOpTensor": _root,
    "cudnnPoolingForward": _average,
}
