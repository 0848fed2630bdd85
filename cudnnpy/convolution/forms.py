"""How a problem can be laid out as launches: one plan where cuDNN can, else copies, a plain plan, and an epilogue.

What no plan is asked for, since cuDNN's engines do it wrong or not at all (an H200 with cuDNN 9.19, docs/gpu.md):

- beta: engines for strided or grouped backward convolutions leave elements without it. The plain result goes to scratch
  memory, and cudnnTransformTensor adds it to what is there.
- filters with gaps: no engine takes them, nor results with gaps for many problems. They are copied, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from ctypes import byref, c_double, c_float
from functools import partial
from typing import Any, NamedTuple

from cudnnpy import raw
from cudnnpy.arrays import TensorSpec
from cudnnpy.convolution import graph
from cudnnpy.convolution.epilogue import Executable, in_turn, make_epilogue
from cudnnpy.convolution.problem import Problem, extent, result_strides
from cudnnpy.descriptors import TensorDescriptor
from cudnnpy.dtypes import dtype_of
from cudnnpy.handle import Handle

_ROLES = {"x": "x", "dx": "x", "w": "w", "dw": "w", "y": "y", "dy": "y", "bias": "bias"}


class Form(NamedTuple):
    """A whole problem, and the part of it that one plan computes."""

    whole: Problem
    part: Problem

    @property
    def is_whole(self) -> bool:
        """Whether the plan is all there is to it."""
        return self.whole == self.part

    @property
    def suffix(self) -> str:
        """What is done beside the plan, for a candidate's name."""
        copies = any(_differ(self, name) for name in self.part.operands)
        epilogue = (self.whole.bias, self.whole.activation) != (self.part.bias, self.part.activation)
        return (" + copies" if copies else "") + (" + epilogue" if epilogue else "")

    def complete(self, plan: Executable, target: graph.Target) -> Executable:
        """The plan of the part with everything else that the whole needs."""
        return plan if self.is_whole else Staged(self, plan, target)


def forms(problem: Problem) -> Iterator[Form]:
    """The ways to lay a problem out, the fewest launches first."""
    plain = problem._replace(bias=None, activation=None, beta=0.0)
    packed = plain._replace(x=_packed(plain.x), w=_packed(plain.w), y=_packed(plain.y))
    result = _ROLES[problem.operands[-1]]
    parts = [plain, packed] if problem.beta == 0.0 else [plain._replace(**{result: getattr(packed, result)}), packed]
    if problem.beta == 0.0 and plain != problem:
        parts.insert(0, problem)
    if any(dtype_of(spec.dtype).itemsize == 1 for spec in problem.specs):
        parts = [part for part in parts if not any(_differ(Form(problem, part), name) for name in part.operands)]
    for part in dict.fromkeys(parts):
        yield Form(problem, part)


def _packed(spec: TensorSpec) -> TensorSpec:
    if extent(spec) == math.prod(spec.shape) * dtype_of(spec.dtype).itemsize:
        return spec
    return spec._replace(strides=result_strides(spec.shape, spec), alignment=16)


def _differ(form: Form, name: str) -> bool:
    """Whether an operand goes through scratch memory: another layout, or a result to which beta is to be applied."""
    role = _ROLES[name]
    accumulates = name == form.part.operands[-1] and form.whole.beta != form.part.beta
    return accumulates or getattr(form.whole, role) != getattr(form.part, role)


class Staged:
    """Copies of inputs into scratch memory, the plan, a copy of its result back, and the epilogue: what is needed of these."""

    def __init__(self, form: Form, plan: Executable, target: graph.Target) -> None:
        self._form, self._plan = form, plan
        whole, part = form
        self._scratch = {name: extent(getattr(part, _ROLES[name])) for name in part.operands if _differ(form, name)}
        self.workspace_size = _round(plan.workspace_size) + sum(map(_round, self._scratch.values()))
        self._scale: Any = c_double if whole.compute_dtype == "float64" else c_float
        self._epilogue: Executable | None = None
        if (whole.bias, whole.activation) != (part.bias, part.activation):
            self._epilogue = make_epilogue(whole.y, whole.bias, whole.activation, target)

    def bind(self, handle: Handle, pointers: tuple[int, ...], workspace: int) -> Callable[[], int]:
        """One launch of all steps."""
        whole, part = self._form
        given = dict(zip(whole.operands, pointers, strict=True))
        used, at = dict(given), workspace + _round(self._plan.workspace_size)
        for name, size in self._scratch.items():
            used[name], at = at, at + _round(size)
        *inputs, result = part.operands
        steps = [
            self._copy(handle, name, given[name], used[name], 0.0, back=False)
            for name in inputs
            if name in self._scratch
        ]
        steps.append(self._plan.bind(handle, tuple(used[name] for name in part.operands), workspace))
        if result in self._scratch:
            steps.append(self._copy(handle, result, used[result], given[result], whole.beta, back=True))
        if self._epilogue is not None:
            bias = () if whole.bias is None else (given["bias"],)
            steps.append(self._epilogue.bind(handle, (given[result], *bias, given[result]), 0))
        return in_turn(steps)

    def _copy(
        self, handle: Handle, name: str, source: int, target: int, beta: float, *, back: bool
    ) -> Callable[[], int]:
        """cudnnTransformTensor between an operand's own layout and the plan's: target = source + beta * target."""
        role = _ROLES[name]
        specs = getattr(self._form.whole, role), getattr(self._form.part, role)
        first, second = (_described(spec) for spec in (reversed(specs) if back else specs))
        one, scale = self._scale(1.0), self._scale(beta)
        transform = raw.bound("cudnnTransformTensor")
        copy = partial(
            transform, handle.pointer, byref(one), first.pointer, source, byref(scale), second.pointer, target
        )
        copy.owners = (first, second, one, scale)  # type: ignore[attr-defined]  # alive as long as the call
        return copy


def _round(size: int) -> int:
    return -(-size // 256) * 256


def _described(spec: TensorSpec) -> TensorDescriptor:
    shape, strides = graph.with_height(spec)
    return TensorDescriptor(shape, spec.dtype, strides=strides)
