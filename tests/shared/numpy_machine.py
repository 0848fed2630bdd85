"""The C functions that the steps of a plan call, by NumPy, on arrays as device memory.

The package itself binds the steps to addresses; a launch finds its arrays by the addresses that it was bound to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import pytest
from stand_in_driver import stand_in_driver

from cudnnpy import Engine, Graph, raw, reference
from cudnnpy._core.dtypes import dtype_of, numpy_dtype
from cudnnpy._core.layouts import TensorSpec
from cudnnpy._launch.steps import FunctionCall, OperandAddress, Step, StepSequence
from cudnnpy._layers.lowerings.convolution_lowerings import SpaceToDepth, Transform, can_transform

Memories: TypeAlias = Mapping[int, np.ndarray]  # by the operands' numbers


def tensor_in(memory: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """A tensor in memory; every element of it is inside. Memory of bytes takes any type."""
    assert spec.strides is not None
    size = dtype_of(spec.dtype).itemsize
    memory = memory[: memory.size // size * size].view(numpy_dtype(spec.dtype)) if memory.dtype == np.uint8 else memory
    assert memory.itemsize == size
    last = sum((n - 1) * s for n, s in zip(spec.shape, spec.strides, strict=True))
    assert last < memory.size
    return np.lib.stride_tricks.as_strided(memory, spec.shape, [s * size for s in spec.strides])


HANDLE: Any = SimpleNamespace(pointer=None, _address=0, _in_use=None)
_memories: list[np.ndarray] = []  # arrays of bytes: the operands' and the workspace's


def run_steps(steps: Sequence[Step], scratch: Sequence[int], *operands: np.ndarray) -> None:
    """Binds the steps to the operands' addresses, and runs them; the workspace begins as NaN."""
    whole = StepSequence(steps, scratch)
    workspace = np.full(whole.workspace_size, 0xFF, np.uint8)
    count = len(_memories)
    _memories.extend(_bytes(memory) for memory in (*operands, workspace))
    try:
        with _functions():
            addresses = tuple(memory.ctypes.data for memory in operands)
            assert whole.bind(HANDLE, addresses, workspace.ctypes.data)() == 0
    finally:
        del _memories[count:]


class NumpyExecutable:
    """An executable in a plan's place: run(*memories) does its work."""

    workspace_size = 0

    def bind(self, handle: Any, pointers: tuple[int, ...], workspace: int) -> Callable[[], int]:
        """The launch on these addresses; what it may use of the workspace is spoiled."""

        def launch() -> int:
            if self.workspace_size:
                _memory_at(workspace)[: self.workspace_size] = 0xFF
            self.run(*map(_memory_at, pointers))
            return 0

        return launch

    def run(self, *memories: np.ndarray) -> None:
        raise NotImplementedError


class PlannedSum(NumpyExecutable):
    """A graph with one reduction, in its plan's place."""

    def __init__(self, graph: Graph, preferred: Engine | None = None) -> None:
        self.graph, self.preferred = graph, preferred

    def run(self, *memories: np.ndarray) -> None:
        (x,), (y,) = self.graph.inputs, self.graph.outputs
        (operation,) = self.graph.problem().graph.operations
        assert (operation.kind, operation.option("op")) == ("reduction", raw.CUDNN_REDUCE_TENSOR_ADD)
        assert x.spec.strides is not None
        assert x.spec.strides[1] == 1  # which engines demand
        axes = tuple(axis for axis, (m, n) in enumerate(zip(x.shape, y.shape, strict=True)) if m != n)
        values = tensor_in(memories[0], x.spec).astype(np.float32)
        tensor_in(memories[1], y.spec)[...] = values.sum(axes, keepdims=True)


def plan_of(executable: NumpyExecutable) -> Any:
    """A plan that launches an executable."""
    return SimpleNamespace(executable=executable, _planning_ms=0.0)


def planned_sum(graph: Graph, call: Any, preferred_engine: Engine | None = None) -> Any:
    """In place of Graph._plan_if_supported, for graphs with one reduction."""
    return plan_of(PlannedSum(graph, preferred_engine))


def _bytes(memory: np.ndarray) -> np.ndarray:
    assert memory.ndim == 1
    return memory.view(np.uint8)


def _memory_at(address: int) -> np.ndarray:
    """The memory from an address on, in bytes; that of an operand without elements is empty."""
    for memory in _memories:
        start = memory.ctypes.data
        if start <= address < start + memory.size:
            return memory[address - start :]
    assert any(address == memory.ctypes.data + memory.size for memory in _memories), f"{address:#x} is in no memory"
    return np.zeros(0, np.uint8)


