"""What hypothesis draws for the GPU tests: a convolution with its arrays, and how they lie in memory.

A `Drawn` is the whole of one case: its repr, pasted into a test, makes the same arrays and the same call again.
Shapes are logical, (N, C, spatial...), here; arrays are in the axis order that the drawn layout asks for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from tolerance import allowed

import cudnnpy
from cudnnpy import reference
from cudnnpy.reference.activation import ACTIVATIONS

DEVICE = "cuda"
BAND = 512  # bytes before and after every tensor that must stay as they are
FILLER = 0xA5  # around results and workspace
NOT_A_NUMBER = 0xFF  # every float type is NaN in these bytes: around inputs, and in what is to be overwritten

INPUTS = {"forward": ("x", "w"), "backward_data": ("dy", "w"), "backward_filter": ("dy", "x"), "backward_bias": ("dy",)}
RESULTS = {"forward": "y", "backward_data": "x", "backward_filter": "w", "backward_bias": "b"}


@dataclass(frozen=True)
class Memory:
    """How one tensor lies: which axes are slowest, gaps (axes cut from longer ones, every step-th taken), first element.

    `ones` is the stride of axes of size 1, if it is not that of the memory order.
    """

    channels_last: bool = False
    extra: tuple[int, ...] = ()
    step: tuple[int, ...] = ()
    offset: int = 0
    ones: int | None = None

    @property
    def has_gaps(self) -> bool:
        return any(self.extra) or any(step > 1 for step in self.step)

    def strides(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Strides of a logical shape, in elements."""
        rank = len(shape)
        extra, step = self.extra or (0,) * rank, self.step or (1,) * rank
        whole = [size * s + e for size, s, e in zip(shape, step, extra, strict=True)]
        order = [0, *range(2, rank), 1] if self.channels_last and rank > 2 else list(range(rank))
        strides, reach = [0] * rank, 1
        for axis in reversed(order):
            strides[axis] = self.ones if self.ones is not None and shape[axis] == 1 else reach * step[axis]
            reach *= whole[axis]
        return tuple(strides)


