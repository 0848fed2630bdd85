"""Runs a torch.nn.Module for inference, with its convolutions on cudnnpy.

    python docs/examples/torch_network.py [NETWORK] [--batch N] [--size N] [--dtype float16] [--prefer fastest] [--others]

NETWORK is a model of torchvision (resnet50, mobilenet_v2, ...; its weights are random, nothing is downloaded), or
package.module:function for a function without arguments that makes a module. In a program:

    network = convert(module.eval(), x)     # x: a batch like those that follow, on a GPU
    y = network(x)                          # eager
    replay = captured(network, x)           # in a CUDA graph
    print(network.report())                 # what each layer became

torch.fx traces the module. Batch normalizations are folded into the convolution before them; a convolution with its
bias, an addition of another tensor and the activations after it become one cuDNN graph, or a convolution and one
elementwise graph, whichever is faster on this GPU (torch's own functions are measured as well). Everything else stays with
torch and is listed, with the reason.

Weights are copied at the conversion, filters channels last: convert again after they change. Each plan is made once for
each signature of the inputs and runs on raw addresses. Intermediate results share one block of memory for each stream and
thread. Results are channels last, and no gradients are recorded.
"""

import argparse
import importlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import torch
from network_plans import Trial, job_of
from network_program import OtherShape, Program
from network_rewriting import Fused, Rewriter, last_strides
from network_tracing import Recorder, first_line, traced

import cudnnpy

MOST_SIGNATURES = 8  # that are kept; the oldest makes room
THREADS = 8  # that plan at a time: most of planning is the compilation of engines


# The network


class Row(NamedTuple):
    """What a layer became: `by` is "cudnnpy" or "torch"; times are None where nothing was measured.

    `others` are the other ways to run it, with their times or what they failed with.
    """

    layer: str
    by: str
    detail: str
    milliseconds: float | None = None
    torch_milliseconds: float | None = None
    others: tuple[str, ...] = ()


class Network:
    """A module for inference. Call it as the module; `rows` tell what its layers became for the last new signature."""

    def __init__(self, module, options):
        self.module, self.options, self.rows = module, options, []
        self._programs: dict[Any, Program | None] = {}

    def __call__(self, *inputs):
        key = signature(inputs)
        with torch.no_grad():
            try:
                program = self._programs[key]
            except KeyError:
                if any(isinstance(x, torch.Tensor) and x.is_cuda for x in inputs) and capturing():
                    return self.module(*inputs)  # nothing is planned in a capture
                program = self.prepare(*inputs)
            if program is not None:
                try:
                    return program.run(inputs)
                except OtherShape:
                    pass
            return self.module(*inputs)

    def prepare(self, *inputs):
        """Plans for inputs like these, of which nothing is kept. Returns the Program, or None if torch runs it all."""
        with torch.no_grad():
            program, self.rows = converted(self.module, inputs, self.options)
        while len(self._programs) >= MOST_SIGNATURES:
            self._programs.pop(next(iter(self._programs)), None)
        self._programs[signature(inputs)] = program
        return program

    def report(self, others=False):
        """What each layer became, one on a line, and below it what else was tried if `others` is set."""
        lines = []
        for row in self.rows:
            times = [f"{ms:.4f} ms" for ms in (row.milliseconds, row.torch_milliseconds) if ms is not None]
            lines.append(f"{row.layer}: {row.by}, {row.detail}" + (f" ({', torch '.join(times)})" if times else ""))
            lines += [f"    not {other}" for other in row.others if others]
        count = sum(row.by == "cudnnpy" for row in self.rows)
        return "\n".join([*lines, f"{count} of {len(self.rows)} run on cudnnpy"])


def signature(inputs):
    """What a Program is made for."""
    return tuple((x.shape, x.dtype, x.stride(), x.device) if isinstance(x, torch.Tensor) else id(x) for x in inputs)


def capturing():
    return torch.cuda.is_current_stream_capturing()


