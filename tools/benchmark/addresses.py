"""Host cost of one call by how many tuples of addresses take turns: the tiny convolution at 1, 16, 1,000, or always new ones.

Training and serving with an allocator that keeps memory give each signature hundreds of tuples; a figure for one tuple
says little about them. A tuple that is always new was never given to that road before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from ctypes import byref, c_int, c_int64, c_void_p
from functools import partial
from itertools import cycle, product
from typing import Any

import cudnnpy.torch
from cudnnpy import raw
from tools.benchmark.host import NotInstalled, Tensors, bare_pack, workspace_for
from tools.benchmark.layers import TINY
from tools.benchmark.timing import Budget, host_timer, interleaved, quiet, summary, within

NEW = "new"
TUPLES: tuple[int | str, ...] = (1, 16, 1000, NEW)
DTYPE = "float16"
PAIRS, FILTERS = 4096, 512  # of x and y, and of w: together as many tuples as are ever new
MOST, LEAST = 100, 15  # repetitions of HOST_BATCH calls


class Memory:
    """Tensors of the tiny convolution for one road and one number of tuples, at addresses of their own."""

    def __init__(self, t: Tensors, tuples: int | str) -> None:
        self.t, self.tuples = t, tuples
        pairs, filters = (PAIRS, FILTERS) if isinstance(tuples, str) else (tuples, tuples)
        self.x, self.y = (self._room(pairs, shape) for shape in (TINY.x_shape, TINY.y_shape))
        self.w = self._room(filters, TINY.w_shape)

    def _room(self, number: int, shape: tuple[int, ...]) -> list[Any]:
        """Random channels-last tensors, one behind the other."""
        n, c, h, w = shape
        memory = self.t.torch.randn(number, n, h, w, c, device=self.t.x.device, dtype=self.t.x.dtype)
        return [one.permute(0, 3, 1, 2) for one in memory]

    def turns(self, pointers: bool = False) -> Callable[[], tuple[Any, Any, Any]]:
        """Gives the next (x, w, y), as tensors or as addresses; raises StopIteration when new ones are used up."""
        x, w, y = ([tensor.data_ptr() for tensor in room] if pointers else room for room in (self.x, self.w, self.y))
        if self.tuples == NEW:
            found: Iterator[tuple[Any, Any, Any]] = (
                (one, filters, result) for filters, (one, result) in product(w, list(zip(x, y, strict=True)))
            )
        else:
            found = cycle(list(zip(x, w, y, strict=True)))
        return found.__next__


def _torch_forward(t: Tensors, memory: Memory) -> Callable[[], object]:
    conv2d, turn = t.torch.nn.functional.conv2d, memory.turns()

    def call() -> object:
        x, w, _ = turn()
        return conv2d(x, w, padding=1)

    return call


def _forward_out(t: Tensors, memory: Memory) -> Callable[[], object]:
    forward, turn = cudnnpy.Convolution(padding=TINY.padding).forward, memory.turns()

    def call() -> object:
        x, w, y = turn()
        return forward(x, w, out=y)

    return call


def _forward(t: Tensors, memory: Memory) -> Callable[[], object]:
    forward, turn = cudnnpy.Convolution(padding=TINY.padding).forward, memory.turns()

    def call() -> object:
        x, w, _ = turn()
        return forward(x, w)

    return call


def _plan(t: Tensors) -> Any:
    return cudnnpy.Convolution(padding=TINY.padding).plan("forward", t.x, t.w)


def _plan_execute(t: Tensors, memory: Memory) -> Callable[[], object]:
    plan = _plan(t)
    workspace, turn = workspace_for(t, plan.workspace_size), memory.turns(pointers=True)
    at, stream, execute = workspace.data_ptr(), t.stream, plan.execute

    def call(_keep: Any = (workspace, memory)) -> object:
        x, w, y = turn()
        return execute(x, w, y, at, stream)

    return call


def _ready(t: Tensors, memory: Memory) -> Callable[[], object]:
    """cudnnBackendExecute by nothing but ctypes, with a pack for each tuple."""
    if isinstance(memory.tuples, str):
        raise NotInstalled("no pack can be ready for addresses that are not known")
    plan = _plan(t)
    workspace, handle = workspace_for(t, plan.workspace_size), cudnnpy.Handle(stream=t.stream)
    turn = memory.turns(pointers=True)
    packs = [bare_pack(plan, turn(), workspace.data_ptr()) for _ in range(memory.tuples)]
    execute = raw.load()["cudnnBackendExecute"]  # indexing makes a function object of our own
    first, second = c_void_p(handle.address), c_void_p(plan.executable.plan.address)
    following = cycle([c_void_p(pack.address) for pack in packs]).__next__
    for _ in packs:
        raw.check(execute(first, second, following()), "cudnnBackendExecute")

    def call(_keep: Any = (plan, workspace, handle, packs, memory)) -> object:
        return execute(first, second, following())

    return call


def _rebuilt(t: Tensors, memory: Memory) -> Callable[[], object]:
    """The same with a pack made, filled, used and destroyed in each call: the least that new addresses need."""
    plan = _plan(t)
    workspace, handle = workspace_for(t, plan.workspace_size), cudnnpy.Handle(stream=t.stream)
    turn = memory.turns(pointers=True)
    names = ("CreateDescriptor", "SetAttribute", "Finalize", "Execute", "DestroyDescriptor")
    create, put, finalize, execute, destroy = (raw.load()[f"cudnnBackend{name}"] for name in names)
    first, second = c_void_p(handle.address), c_void_p(plan.executable.plan.address)
    uids = (c_int64 * len(plan.executable.uids))(*plan.executable.uids)
    room, space = (c_void_p * 3)(), c_void_p(workspace.data_ptr())
    kind, pointer, integer = (
        c_int(int(number))
        for number in (raw.CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, raw.CUDNN_TYPE_VOID_PTR, raw.CUDNN_TYPE_INT64)
    )
    data, ids, area = (
        c_int(int(number))
        for number in (
            raw.CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
            raw.CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS,
            raw.CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
        )
    )
    one, three, pack = c_int64(1), c_int64(3), c_void_p()
    at_pack, at_space = byref(pack), byref(space)

    def call(_keep: Any = (plan, workspace, handle, memory)) -> Any:
        room[0], room[1], room[2] = turn()
        status = create(kind, at_pack)
        status |= put(pack, data, pointer, three, room)
        status |= put(pack, ids, integer, three, uids)
        status |= put(pack, area, pointer, one, at_space)
        status |= finalize(pack)
        status |= execute(first, second, pack)
        return status | destroy(pack)

    if call():
        raise RuntimeError("a pack built by hand is refused")
    return call


ENABLED = "F.conv2d, cudnnpy.torch enabled"
ROADS: dict[str, Callable[[Tensors, Memory], Callable[[], object]]] = {
    "torch F.conv2d": _torch_forward,
    ENABLED: _torch_forward,
    "conv.forward(x, w, out=y)": _forward_out,
    "conv.forward(x, w)": _forward,
    "plan.execute(pointers)": _plan_execute,
    "ctypes cudnnBackendExecute, pack ready": _ready,
    "ctypes cudnnBackendExecute, pack rebuilt": _rebuilt,
}
# What is switched on around the calls of a road, outside the clock
AROUND: dict[str, Callable[[], AbstractContextManager[Any]]] = {ENABLED: cudnnpy.torch.enable}


def measure(torch: Any, budget: Budget) -> Iterator[dict[str, Any]]:
    """One row for each road and number of tuples: microseconds of the host, or why there is no number."""
    tensors = Tensors(torch, DTYPE)
    timers: dict[str, Callable[[], float]] = {}
    rows: dict[str, dict[str, Any]] = {}
    for (name, make), tuples in product(ROADS.items(), TUPLES):
        key = f"{name}, {tuples}"
        rows[key] = {"dtype": DTYPE, "row": name, "tuples": tuples, "us": None, "absent": None, "error": None}
        around = AROUND.get(name, nullcontext)
        try:
            call = make(tensors, Memory(tensors, tuples))
            if not isinstance(tuples, str):  # so that every tuple is known
                within(around, partial(_repeat, torch, call, 5 * tuples))
            timer = partial(within, around, host_timer(call, torch.cuda.synchronize))
            timer()
            timer()
        except NotInstalled as why:
            rows[key]["absent"] = str(why)
        except Exception as error:
            rows[key]["error"] = f"{type(error).__name__}: {error}"
        else:
            timers[key] = timer
    with quiet():
        for key, times in interleaved(timers, MOST, LEAST, budget).items():
            rows[key]["us"] = summary(times)
    yield from rows.values()


def _repeat(torch: Any, call: Callable[[], object], count: int) -> None:
    for index in range(count):
        call()
        if index % 512 == 0:
            torch.cuda.synchronize()
