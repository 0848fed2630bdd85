"""Host cost of one call: a tiny convolution, whose GPU time is hidden, by each contender and by number of address tuples.

Training and serving with a caching allocator give each signature hundreds of address tuples, so a figure for one tuple says
little about them. A tuple that is always new was never passed to that contender before.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from ctypes import c_void_p
from functools import partial
from itertools import cycle, product
from typing import Any, NamedTuple

import cudnnpy.torch
from cudnnpy import raw
from cudnnpy.backend import Descriptor
from tools.benchmark.timing import Budget, host_timer, interleaved, quiet, summary, within

X_SHAPE = Y_SHAPE = (1, 8, 8, 8)  # so small that the GPU is always done before the host's next call
W_SHAPE, PADDING = (8, 8, 3, 3), 1
DTYPES = ("float16", "float32")
NEW = "new"
TUPLES: tuple[int | str, ...] = (1, 16, 64, 250, 1000, NEW)
PAIRS, FILTERS = 4096, 512  # of x and y, and of w: together as many tuples as are ever new
MOST, LEAST, SECONDS = (
    100,
    15,
    30.0,
)  # repetitions of HOST_BATCH calls, and the time after which only the least are made

Turn = Callable[[], tuple[Any, Any, Any]]


class NotInstalled(Exception):
    """A contender that is not on this machine or cannot exist; the row has the reason."""


class Tensors:
    """Random channels-last tensors for one contender: as many tuples (x, w, y) as take turns, and gradients."""

    def __init__(self, torch: Any, dtype: str, tuples: int | str) -> None:
        self.torch, self.tuples, self.dtype = torch, tuples, getattr(torch, dtype)
        pairs, filters = (PAIRS, FILTERS) if isinstance(tuples, str) else (tuples, tuples)
        self.x, self.y, self.w = (
            self._random(*one) for one in ((pairs, X_SHAPE), (pairs, Y_SHAPE), (filters, W_SHAPE))
        )
        self.stream = torch.cuda.current_stream().cuda_stream

    def _random(self, number: int, shape: tuple[int, ...]) -> list[Any]:
        """Random channels-last tensors, one after the other in memory."""
        n, c, h, w = shape
        memory = self.torch.randn(number, n, h, w, c, device="cuda", dtype=self.dtype)
        return [one.permute(0, 3, 1, 2) for one in memory]

    def turns(self) -> Turn:
        """Return a function that gives the next (x, w, y). It raises StopIteration after the last new tuple."""
        return self._in_turn(self.x, self.w, self.y)

    def addresses(self) -> Turn:
        """Return the same for addresses."""
        return self._in_turn(*([tensor.data_ptr() for tensor in group] for group in (self.x, self.w, self.y)))

    def _in_turn(self, x: list[Any], w: list[Any], y: list[Any]) -> Turn:
        if self.tuples == NEW:
            pairs = list(zip(x, y, strict=True))
            return ((one, filters, result) for filters, (one, result) in product(w, pairs)).__next__
        return cycle(list(zip(x, w, y, strict=True))).__next__

    def workspace(self, size: int) -> Any:
        """Return bytes of the GPU, at least one."""
        return self.torch.empty(max(size, 1), device="cuda", dtype=self.torch.uint8)


def _convolution() -> Any:
    return cudnnpy.Convolution(padding=PADDING)


def _torch_forward(t: Tensors) -> Callable[[], object]:
    conv2d, turn = t.torch.nn.functional.conv2d, t.turns()

    def call() -> object:
        x, w, _ = turn()
        return conv2d(x, w, padding=PADDING)

    return call


def _forward_out(t: Tensors) -> Callable[[], object]:
    forward, turn = _convolution().forward, t.turns()

    def call() -> object:
        x, w, y = turn()
        return forward(x, w, out=y)

    return call


def _forward(t: Tensors) -> Callable[[], object]:
    forward, turn = _convolution().forward, t.turns()

    def call() -> object:
        x, w, _ = turn()
        return forward(x, w)

    return call


def _plan(t: Tensors) -> Any:
    return _convolution().plan("forward", t.x[0], t.w[0])


def _plan_execute(t: Tensors) -> Callable[[], object]:
    plan, turn = _plan(t), t.addresses()
    workspace = t.workspace(plan.workspace_size)
    address, stream, execute = workspace.data_ptr(), t.stream, plan.execute

    def call(_keep: Any = (workspace, t)) -> object:
        x, w, y = turn()
        return execute(x, w, y, address, stream)

    return call


def _ready_pack(t: Tensors) -> Callable[[], object]:
    """cudnnBackendExecute through ctypes without argument types or checks, with a variant pack for each tuple."""
    if isinstance(t.tuples, str):
        raise NotInstalled("no pack can be ready for unknown addresses")
    plan, turn = _plan(t), t.addresses()
    workspace, handle = t.workspace(plan.workspace_size), cudnnpy.Handle(stream=t.stream)
    packs = [
        Descriptor(
            raw.CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR,
            {
                raw.CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS: turn(),
                raw.CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS: plan.executable.uids,
                raw.CUDNN_ATTR_VARIANT_PACK_WORKSPACE: workspace.data_ptr(),
            },
        )
        for _ in range(t.tuples)
    ]
    execute = raw.load()["cudnnBackendExecute"]  # indexing makes a function object of our own
    first, second = c_void_p(handle.address), c_void_p(plan.executable.plan.address)
    following = cycle([c_void_p(pack.address) for pack in packs]).__next__
    for _ in packs:
        raw.check(execute(first, second, following()), "cudnnBackendExecute")

    def call(_keep: Any = (plan, workspace, handle, packs, t)) -> object:
        return execute(first, second, following())

    return call


def _backward(t: Tensors) -> Callable[[], object]:
    conv = _convolution()
    data, filters = conv.backward_data, conv.backward_filter
    x, w, dy = t.turns()()
    dx, dw = t.torch.empty_like(x), t.torch.empty_like(w)

    def call() -> object:
        data(dy, w, X_SHAPE, out=dx)
        return filters(dy, x, W_SHAPE, out=dw)

    return call


def _torch_backward(t: Tensors) -> Callable[[], object]:
    backward, (x, w, dy) = t.torch.ops.aten.convolution_backward, t.turns()()
    return lambda: backward(dy, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False])


def _frontend(t: Tensors, how: str = "") -> Callable[[], object]:
    """cudnn-frontend's graph of the convolution, executed with its default handle, with `handle`, or with `uids` besides."""
    if importlib.util.find_spec("cudnn") is None:
        raise NotInstalled("not installed")
    import cudnn

    image, weight, result = t.turns()()
    kind = {"float16": cudnn.data_type.HALF, "float32": cudnn.data_type.FLOAT}[str(t.dtype).removeprefix("torch.")]
    handle = cudnn.create_handle()
    cudnn.set_stream(handle=handle, stream=t.stream)
    graph = cudnn.pygraph(
        io_data_type=kind,
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
        handle=handle,
    )
    x, w = (
        graph.tensor(name=name, dim=list(a.shape), stride=list(a.stride()), data_type=kind)
        for name, a in (("x", image), ("w", weight))
    )
    y = graph.conv_fprop(image=x, weight=w, padding=[1, 1], stride=[1, 1], dilation=[1, 1])
    y.set_output(True).set_dim(list(result.shape)).set_stride(list(result.stride()))
    graph.build([cudnn.heur_mode.A])
    workspace, execute = t.workspace(graph.get_workspace_size()), graph.execute
    tensors = {x: image, w: weight, y: result}
    if how == "uids":
        buffers, uids = tuple(tensors.values()), tuple(key.get_uid() for key in tensors)
        return lambda: execute(buffers, workspace, handle=handle, tensor_uids=uids)
    return (lambda: execute(tensors, workspace, handle=handle)) if how else (lambda: execute(tensors, workspace))


