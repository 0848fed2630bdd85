"""The plans of a Fused layer: one cuDNN graph, or a convolution and an elementwise graph, whichever this GPU runs faster."""

import time
from functools import lru_cache, partial
from math import inf, isfinite, prod
from threading import Lock
from typing import Any, NamedTuple

import torch
from network_rewriting import ACTIVATIONS, TRANSPOSED, last_strides
from network_tracing import first_line

import cudnnpy

LAUNCH_MS = 0.002  # the host's time for one more launch at least, and twice the GPU's
TOLERANCE = {"float16": 1e-2, "bfloat16": 3e-2, "float32": 1e-2}  # of the norm of torch's result


class Job(NamedTuple):
    """A layer without its weights: layers with equal jobs share plans. Shapes are torch's, everything channels last."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    dtype: str
    transposed: bool
    padding: tuple[tuple[int, int], ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    bias: bool
    steps: tuple[tuple[str, float], ...]


class Launch(NamedTuple):
    """A plan and what its addresses are: "x", "w", "bias", "scale", "other", "between" and "y", in its order."""

    plan: Any
    operands: tuple[str, ...]


class Choice(NamedTuple):
    """How a layer runs, with a description and the other ways that were tried.

    launches    eager, in turn; none where torch computes it
    captured    in a CUDA graph, where the host's time does not count
    """

    launches: tuple[Launch, ...]
    captured: tuple[Launch, ...]
    detail: str
    milliseconds: float | None = None
    torch_milliseconds: float | None = None
    others: tuple[str, ...] = ()


class Times(NamedTuple):
    """Milliseconds of one call of several: until the next one can begin, and of the GPU alone."""

    eager: float
    gpu: float


def job_of(fused):
    """The job of a Fused. A linear layer is a convolution of an image that is one column of rows."""
    c, x, y = fused.convolution, fused.shapes["x"], fused.shapes["y"]
    dtype = str(c.weight.dtype).removeprefix("torch.")
    steps = tuple(step for step in fused.steps if step[0] != "turn")
    if fused.is_linear:
        rows, (outside, inside) = prod(x[:-1]), c.weight.shape
        shapes = (1, inside, rows, 1), (outside, inside, 1, 1), (1, outside, rows, 1)
        return Job(*shapes, dtype, False, ((0, 0),) * 2, (1, 1), (1, 1), 1, c.bias is not None, steps)
    if c.padding == "same":
        total = [d * (k - 1) for d, k in zip(c.dilation, c.kernel_size, strict=True)]
        padding = tuple((each // 2, each - each // 2) for each in total)
    else:
        padding = tuple((each, each) for each in ((0,) * (len(x) - 2) if c.padding == "valid" else c.padding))
    geometry = padding, tuple(c.stride), tuple(c.dilation), c.groups
    return Job(x, tuple(c.weight.shape), y, dtype, isinstance(c, TRANSPOSED), *geometry, c.bias is not None, steps)


def spec_of(shape, dtype, graph=False):
    """A tensor channels last; in a graph a single spatial axis is the width of an image of height 1."""
    wide = (*shape[:2], 1, *shape[2:]) if graph and len(shape) == 3 else shape
    return cudnnpy.TensorSpec(wide, dtype, last_strides(wide))


def finish(job, graph, top):
    """Adds what follows the convolution to a graph."""
    row = (1, job.y[1], *(1 for _ in job.y[2:]))
    first = [("bias", 0.0)] if job.bias else []
    for name, number in (*first, *job.steps):
        if name in ACTIVATIONS:
            top = ACTIVATIONS[name].node(graph, top, number)
        elif name == "add":
            top = graph.pointwise("add", top, graph.tensor("other", spec_of(job.y, job.dtype, True)))
        else:
            operand = graph.tensor(name, spec_of(row, job.dtype, True))
            top = graph.pointwise("add" if name == "bias" else "mul", top, operand)
    graph.output("y", top, job.dtype, spec_of(job.y, job.dtype, True).strides)


def in_one_graph(job, options, device):
    """The convolution and all that follows it as one launch."""
    graph = cudnnpy.Graph(**options)
    rank = max(len(job.stride), 2)
    x, w = (graph.tensor(n, spec_of(shape, job.dtype, True)) for n, shape in (("x", job.x), ("w", job.w)))
    geometry = {"stride": (1, *job.stride)[-rank:], "dilation": (1, *job.dilation)[-rank:], "groups": job.groups}
    finish(job, graph, graph.convolution(x, w, padding=((0, 0), *job.padding)[-rank:], **geometry))
    plan = graph.plan(device)
    return (Launch(plan, plan.operands),)


def convolution_plan(job, options, device, **more):
    """A cudnnpy.Convolution's plan, without what follows it except the options of `more`."""
    geometry = {"padding": job.padding, "stride": job.stride, "dilation": job.dilation, "groups": job.groups}
    operation = "backward_data" if job.transposed else "forward"
    specs = (spec_of(shape, job.dtype) for shape in (job.x, job.w))
    out = spec_of(job.y, job.dtype)
    shape = job.y if job.transposed else None
    return cudnnpy.Convolution(**geometry, **options).plan(operation, *specs, shape, out=out, device=device, **more)


