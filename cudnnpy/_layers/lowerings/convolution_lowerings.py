"""Lower a convolution problem to launches: one plan if cuDNN supports it, else copies, a plan without fusion, an epilogue.

Lowerings avoid the known issues of engines (_planning/known_issues.json):

- beta: the plan writes to scratch memory, and cudnnTransformTensor adds beta * out to its result. Results with gaps
  between their elements are lowered in the same way.
- uneven padding in gradients: zeros are added around x, and dx is cropped.
- a fused bias or activation with tensors of mixed memory formats or at misaligned addresses: it is not fused.

No engine (up to 9.28) fuses a bias or an activation into backward_data, as a transposed convolution's forward needs it, and
no engine takes filters with gaps, which are copied. Three further lowerings can be faster:

- a space-to-depth transformation of strided convolutions of few channels (below);
- copies of channels-first tensors to channels last, in half precision and for depthwise convolutions;
- gradients with respect to x of depthwise convolutions as forward convolutions with the filter flipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from cudnnpy import raw
from cudnnpy._convolution.notation import words_of
from cudnnpy._convolution.sizes import Geometry
from cudnnpy._convolution.specification import ROLES, ConvolutionSpec, with_normalized_strides
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import (
    MAX_TENSOR_ELEMENTS,
    TensorSpec,
    are_channels_last,
    channels_last_strides,
    is_dense,
    is_only_channels_last,
    is_packed,
    packed_strides,
    result_strides,
)
from cudnnpy._launch.program import StepBuilder, Tensor
from cudnnpy._launch.steps import (
    Executable,
    FunctionCall,
    OperandAddress,
    StepSequence,
    scaling_arguments,
    tensor_descriptor,
)
from cudnnpy._planning import known_issues
from cudnnpy._planning.choice import LOWERING_OPTIONS
from cudnnpy._planning.engines import GraphExecutable, Target, heuristics
from cudnnpy._planning.known_issues import ProblemTraits
from cudnnpy.backend import Descriptor
from cudnnpy.descriptors import ActivationDescriptor, TensorTransformDescriptor
from cudnnpy.errors import StatusError
from cudnnpy.graph.convolutions import convolution_graph, epilogue_graph, uids
from cudnnpy.graph.descriptors import build_graph
from cudnnpy.handle import Handle
from cudnnpy.names import enumerator
from cudnnpy.raw import CUDNN_TENSOR_NCHW, CUDNN_TENSOR_NHWC, CUDNN_TRANSFORM_FOLD, CUDNN_TRANSFORM_UNFOLD

_IMAGE_AXES = 2  # maximum of spatial axes; with three, depthwise convolutions run on other kernels


# Space-to-depth: strided convolutions of few channels become convolutions of stride 1
#
# cuDNN's engines pad three channels to four or eight, and no engine is fast for the gradient with respect to such an x.
# The transformation makes channels of blocks of s x t pixels, where s and t are the strides: x of (N, C, H, W), zero-padded,
# becomes (N, s t C, H', W'), and w of (K, C, R, S), zero-padded to whole blocks, becomes (K, s t C, R', S'). Then
#
#     y[i] = sum over r of x[s i + r] w[r] = sum over j, p of x'[i + j, p] w'[j, p]        where r = s j + p
#
# is a convolution of stride 1 without padding, and so are its gradients, to which the inverse transformation is applied.
# cudnnTransformTensorEx computes both at the speed of memory (CUDNN_TRANSFORM_FOLD and _UNFOLD, which also pad and crop).
# It determines the order of the new channels, which is the same for x and w.
#
# On an H200 (docs/benchmarks) the gradient with respect to the image of a ResNet takes 0.36 to 0.5 of the time of the best
# engine without this transformation, its first convolution in bfloat16 0.55, and a convolution with 16 x 16 patches 0.14
# (its gradient with respect to the image takes 62 us instead of 1.4 s). Since the padding of w is multiplied by x, a NaN or
# an infinity in x spreads within its block.

_CHANNELS = 4  # maximum of x's channels; with more, engines add little padding
_MIN_BYTES = 1 << 20  # minimum of x's bytes; below, two or three more launches cost more than they save


class SpaceToDepth(NamedTuple):
    """A space-to-depth transformation: the padding before and after, and the size of blocks, on each spatial axis.

    Padding below 0 crops. With blocks of size 1 the transformation only pads.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    block: tuple[int, ...]

    def of(self, spec: TensorSpec) -> TensorSpec:
        """Return the transformed tensor, packed in the memory format of the given one."""
        n, c, *spatial = spec.shape
        padded = (b + size + a for b, size, a in zip(self.before, spatial, self.after, strict=True))
        sizes = (size // length for size, length in zip(padded, self.block, strict=True))
        shape = (n, c * math.prod(self.block), *sizes)
        packed = channels_last_strides if is_only_channels_last(spec) else packed_strides
        return spec._replace(shape=shape, strides=packed(shape), alignment=16)

    def to_depth(self, whole: TensorSpec) -> Transform:
        """Return the transformation of operand 0, `whole`, to operand 1."""
        return Transform(self, whole, CUDNN_TRANSFORM_FOLD, 0.0)

    def to_space(self, whole: TensorSpec, beta: float = 0.0) -> Transform:
        """Return the inverse transformation of operand 0, plus beta * whole, to operand 1, `whole`."""
        return Transform(self, whole, CUDNN_TRANSFORM_UNFOLD, beta)


class Transform:
    """A launch of cudnnTransformTensorEx. Its descriptor needs a driver, so it is created when it is first bound."""

    workspace_size = 0

    def __init__(self, transform: SpaceToDepth, whole: TensorSpec, direction: int, beta: float) -> None:
        self.transform, self.whole, self.direction, self.beta = transform, whole, direction, beta

    @cached_property
    def function(self) -> FunctionCall:
        """The call of the C function."""
        folds, transform = self.direction == CUDNN_TRANSFORM_FOLD, self.transform
        x, y = (self.whole, transform.of(self.whole)) if folds else (transform.of(self.whole), self.whole)
        spatial = max(len(self.whole.shape) - 2, 2)
        height = spatial - len(transform.block)  # a single axis is the width of an image of height 1
        sign = 1 if folds else -1  # the inverse crops the padding
        how = TensorTransformDescriptor()
        how.set(
            "cudnnSetTensorTransformDescriptor",
            2 + spatial,
            CUDNN_TENSOR_NHWC if is_only_channels_last(self.whole) else CUDNN_TENSOR_NCHW,
            (*(0,) * (2 + height), *(sign * size for size in transform.before)),
            (*(0,) * (2 + height), *(sign * size for size in transform.after)),
            (*(1,) * height, *transform.block),
            self.direction,
        )
        one, beta = scaling_arguments(1.0, self.beta, self.whole.dtype)
        tensors = one, tensor_descriptor(x), OperandAddress(0), beta, tensor_descriptor(y), OperandAddress(1)
        return FunctionCall("cudnnTransformTensorEx", how, *tensors)

    def bind(self, handle: Handle, addresses: tuple[int, ...], workspace: int) -> Callable[[], int]:
        """Return the launch on these addresses."""
        return self.function.bind(handle, addresses, workspace)


def can_transform(spec: TensorSpec) -> bool:
    """Return whether cudnnTransformTensorEx supports a tensor: packed in either memory format, and aligned."""
    return is_packed(spec) and spec.alignment >= 16 and dtype_of(spec.dtype).itemsize > 1


def with_space_to_depth(problem: ConvolutionSpec) -> tuple[ConvolutionSpec, SpaceToDepth, SpaceToDepth] | None:
    """Return the transformed problem, and the transformations of x and w; None where it is not supported or not faster."""
    x, w, g = problem.x, problem.w, problem.geometry
    elements = math.prod(x.shape)
    if x.shape[1] > _CHANNELS or elements * dtype_of(x.dtype).itemsize < _MIN_BYTES or elements > MAX_TENSOR_ELEMENTS:
        return None
    if problem.groups > 1 or problem.mode != "cross_correlation" or any(step > 1 for step in g.dilation):
        return None
    if all(step == 1 for step in g.stride) or any(r < step for r, step in zip(w.shape[2:], g.stride, strict=True)):
        return None
    if not (can_transform(x) and can_transform(w) and is_only_channels_last(x) == is_only_channels_last(w)):
        return None
    blocks = [-(-size // step) for size, step in zip(w.shape[2:], g.stride, strict=True)]
    reach = [step * (out + count - 1) for step, out, count in zip(g.stride, problem.y.shape[2:], blocks, strict=True)]
    after = tuple(end - size - pad for end, size, pad in zip(reach, x.shape[2:], g.pre_padding, strict=True))
    if any(size < 0 for size in after):  # the result does not depend on all of x
        return None
    no_padding, one = (0,) * len(blocks), (1,) * len(blocks)
    of_x = SpaceToDepth(g.pre_padding, after, g.stride)
    rest = (step * count - size for step, count, size in zip(g.stride, blocks, w.shape[2:], strict=True))
    of_w = SpaceToDepth(no_padding, tuple(rest), g.stride)
    part = problem._replace(x=of_x.of(x), w=of_w.of(w), geometry=Geometry(no_padding, no_padding, one, one))
    return part, of_x, of_w


# Lowerings


class ConvolutionLowering(NamedTuple):
    """A lowering: the whole problem, the part that one plan computes, and the transformations of x and w."""

    whole: ConvolutionSpec
    part: ConvolutionSpec
    x_transform: SpaceToDepth | None = None
    w_transform: SpaceToDepth | None = None
    channels_last_copies: bool = False  #: whether tensors that are channels first are copied to channels last, and back
    flipped_forward: bool = False  #: whether a gradient with respect to x is computed as a forward, without copies

    @property
    def is_whole(self) -> bool:
        """Whether the plan computes the whole problem."""
        return self.whole == self.part

    @property
    def suffix(self) -> str:
        """The suffix of candidates' names, which lists the conversions around the plan."""
        if self.flipped_forward:
            return " + forward"
        end = " + epilogue" if self.has_epilogue else ""
        if self.channels_last_copies:  # the suffix implies "copies"
            return f" + channels last{end}"
        blocks = " + blocks" if self.space_to_depth else ""
        copies = any(_needs_scratch(self, n) for n in self.part.operands if not (blocks and ROLES[n] in ("x", "w")))
        return blocks + (" + copies" if copies else "") + end

    @property
    def has_epilogue(self) -> bool:
        """Whether the bias or the activation is applied after the plan."""
        return (self.whole.bias, self.whole.activation) != (self.part.bias, self.part.activation)

    @property
    def space_to_depth(self) -> bool:
        """Whether x and w are transformed by space-to-depth."""
        return self.w_transform is not None

    @property
    def lowering_options(self) -> dict[str, bool]:
        """The options of an Engine that runs on it."""
        return {name: True for name in LOWERING_OPTIONS if getattr(self, name, False)}

    def build_graph(self, target: Target) -> Descriptor:
        """Return the part's operation graph. Raises StatusError if cuDNN rejects it."""
        return target.memoize("graph", self.part, make=lambda: build_graph(convolution_graph(self.part), target))

    def executable(self, plan: Descriptor, target: Target) -> Executable:
        """Return the executable of the whole problem for an execution plan of the part."""
        return self.complete(GraphExecutable(plan, uids(self.part.operands)), target)

    @property
    def traits(self) -> ProblemTraits:
        """The properties of the part that known issues of engines depend on."""
        return self.part.traits

    @property
    def is_deterministic(self) -> bool:
        """True: the functions around the part are deterministic."""
        return True

    @property
    def part_text(self) -> str:
        """The part in the notation; "" if it is the whole problem."""
        return "" if self.is_whole else " ".join(words_of(self.part))

    def complete(self, plan: Executable, target: Target) -> Executable:
        """Return the executable of the whole problem for an executable of the part."""
        return plan if self.is_whole or self.flipped_forward else _steps(self, plan, target)


def lowerings(problem: ConvolutionSpec) -> Iterator[ConvolutionLowering]:
    """Yield the lowerings of a problem, by ascending number of launches; then others, for rankings and measurements."""
    plain = problem._replace(bias=None, activation=None, beta=0.0)
    result = ROLES[problem.operands[-1]]
    plain = plain._replace(**{result: _packed(getattr(plain, result))})  # type: ignore[arg-type]
    remedies = known_issues.remedies(problem.traits)
    in_one = problem.operation == "forward" and problem.beta == 0.0 and plain.y == problem.y
    in_one = in_one and "not fused" not in remedies
    wholes = dict.fromkeys([problem, plain][not in_one :])
    space_to_depth = [
        ConvolutionLowering(problem, *blocks) for whole in wholes if (blocks := with_space_to_depth(whole)) is not None
    ]
    if "padded" in remedies:
        plain = _padded(plain)
    packed = plain._replace(x=_packed(plain.x), w=_packed(plain.w), y=_packed(plain.y))
    tried = [problem, plain, packed] if in_one else [plain, packed]
    parts = dict.fromkeys(map(with_normalized_strides, tried))
    found = [
        ConvolutionLowering(problem, part, _padding(problem) if part.x.shape != problem.x.shape else None)
        for part in parts
    ]
    if any(dtype_of(spec.dtype).itemsize == 1 for spec in problem.specs):  # cudnnTransformTensor does not copy these
        found = [
            lowering for lowering in found if not any(_needs_scratch(lowering, name) for name in lowering.part.operands)
        ]
    yield from found + space_to_depth
    forward = _as_forward(problem)
    if forward is not None:
        yield ConvolutionLowering(problem, with_normalized_strides(forward), flipped_forward=True)
    last = _channels_last(plain) if plain.x.shape == problem.x.shape else None
    if last is not None and last not in parts:
        yield ConvolutionLowering(problem, last, channels_last_copies=True)


def _channels_last(problem: ConvolutionSpec) -> ConvolutionSpec | None:
    """Return the problem with every tensor channels last; None where this is not known to be faster.

    By a survey of convolutions of networks on an H200, 17 of 34 in half precision would take 0.42 to 0.95 of the time if they
    were channels last and the copies took no longer than reading and writing memory does.
    """
    tensors = {name: getattr(problem, name) for name in ("x", "w", "y")}
    if dtype_of(problem.x.dtype).itemsize != 2 and not (problem.x.dtype == "float32" and problem.is_depthwise):
        return None
    is_too_large = any(math.prod(spec.shape) > MAX_TENSOR_ELEMENTS for spec in tensors.values())
    if is_too_large or are_channels_last(problem.x, problem.y):
        return None
    last = {
        name: spec._replace(strides=channels_last_strides(spec.shape), alignment=16) for name, spec in tensors.items()
    }
    return with_normalized_strides(problem._replace(**last))


def _as_forward(problem: ConvolutionSpec) -> ConvolutionSpec | None:
    """Return the gradient with respect to x of a depthwise convolution as a forward convolution with the filter flipped.

    None for other problems, with tensors that need copies, with three spatial axes, and channels last, where both operations
    have engines for depthwise convolutions. Channels first, engine 0 takes 0.78 of the time as forward on an H200 with cuDNN
    9.19, and 0.93 at most (32 problems of networks, filters of 3 to 31); with three axes, 1.37 (2 problems).
    """
    g, sizes = problem.geometry, problem.w.shape[2:]
    is_possible = (
        problem.operation == "backward_data"
        and problem.is_depthwise
        and problem.w.shape[0] == problem.x.shape[1]
        and set(g.stride) == {1}
        and problem.axes <= _IMAGE_AXES
        and (problem.bias, problem.activation, problem.beta) == (None, None, 0.0)
        and all(map(is_dense, problem.specs))
        and not are_channels_last(problem.x, problem.y)
    )
    reach = [dilation * (size - 1) for dilation, size in zip(g.dilation, sizes, strict=True)]
    before, after = (
        tuple(most - padding for most, padding in zip(reach, paddings, strict=True))
        for paddings in (g.pre_padding, g.post_padding)
    )
    if not is_possible or min(before + after) < 0:
        return None
    return problem._replace(
        operation="forward",
        x=problem.y,
        y=problem.x,
        geometry=g._replace(pre_padding=before, post_padding=after),
        mode="convolution" if problem.mode == "cross_correlation" else "cross_correlation",
    )


def _padded(problem: ConvolutionSpec) -> ConvolutionSpec:
    """Return the problem with zeros around x instead of padding."""
    g = problem.geometry
    no_padding, x = (0,) * len(g.stride), _padding(problem).of(_transformable(problem.x))
    return problem._replace(x=x, geometry=g._replace(pre_padding=no_padding, post_padding=no_padding))


def _padding(problem: ConvolutionSpec) -> SpaceToDepth:
    g = problem.geometry
    return SpaceToDepth(g.pre_padding, g.post_padding, (1,) * len(g.stride))


def _transformable(spec: TensorSpec) -> TensorSpec:
    """Return the tensor that cudnnTransformTensorEx takes: the given one, or a packed copy if it does not support that."""
    return spec if can_transform(spec) else spec._replace(strides=result_strides(spec.shape, spec), alignment=16)


def _packed(spec: TensorSpec) -> TensorSpec:
    if is_dense(spec):
        return spec
    return spec._replace(strides=result_strides(spec.shape, spec), alignment=16)


def _needs_scratch(lowering: ConvolutionLowering, name: str) -> bool:
    """Return whether the plan takes an operand in scratch memory: for another memory format or shape, or for beta."""
    role = ROLES[name]
    accumulates = name == lowering.part.operands[-1] and lowering.whole.beta != lowering.part.beta
    return accumulates or getattr(lowering.whole, role) != getattr(lowering.part, role)


def _steps(lowering: ConvolutionLowering, plan: Executable, target: Target) -> StepSequence:
    """Return the steps of a lowering: copies of inputs to scratch memory, the plan, a copy of its result, the epilogue."""
    whole, part = lowering.whole, lowering.part
    builder = StepBuilder(dict(zip(whole.operands, whole.specs, strict=True)))
    transforms = {"x": lowering.x_transform, "w": lowering.w_transform}
    chains: dict[str, list[Tensor]] = {}  # from each operand to the tensor in scratch memory that the plan takes
    for name in part.operands:
        chain = chains[name] = [builder.operands[name]]
        if _needs_scratch(lowering, name):
            if transforms.get(ROLES[name]) is not None and not can_transform(chain[0].spec):  # first a packed tensor
                chain.append(builder.scratch(_transformable(chain[0].spec)))
            chain.append(builder.scratch(getattr(part, ROLES[name])))
    *inputs, result = part.operands
    for name in inputs:
        for source, copied in pairwise(chains[name]):
            transform = transforms.get(ROLES[name]) if copied is chains[name][-1] else None
            if transform is None:
                builder.copy(source, copied)
            else:
                builder.add(transform.to_depth(source.spec), source, copied)
    builder.add(plan, *(chain[-1] for chain in chains.values()))
    for copied, source in reversed([*pairwise(chains[result])]):
        transform = transforms.get(ROLES[result]) if source is chains[result][-1] else None
        beta = whole.beta if copied is chains[result][0] else 0.0
        if transform is None:
            builder.copy(source, copied, beta=beta)
        else:
            builder.add(transform.to_space(copied.spec, beta), source, copied)
    if lowering.has_epilogue:
        add_epilogue(builder, builder.operands[result], builder.operands.get("bias"), whole.activation, target)
    return builder.sequence()


def add_epilogue(
    builder: StepBuilder, result: Tensor, bias: Tensor | None, activation: str | None, target: Target
) -> None:
    """Add the steps of a bias and an activation: a graph if the result is channels last, else a v7 function for each.

    The graph is planned once for a target: its engine is compiled at run time, which takes 0.2 s or more.
    """
    y, row = result.spec, None if bias is None else bias.spec
    tensors = (result,) if bias is None else (result, bias)
    if y.strides == channels_last_strides(y.shape):
        planned = target.memoize("epilogue", y, row, activation, make=lambda: _planned(y, row, activation, target))
        if planned is not None:
            builder.add(planned, *tensors, result)
            return
    d, (one, zero) = tensor_descriptor(y), scaling_arguments(1.0, 0.0, y.dtype)
    if row is not None:
        shape = (1, y.shape[1], *(1 for _ in y.shape[2:]))
        spread = tensor_descriptor(TensorSpec(shape, row.dtype, packed_strides(shape)))
        add = FunctionCall("cudnnAddTensor", one, spread, OperandAddress(1), one, d, OperandAddress(0))
        builder.add(add, *tensors)
    if activation is not None:
        beta = 1.0 if activation == "swish" else None
        mode = enumerator(raw.cudnnActivationMode_t, activation, "activation")
        how = ActivationDescriptor(mode, coefficient=1.0, propagate_nan=True, swish_beta=beta)
        activate = FunctionCall("cudnnActivationForward", how, one, d, OperandAddress(0), zero, d, OperandAddress(0))
        builder.add(activate, result)


def _planned(y: TensorSpec, bias: TensorSpec | None, activation: str | None, target: Target) -> GraphExecutable | None:
    """Return the first executable of the graph that needs no workspace; None if there is none."""
    operands = ("convolved", "y") if bias is None else ("convolved", "bias", "y")
    for configuration in heuristics(build_graph(epilogue_graph(y, bias, activation), target), target):
        try:
            executable = GraphExecutable(configuration.finalize(), uids(operands))
        except StatusError:
            continue
        if not executable.workspace_size:
            return executable
    return None