@contextmanager
def _functions() -> Iterator[None]:
    """C's functions and the driver's, by NumPy. What is bound, and to which addresses, is the package's own doing."""
    real = FunctionCall.bind
    bound: list[FunctionCall] = []

    def bind(self: FunctionCall, handle: Any, pointers: tuple[int, ...], workspace: int) -> Callable[[], int]:
        bound.append(self)
        try:
            return real(self, handle, pointers, workspace)
        finally:
            bound.pop()

    def function(name: str) -> Callable[..., int]:
        one = bound[-1]

        def launch(_handle: Any, *arguments: Any) -> int:
            places = {
                a.operand: b for a, b in zip(one.arguments, arguments, strict=True) if isinstance(a, OperandAddress)
            }
            _CALLS[name]({place: _memory_at(b) for place, b in places.items() if b is not None}, *one.arguments)
            return 0

        return launch

    def transform(self: Transform, handle: Any, pointers: tuple[int, ...], workspace: int) -> Callable[[], int]:
        return lambda: _fold([_memory_at(pointer) for pointer in pointers], self) or 0

    def fill(kind: type[np.unsignedinteger[Any]], address: int, pattern: int, count: int, stream: int) -> tuple[int]:
        _memory_at(address)[: count * np.dtype(kind).itemsize].view(kind)[...] = pattern
        return (0,)

    fills = {"cuMemsetD16Async": partial(fill, np.uint16), "cuMemsetD32Async": partial(fill, np.uint32)}
    with pytest.MonkeyPatch.context() as patch, stand_in_driver(**fills):
        patch.setattr(FunctionCall, "bind", bind)
        patch.setattr(Transform, "bind", transform)
        patch.setattr(raw, "bound", function)
        yield


def _tensor(memories: Memories, at: OperandAddress, descriptor: Any) -> np.ndarray:
    return tensor_in(memories[at.operand], TensorSpec(descriptor.shape, descriptor.dtype, descriptor.strides))


def _transform(
    memories: Memories, alpha: Any, x: Any, at: OperandAddress, beta: Any, y: Any, to: OperandAddress
) -> None:
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
    there, here = tensor_in(whole, how.whole), tensor_in(blocks, how.transform.of(how.whole))
    if folds:
        assert not how.beta
        here[...] = to_depth(there, how.transform)
    else:
        there[...] = to_space(here, how.transform, there.shape) + (how.beta * there if how.beta else 0)


def _add(memories: Memories, alpha: Any, a: Any, at: OperandAddress, beta: Any, c: Any, to: OperandAddress) -> None:
    target = _tensor(memories, to, c)
    target[...] = alpha.value * _tensor(memories, at, a) + beta.value * target


def _activate(
    memories: Memories, how: Any, alpha: Any, x: Any, at: OperandAddress, beta: Any, y: Any, to: OperandAddress
) -> None:
    assert how.mode == "relu"
    target = _tensor(memories, to, y)
    target[...] = alpha.value * np.maximum(_tensor(memories, at, x), 0) + (beta.value * target if beta.value else 0)


def _activate_backward(memories: Memories, how: Any, alpha: Any, *rest: Any) -> None:
    assert how.mode == "relu"
    dy, x = (_tensor(memories, at, one) for one, at in zip(rest[2:6:2], rest[3:6:2], strict=True))
    beta, dx, to = rest[6:]
    target = _tensor(memories, to, dx)
    target[...] = alpha.value * np.where(x > 0, dy, 0) + (beta.value * target if beta.value else 0)


def _pooling(how: Any) -> reference.Pooling:
    """As the function knows it: every window lies in the padded tensor."""
    return reference.Pooling(how.mode, how.window, padding=how.padding, stride=how.stride)


def _pool(
    memories: Memories, how: Any, alpha: Any, x: Any, at: OperandAddress, beta: Any, y: Any, to: OperandAddress
) -> None:
    source, target = _tensor(memories, at, x), _tensor(memories, to, y)
    values = _pooling(how).forward(source.astype(np.float64))
    target[...] = alpha.value * values + (beta.value * target if beta.value else 0)


def _pool_backward(memories: Memories, how: Any, alpha: Any, *rest: Any) -> None:
    y, dy, x = (_tensor(memories, at, one).astype(np.float64) for one, at in zip(rest[:6:2], rest[1:6:2], strict=True))
    beta, dx, to = rest[6:]
    target = _tensor(memories, to, dx)
    if how.mode.startswith("max"):
        assert not np.isnan(x).any()
    values = _pooling(how).backward(dy, x, y)
    target[...] = alpha.value * values + (beta.value * target if beta.value else 0)