def in_a_convolution(job, options, device):
    """The convolution with its bias and activation, which cudnnpy may run as several launches."""
    name = ACTIVATIONS[job.steps[0][0]].convolution if job.steps else None
    bias = cudnnpy.TensorSpec((job.y[1],), job.dtype) if job.bias else None
    plan = convolution_plan(job, options, device, bias=bias, activation=name)
    return (Launch(plan, ("x", "w", *["bias"][: job.bias], "y")),)


def alone(job, options, device):
    """The convolution without what follows it."""
    return (Launch(convolution_plan(job, options, device), ("x", "w", "between")),)


def in_two(job, options, device):
    """The convolution, and what follows it as one elementwise launch."""
    key = job._replace(**ANY), tuple(options.items()), device
    with making.setdefault(key, Lock()):  # lru_cache alone lets two threads make the same plan
        second = elementwise(*key)
    return *alone(job, options, device), Launch(second, second.operands)


# What the elementwise launch does not depend on: layers of other filters share its plan.
ANY = {"x": (), "w": (), "transposed": False, "padding": (), "stride": (), "dilation": (), "groups": 1}


making: dict[tuple[Any, ...], Lock] = {}


@lru_cache(maxsize=256)
def elementwise(job, options, device):
    """The plan of what follows a convolution whose result is "between"."""
    graph = cudnnpy.Graph(**dict(options))
    finish(job, graph, graph.tensor("between", spec_of(job.y, job.dtype, True)))
    return graph.plan(device)


def with_min(job, options, device):
    """As one launch, with min in place of a clipped relu, which engines may not take or not run as fast."""
    steps = tuple(("relu6_min", 0.0) if step[0] == "relu6" else step for step in job.steps)
    return in_one_graph(job._replace(steps=steps), options, device)


def ways(job):
    """The ways to run a job: what is tried first, and what may only be better if the convolution alone takes less time."""
    names = [ACTIVATIONS[name].convolution if name in ACTIVATIONS else None for name, _ in job.steps]
    first, more = [], []
    if not names or (len(names) == 1 and names[0]):
        first.append(in_a_convolution)
    if job.bias or job.steps:
        if not job.transposed:
            first.append(in_one_graph)
        if not job.transposed and ("relu6", 0.0) in job.steps:
            more.append(with_min)
        more.append(in_two)
    return first, more


