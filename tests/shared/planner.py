"""Plans for a described device, in a process of its own (libcudnn with the stand-in driver): see test_planning.py.

Takes the profile's file as its argument. Each line on standard input is a request, {"do": a function below, ...}, and
each line on standard output its answer: {"answer": ...}, or {"error": type, "text": message} for what it raised.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import pickle
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import sample_graphs

from cudnnpy import raw
from cudnnpy._core.candidate_table import table
from cudnnpy._core.layouts import TensorSpec
from cudnnpy._launch.steps import is_relocatable
from cudnnpy._layers import graph as graph_of
from cudnnpy._layers.convolution import Convolution
from cudnnpy._layers.lowerings import convolution_lowerings as lowerings
from cudnnpy._layers.lowerings.convolution_candidates import ConvolutionProblem
from cudnnpy._planning import engines as engines_of
from cudnnpy._planning import plan as plans
from cudnnpy._planning import selection
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.choice import Engine
from cudnnpy._planning.chooser import Request
from cudnnpy._planning.options import PlanningOptions
from cudnnpy.backend import Descriptor
from cudnnpy.errors import NoAlgorithmError
from cudnnpy.graph.convolutions import convolution_graph
from cudnnpy.graph.descriptors import build_graph
from cudnnpy.tuning import chooser as tuning_chooser
from cudnnpy.tuning import stored_choice
from cudnnpy.tuning.chooser import TuningChooser
from cudnnpy.tuning.measuring import search
from cudnnpy.tuning.measuring.search import Search
from cudnnpy.tuning.store import levels
from cudnnpy.tuning.store.entry import Entry
from cudnnpy.tuning.store.store import Store

TARGET = engines_of.Target(profile=Path(sys.argv[1]).read_text())
BUILT: list[str] = []  # the operations whose graphs were built


def convolution_of(request: dict[str, Any]) -> Convolution:
    given = dict(request.get("options", {}))
    engine = given.get("algorithm")
    if isinstance(engine, dict):
        knobs = engine.get("knobs")
        pairs = knobs and {int(kind): value for kind, value in knobs}
        given["algorithm"] = Engine(**{**engine, "knobs": pairs})
    return Convolution(**given)


def problem_of(request: dict[str, Any]) -> tuple[PlanningOptions, ConvolutionProblem]:
    """The options and the problem of a request: operation, first, second (shapes, or all of a TensorSpec), shape, ..."""
    convolution = convolution_of(request)
    dtype = request.get("dtype", "float32")

    def spec(given: Any) -> TensorSpec | None:
        if given is None:
            return None
        shape, strides = given if isinstance(given[0], list) else (given, None)
        return TensorSpec(tuple(shape), dtype, strides and tuple(strides))

    first, second = spec(request["first"]), spec(request["second"])
    assert first is not None
    assert second is not None
    made = convolution._problem(
        request["operation"],
        first,
        second,
        request.get("shape"),
        bias=spec(request.get("bias")),
        activation=request.get("activation"),
        out=spec(request.get("out")),
        beta=request.get("beta", 0.0),
        device=0,
    )
    return convolution._planning, made


def described(candidate: Candidate) -> dict[str, Any]:
    executable = candidate.executable
    return {
        "source": candidate.source,
        "name": candidate.name,
        "notes": candidate.notes,
        "deterministic": candidate.deterministic,
        "refused": candidate.rejection_reason,
        "workspace_size": candidate.workspace_size,
        "milliseconds": candidate.milliseconds,
        "engine": candidate.engine and vars(candidate.engine),
        "compiled_at_run_time": candidate.compiled_at_run_time,
        "planned": executable is not None,
        "is_relocatable": executable is not None and is_relocatable(executable),
        "kind": type(executable).__name__,
    }


def chooser(problem: Any, options: PlanningOptions, free: int = 1 << 37, target: Any = TARGET, **asked: Any) -> Any:
    """A chooser of this process, without a store."""
    limit = selection.limit_of(options, free, asked.pop("memory_limit", None))
    return TuningChooser(Request(problem, options, target, limit, **asked), store=levels.Layers(Store("")))


def chosen(problem: Any, options: PlanningOptions) -> Candidate:
    return selection.choose(chooser(problem, options)).candidate


def survey(request: dict[str, Any]) -> Any:
    """Every candidate of a problem."""
    options, problem = problem_of(request)
    found = selection.survey(chooser(problem, options, request.get("free", 1 << 37), may_run=False))
    return [described(candidate) for candidate in found]


def tracebacks(request: dict[str, Any]) -> int:
    """How many exceptions with a traceback are left of planning twice, until garbage collection."""
    options, problem = problem_of(request)
    models = os.environ.pop("CUDNNPY_MODELS", None)
    target = engines_of.Target(profile=TARGET.profile)
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            selection.choose(chooser(problem, options, target=target))
            selection.survey(chooser(problem, options, target=target))
        return sum(isinstance(one, BaseException) and one.__traceback__ is not None for one in gc.get_objects())
    finally:
        gc.enable()
        if models is not None:
            os.environ["CUDNNPY_MODELS"] = models


class Bench:
    """In place of autotune's: times by name instead of a clock; a candidate without one fails when it runs."""

    times: dict[str, float] = {}
    seen: list[str] = []
    confirmed: list[str] = []  # the candidates of stored choices that were run once
    scarce = ""  # for what there is no memory: "to begin" or "for any" candidate

    def __init__(self, *_: Any, **__: Any) -> None:
        if self.scarce == "to begin":
            raise MemoryError("no more")

    def measure(self, candidate: Candidate) -> bool:
        if self.scarce:
            candidate.rejection_reason = "out of memory: no more"
            return False
        assert candidate.executable is not None
        assert not candidate.rejection_reason
        self.seen.append(candidate.name)
        candidate.milliseconds = self.times.get(candidate.name)
        if candidate.milliseconds is None:
            candidate.rejection_reason = "failed when run: it has no time"
        return not candidate.rejection_reason

    def finalists(self, ran: list[Candidate], default: Candidate | None) -> list[Candidate]:
        """The times by name do not change."""
        return ran

    def close(self) -> None:
        """There is no memory."""

    def confirm(self, candidate: Candidate, others: Any) -> None:
        """Every choice is right."""
        self.confirmed.append(candidate.name)


