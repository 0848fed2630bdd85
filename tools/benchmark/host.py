"""Host cost of one call: the tiny convolution, whose GPU time is nothing, through every road there is."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from ctypes import byref, c_int64, c_void_p
from typing import Any

import cudnnpy
from cudnnpy import raw
from cudnnpy.backend import Descriptor
from tools.benchmark.layers import TINY
from tools.benchmark.timing import Budget, host_timer, interleaved, quiet, summary

DTYPES = ("float16", "float32")
MOST, LEAST = 200, 15  # repetitions of HOST_BATCH calls


class NotInstalled(Exception):
    """A library to compare with is not on this machine; the row says so."""


class Tensors:
    """Random channels-last tensors of the tiny convolution, in torch, and room for every result."""

    def __init__(self, torch: Any, dtype: str) -> None:
        self.torch = torch
        kind = getattr(torch, dtype)

        def random(shape: tuple[int, ...]) -> Any:
            return torch.randn(shape, device="cuda", dtype=kind).to(memory_format=torch.channels_last)

        self.x, self.w, self.dy = random(TINY.x_shape), random(TINY.w_shape), random(TINY.y_shape)
        self.y, self.dx, self.dw = (torch.empty_like(tensor) for tensor in (self.dy, self.x, self.w))
        self.stream = torch.cuda.current_stream().cuda_stream


def _convolution() -> Any:
    return cudnnpy.Convolution(padding=TINY.padding)


def _pointers(t: Tensors, plan: Any) -> tuple[int, ...]:
    return tuple(getattr(t, name).data_ptr() for name in plan.operands)


def workspace_for(t: Tensors, size: int) -> Any:
    """Bytes of the GPU, at least one."""
    return t.torch.empty(max(size, 1), device="cuda", dtype=t.torch.uint8)


def bare_pack(plan: Any, pointers: tuple[int, ...], workspace: int) -> Descriptor:
    """A variant pack of a plan, ready for cudnnBackendExecute."""
    return Descriptor(
        raw.CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR,
        {
            raw.CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS: pointers,
            raw.CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS: plan.executable.uids,
            raw.CUDNN_ATTR_VARIANT_PACK_WORKSPACE: workspace,
        },
    )


def _bare(t: Tensors) -> Callable[[], object]:
    """The plan that plan.execute runs, by nothing but ctypes: no argument types, no check of the status."""
    plan = _convolution().plan("forward", t.x, t.w)
    workspace = workspace_for(t, plan.workspace_size)
    handle = cudnnpy.Handle(stream=t.stream)
    pack = bare_pack(plan, _pointers(t, plan), workspace.data_ptr())
    execute = raw.load()["cudnnBackendExecute"]  # indexing makes a function object of our own
    given = (c_void_p(handle.address), c_void_p(plan.executable.plan.address), c_void_p(pack.address))
    raw.check(execute(*given), "cudnnBackendExecute")
    keep = (plan, workspace, handle, pack)

    def call(a: Any = given[0], b: Any = given[1], c: Any = given[2], _keep: Any = keep) -> object:
        return execute(a, b, c)

    return call


def _plan_execute(t: Tensors) -> Callable[[], object]:
    plan = _convolution().plan("forward", t.x, t.w)
    workspace = workspace_for(t, plan.workspace_size)
    x, w, y = _pointers(t, plan)
    at, stream, execute = workspace.data_ptr(), t.stream, plan.execute

    def call(_keep: Any = workspace) -> object:
        return execute(x, w, y, at, stream)

    return call


def _forward_out(t: Tensors) -> Callable[[], object]:
    forward, x, w, y = _convolution().forward, t.x, t.w, t.y
    return lambda: forward(x, w, out=y)


def _forward(t: Tensors) -> Callable[[], object]:
    forward, x, w = _convolution().forward, t.x, t.w
    return lambda: forward(x, w)


def _backward(t: Tensors) -> Callable[[], object]:
    conv = _convolution()
    data, filters = conv.backward_data, conv.backward_filter
    dy, x, w, dx, dw, x_shape, w_shape = t.dy, t.x, t.w, t.dx, t.dw, TINY.x_shape, TINY.w_shape

    def call() -> object:
        data(dy, w, x_shape, out=dx)
        return filters(dy, x, w_shape, out=dw)

    return call


def _torch_forward(t: Tensors) -> Callable[[], object]:
    conv2d, x, w = t.torch.nn.functional.conv2d, t.x, t.w
    return lambda: conv2d(x, w, padding=1)


def _torch_backward(t: Tensors) -> Callable[[], object]:
    backward, dy, x, w = t.torch.ops.aten.convolution_backward, t.dy, t.x, t.w
    return lambda: backward(dy, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False])


def _frontend(t: Tensors) -> tuple[Any, Any, dict[Any, Any], Any]:
    """cudnn-frontend's graph of the tiny convolution, with its handle, its tensors and its workspace."""
    if importlib.util.find_spec("cudnn") is None:
        raise NotInstalled("not installed")
    import cudnn

    kind = {"float16": cudnn.data_type.HALF, "float32": cudnn.data_type.FLOAT}[str(t.x.dtype).removeprefix("torch.")]
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
        for name, a in (("x", t.x), ("w", t.w))
    )
    y = graph.conv_fprop(image=x, weight=w, padding=[1, 1], stride=[1, 1], dilation=[1, 1])
    y.set_output(True).set_dim(list(t.y.shape)).set_stride(list(t.y.stride()))
    graph.build([cudnn.heur_mode.A])
    return graph, handle, {x: t.x, w: t.w, y: t.y}, workspace_for(t, graph.get_workspace_size())


