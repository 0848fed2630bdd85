"""A machine of NumPy's for the few steps there are: what a program's C functions do, on arrays as memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from cudnnpy import raw, reference
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import TensorSpec
from cudnnpy._runtime.executables import At, Function, Shifted, Step, Steps, rounded
from cudnnpy._runtime.fills import Fill
from cudnnpy.convolution.space_to_depth import SpaceToDepth, Transform, can_transform
from cudnnpy.ops.parameters import Constant, Spare, Supplied


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
    memories = [*operands, *map(_scratch, scratch)]
    for step in steps:
        _carry_out(step.executable, [memories[place] for place in step.places])


def _scratch(size: int) -> np.ndarray:
    return np.full(rounded(size), 0xFF, np.uint8)


def _carry_out(executable: Any, memories: list[np.ndarray]) -> None:
    if isinstance(executable, Transform):
        _fold(memories, executable)
    elif isinstance(executable, Function):
        _CALLS[executable.name](memories, *executable.arguments)
    elif isinstance(executable, Steps):
        carried_out(executable.steps, executable.scratch, *memories)
    elif isinstance(executable, Supplied):
        others = {Constant: lambda slot: slot.address, Spare: lambda slot: _scratch(slot.size)}
        slots = executable._slots
        _carry_out(executable._executable, [others.get(type(s), lambda s: memories[s])(s) for s in slots])
    elif isinstance(executable, Shifted):
        parts = zip(memories, executable.offsets, strict=True)
        _carry_out(executable.executable, [memory.view(np.uint8)[offset:] for memory, offset in parts])
    elif isinstance(executable, Fill):
        _fill(memories[0], executable)
    else:
        executable.run(*memories)


def _tensor(memories: list[np.ndarray], at: At, descriptor: Any) -> np.ndarray:
    return view(memories[at.place], TensorSpec(descriptor.shape, descriptor.dtype, descriptor.strides))


def _transform(memories: list[np.ndarray], alpha: Any, x: Any, at: At, beta: Any, y: Any, to: At) -> None:
    source, target = _tensor(memories, at, x), _tensor(memories, to, y)
    assert source.shape == target.shape
    kept = beta.value * target if beta.value else 0
    target[...] = alpha.value * source.astype(np.float64) + kept


def to_depth(x: np.ndarray, transform: SpaceToDepth) -> np.ndarray:
    """A tensor in blocks, as cudnnTransformTensorEx folds it."""
    for axis, (before, after) in enumerate(zip(transform.before, transform.after, strict=True), 2):
        x = x.take(range(max(-before, 0), x.shape[axis] + min(after, 0)), axis)
        x = np.pad(x, [(max(before, 0), max(after, 0)) if at == axis else (0, 0) for at in range(x.ndim)])
    sizes = [(size // length, length) for size, length in zip(x.shape[2:], transform.block, strict=True)]
    x = x.reshape(*x.shape[:2], *(n for pair in sizes for n in pair))
    rank = len(sizes)
    x = x.transpose(0, *range(3, 3 + 2 * rank, 2), 1, *range(2, 2 + 2 * rank, 2))  # the pixel in its block, then C
    return x.reshape(x.shape[0], -1, *x.shape[2 + rank :])


def to_space(blocks: np.ndarray, transform: SpaceToDepth, shape: tuple[int, ...]) -> np.ndarray:
    """And as it unfolds them: each element comes from where folding puts it."""
    where = to_depth(np.arange(1.0, math.prod(shape) + 1).reshape(shape), transform)
    whole = np.full(math.prod(shape), np.nan, blocks.dtype)
    whole[where[where > 0].astype(int) - 1] = blocks[where > 0]
    return whole.reshape(shape)


def _fold(memories: list[np.ndarray], how: Transform) -> None:
    folds = how.direction == raw.CUDNN_TRANSFORM_FOLD
    assert can_transform(how.whole)
    whole, blocks = memories if folds else reversed(memories)
    there, here = view(whole, how.whole), view(blocks, how.transform.of(how.whole))
    if folds:
        assert not how.beta
        here[...] = to_depth(there, how.transform)
    else:
        there[...] = to_space(here, how.transform, there.shape) + (how.beta * there if how.beta else 0)


def _add(memories: list[np.ndarray], alpha: Any, a: Any, at: At, beta: Any, c: Any, to: At) -> None:
    target = _tensor(memories, to, c)
    target[...] = alpha.value * _tensor(memories, at, a) + beta.value * target


def _activate(memories: list[np.ndarray], how: Any, alpha: Any, x: Any, at: At, beta: Any, y: Any, to: At) -> None:
    assert (how.mode, alpha.value, beta.value) == ("relu", 1.0, 0.0)
    _tensor(memories, to, y)[...] = np.maximum(_tensor(memories, at, x), 0)


def _pooling(how: Any) -> reference.Pooling:
    """As the function knows it: every window lies in the padded tensor."""
    return reference.Pooling(how.mode, how.window, how.padding, how.stride)


def _pool(memories: list[np.ndarray], how: Any, alpha: Any, x: Any, at: At, beta: Any, y: Any, to: At) -> None:
    source, target = _tensor(memories, at, x), _tensor(memories, to, y)
    values = _pooling(how).forward(source.astype(np.float64))
    target[...] = alpha.value * values + (beta.value * target if beta.value else 0)


def _pool_backward(memories: list[np.ndarray], how: Any, alpha: Any, *rest: Any) -> None:
    y, dy, x = (_tensor(memories, at, one).astype(np.float64) for one, at in zip(rest[:6:2], rest[1:6:2], strict=True))
    beta, dx, to = rest[6:]
    target = _tensor(memories, to, dx)
    if how.mode.startswith("max"):
        assert not np.isnan(x).any()
    values = _pooling(how).backward(dy, x, y)
    target[...] = alpha.value * values + (beta.value * target if beta.value else 0)


def _fill(memory: np.ndarray, fill: Fill) -> None:
    """What the driver does with bytes."""
    flat = memory.view(np.uint8)[: fill._count * fill._width]
    assert flat.size == fill._count * fill._width
    flat.view(f"u{fill._width}")[...] = fill._pattern


def _op_tensor(memories: list[np.ndarray], how: Any, alpha: Any, a: Any, at: At, *others: Any) -> None:
    beta, b, b_at, gamma, c, to = others
    first, second, target = (_tensor(memories, m, d) for m, d in ((at, a), (b_at, b), (to, c)))
    # what C wants: b's axes are those of a or 1; c is b in memory only if a is, too
    assert all(n in (1, m) for m, n in zip(first.shape, second.shape, strict=True))
    assert first.shape == target.shape
    assert memories[to.place] is not memories[b_at.place] or memories[at.place] is memories[b_at.place]
    one, two = alpha.value * first, beta.value * second
    made = {
        "add": lambda: one + two,
        "mul": lambda: one * two,
        "max": lambda: np.maximum(one, two),
        "min": lambda: np.minimum(one, two),
        "sqrt": lambda: np.sqrt(one),
    }[how.operation]()
    target[...] = made + gamma.value * target if gamma.value else made


def _reduce(memories: list[np.ndarray], how: Any, *others: Any) -> None:
    _, _, _, _, alpha, x, at, beta, y, to = others
    source, target = _tensor(memories, at, x), _tensor(memories, to, y)
    assert source.shape != target.shape  # which C refuses
    assert all(n in (1, m) for m, n in zip(source.shape, target.shape, strict=True))
    axes = tuple(axis for axis, (m, n) in enumerate(zip(source.shape, target.shape, strict=True)) if m != n)
    made = {"add": np.sum, "avg": np.mean, "max": np.max, "min": np.min}[how.operation](
        source, axis=axes, keepdims=True
    )
    target[...] = alpha.value * made + (beta.value * target if beta.value else 0)


def _set(memories: list[np.ndarray], y: Any, to: At, number: Any) -> None:
    _tensor(memories, to, y)[...] = number.value


def _scale(memories: list[np.ndarray], y: Any, to: At, alpha: Any) -> None:
    _tensor(memories, to, y)[...] *= alpha.value


def _means(mode: Any, x: np.ndarray) -> tuple[int, ...]:
    return (0,) if mode == raw.CUDNN_BATCHNORM_PER_ACTIVATION else (0, *range(2, x.ndim))


def _batch_training(memories: list[np.ndarray], mode: Any, alpha: Any, beta: Any, *others: Any) -> None:
    x, at, y, to, row, scale, bias, factor, *running, epsilon, saved_mean, saved_inverse = others
    source, target = _tensor(memories, at, x).astype(np.float64), _tensor(memories, to, y)
    axes = _means(mode, source)
    mean, variance = source.mean(axes, keepdims=True), source.var(axes, keepdims=True)
    inverse = 1 / np.sqrt(variance + epsilon)
    made = (source - mean) * inverse * _tensor(memories, scale, row) + _tensor(memories, bias, row)
    target[...] = alpha.value * made + (beta.value * target if beta.value else 0)
    count = source.size // mean.size
    if running[0] is not None:
        for kept, new in zip(running, (mean, variance * count / (count - 1)), strict=True):
            there = _tensor(memories, kept, row)
            there[...] = (1 - factor) * there + factor * new
    _tensor(memories, saved_mean, row)[...] = mean
    _tensor(memories, saved_inverse, row)[...] = inverse


def _batch_inference(memories: list[np.ndarray], mode: Any, alpha: Any, beta: Any, *others: Any) -> None:
    x, at, y, to, row, scale, bias, mean, variance, epsilon = others
    source, target = _tensor(memories, at, x).astype(np.float64), _tensor(memories, to, y)
    assert mode in (raw.CUDNN_BATCHNORM_PER_ACTIVATION, raw.CUDNN_BATCHNORM_SPATIAL)
    parameters = [_tensor(memories, one, row).astype(np.float64) for one in (scale, bias, mean, variance)]
    made = (source - parameters[2]) / np.sqrt(parameters[3] + epsilon) * parameters[0] + parameters[1]
    target[...] = alpha.value * made + (beta.value * target if beta.value else 0)


def _batch_backward(memories: list[np.ndarray], mode: Any, *others: Any) -> None:
    a, b, c, d, x, x_at, dy, dy_at, dx, dx_at, row, scale, dscale, dbias, epsilon, *saved = others
    source, g = (_tensor(memories, m, t).astype(np.float64) for m, t in ((x_at, x), (dy_at, dy)))
    axes = _means(mode, source)
    mean, inverse = source.mean(axes, keepdims=True), (source.var(axes, keepdims=True) + epsilon) ** -0.5
    if saved[0] is not None:
        mean, inverse = (_tensor(memories, one, row).astype(np.float64) for one in saved)
    n, w = (source - mean) * inverse, g * _tensor(memories, scale, row)
    made = (w - w.mean(axes, keepdims=True) - n * (w * n).mean(axes, keepdims=True)) * inverse
    results = (dx_at, dx, made, a, b), (dscale, row, (g * n).sum(axes, keepdims=True), c, d)
    for to, tensor, value, alpha, beta in (*results, (dbias, row, g.sum(axes, keepdims=True), c, d)):
        target = _tensor(memories, to, tensor)
        target[...] = alpha.value * value + (beta.value * target if beta.value else 0)


_CALLS = {
    "cudnnTransformTensor": _transform,
    "cudnnAddTensor": _add,
    "cudnnActivationForward": _activate,
    "cudnnOpTensor": _op_tensor,
    "cudnnReduceTensor": _reduce,
    "cudnnSetTensor": _set,
    "cudnnScaleTensor": _scale,
    "cudnnBatchNormalizationForwardTraining": _batch_training,
    "cudnnBatchNormalizationForwardInference": _batch_inference,
    "cudnnBatchNormalizationBackward": _batch_backward,
    "cudnnPoolingForward": _pool,
    "cudnnPoolingBackward": _pool_backward,
}