class Placed:
    """A tensor somewhere inside a larger buffer, whose every other byte is a filler."""

    def __init__(self, values: torch.Tensor, strides: Sequence[int], offset: int, filler: int) -> None:
        size = values.element_size()
        reach = 1 + sum((max(n, 1) - 1) * s for n, s in zip(values.shape, strides, strict=True))
        count = BAND // size * 2 + offset + reach
        buffer = torch.full((-(-count * size // 256) * 256,), filler, dtype=torch.uint8)
        self.mask = torch.zeros(buffer.numel() // size, dtype=torch.bool)
        start = BAND // size + offset
        self.mask.as_strided(values.shape, strides, start)[...] = True
        buffer.view(values.dtype).as_strided(values.shape, strides, start).copy_(values)
        self.before = buffer
        self.buffer = buffer.to(DEVICE, copy=True)
        self.tensor = self.buffer.view(values.dtype).as_strided(values.shape, strides, start)

    def restore(self) -> None:
        """Puts every byte back."""
        self.buffer.copy_(self.before)

    def changed(self) -> bool:
        """Whether any byte, of the tensor or around it, is another than at first."""
        return not torch.equal(self.buffer.cpu(), self.before)

    def changed_outside(self) -> int:
        """How many bytes around the tensor, or in its gaps, are others than at first."""
        size = self.tensor.element_size()
        differs = (self.buffer.cpu() != self.before).view(-1, size).any(1)
        return int((differs & ~self.mask).sum())

    def numpy(self) -> np.ndarray:
        """The tensor's values, exactly, in float64."""
        return to_float64(self.tensor)


class GuardedWorkspace:
    """An allocator for cudnnpy.set_allocator: every buffer is NaN, and lies between bands that must not change."""

    def __init__(self) -> None:
        self.buffers: list[tuple[torch.Tensor, int]] = []

    def __call__(self, size: int, device: int = 0, stream: int = 0) -> torch.Tensor:
        buffer = torch.full((BAND + size + BAND,), FILLER, dtype=torch.uint8, device=DEVICE)
        inside = buffer[BAND : BAND + size]
        inside.fill_(NOT_A_NUMBER)
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        self.buffers.append((buffer, size))
        return inside

    def changed_outside(self) -> int:
        """How many bytes around the buffers were changed."""
        return sum(
            int((buffer[:BAND] != FILLER).sum() + (buffer[BAND + size :] != FILLER).sum())
            for buffer, size in self.buffers
        )


def to_float64(tensor: torch.Tensor) -> np.ndarray:
    """A tensor's values as NumPy's float64, which holds them all exactly."""
    return tensor.detach().cpu().to(torch.float64).numpy()


@dataclass(frozen=True)
class Drawn:
    """One operation of one convolution, on arrays that are made from `seed`."""

    operation: str
    x_shape: tuple[int, ...]
    w_shape: tuple[int, ...]
    dtype: str = "float32"
    transpose: bool = False
    padding: Any = 0
    stride: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    output_padding: tuple[int, ...] = ()
    groups: int = 1
    mode: str = "cross_correlation"
    layout: str = "NCHW"
    memory: tuple[Memory, Memory, Memory] = (Memory(), Memory(), Memory())  # of the inputs and the result
    with_out: bool = False
    alpha: float = 1.0
    beta: float = 0.0
    bias: bool = False
    activation: str | None = None
    prefer: str = "fastest"
    workspace_limit: int | None = None
    deterministic: bool = False
    tf32: bool = True
    whole_numbers: bool = False
    stream: str = "current"
    repeats: int = 1
    seed: int = 0

    @property
    def channels_last(self) -> bool:
        return self.layout.endswith("C")

    @property
    def memories(self) -> tuple[Memory, ...]:
        """How those arrays lie that there are."""
        return (*self.memory[: len(INPUTS[self.operation])], *self.memory[2 : 2 + self.with_out])

    @property
    def is_empty(self) -> bool:
        """Whether there are no products: a batch of 0, or no channels in x."""
        return 0 in self.x_shape[:2]

    @property
    def has_plan(self) -> bool:
        """Whether something is chosen: sums over no channels are those of a convolution of zeros."""
        return not self.is_empty or (self.operation == "forward" and self.x_shape[0] > 0)

    @property
    def is_filtered(self) -> bool:
        """Whether the options rule candidates out."""
        limited = self.prefer == "no_workspace" or self.workspace_limit is not None
        return limited or self.deterministic or (self.dtype == "float32" and not self.tf32)

    @property
    def is_plain(self) -> bool:
        """No filters, no gaps, aligned addresses: there, a refusal is rare."""
        return not self.is_filtered and not any(m.has_gaps or m.offset for m in self.memories)

    def of(self, package: Any) -> Any:
        """The operation's object: of cudnnpy, or of cudnnpy.reference."""
        options: dict[str, Any] = {
            "padding": self.padding,
            "stride": self.stride or 1,
            "dilation": self.dilation or 1,
            "groups": self.groups,
            "mode": self.mode,
            "layout": self.layout,
            "prefer": self.prefer,
            "workspace_limit": self.workspace_limit,
            "deterministic": self.deterministic,
            "tf32": self.tf32,
            "tune_seconds": 0.2,
        }
        if self.transpose:
            return package.ConvolutionTranspose(**options, output_padding=self.output_padding or 0)
        return package.Convolution(**options)

    def shape(self, name: str) -> tuple[int, ...]:
        """The logical shape of an array by its name."""
        if name in ("x", "w"):
            return self.x_shape if name == "x" else self.w_shape
        y = self.logical(self.of(reference).output_shape(self.in_layout(self.x_shape), self.in_layout(self.w_shape)))
        return (y[1],) if name == "b" else y

    def in_layout(self, axes: Sequence[int]) -> tuple[int, ...]:
        """(N, C, spatial...) in the arrays' own axis order."""
        return (axes[0], *axes[2:], axes[1]) if self.channels_last and len(axes) > 2 else tuple(axes)

    def logical(self, axes: Sequence[int]) -> tuple[int, ...]:
        """The inverse of in_layout."""
        return (axes[0], axes[-1], *axes[1:-1]) if self.channels_last and len(axes) > 2 else tuple(axes)

    @property
    def length(self) -> int:
        """The most products that are summed for one element."""
        if self.operation in ("backward_bias", "backward_filter"):
            read = self.shape("x" if self.transpose and self.operation == "backward_filter" else "y")
            return read[0] * math.prod(read[2:])
        if (self.operation == "forward") != self.transpose:
            return math.prod(self.w_shape[1:])
        return self.w_shape[0] // self.groups * math.prod(self.w_shape[2:])

    def __str__(self) -> str:
        defaults = Drawn(self.operation, self.x_shape, self.w_shape)
        given = {
            k: v for k, v in vars(self).items() if k in ("operation", "x_shape", "w_shape") or v != getattr(defaults, k)
        }
        return f"Drawn({', '.join(f'{name}={value!r}' for name, value in given.items())})"


class Case:
    """A Drawn with its arrays in device memory, and what the result must be."""

    def __init__(self, drawn: Drawn) -> None:
        self.drawn = drawn
        self.dtype = getattr(torch, drawn.dtype)
        self._random = np.random.default_rng(drawn.seed)
        names = INPUTS[drawn.operation]
        self.inputs = [
            self._place(drawn.shape(name), memory, NOT_A_NUMBER)
            for name, memory in zip(names, drawn.memory, strict=False)
        ]
        result = drawn.shape(RESULTS[drawn.operation])
        self.bias = self._place(drawn.shape("b"), Memory(), NOT_A_NUMBER) if drawn.bias else None
        self.out = None
        if drawn.with_out:
            self.out = self._place(result, drawn.memory[2], FILLER, None if drawn.beta else math.nan)
        self.result_shape = drawn.in_layout(result)
        self._expect()

    def _place(self, shape: tuple[int, ...], memory: Memory, filler: int, value: float | None = None) -> Placed:
        if value is not None:
            numbers = np.full(shape, value)
        elif self.drawn.whole_numbers:
            numbers = self._random.integers(-2, 3, shape).astype(np.float64)
        else:
            numbers = self._random.uniform(-1, 1, shape)
        drawn = self.drawn
        values = torch.from_numpy(numbers).to(self.dtype)
        if len(shape) == 1:
            return Placed(values, (1,), memory.offset, filler)
        order = drawn.in_layout(range(len(shape)))
        return Placed(values.permute(order), drawn.in_layout(memory.strides(shape)), memory.offset, filler)

    def arguments(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """The positional arguments of the operation, for arrays of any kind."""
        drawn = self.drawn
        wanted = {"backward_data": drawn.x_shape, "backward_filter": drawn.w_shape}.get(drawn.operation)
        return (*arrays, drawn.in_layout(wanted)) if wanted is not None else tuple(arrays)

    def _reference(self, arrays: Sequence[np.ndarray], **options: Any) -> np.ndarray:
        operation = getattr(self.drawn.of(reference), self.drawn.operation)
        return np.asarray(operation(*self.arguments(arrays), **options))

    def _expect(self) -> None:
        """z, the result and the sizes of what is summed, in float64: what tolerance.allowed needs."""
        drawn = self.drawn
        arrays = [placed.numpy() for placed in self.inputs]
        z = self._reference(arrays, alpha=drawn.alpha)
        self.products = self._reference([np.abs(array) for array in arrays], alpha=abs(drawn.alpha))
        self.added: Any = np.zeros(())
        if drawn.beta and self.out is not None:
            before = drawn.beta * self.out.numpy()
            z, self.added = z + before, self.added + np.abs(before)
        if self.bias is not None:
            axis = -1 if drawn.channels_last else 1
            bias = self.bias.numpy().reshape([-1 if a == axis % z.ndim else 1 for a in range(z.ndim)])
            z, self.added = z + bias, self.added + np.abs(bias)
        self.z = z
        self.expected = z if drawn.activation is None else ACTIVATIONS[drawn.activation](z)

    def allowed(self, *, tf32: bool, approximate: bool, reduced: bool) -> np.ndarray:
        """The error allowed in each element of the result of an engine of that kind."""
        drawn = self.drawn
        return allowed(
            self.z,
            self.expected,
            self.products,
            self.added,
            inputs=drawn.dtype,
            stored=drawn.dtype,
            length=drawn.length,
            tf32=tf32,
            approximate=approximate,
            reduced=reduced,
            exact=drawn.whole_numbers and float(self.products.max(initial=0.0)) <= 2.0**11,
            epilogue=drawn.bias or drawn.activation is not None or drawn.beta != 0.0 or drawn.alpha != 1.0,
            activation=drawn.activation,
        )

    def call(self, stream: Any = None) -> torch.Tensor:
        """cudnnpy's operation on the arrays."""
        drawn = self.drawn
        options: dict[str, Any] = {"alpha": drawn.alpha, "beta": drawn.beta}
        if self.out is not None:
            options["out"] = self.out.tensor
        if stream is not None:
            options["stream"] = stream
        if drawn.operation == "forward":
            options["bias"] = self.bias.tensor if self.bias is not None else None
            options["activation"] = drawn.activation
        operation = getattr(drawn.of(cudnnpy), drawn.operation)
        result: torch.Tensor = operation(*self.arguments([placed.tensor for placed in self.inputs]), **options)
        return result

    def spoiled(self) -> str:
        """What was written that should not have been, "" if nothing."""
        names = [*INPUTS[self.drawn.operation], *(["bias"] if self.bias is not None else [])]
        placed = [*self.inputs, *([self.bias] if self.bias is not None else [])]
        for name, array in zip(names, placed, strict=True):
            if array.changed():
                return f"the input {name} was changed, or what is around it"
        if self.out is not None and (count := self.out.changed_outside()):
            return f"{count} elements around out, or in its gaps, were changed"
        return ""


def _weighted(*pairs: tuple[Any, int]) -> st.SearchStrategy[Any]:
    return st.sampled_from([value for value, weight in pairs for _ in range(weight)])


@st.composite
def _memories(draw: st.DrawFn, rank: int, usual: bool) -> Memory:
    """Mostly `usual` (channels last or not) and packed."""
    last = usual if draw(_weighted((True, 7), (False, 1))) else not usual
    kind = draw(_weighted(("packed", 8), ("gaps", 2), ("offset", 1)))
    if kind == "packed":
        return Memory(last, ones=draw(_weighted((None, 4), (0, 1), (1, 1), (7, 1), (4096, 1))))
    if kind == "offset":
        return Memory(last, offset=draw(st.sampled_from([1, 2, 3, 4, 8])))
    extra = tuple(draw(_weighted((0, 3), (1, 1), (2, 1), (8, 1))) for _ in range(rank))
    step = tuple(draw(_weighted((1, 6), (2, 1))) for _ in range(rank))
    return Memory(last, extra, step)


def _paddings(draw: st.DrawFn, rank: int) -> Any:
    kind = draw(_weighted(("int", 3), ("axes", 2), ("pairs", 3), ("name", 3)))
    if kind == "int":
        return draw(st.integers(0, 2))
    if kind == "axes":
        return tuple(draw(st.integers(0, 2)) for _ in range(rank))
    if kind == "pairs":
        return tuple((draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in range(rank))
    return draw(st.sampled_from(["valid", "same", "half", "full"]))


def _total_padding(padding: Any, reach: Sequence[int]) -> list[int]:
    """Before and after together, for each axis; "same" never empties a result, so it counts as enough."""
    if isinstance(padding, str):
        each = {
            "valid": lambda r: 0,
            "same": lambda r: r - 1,
            "half": lambda r: r // 2 * 2,
            "full": lambda r: 2 * r - 2,
        }
        return [each[padding](r) for r in reach]
    if isinstance(padding, int):
        return [2 * padding for _ in reach]
    return [sum(p) if isinstance(p, tuple) else 2 * p for p in padding]


OPERATIONS = _weighted(("forward", 5), ("backward_data", 4), ("backward_filter", 4), ("backward_bias", 1))
DTYPES = _weighted(("float32", 4), ("float16", 4), ("bfloat16", 3), ("float64", 2))


@st.composite
def problems(draw: st.DrawFn, *, prefer: str | None = None, plain_memory: bool = False) -> Drawn:
    """A convolution that is quick on the CPU too. `prefer` fixes the preference; `plain_memory` leaves gaps out."""
    operation, dtype = draw(OPERATIONS), draw(DTYPES)
    transpose = draw(_weighted((False, 4), (True, 1)))
    rank = draw(_weighted((2, 6), (1, 2), (3, 2)))

    def each(entries: st.SearchStrategy[Any]) -> tuple[Any, ...]:
        return tuple(draw(entries) for _ in range(rank))

    groups = draw(_weighted((1, 5), (2, 2), (3, 1), (4, 1)))
    per_group, filters = draw(st.sampled_from([1, 2, 3, 4, 8, 8, 16])), draw(st.sampled_from([1, 2, 3, 4, 8, 8, 16]))
    if draw(_weighted((False, 6), (True, 1))):  # depthwise
        groups, per_group, filters = draw(st.sampled_from([3, 8, 16])), 1, draw(st.sampled_from([1, 1, 2]))
    kernel = each(st.integers(1, {1: 5, 2: 4, 3: 3}[rank]) if rank > 1 else st.integers(1, 5))
    if rank == 2 and draw(_weighted((True, 1), (False, 2))):
        kernel = (3, 3)
    stride = each(_weighted((1, 4), (2, 2), (3, 1)))
    dilation = each(_weighted((1, 5), (2, 2), (3, 1)))
    reach = [(taps - 1) * step + 1 for taps, step in zip(kernel, dilation, strict=True)]
    padding = _paddings(draw, rank)
    output_padding: tuple[int, ...] = ()
    if transpose:
        output_padding = tuple(
            draw(st.integers(0, max(step, spread) - 1)) for step, spread in zip(stride, dilation, strict=True)
        )
        smallest = _smallest_transposed(padding, reach, stride, output_padding)
    else:
        smallest = [max(1, span - pads) for span, pads in zip(reach, _total_padding(padding, reach), strict=True)]
    room = {1: 12, 2: 7, 3: 4}[rank]
    if draw(_weighted((False, 11), (True, 1))):
        room = 0  # the least that gives a result: one position, as a network's last layers
    spatial = tuple(low + draw(st.integers(0, room)) for low in smallest)
    batch = draw(_weighted((1, 7), (2, 7), (3, 7), (0, 1)))
    if not transpose and operation != "backward_bias" and draw(_weighted((False, 40), (True, 1))):
        per_group = 0
    channels = groups * (filters if transpose else per_group)
    with_out = draw(st.booleans())
    beta = draw(_weighted((0.0, 3), (1.0, 2), (0.5, 1), (-2.0, 1))) if with_out else 0.0
    last = draw(st.booleans())
    memory = tuple(Memory(last) if plain_memory else draw(_memories(rank + 2, last)) for _ in range(3))
    epilogue = operation == "forward" and draw(_weighted((False, 4), (True, 1)))
    choice = prefer or draw(_weighted(("fastest", 6), ("limited_workspace", 2), ("no_workspace", 2)))
    return Drawn(
        operation=operation,
        x_shape=(batch, channels, *spatial),
        w_shape=(groups * filters, per_group, *kernel),
        dtype=dtype,
        transpose=transpose,
        padding=padding,
        stride=stride,
        dilation=dilation,
        output_padding=output_padding,
        groups=groups,
        mode=draw(_weighted(("cross_correlation", 3), ("convolution", 1))),
        layout=draw(_weighted(("NCHW", 3), ("NHWC", 1))),
        memory=memory,  # type: ignore[arg-type]
        with_out=with_out,
        alpha=draw(_weighted((1.0, 4), (0.5, 1), (-2.0, 1), (0.75, 1))),
        beta=beta,
        bias=epilogue and draw(st.booleans()),
        activation=draw(st.sampled_from([None, *ACTIVATIONS])) if epilogue else None,
        prefer=choice,
        workspace_limit=None if choice == "no_workspace" else draw(_weighted((None, 5), (0, 1), (1 << 16, 1))),
        deterministic=draw(_weighted((False, 3), (True, 1))),
        tf32=draw(_weighted((True, 2), (False, 1))),
        whole_numbers=draw(st.booleans()),
        stream=draw(_weighted(("current", 3), ("side", 1), ("argument", 1))),
        repeats=draw(_weighted((1, 3), (6, 1))),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


def _smallest_transposed(padding: Any, reach: list[int], stride: Sequence[int], extra: Sequence[int]) -> list[int]:
    """The smallest spatial sizes of x for which a transposed convolution's result is not empty."""
    cropped = _total_padding(padding, reach)
    if padding == "same":
        cropped = [max(span - step, 0) for span, step in zip(reach, stride, strict=True)]
    return [
        max(1, -(-(1 + pads - span - more) // step) + 1)
        for pads, span, more, step in zip(cropped, reach, extra, stride, strict=True)
    ]


@st.composite
def few_channels(draw: st.DrawFn) -> Drawn:
    """A strided convolution of few channels, or its transpose; most of them have a space-to-depth lowering."""
    drawn = draw(problems().filter(lambda d: d.operation != "backward_bias" and not d.transpose))
    rank = len(drawn.x_shape) - 2
    stride = (*tuple(draw(st.integers(1, 4)) for _ in range(rank - 1)), draw(st.integers(2, 4)))
    kernel = tuple(draw(st.integers(step, step + 3)) for step in stride)
    spatial = tuple(draw(st.integers(taps, taps + 2 * step + 3)) for taps, step in zip(kernel, stride, strict=True))
    channels, last = draw(st.integers(1, 4)), draw(st.booleans())
    transpose = drawn.operation == "forward" and draw(st.booleans())
    if transpose:
        low = _smallest_transposed(drawn.padding, list(kernel), stride, (0,) * rank)
        spatial = tuple(size + draw(st.integers(0, 3)) for size in low)
    return replace(
        drawn,
        transpose=transpose,
        x_shape=(drawn.x_shape[0], drawn.w_shape[0] if transpose else channels, *spatial),
        w_shape=(drawn.w_shape[0], channels, *kernel),
        stride=stride,
        dilation=(1,) * rank,
        groups=1,
        mode="cross_correlation",
        memory=(Memory(last), Memory(last), draw(st.sampled_from([Memory(last), drawn.memory[2]]))),
        prefer=draw(_weighted(("fastest", 4), (drawn.prefer, 1))),
    )