def _frontend_generic(t: Tensors) -> Callable[[], object]:
    graph, _, tensors, workspace = _frontend(t)
    execute = graph.execute
    return lambda: execute(tensors, workspace)


def _frontend_handle(t: Tensors) -> Callable[[], object]:
    graph, handle, tensors, workspace = _frontend(t)
    execute = graph.execute
    return lambda: execute(tensors, workspace, handle=handle)


def _frontend_ordered(t: Tensors) -> Callable[[], object]:
    graph, handle, tensors, workspace = _frontend(t)
    execute, buffers, uids = graph.execute, tuple(tensors.values()), tuple(key.get_uid() for key in tensors)
    return lambda: execute(buffers, workspace, handle=handle, tensor_uids=uids)


def _trivial(t: Tensors) -> Callable[[], object]:
    """What a call through ctypes costs by itself: cudnnGetStream."""
    handle = cudnnpy.Handle(stream=t.stream)
    function = raw.load()["cudnnGetStream"]
    address, result = c_void_p(handle.address), c_int64()

    def call(_keep: Any = handle) -> object:
        return function(address, byref(result))

    return call


# Row -> what makes the call. The first torch row is timed twice: the difference is what the clock can tell apart.
ROADS: dict[str, Callable[[Tensors], Callable[[], object]]] = {
    "ctypes cudnnGetStream": _trivial,
    "ctypes cudnnBackendExecute, pack ready": _bare,
    "plan.execute(pointers)": _plan_execute,
    "conv.forward(x, w, out=y)": _forward_out,
    "conv.forward(x, w)": _forward,
    "conv.backward_data + backward_filter, out=": _backward,
    "torch F.conv2d": _torch_forward,
    "torch F.conv2d, again": _torch_forward,
    "torch convolution_backward (dx, dw)": _torch_backward,
    "cudnn-frontend graph.execute": _frontend_generic,
    "cudnn-frontend graph.execute, handle=": _frontend_handle,
    "cudnn-frontend graph.execute, handle=, tensor_uids=": _frontend_ordered,
}


def measure(torch: Any, budget: Budget, dtype: str) -> list[dict[str, Any]]:
    """Return a row for each contender: microseconds of the host, or why there is no number."""
    torch.backends.cudnn.benchmark = True
    tensors = Tensors(torch, dtype)
    timers: dict[str, Callable[[], float]] = {}
    rows: dict[str, dict[str, Any]] = {}
    for name, make in ROADS.items():
        rows[name] = {"dtype": dtype, "row": name, "us": None, "absent": None, "error": None}
        try:
            timer = host_timer(make(tensors), torch.cuda.synchronize)
            timer()  # also builds what the first call builds
            timer()
        except NotInstalled as why:
            rows[name]["absent"] = str(why)
        except Exception as error:
            rows[name]["error"] = f"{type(error).__name__}: {error}"
        else:
            timers[name] = timer
    with quiet():
        times = interleaved(timers, MOST, LEAST, budget)
    for name, measured in times.items():
        rows[name]["us"] = summary(measured)
    return list(rows.values())