def convert(module, *inputs, prefer="fastest", workspace_limit=None, deterministic=None, tf32=None, tune_seconds=2.0):
    """A callable that runs a module for inference, its convolutions on cudnnpy where that is possible and faster.

    inputs    what the module is called with: tensors like those that follow. Others are converted when they come
    prefer, workspace_limit, deterministic, tf32, tune_seconds    as in cudnnpy.Convolution; deterministic and tf32 are
              torch's settings by default, of which tf32 has one for convolutions and one for linear layers
    """
    options = {"prefer": prefer, "workspace_limit": workspace_limit, "tune_seconds": tune_seconds}
    options |= {"deterministic": deterministic, "tf32": tf32}
    cudnnpy.Graph(**with_defaults(options, is_linear=False))  # refuses wrong options now
    network = Network(module, options)
    network.prepare(*inputs)
    return network


def with_defaults(options, is_linear):
    """The options of a layer, with torch's settings where they are None."""
    cudnn, found = torch.backends.cudnn, dict(options)
    if found["deterministic"] is None:
        found["deterministic"] = cudnn.deterministic or torch.are_deterministic_algorithms_enabled()
    if found["tf32"] is None:
        settings = torch.backends.cuda.matmul if is_linear else getattr(cudnn, "conv", cudnn)
        precision = getattr(settings, "fp32_precision", None)  # a new setting, which the old one may not agree with
        found["tf32"] = settings.allow_tf32 if precision is None else precision == "tf32"
    return found


def converted(module, inputs, options):
    """The Program of a module for inputs, and its rows; no Program where nothing of it can run on cudnnpy."""

    def whole(why):
        return None, [Row("the whole module", "torch", why)]

    devices = {x.device for x in inputs if isinstance(x, torch.Tensor)}
    if len(devices) != 1 or not all(isinstance(x, torch.Tensor) for x in inputs):
        return whole("its inputs are not tensors on one device")
    (device,) = devices
    if why := unusable(device):
        return whole(why)
    graph, left = traced(module)
    if graph is None:
        return whole(left[""])
    before = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        Recorder(graph).run(*[x.clone() for x in inputs])
    except Exception as error:
        return whole(f"the traced module cannot be run: {first_line(error)}")
    finally:
        for buffer, value in before:  # statistics of batch normalizations that are in training mode
            buffer.copy_(value)
    try:
        rewriter = Rewriter(graph)
        rewriter.run()
        choices = choose(graph, rewriter, options, device)
    except Exception as error:
        return whole(f"it cannot be converted: {first_line(error)}")
    return Program(graph, choices, device), rows_of(graph, choices, rewriter, left)


def unusable(device):
    """Why nothing on a device can run on cudnnpy, or None."""
    if device.type != "cuda":
        return f"its inputs are on {device.type}, not on a CUDA device"
    return None if cudnnpy.is_available() else cudnnpy.why_unavailable()


def choose(graph, rewriter, options, device):
    """The Choice of each node that is a Fused; what is equal is planned and measured once."""
    jobs, first = {}, {}
    for node in graph.graph.nodes:
        fused = rewriter.modules[node.target] if node.op == "call_module" else None
        if not isinstance(fused, Fused):
            continue
        weight = fused.convolution.weight
        if fused.is_linear:
            weight.data = weight.contiguous()
        else:
            made = torch.empty_strided(weight.shape, last_strides(weight.shape), dtype=weight.dtype, device=device)
            weight.data = made.copy_(weight)
        jobs[node] = job_of(fused), fused.is_linear
        first.setdefault(jobs[node], fused)
    trials = {
        key: Trial(fused, key[0], with_defaults(options, fused.is_linear), device) for key, fused in first.items()
    }
    threads = 1 if options["prefer"] == "autotune" else min(THREADS, os.cpu_count() or 1)
    cudnnpy.Handle.default(device.index or 0)  # libraries are loaded in this thread
    with torch.cuda.device(device):
        for _ in range(2):  # what is tried first, and what can be faster than that
            some = [trial for trial in trials.values() if trial.to_plan]
            list(pool(threads).map(Trial.plan, some))
            for trial in some:
                trial.measure()
    return {node: trials[key].choice() for node, key in jobs.items()}


pools: dict[int, ThreadPoolExecutor] = {}  # kept: a thread's cuDNN handle belongs to the plans that it made


def pool(threads):
    if threads not in pools:
        pools[threads] = ThreadPoolExecutor(threads)
    return pools[threads]


