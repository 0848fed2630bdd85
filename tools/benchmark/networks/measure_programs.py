"""Whole networks: an inference and a training step, by torch in several ways and by cudnnpy where it has one.

The row's `absent` has the reasons of contenders that are missing or do not work here (torch.compile needs a compiler).
Times are by the host's clock over calls in a row.
"""

from __future__ import annotations

import importlib
import math
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import cudnnpy.torch
from cudnnpy import store
from tools.benchmark.networks import models
from tools.benchmark.timing import Budget, interleaved, quiet, summary, within

MOST, LEAST = 20, 5  # repetitions
SETTLING = 20  # calls before the first repetition: both sides prepare in the first few what later ones use
REPETITION_MS = 10.0
TIMING_SECONDS = 2.0
TOLERANCE = {
    "inference": 1e-2,
    "training": 1e-1,
}  # to the float32 result; wider where torch's own difference is (allowed)

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"

Call = Callable[[], Any]


class Program(NamedTuple):
    """A row: "inference" or "training", of which network, at which batch."""

    part: str
    network: str
    batch: int

    @property
    def key(self) -> str:
        """The row's identity over all runs."""
        return f"{self.part} | {self.network} | batch {self.batch}"


INFERENCE = tuple(Program("inference", name, batch) for name in models.SIZES for batch in (1, 64))
TRAINING = tuple(Program("training", name, batch) for name in ("resnet50", "mobilenet_v2") for batch in (16, 128))


class Contender(NamedTuple):
    """A call that is timed. `around` is active around a repetition, outside its clock."""

    call: Call
    around: Callable[[], AbstractContextManager[Any]] = nullcontext


class Absent(Exception):
    """A contender does not work here; the row has the reason."""


def measure(torch: Any, program: Program, row: dict[str, Any], tune_seconds: float | None = None) -> None:
    """Fill a row; wrong results are its `error`. `tune_seconds` is autotune's limit for each problem."""
    row.update(network=program.network, batch=program.batch, difference={}, absent={}, ms={})
    row["source"] = models.source(program.network)
    torch.backends.cudnn.benchmark = torch.backends.cudnn.allow_tf32 = True
    store.use("")  # "fastest", which runs first, takes no choice of autotune's
    lost: dict[str, str] = {}
    if program.part == "inference":
        contenders = _inference(torch, program, row, lost)
    else:
        contenders = _training(
            torch, program, row, lost, {} if tune_seconds is None else {"tune_seconds": tune_seconds}
        )
    timers: dict[str, Callable[[], float]] = {}
    with quiet():
        for name, contender in contenders.items():
            within(contender.around, models.wall_timer(torch, contender.call, SETTLING))
            once = within(contender.around, models.wall_timer(torch, contender.call, 2))
            count = min(max(math.ceil(REPETITION_MS / once), 1), 50)
            timers[name] = partial(within, contender.around, models.wall_timer(torch, contender.call, count))
        timers[f"{next(iter(contenders))}, again"] = next(iter(timers.values()))
        for name, times in interleaved(timers, MOST, LEAST, Budget(TIMING_SECONDS)).items():
            row["ms"][name] = summary(times)
    row["error"] = "; ".join(f"{name}: {why}" for name, why in lost.items()) or None


def admit(
    torch: Any,
    row: dict[str, Any],
    lost: dict[str, str],
    makers: dict[str, Callable[[], Contender]],
    right: Any,
    part: str,
) -> dict[str, Contender]:
    """Return the contenders whose results agree with the float32 result; the first, torch's own, sets the tolerance.

    Absent and wrong contenders are recorded in the row, or in `lost`.
    """
    contenders: dict[str, Contender] = {}
    allowed = math.inf
    for name, make in makers.items():
        try:
            contender = make()
            models.poison(torch)
            with contender.around():
                result = contender.call()
            row["difference"][name] = off = models.off(torch, result, right)
        except Absent as why:
            row["absent"][name] = str(why)
            continue
        except Exception as error:
            lost[name] = f"{type(error).__name__}: {error}"
            continue
        if not contenders:
            allowed = max(TOLERANCE[part], allowance(off))
        if not off <= allowed:
            lost[name] = f"wrong by {off:.2g} of the float32 result (allowed: {allowed:.2g})"
            continue
        contenders[name] = contender
    if next(iter(makers)) not in contenders:
        raise RuntimeError("; ".join(f"{name}: {why}" for name, why in lost.items()))
    return contenders


def allowance(off: float) -> float:
    """Return the tolerance for torch's own error: twice as much, but never as much as a result of zeros (1)."""
    return min(2 * off, (1 + off) / 2)


# --- inference


