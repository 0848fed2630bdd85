"""Time the making of a direct launch and its parts: `python -m tools.benchmark.direct_launches`, on a GPU.

It is made after the second launch of a plan, so that it costs each plan once. For some convolutions the command prints
the medians in microseconds: the whole, and how much of it each part takes by itself.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from time import perf_counter
from typing import Any, TypeVar
from unittest import mock

from cudnnpy import Convolution, TensorSpec
from cudnnpy._launch.address_validation import Addresses
from cudnnpy._launch.direct import direct_launch, make_direct_launch
from cudnnpy._launch.direct.captured_nodes import NodeReader
from cudnnpy._launch.direct.direct_launch import DirectLaunch
from cudnnpy._launch.direct.stream_capture import StreamCapture
from cudnnpy._launch.steps import BoundLaunch
from cudnnpy.handle import Handle, in_use

TIMES = 40  # a plan's direct launch is made
LIMIT_US = 1200.0  # which the whole is to take at most
# Each part and the function whose time it is, without that of the parts within it. The whole has the rest.
BIND, LAUNCH, WHOLE = "variant packs", "cuDNN's launches", "stream and handle"
PARTS: dict[str, tuple[Any, str]] = {
    "captures": (StreamCapture, "capture"),
    "reading of nodes": (NodeReader, "linear_nodes"),
    "relocations": (direct_launch, "find_relocations"),
    "writer of addresses": (direct_launch, "compile_relocator"),
    "launch arguments": (DirectLaunch, "__init__"),
    "own launch": (DirectLaunch, "launch"),
}
NAMES = (BIND, LAUNCH, *PARTS, WHOLE)
# Convolutions: channels, filters, size of the filter, size of the picture, dtype, operation. Batch 8, channels last.
CASES: tuple[tuple[int, int, int, int, str, str], ...] = (
    (16, 16, 3, 8, "float16", "forward"),
    (64, 64, 3, 56, "float16", "forward"),
    (256, 64, 1, 56, "bfloat16", "backward_data"),
    (64, 64, 3, 28, "float32", "backward_filter"),
)

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


class PartTimes:
    """The seconds that parts take by themselves: those of a part within another one count once."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._inner: list[float] = []

    def timed(self, name: str, function: FunctionT) -> FunctionT:
        """Return a function whose calls are timed as a part."""

        def call(*arguments: Any, **named: Any) -> Any:
            self._inner.append(0.0)
            begin = perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                seconds = perf_counter() - begin
                self.seconds[name] += seconds - self._inner.pop()
                if self._inner:
                    self._inner[-1] += seconds

        return call  # type: ignore[return-value]

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Time the functions of all parts within the block."""
        with ExitStack() as stack:
            for name, (owner, attribute) in PARTS.items():
                stack.enter_context(mock.patch.object(owner, attribute, self.timed(name, getattr(owner, attribute))))
            yield


def part_times(
    bind: Callable[[Addresses], BoundLaunch], handle: Handle, addresses: Addresses, times: int = TIMES
) -> dict[str, float] | None:
    """Return the median microseconds of each part, and of their sum, "all"; None if no direct launch can be made."""
    rows: dict[str, list[float]] = {name: [] for name in ("all", *NAMES)}
    for _ in range(times):
        clock = PartTimes()

        def bound(given: Addresses, clock: PartTimes = clock) -> BoundLaunch:
            return clock.timed(LAUNCH, bind(given))

        with clock.patched():
            begin = perf_counter()
            direct = clock.timed(WHOLE, make_direct_launch)(clock.timed(BIND, bound), handle, addresses)
            rows["all"].append(1e6 * (perf_counter() - begin))
        if isinstance(direct, str):
            return None
        for name in NAMES:
            rows[name].append(1e6 * clock.seconds[name])
    return {name: median(values) for name, values in rows.items()}


def measure(torch: Any) -> Iterator[tuple[str, dict[str, float] | None]]:
    """Yield the name and the part times of each convolution."""
    stream = torch.cuda.current_stream().cuda_stream
    for channels, filters, size, length, dtype, operation in CASES:
        x, y = (8, channels, length, length), (8, filters, length, length)
        w = (filters, channels, size, size)
        shapes = {"forward": (x, w), "backward_data": (y, w), "backward_filter": (y, x)}[operation]
        result = {"forward": y, "backward_data": x, "backward_filter": w}[operation]
        specs: list[Any] = [_channels_last(shape, dtype) for shape in (*shapes, result)]
        make: Any = Convolution(padding=size // 2).plan
        plan = make(operation, *specs[:2], None if operation == "forward" else result, out=specs[2])
        memory = [torch.zeros(shape, dtype=getattr(torch, dtype), device="cuda") for shape in (*shapes, result)]
        space = torch.empty(plan.workspace_size + 256, dtype=torch.uint8, device="cuda")
        workspace = -(-space.data_ptr() // 256) * 256 if plan.workspace_size else 0
        addresses = (*(tensor.data_ptr() for tensor in memory), workspace)
        for _ in range(3):
            plan.execute(*addresses, stream)
        torch.cuda.synchronize()
        handle = Handle.default(plan.device)

        def bind(given: Addresses, plan: Any = plan, handle: Handle = handle) -> BoundLaunch:
            launch: BoundLaunch = plan.executable.bind(handle, given[:-1], given[-1])
            return launch

        with in_use(handle, stream):
            times = part_times(bind, handle, addresses)
        yield f"{operation} {channels}x{length}x{length}, {filters} filters {size}x{size}, {dtype}: {plan.name}", times


def _channels_last(shape: tuple[int, ...], dtype: Any) -> TensorSpec:
    _, channels, height, width = shape
    return TensorSpec(shape, dtype, (height * width * channels, 1, width * channels, channels))


def main() -> int:
    """Print the times. The status is 0 if every direct launch took at most the limit."""
    import torch

    is_within = True
    for name, times in measure(torch):
        print(name)
        for part, microseconds in (times or {"not made": float("inf")}).items():
            print(f"    {part:20} {microseconds:6.0f}")
        is_within = is_within and times is not None and times["all"] <= LIMIT_US
    return int(not is_within)


if __name__ == "__main__":
    sys.exit(main())