class Contender(NamedTuple):
    """A way to call the convolution. `around` is active around the calls, outside the clock."""

    make: Callable[[Tensors], Callable[[], object]]
    varies: bool = False  # also timed with several tuples
    around: Callable[[], AbstractContextManager[Any]] = nullcontext


# PyTorch's call is timed twice with one tuple: the difference is the resolution of the clock.
CONTENDERS: dict[str, Contender] = {
    "torch F.conv2d": Contender(_torch_forward, varies=True),
    "F.conv2d, cudnnpy.torch enabled": Contender(_torch_forward, varies=True, around=cudnnpy.torch.enable),
    "conv.forward(x, w, out=y)": Contender(_forward_out, varies=True),
    "conv.forward(x, w)": Contender(_forward, varies=True),
    "plan.execute(pointers)": Contender(_plan_execute, varies=True),
    "ctypes cudnnBackendExecute, pack ready": Contender(_ready_pack, varies=True),
    "conv.backward_data + backward_filter, out=": Contender(_backward),
    "torch F.conv2d, again": Contender(_torch_forward),
    "torch convolution_backward (dx, dw)": Contender(_torch_backward),
    "cudnn-frontend graph.execute": Contender(_frontend),
    "cudnn-frontend graph.execute, handle=": Contender(partial(_frontend, how="handle")),
    "cudnn-frontend graph.execute, handle=, tensor_uids=": Contender(partial(_frontend, how="uids")),
}


def measure(torch: Any, dtype: str, row: dict[str, Any]) -> None:
    """Fill a row with the microseconds of all contenders, which take turns; only float16 has several tuples.

    `absent` has the reasons for missing contenders, and `error` the exceptions of others.
    """
    torch.backends.cudnn.benchmark = True
    row |= {"us": {}, "absent": {}}
    failures: list[str] = []
    timers: dict[str, Callable[[], float]] = {}
    with torch.no_grad():
        for name, contender, tuples in _timed(dtype):
            try:
                timers[name] = _timer(torch, contender, Tensors(torch, dtype, tuples))
            except NotInstalled as why:
                row["absent"][name] = str(why)
            except Exception as error:
                failures.append(f"{name}: {type(error).__name__}: {error}")
        with quiet():
            for name, times in interleaved(timers, MOST, LEAST, Budget(SECONDS)).items():
                row["us"][name] = summary(times)
    row["error"] = "; ".join(failures) or None


def _timed(dtype: str) -> Iterator[tuple[str, Contender, int | str]]:
    for name, contender in CONTENDERS.items():
        for tuples in TUPLES if contender.varies and dtype == DTYPES[0] else TUPLES[:1]:
            yield f"{name}, {tuples}", contender, tuples


def _timer(torch: Any, contender: Contender, tensors: Tensors) -> Callable[[], float]:
    """Return a contender's timer, after calls that plan and that pass every tuple several times."""
    call, count = contender.make(tensors), 5 * tensors.tuples if isinstance(tensors.tuples, int) else 0
    within(contender.around, partial(_repeat, torch, call, count))
    timer = partial(within, contender.around, host_timer(call, torch.cuda.synchronize))
    timer()
    timer()
    return timer


def _repeat(torch: Any, call: Callable[[], object], count: int) -> None:
    for index in range(count):
        call()
        if index % 512 == 0:
            torch.cuda.synchronize()