class NoHandle:
    """What the tuner wants of a Handle."""

    _in_use: int | None = None

    @staticmethod
    def default(device: int) -> None:
        return None

    def set_stream(self, stream: int) -> None:
        pass


def measure(is_measured: bool = True) -> None:
    """Let autotune measure in this process, or not at all. Its clock stands still, however long cuDNN compiles."""
    vars(search)["time"] = SimpleNamespace(monotonic=lambda: 0.0)
    measurer = Search(cast(Any, NoHandle())) if is_measured else None
    vars(tuning_chooser)["measurer_of"] = lambda request: measurer if request.may_run else None


def choose(request: dict[str, Any]) -> Any:
    """The choice; with "times" (milliseconds by name) autotune measures, for a target that has built nothing."""
    options, problem = problem_of(request)
    BUILT.clear()
    before, times = request.get("before"), request.get("times")
    if times is not None:
        TARGET._shared.clear()
    Bench.times, Bench.seen, Bench.scarce = times or {}, [], request.get("scarce", "")
    measure(times is not None)
    limit = request.get("memory_limit")
    made = chooser(
        problem,
        options,
        request.get("free", 1 << 37),
        memory_limit=limit,
        may_run=limit is None,
        preferred_engine=before and Engine(**{**before, "knobs": before["knobs"] and dict(before["knobs"])}),
    )
    found = selection.choose(made).candidate
    return {**described(found), "seen": Bench.seen, "graphs": BUILT}


def cudnn_text(executable: Any) -> str:
    """What cuDNN itself writes of a plan."""
    assert isinstance(executable, engines_of.GraphExecutable)
    return str(executable.plan[raw.CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION])


def cudnn_plan(request: dict[str, Any]) -> Any:
    """What cuDNN itself writes of a chosen plan."""
    options, problem = problem_of(request)
    return cudnn_text(chosen(problem, options).executable)


def text(request: dict[str, Any]) -> Any:
    """A chosen Plan through its own text, with whatever goes with it."""
    options, problem = problem_of(request)
    made = plans.Plan(problem, chosen(problem, options))
    again = plans.Plan.from_json(made.to_json())
    facts = ("name", "source", "notes", "deterministic", "operands", "workspace_size")
    return [
        {**{fact: getattr(plan, fact) for fact in facts}, "engine": vars(plan.engine), "text": plan.to_json()}
        for plan in (made, again)
    ]


