"""Runs a rewritten network for one signature of its inputs: plans on addresses, and torch's own functions between them."""

import operator
from functools import partial
from math import prod
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch import fx

MOST_STREAMS = 8  # for which memory is kept; the oldest makes room
ALIGNMENT = 512  # of tensors in the shared block, in bytes


class Buffer(NamedTuple):
    """Bytes in the shared block that are used from one node to another, by number."""

    size: int
    first: int
    last: int


class OtherShape(Exception):
    """A tensor in the network has a shape that it did not have when it was converted, since it depends on data."""


class Bound(NamedTuple):
    """The shared block, and the steps on it: (number, function of all values, values that are not needed any more)."""

    block: torch.Tensor
    steps: list[tuple[int, Any, Any]]


def packed(buffers):
    """Offsets for buffers, so that those in use at one time do not overlap, and the size of all; the largest first."""
    placed: list[tuple[int, int, Buffer]] = []
    offsets = [0] * len(buffers)
    for at in sorted(range(len(buffers)), key=lambda at: -buffers[at].size):
        new, offset = buffers[at], 0
        for start, end, old in sorted(placed, key=operator.itemgetter(0)):
            if old.last >= new.first and new.last >= old.first and start < offset + new.size:
                offset = max(offset, -(-end // ALIGNMENT) * ALIGNMENT)
        offsets[at] = offset
        placed.append((offset, offset + new.size, new))
    return offsets, max((end for _, end, _ in placed), default=0)


def lies(shape, strides, wanted):
    """Whether a tensor with these strides is in memory as one with the wanted strides: axes of size 1 do not count."""
    return all(size == 1 or a == b for size, a, b in zip(shape, strides, wanted, strict=True))


def placed(tensor, wanted):
    """The tensor at an aligned address and with the wanted strides: itself, or a copy."""
    if not tensor.data_ptr() % 16 and lies(tensor.shape, tensor.stride(), wanted):
        return tensor
    return torch.empty_strided(tensor.shape, wanted, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


class Program:
    """The rewritten graph with plans, for inputs of one signature on one device.

    `choices` has a Choice for each node that is a Fused.
    """

    def __init__(self, module, choices, device):
        self.module, self.choices, self.device = module, choices, device
        self.nodes = list(module.graph.nodes)
        self.at = {node: number for number, node in enumerate(self.nodes)}
        self.last = self._last_uses()
        self.modules = dict(module.named_modules())
        self.inputs = [self.at[node] for node in self.nodes if node.op == "placeholder"]
        self._lay_out()
        self._bound: dict[tuple[int, int], Bound] = {}  # by thread and stream

    def _last_uses(self):
        """Of the memory of each node's result, the node that reads it last: nodes whose results share memory count."""
        group: dict[fx.Node, fx.Node] = {}
        for node in self.nodes:
            group[node] = node
            for given in node.meta.get("shares", ()):
                while given.meta.get("now"):  # it was replaced
                    given = given.meta["now"]
                old, new = group[node], group[given]
                group = {one: new if of is old else of for one, of in group.items()}
        uses: dict[fx.Node, int] = {}
        for node, of in group.items():
            uses[of] = max([uses.get(of, 0), self.at[node], *(self.at[user] for user in node.users)])
        return {node: uses[of] for node, of in group.items()}

    def _lay_out(self):
        """Plans the shared block: the results of layers, what is between two launches, and workspace."""
        buffers, self.places = [], {}
        for node, choice in self.choices.items():
            if not (choice.launches or choice.captured):
                continue
            number, (shape, dtype) = self.at[node], node.meta["spec"]
            size = prod(shape) * dtype.itemsize
            space = max(launch.plan.workspace_size for launch in (*choice.launches, *choice.captured))
            several = max(len(choice.launches), len(choice.captured)) > 1
            wanted = {"workspace": (space, number), "between": (size * several, number)}
            if self.last[node] < len(self.nodes) - 1:  # a network's result has memory of its own
                wanted["y"] = (size, self.last[node])
            for name, (count, last) in wanted.items():
                if count:
                    self.places[node, name] = len(buffers)
                    buffers.append(Buffer(count, number, last))
        self.offsets, self.size = packed(buffers)

    def run(self, inputs):
        """Runs the network on the current stream."""
        stream = torch.cuda.current_stream(self.device).cuda_stream
        if torch.cuda.is_current_stream_capturing():
            bound = self._bind(stream, True)  # in memory of the CUDA graph's own, which it keeps
        else:
            key = (get_ident(), stream)
            bound = self._bound.get(key)
            if bound is None:
                bound = self._bind(stream, False)
                while len(self._bound) >= MOST_STREAMS:
                    self._bound.pop(next(iter(self._bound)), None)
                self._bound[key] = bound
        values = [None] * len(self.nodes)
        for at, given in zip(self.inputs, inputs, strict=True):
            values[at] = given
        for at, step, dead in bound.steps:
            values[at] = step(values)
            for one in dead:
                values[one] = None
        return values[-1]

    def _bind(self, stream, captured):
        """The steps for a stream on a new block of memory, eager or in a capture."""
        block = torch.empty(max(self.size, 1), dtype=torch.uint8, device=self.device)
        dead: dict[int, list[int]] = {}
        for node, last in self.last.items():
            dead.setdefault(last, []).append(self.at[node])
        still = {}  # tensors whose place in the block is known now
        steps = []
        for number, node in enumerate(self.nodes):
            if node.op == "placeholder":
                continue
            choice = self.choices.get(node)
            launches = () if choice is None else choice.captured if captured else choice.launches
            step = self._layer(node, launches, block, stream, still) if launches else self._torch(node)
            steps.append((number, step, dead.get(number, ()) if number < len(self.nodes) - 1 else ()))
        return Bound(block, steps)

    def _part(self, node, name, block):
        place = self.places.get((node, name))
        return None if place is None else block[self.offsets[place] :]

    def _layer(self, node, launches, block, stream, still):
        """The launches of a Fused on addresses, of which those in the block are known."""
        fused = self.modules[node.target]
        shape, dtype = node.meta["spec"]
        strides = fused.strides("y")
        made = partial(torch.empty_strided, shape, strides, dtype=dtype, device=self.device)
        place = self._part(node, "y", block)
        y = None if place is None else place[: prod(shape) * dtype.itemsize].view(dtype).as_strided(shape, strides)
        weights = {"w": fused.convolution.weight, "bias": fused.convolution.bias, "scale": fused.scale}
        known = {name: tensor.data_ptr() for name, tensor in weights.items() if tensor is not None}
        between, space = (self._part(node, name, block) for name in ("between", "workspace"))
        if between is not None:
            known["between"] = between.data_ptr()
        if y is not None:
            still[node], known["y"] = y, y.data_ptr()
        varying = []  # (name, number, shape, strides)
        for name, given in zip(("x", "other"), node.args, strict=False):
            wanted = fused.strides(name)
            if given in still and lies(still[given].shape, still[given].stride(), wanted):
                known[name] = still[given].data_ptr()
            else:
                varying.append((name, self.at[given], fused.shapes[name], wanted))
        ready = []  # (execute, addresses, and which of them are not known yet)
        for plan, operands in launches:
            addresses = [known.get(name, 0) for name in operands]
            addresses += [space.data_ptr() if plan.workspace_size else 0, stream]
            ready.append((plan.execute, addresses, [(at, n) for at, n in enumerate(operands) if n not in known]))
        if y is not None and not varying:
            return partial(all_of, [partial(execute, *addresses) for execute, addresses, _ in ready], y)

        def step(values):
            result = made() if y is None else y
            given = {"y": result}
            for name, at, shape, strides in varying:
                tensor = values[at]
                if tensor.shape != shape:
                    raise OtherShape
                if tensor.stride() != strides or tensor.data_ptr() & 15:
                    tensor = placed(tensor, strides)
                given[name] = tensor
            for execute, addresses, missing in ready:
                addresses = addresses.copy()
                for at, name in missing:
                    addresses[at] = given[name].data_ptr()
                execute(*addresses)
            return result

        return step

    def _torch(self, node):
        """A node as torch computes it."""
        at = self.at
        if node.op == "get_attr":
            value = operator.attrgetter(node.target)(self.module)
            return lambda values: value
        if node.op == "output":
            return lambda values: fx.node.map_arg(node.args[0], lambda given: values[at[given]])
        target = self.modules[node.target] if node.op == "call_module" else node.target
        call = method(target) if node.op == "call_method" else target
        if not node.kwargs and all(isinstance(given, fx.Node) for given in node.args):
            places = [at[given] for given in node.args]
            if len(places) == 1:
                (place,) = places
                return lambda values: call(values[place])
            return lambda values: call(*[values[place] for place in places])

        def step(values):
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda given: values[at[given]])
            return call(*args, **kwargs)

        return step


def all_of(calls, result, values):
    for call in calls:
        call()
    return result


def method(name):
    return lambda given, *args, **kwargs: getattr(given, name)(*args, **kwargs)