def rows_of(graph, choices, rewriter, left):
    """A Row for each node that computes something, in their order."""
    rows = []
    for node in graph.graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        if node in choices:
            choice, parts = choices[node], rewriter.modules[node.target].parts
            by = "cudnnpy" if choice.launches else "torch"
            times = choice.milliseconds, choice.torch_milliseconds
            rows.append(Row(" + ".join(parts), by, choice.detail, *times, choice.others))
        else:
            name = node.target if node.op == "call_module" else node.name
            rows.append(Row(name, "torch", left.get(name) or rewriter.notes.get(node) or kind(node, rewriter.modules)))
    return rows


def kind(node, modules):
    """What a node is, in a word."""
    if node.op == "call_module":
        return type(modules[node.target]).__name__
    return node.target if node.op == "call_method" else getattr(node.target, "__name__", str(node.target))


def captured(network, *inputs):
    """The network in a CUDA graph: a function of inputs like these, which are copied; each result replaces the last."""
    given = [x.clone(memory_format=torch.preserve_format) for x in inputs]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        for _ in range(3):
            network(*given)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        result = network(*given)

    def replay(*inputs):
        for mine, x in zip(given, inputs, strict=True):
            mine.copy_(x)
        graph.replay()
        return result

    replay.network = network  # whose weights the graph reads
    return replay


# The command


def network_named(name):
    """A module: a model of torchvision with random weights, or what package.module:function returns."""
    if ":" in name:
        module, function = name.split(":", 1)
        return getattr(importlib.import_module(module), function)()
    try:
        models = importlib.import_module("torchvision.models")
    except ImportError:
        raise SystemExit(
            f"{name} needs torchvision: pip install torchvision, or give package.module:function"
        ) from None
    return models.get_model(name, weights=None)


def settle(module, x):
    """Lets batch normalizations see a batch: with the statistics of new ones, random networks grow without bound."""
    norms = [one for one in module.modules() if isinstance(one, torch.nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        module.train()(x)


def wall_milliseconds(call, count=20):
    """What a user waits for one of several calls in a row."""
    for _ in range(5):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / count * 1e3


def error_of(result, right):
    """|result - right| / |right|, in float32."""
    return float(torch.linalg.vector_norm(result.float() - right) / torch.linalg.vector_norm(right))


def compare(module, x, dtype, options, others=False):
    """Prints what layers became, the times beside torch's and the errors; returns whether the results are right."""
    torch.backends.cudnn.benchmark = True
    with torch.no_grad():
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            right = module(x).float()
        module, x = module.to(dtype).to(memory_format=torch.channels_last), x.to(dtype)
        x = x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x
        start = time.perf_counter()
        network = convert(module, x, **options)
        print(f"{network.report(others)}\nconverted in {time.perf_counter() - start:.1f} s")
        ways = {"torch": partial(module, x), "torch, CUDA graph": partial(captured(module, x), x)}
        ways |= {"cudnnpy": partial(network, x), "cudnnpy, CUDA graph": partial(captured(network, x), x)}
        errors = {name: error_of(call(), right) for name, call in ways.items()}
        times = {name: wall_milliseconds(call) for name, call in ways.items()}
    for name, ms in times.items():
        print(f"{name}: {ms:.3f} ms, {ms / times['torch']:.2f} of torch; error {errors[name]:.1e}")
    allowed = max(2 * errors["torch"], 1e-3)
    return all(error <= allowed for error in errors.values())


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", nargs="*", default=["resnet50", "mobilenet_v2"], metavar="NETWORK")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--size", type=int, default=224, help="pixels of a side of the images (224)")
    parser.add_argument("--dtype", choices=("float16", "bfloat16", "float32"), default="float16")
    parser.add_argument(
        "--prefer", choices=("fastest", "limited_workspace", "no_workspace", "autotune"), default="fastest"
    )
    parser.add_argument("--others", action="store_true", help="tell what else was tried for each layer")
    given = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        raise SystemExit("a CUDA device is needed")
    right = True
    for name in given.network:
        print(f"\n{name}, batch {given.batch}")
        torch.manual_seed(0)
        module = network_named(name).cuda()
        settle(module, torch.randn(8, 3, given.size, given.size, device="cuda"))
        x = torch.randn(given.batch, 3, given.size, given.size, device="cuda")
        right &= compare(module.eval(), x, getattr(torch, given.dtype), {"prefer": given.prefer}, given.others)
    if not right:
        raise SystemExit("a result is further from float32 than twice torch's own")


if __name__ == "__main__":
    main()
