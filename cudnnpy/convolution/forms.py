"""How a problem can be laid out as launches: one plan where cuDNN can, else copies, a plain plan, and an epilogue.

What no plan is asked for, since some of cuDNN's engines offer it and do it wrong (an H200 with cuDNN 9.19, found by the
property tests; docs/gpu.md):

- beta: engines for strided or grouped backward convolutions leave elements without it. The plain result goes to scratch
  memory, and cudnnTransformTensor adds it to what is there. Results with gaps between their elements likewise.
- padding that differs before and after, for the gradients: engines without tensor cores, and those by FFT, take one for
  the other. The padding becomes zeros around x; a gradient to x is cropped to what is wanted.
- a fused bias or activation where some tensors are channels last and others are not: engines compiled at run time
  misread the filter. The convolution is left plain.

Filters with gaps no engine takes: they are copied too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cudnnpy.convolution.epilogue import epilogue
from cudnnpy.convolution.problem import Problem
from cudnnpy.dtypes import dtype_of
from cudnnpy.engines import Target
from cudnnpy.layouts import TensorSpec, channels_last_strides, extent, is_dense, packed_strides, result_strides
from cudnnpy.programs import At, Executable, Function, Step, Steps, copy, described, scales

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
        finished = (self.whole.bias, self.whole.activation) != (self.part.bias, self.part.activation)
        return (" + copies" if copies else "") + (" + epilogue" if finished else "")

    def complete(self, plan: Executable, target: Target) -> Executable:
        """The plan of the part with everything else that the whole needs."""
        return plan if self.is_whole else _staged(self, plan, target)


def forms(problem: Problem) -> Iterator[Form]:
    """The ways to lay a problem out, the fewest launches first."""
    plain = problem._replace(bias=None, activation=None, beta=0.0)
    result = _ROLES[problem.operands[-1]]
    plain = plain._replace(**{result: _packed(getattr(plain, result))})  # type: ignore[arg-type]
    if problem.operation != "forward":
        plain = _padded(plain)
    packed = plain._replace(x=_packed(plain.x), w=_packed(plain.w), y=_packed(plain.y))
    in_one = problem.operation == "forward" and problem.beta == 0.0 and plain.y == problem.y and _agree(problem)
    if problem.bias is not None or problem.activation is not None:  # fused engines misread other addresses
        in_one = in_one and all(spec.alignment >= 16 for spec in problem.specs)
    parts = [problem, plain, packed] if in_one else [plain, packed]
    if any(dtype_of(spec.dtype).itemsize == 1 for spec in problem.specs):  # which cudnnTransformTensor does not copy
        parts = [part for part in parts if not any(_differ(Form(problem, part), name) for name in part.operands)]
    for part in dict.fromkeys(parts):
        yield Form(problem, part)


def _agree(problem: Problem) -> bool:
    """Whether the tensors of a convolution are all channels last, or none of them is."""
    tensors = problem.x, problem.w, problem.y
    last = [t.strides == channels_last_strides(t.shape) != packed_strides(t.shape) for t in tensors]
    first = [t.strides != channels_last_strides(t.shape) for t in tensors]
    return not (any(last) and any(first))


def _padded(problem: Problem) -> Problem:
    """The problem with its padding as zeros around x, if the padding differs before and after."""
    g = problem.geometry
    if g.pre_padding == g.post_padding:
        return problem
    sizes = (n + a + b for n, a, b in zip(problem.x.shape[2:], g.pre_padding, g.post_padding, strict=True))
    shape = (*problem.x.shape[:2], *sizes)
    x = problem.x._replace(shape=shape, strides=result_strides(shape, problem.x), alignment=16)
    nothing = (0,) * len(g.stride)
    return problem._replace(x=x, geometry=g._replace(pre_padding=nothing, post_padding=nothing))


def _packed(spec: TensorSpec) -> TensorSpec:
    if is_dense(spec):
        return spec
    return spec._replace(strides=result_strides(spec.shape, spec), alignment=16)


def _differ(form: Form, name: str) -> bool:
    """Whether an operand goes through scratch memory: another layout, or a result to which beta is to be applied."""
    role = _ROLES[name]
    accumulates = name == form.part.operands[-1] and form.whole.beta != form.part.beta
    return accumulates or getattr(form.whole, role) != getattr(form.part, role)


def _staged(form: Form, plan: Executable, target: Target) -> Steps:
    """Copies of inputs into scratch memory, the plan, a copy of its result back, and the epilogue: what is needed of these."""
    whole, part = form
    places = {name: at for at, name in enumerate(whole.operands)}
    used = dict(places)
    scratch: list[int] = []
    before: list[Step] = []
    after: list[Step] = []
    for name in part.operands:
        if not _differ(form, name):
            continue
        used[name] = len(places) + len(scratch)
        outside, spec = getattr(whole, _ROLES[name]), getattr(part, _ROLES[name])
        scratch.append(extent(spec))
        inside, offset = _inside(form, spec, outside.shape)
        if name == part.operands[-1]:
            back = copy(inside, outside, beta=whole.beta, x_offset=offset)
            after.append(Step(back, (used[name], places[name])))
            continue
        if inside.shape != spec.shape:
            zero, _ = scales(0.0, 0.0, spec.dtype)
            before.append(Step(Function("cudnnSetTensor", described(spec), At(0), zero), (used[name],)))
        before.append(Step(copy(outside, inside, y_offset=offset), (places[name], used[name])))
    if (whole.bias, whole.activation) != (part.bias, part.activation):
        result = tuple(places[name] for name in ("y", "bias") if name in places)
        after += epilogue(whole.y, whole.bias, whole.activation, target, result)
    step = Step(plan, tuple(used[name] for name in part.operands))
    return Steps([*before, step, *after], scratch)


def _inside(form: Form, spec: TensorSpec, shape: tuple[int, ...]) -> tuple[TensorSpec, int]:
    """Of x with zeros around it, or of its gradient with what is of no use: what counts, and how many bytes in it begins.

    Any other tensor is all there is.
    """
    if spec.shape == shape:
        return spec, 0
    assert spec.strides is not None
    before = zip(form.whole.geometry.pre_padding, spec.strides[2:], strict=True)
    offset = sum(count * stride for count, stride in before) * dtype_of(spec.dtype).itemsize
    return spec._replace(shape=shape), offset