def times_of(call, device):
    """The Times of a call: the GPU is kept busy while the host queues several, so that it never waits for the host."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    filler = torch.zeros(4096, 4096, dtype=torch.float16, device=device)
    result = torch.empty_like(filler)
    for _ in range(6):
        call()
    stop.record()
    stop.synchronize()
    begin = time.perf_counter()
    call()
    stop.record()
    stop.synchronize()
    count = max(1, min(10, int(2e-3 / (time.perf_counter() - begin))))
    host = gpu = float("inf")
    for _ in range(3):
        for _ in range(6):  # about a millisecond
            torch.mm(filler, filler, out=result)
        start.record()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        host = min(host, (time.perf_counter() - begin) / count * 1e3)
        stop.record()
        stop.synchronize()
        gpu = min(gpu, start.elapsed_time(stop) / count)
    return Times(max(host, gpu), gpu)


class Trial:
    """The ways to run a Fused, each planned and timed on memory of the layer's sizes.

    `plan` may run in any thread, and `measure` follows it in the caller's; both twice.
    """

    def __init__(self, fused, job, options, device):
        self.fused, self.job, self.options, self.device = fused, job, options, device
        self.first, self.more = ways(job)
        self.to_plan, self.to_measure = [*self.first, *([alone] if self.more else [])], []
        self.timed, self.refused, self.alone, self.by_torch = [], [], None, None

    def plan(self):
        """Plan the ways that are next. A way that fails is noted: torch can run the layer."""
        for way in self.to_plan:
            try:
                self.to_measure.append((way, way(self.job, self.options, self.device.index or 0)))
            except Exception as error:
                self.refused.append(f"{way.__name__}: {first_line(error)}")
        self.to_plan = []

    def measure(self):
        """Check what was planned against torch, and time it; then only ways that can be faster are left to plan."""
        fused, job = self.fused, self.job
        made = partial(torch.randn, dtype=fused.convolution.weight.dtype, device=self.device)
        tensors = {"x": made(job.x), **{name: made(job.y) for name in ("other", "between", "y")}}
        tensors |= {"w": fused.convolution.weight, "bias": fused.convolution.bias, "scale": fused.scale}
        addresses = {name: tensor.data_ptr() for name, tensor in tensors.items() if tensor is not None}
        given = [tensors[name].view(-1).as_strided(fused.shapes[name], fused.strides(name)) for name in fused.given]
        y = tensors["y"].view(-1).as_strided(fused.shapes["y"], fused.strides("y"))
        size = max([1, *(launch.plan.workspace_size for _, launches in self.to_measure for launch in launches)])
        space = torch.empty(size, dtype=torch.uint8, device=self.device)
        stream = torch.cuda.current_stream(self.device).cuda_stream
        right = fused(*given)
        if self.by_torch is None:
            self.by_torch = times_of(partial(fused, *given), self.device)
        for way, launches in self.to_measure:
            call = partial(run, launches, addresses, space.data_ptr(), stream)
            try:
                if way is alone:
                    self.alone = times_of(call, self.device)
                    continue
                y.fill_(float("nan"))
                call()
                if (error := difference(y, right)) > TOLERANCE[job.dtype]:
                    raise ArithmeticError(f"the result differs from torch's by {error:.1e} of its norm")
                self.timed.append((times_of(call, self.device), launches))
            except Exception as error:
                self.refused.append(f"{names_of(launches)}: {first_line(error)}")
        self.to_measure = []
        limits = zip(*(times for times, _ in self.timed), strict=True) if self.timed else [(inf,), (inf,)]
        eager, gpu = map(min, limits)
        if self.alone is not None and (self.alone.eager + LAUNCH_MS < eager or self.alone.gpu + LAUNCH_MS / 2 < gpu):
            self.to_plan = self.more
        self.more = []

    def choice(self):
        """The fastest ways, torch's among them."""
        if not self.timed:
            return Choice((), (), "; ".join(self.refused), None, self.by_torch.eager)
        (best, launches), *rest = sorted(self.timed, key=lambda one: one[0].eager)
        gpu, captured = min(self.timed, key=lambda one: one[0].gpu)
        others = (*(f"{names_of(other)}, {times.eager:.4f} ms" for times, other in rest), *self.refused)
        detail = names_of(launches)
        if self.by_torch.eager < best.eager:
            launches, detail = (), f"torch is faster than {detail}"
        if self.by_torch.gpu < gpu.gpu:
            captured = ()
        if captured != launches:
            detail += f"; in CUDA graphs {names_of(captured) or 'torch'}, {min(gpu.gpu, self.by_torch.gpu):.4f} ms"
        return Choice(launches, captured, detail, best.eager, self.by_torch.eager, others)


def difference(y, right):
    """|y - right| / |right|; infinite where y has NaN, and 0 where torch's own result is not finite."""
    wide = right.float()
    norm = float(torch.linalg.vector_norm(wide))
    error = float(torch.linalg.vector_norm(y.float() - wide))
    if not isfinite(norm):
        return 0.0
    return error / max(norm, 1e-30) if isfinite(error) else float("inf")


def run(launches, addresses, space, stream):
    """Runs launches on addresses by name."""
    for plan, operands in launches:
        plan.execute(*map(addresses.get, operands), space if plan.workspace_size else 0, stream)


def names_of(launches):
    return " + ".join(launch.plan.name for launch in launches)