def _inference(torch: Any, program: Program, row: dict[str, Any], lost: dict[str, str]) -> dict[str, Contender]:
    with torch.no_grad():
        with models.exact_float32(torch):  # no search for what runs once
            model = models.build(torch, program.network).eval()
            x = models.pictures(torch, program.network, program.batch)
            right = model(x)
        model = model.half().to(memory_format=torch.channels_last)
        x = x.half().to(memory_format=torch.channels_last)

    def without_gradients(call: Callable[[Any], Any]) -> Call:
        def run() -> Any:
            with torch.no_grad():
                return call(x)

        return run

    @cache
    def ours() -> Call:
        start = time.perf_counter()
        network = converted(model, x)
        row["convert_s"] = round(time.perf_counter() - start, 3)
        row["layers"] = {by: sum(layer.by == by for layer in network.rows) for by in ("cudnnpy", "torch")}
        row["left"] = [f"{layer.layer}: {layer.detail}" for layer in network.rows if layer.by == "torch"]
        return without_gradients(network)

    makers: dict[str, Callable[[], Contender]] = {
        "torch": lambda: Contender(without_gradients(model)),
        "torch, graph": lambda: Contender(captured(torch, without_gradients(model))),
        "torch.compile": lambda: Contender(_compiled(torch, model, without_gradients)),
        "cudnnpy": lambda: Contender(ours()),
        "cudnnpy, graph": lambda: Contender(captured(torch, ours())),
    }
    return admit(torch, row, lost, makers, right, program.part)


def _compiled(torch: Any, model: Any, wrap: Callable[[Any], Call]) -> Call:
    try:
        torch._dynamo.reset()
        call = wrap(torch.compile(model, mode="reduce-overhead"))
        for _ in range(4):  # compiles, warms up, captures
            call()
    except Exception as error:
        text = " ".join(str(error).split())
        raise Absent(f"does not work here: {type(error).__name__}: {text[:200]}") from error
    return call


def converted(model: Any, x: Any) -> Any:
    """Return the module on cudnnpy, by docs/examples/torch_network.py; its other modules are in the same folder."""
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))
    return importlib.import_module("torch_network").convert(model, x)


def captured(torch: Any, call: Call) -> Call:
    """Return the call as a CUDA graph, after it ran a few times on a stream of its own."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(5):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()

    def replay() -> Any:
        graph.replay()
        return result

    return replay


# --- training


def _training(
    torch: Any, program: Program, row: dict[str, Any], lost: dict[str, str], options: dict[str, Any]
) -> dict[str, Contender]:
    with models.exact_float32(torch):  # no search for what runs once
        model = models.build(torch, program.network).train()
        x = models.pictures(torch, program.network, program.batch)
        labels = torch.arange(program.batch, device=models.DEVICE) % 1000
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0  # so that steps can be compared
        right = _gradient(torch, model, x, labels)
    model = model.to(torch.bfloat16).to(memory_format=torch.channels_last)
    x = x.to(torch.bfloat16).to(memory_format=torch.channels_last)
    # so small a rate that the weights hardly move: a step costs the same at any rate
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9, momentum=0.9)

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(x).float(), labels)
        loss.backward()
        optimizer.step()

    gradient = partial(_gradient, torch, model, x, labels)
    # the norms of the gradients are compared, and the steps are timed; torch searches, and so does cudnnpy.torch
    makers: dict[str, Callable[[], Contender]] = {
        "torch": lambda: Contender(gradient),
        "cudnnpy, fastest": lambda: Contender(gradient, partial(cudnnpy.torch.enable, prefer="fastest")),
        "cudnnpy": lambda: Contender(gradient, partial(cudnnpy.torch.enable, **options)),
    }
    checked = admit(torch, row, lost, makers, right, program.part)
    if "cudnnpy" in checked:
        counted = cudnnpy.torch.stats()
        row["convolutions"] = {"taken": dict(counted.handled), "left": dict(counted.fallbacks)}
        cudnnpy.torch.reset_stats()  # for the next row
    return {name: contender._replace(call=step) for name, contender in checked.items()}


def _gradient(torch: Any, model: Any, x: Any, labels: Any) -> Any:
    """The norm of the gradient of each parameter, from one step.

    The gradients themselves cannot be compared: a change of one input in the last bit turns those of a deep network with
    random weights into others (a relative difference of 1.3 in bfloat16, with PyTorch alone), of the same norms (0.03).
    """
    model.zero_grad(set_to_none=True)
    torch.nn.functional.cross_entropy(model(x).float(), labels).backward()
    norm = torch.linalg.vector_norm
    return torch.stack([norm(parameter.grad.float()) for parameter in model.parameters()])