def load(request: dict[str, Any]) -> Any:
    """The text of a plan that was read from a text."""
    return plans.Plan.from_json(request["text"]).to_json()


def asked(request: dict[str, Any]) -> tuple[Any, PlanningOptions]:
    """The problem of a request, of a convolution or a graph, and its options."""
    if "name" in request:
        made = own_graph(request)
        return made.problem(), made.options
    options, problem = problem_of(request)
    return problem, options


def stored(request: dict[str, Any]) -> Any:
    """A chosen plan, of a convolution or a graph, and the plan again from its entry in a store."""
    problem, options = asked(request)
    choice = selection.choose(chooser(problem, options))
    plan, tried = plans.Plan(problem, choice.candidate), choice.considered()
    entry = stored_choice.entry_of(problem, options, TARGET, plan.choice, tried, complete=True)
    read = Entry.of(json.loads(json.dumps(entry.plain())))
    found = stored_choice.stored_candidate(read, problem, options, TARGET)
    found.executable = found.make()
    again = plans.Plan(problem, found, candidates=[*map(Candidate, read.candidates)])
    sizes = [one.workspace_size for one in (plan, again)]
    tables = [table(tried), table(again.candidates)]
    return {"key": entry.key, "texts": [plan.to_json(), again.to_json()], "sizes": sizes, "tables": tables}


def knobs(request: dict[str, Any]) -> Any:
    """The knobs of an engine: {kind: [values]}."""
    _, problem = problem_of(request)
    built = build_graph(convolution_graph(problem), TARGET)
    return {kind: list(values) for kind, values in engines_of.knob_ranges(built, TARGET, request["index"]).items()}


def engines(request: dict[str, Any]) -> Any:
    """How many engines there are for a problem, those that the heuristics propose, and the first of mode A, if any."""
    _, problem = problem_of(request)
    built = build_graph(convolution_graph(problem), TARGET)
    asked: dict[int, Any] = {
        raw.CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH: built,
        raw.CUDNN_ATTR_ENGINEHEUR_MODE: raw.CUDNN_HEUR_MODE_A,
        raw.CUDNN_ATTR_ENGINEHEUR_DEVICEPROP: TARGET.device(),
    }
    answer = Descriptor(raw.CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, asked)
    best = [
        engine[raw.CUDNN_ATTR_ENGINE_GLOBAL_INDEX]
        for first in answer.children(raw.CUDNN_ATTR_ENGINEHEUR_RESULTS, raw.CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, 1)
        for engine in first.children(raw.CUDNN_ATTR_ENGINECFG_ENGINE, raw.CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1)
    ]
    return {
        "best": best,
        "count": engines_of.engine_count(built),
        "proposed": [found.engine for found in engines_of.heuristics(built, TARGET)],
    }


# Graphs of one's own: `name` is one of sample_graphs.py


def own_graph(request: dict[str, Any]) -> graph_of.Graph:
    if "described" in request:
        return sample_graphs.DESCRIBED[request["name"]](graph_of.Graph(), **request["described"])
    return sample_graphs.GRAPHS[request["name"]](graph_of.Graph(**request.get("options", {})))


def own_candidates(request: dict[str, Any]) -> Any:
    """The candidates of a graph, planned, the first few of them; and the unique ids of what they take."""
    made = own_graph(request)
    guesses = chooser(made.problem(), made.options).order()
    found = list(itertools.islice(guesses, request.get("most", 1000)))
    prepared = [candidate.prepare() for candidate in found]
    uids = {executable.uids for executable in prepared if isinstance(executable, engines_of.GraphExecutable)}
    return {"candidates": [described(candidate) for candidate in found], "uids": [list(each) for each in uids]}