def _reduce(memories: Memories, how: Any, *others: Any) -> None:
    _, _, _, _, alpha, x, at, beta, y, to = others
    source, target = _tensor(memories, at, x), _tensor(memories, to, y)
    assert source.shape != target.shape  # which C refuses
    assert all(n in (1, m) for m, n in zip(source.shape, target.shape, strict=True))
    assert how.operation == "add"
    axes = tuple(axis for axis, (m, n) in enumerate(zip(source.shape, target.shape, strict=True)) if m != n)
    made = source.sum(axes, keepdims=True)
    target[...] = alpha.value * made + (beta.value * target if beta.value else 0)


def _softmax_axes(mode: Any) -> tuple[int, ...]:
    return (1,) if mode == raw.CUDNN_SOFTMAX_MODE_CHANNEL else (1, 2, 3)


def _softmax(
    memories: Memories,
    kind: Any,
    mode: Any,
    alpha: Any,
    x: Any,
    at: OperandAddress,
    beta: Any,
    y: Any,
    to: OperandAddress,
) -> None:
    source, target = _tensor(memories, at, x).astype(np.float64), _tensor(memories, to, y)
    assert (x.shape, x.strides) == (y.shape, y.strides)
    axes = _softmax_axes(mode)
    apart = source - source.max(axes, keepdims=True)
    made = apart - np.log(np.exp(apart).sum(axes, keepdims=True))
    target[...] = alpha.value * (made if kind == raw.CUDNN_SOFTMAX_LOG else np.exp(made))
    assert not beta.value


def _softmax_backward(memories: Memories, kind: Any, mode: Any, alpha: Any, *rest: Any) -> None:
    y, y_at, dy, dy_at, beta, dx, to = rest
    result, gradient = (_tensor(memories, at, one).astype(np.float64) for one, at in ((y, y_at), (dy, dy_at)))
    assert (y.shape, y.strides) == (dy.shape, dy.strides) == (dx.shape, dx.strides)
    axes = _softmax_axes(mode)
    if kind == raw.CUDNN_SOFTMAX_LOG:
        made = gradient - np.exp(result) * gradient.sum(axes, keepdims=True)
    else:
        made = result * (gradient - (result * gradient).sum(axes, keepdims=True))
    _tensor(memories, to, dx)[...] = alpha.value * made
    assert not beta.value


def _set(memories: Memories, y: Any, to: OperandAddress, number: Any) -> None:
    _tensor(memories, to, y)[...] = number.value


def _scale(memories: Memories, y: Any, to: OperandAddress, alpha: Any) -> None:
    _tensor(memories, to, y)[...] *= alpha.value


def _means(mode: Any, x: np.ndarray) -> tuple[int, ...]:
    return (0,) if mode == raw.CUDNN_BATCHNORM_PER_ACTIVATION else (0, *range(2, x.ndim))


def _batch_training(memories: Memories, mode: Any, alpha: Any, beta: Any, *others: Any) -> None:
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


def _batch_inference(memories: Memories, mode: Any, alpha: Any, beta: Any, *others: Any) -> None:
    x, at, y, to, row, scale, bias, mean, variance, epsilon = others
    source, target = _tensor(memories, at, x).astype(np.float64), _tensor(memories, to, y)
    assert mode in (raw.CUDNN_BATCHNORM_PER_ACTIVATION, raw.CUDNN_BATCHNORM_SPATIAL)
    parameters = [_tensor(memories, one, row).astype(np.float64) for one in (scale, bias, mean, variance)]
    made = (source - parameters[2]) / np.sqrt(parameters[3] + epsilon) * parameters[0] + parameters[1]
    target[...] = alpha.value * made + (beta.value * target if beta.value else 0)


def _batch_backward(memories: Memories, mode: Any, *others: Any) -> None:
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
    "cudnnActivationBackward": _activate_backward,
    "cudnnReduceTensor": _reduce,
    "cudnnSoftmaxForward": _softmax,
    "cudnnSoftmaxBackward": _softmax_backward,
    "cudnnSetTensor": _set,
    "cudnnScaleTensor": _scale,
    "cudnnBatchNormalizationForwardTraining": _batch_training,
    "cudnnBatchNormalizationForwardInference": _batch_inference,
    "cudnnBatchNormalizationBackward": _batch_backward,
    "cudnnPoolingForward": _pool,
    "cudnnPoolingBackward": _pool_backward,
}