def own_plan(request: dict[str, Any]) -> Any:
    """Graph.plan's choice; with "times" autotune measures."""
    made, times = own_graph(request), request.get("times")
    Bench.times, Bench.seen = times or {}, []
    levels.use("")
    vars(selection)["memory"] = SimpleNamespace(free_bytes=lambda device: request.get("free", 1 << 37))
    measure(times is not None)
    problem, operands = made._problem(0)
    plan = selection.plan_for(problem, made.options, operands=operands)
    return {
        "name": plan.name,
        "operands": plan.operands,
        "operation": plan.operation,
        "workspace_size": plan.workspace_size,
        "deterministic": plan.deterministic,
        "notes": plan.notes,
        "milliseconds": plan.milliseconds,
        "tried": [candidate.name for candidate in plan.candidates],
        "seen": Bench.seen,
        "text": repr(plan),
    }


def tuned(request: dict[str, Any]) -> Any:
    """The plan of a convolution or a graph that autotune chooses with the store of a file, as a process that starts now."""
    problem, options = asked(request)
    levels.use(request["store"])
    TARGET._shared.clear()
    Bench.times, Bench.seen, Bench.confirmed, Bench.scarce = request["times"], [], [], ""
    vars(selection)["memory"] = SimpleNamespace(free_bytes=lambda device: 1 << 37)
    vars(stored_choice)["driver"] = lambda: request.get("driver", "13.0")
    measure()
    plan = selection.plan_for(problem, options)
    found = {"name": plan.name, "remembered": plan.store_layer, "text": plan.to_json()}
    return {**found, "measured": Bench.seen, "confirmed": Bench.confirmed}


def own_text(request: dict[str, Any]) -> Any:
    """A graph's plan through its own text: both, and the problem that was read."""
    made = own_graph(request)
    problem = made.problem()
    plan = plans.Plan(problem, chosen(problem, made.options))
    again = plans.Plan.from_json(plan.to_json())
    assert again.problem == plan.problem
    facts = ("name", "source", "notes", "deterministic", "operation", "workspace_size")
    return [
        {
            **{fact: getattr(one, fact) for fact in facts},
            "engine": vars(one.engine),
            "text": one.to_json(),
            "cudnn": cudnn_text(one.executable),
            "uids": sorted(one.executable.uids),
        }
        for one in (plan, again)
    ]


def own_built(request: dict[str, Any]) -> Any:
    """How many engines there are for a graph that cuDNN takes, whether they can run it here or not."""
    return engines_of.engine_count(next(iter(own_graph(request).problem().lowerings())).build_graph(TARGET))


REQUESTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    function.__name__: function
    for function in (
        survey,
        tracebacks,
        choose,
        cudnn_plan,
        load,
        stored,
        tuned,
        knobs,
        engines,
        text,
        own_built,
        own_text,
        own_candidates,
        own_plan,
    )
}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"answer": REQUESTS[request["do"]](request)}
    except NoAlgorithmError as raised:
        error = pickle.loads(pickle.dumps(raised))  # as it comes out of a pool's worker: it tells all the same
        rows = [described(candidate) for candidate in error.candidates]
        return {"error": "NoAlgorithmError", "text": str(error), "candidates": rows, "table": table(error.candidates)}
    except Exception as error:
        return {"error": type(error).__name__, "text": str(error)}


def counted(operation: Callable[[Any], str], build: Callable[..., Any]) -> Callable[..., Any]:
    """A function that describes a graph, and notes its operation."""

    def described_graph(first: Any, *others: Any) -> Any:
        BUILT.append(operation(first))
        return build(first, *others)

    return described_graph


def main() -> None:
    vars(lowerings)["convolution_graph"] = counted(lambda p: str(p.operation), convolution_graph)
    vars(lowerings)["epilogue_graph"] = counted(lambda y: "epilogue", lowerings.epilogue_graph)
    # autotune knows devices by their handles: here there is the profile's
    targets = SimpleNamespace(**{**vars(engines_of), "Target": lambda handle: TARGET})
    for module in (plans, selection, search):
        vars(module).update(Target=lambda handle: TARGET, Handle=NoHandle)
    vars(plans)["on_device"] = lambda device: nullcontext()
    memory = SimpleNamespace(
        trim_pool_afterwards=lambda device, stream: nullcontext(), total_bytes=lambda device: 1 << 37
    )
    vars(search).update(Bench=Bench, memory=memory)
    vars(graph_of).update(engines=targets, Handle=NoHandle, on_device=lambda device: nullcontext())
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the engines print about symbols that the stand-in lacks
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
