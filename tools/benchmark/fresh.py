"""`python -m tools.benchmark.fresh PART -o FILE`: figures that need a fresh process and an empty store for each number.

evidence    four problems in which an engine faults or does not end, each tuned five times: whether the caller lives on, and
            which engine was found
steps       the first three training steps of two networks with cudnnpy.torch.enable(), everything tuned, and
            with torch's search
start       what the first problem that a process tunes takes longer than later ones of the same size
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from tools.benchmark.networks import catalogue, models
from tools.benchmark.networks.cells import KINDS, Cell
from tools.benchmark.networks.measure_layers import timed_plan
from tools.benchmark.networks.tensors import operands, plan_call
from tools.benchmark.tuning import is_fault, limit, stored_faults

PROCESS_SECONDS = 200.0


class Problem(NamedTuple):
    """A convolution at batch 32, and the engine that faults in it."""

    layer: str
    kind: str
    operation: Any
    culprit: str  # a pattern of the names of its candidates


EVIDENCE = (
    Problem("48x160x160 -> 48, 3x3, padding 1, groups 48", "tf32 NHWC", "forward", r"engine 3\b"),
    Problem(
        "48x160x160 -> 48, 3x3, padding 1, groups 48",
        "fp32 strict NCHW",
        "backward_filter",
        r"engine 67\b.*channels last",
    ),
    Problem(
        "72x28x28 -> 72, 5x1, padding 2x0, groups 72", "fp32 strict NCHW", "backward_filter", r"engine 18\b.*multiply=0"
    ),
    Problem(
        "128x56x56 -> 128, 3x3, padding 1, groups 32", "fp32 strict NCHW", "backward_filter", r"engine 20\b.*use_tex=1"
    ),
)
EVIDENCE_TUNE_SECONDS = 1.0
STEPS = (("mobilenet_v2", "float16", 32), ("resnet50", "bfloat16", 16))
TINY = ("8x8x8 -> 8, 3x3, padding 1", *(f"8x{n}x{n} -> 8, 3x3, padding 1" for n in (9, 10, 11, 12)))


def evidence(number: int) -> dict[str, Any]:
    """Tune one of the four problems; return what was found and whether this process can go on."""
    import torch

    problem = EVIDENCE[number]
    cell = _cell(problem.layer, problem.kind, problem.operation, 32)
    torch.ones(1, device="cuda")
    o = operands(torch, cell)[0]
    plan, seconds = timed_plan(torch, cell, o, prefer="autotune", tune_seconds=EVIDENCE_TUNE_SECONDS)
    workspace = torch.empty(max(plan.workspace_size, 1), device="cuda", dtype=torch.uint8)
    plan_call(torch, cell, o, plan, workspace)()
    torch.cuda.synchronize()
    refused = [
        [candidate.name, candidate.rejection_reason] for candidate in plan.candidates if candidate.rejection_reason
    ]
    return {
        "problem": number + 1,
        "cell": cell.name,
        "seconds": round(seconds, 2),
        "in_time": seconds <= limit(EVIDENCE_TUNE_SECONDS),
        "lived": bool(torch.isfinite(o.out.float()).all()) and float(torch.ones(8, device="cuda").sum()) == 8.0,
        "choice": plan.name,
        "ms": plan.milliseconds,
        "faults": [[name, reason[:200]] for name, reason in refused if is_fault(reason)],
        "stored_faults": stored_faults(),
        "culprit": [[name, reason[:200]] for name, reason in refused if re.search(problem.culprit, name)],
    }


def steps(number: int, side: str, tune_seconds: float | None) -> dict[str, Any]:
    """Time the first three training steps of a network, each until the GPU is done."""
    import torch

    import cudnnpy.torch
    from cudnnpy import store

    network, dtype, batch = STEPS[number]
    with models.exact_float32(torch):
        model = models.build(torch, network).train()
    model = model.to(getattr(torch, dtype)).to(memory_format=torch.channels_last)
    x = models.pictures(torch, network, batch).to(getattr(torch, dtype)).to(memory_format=torch.channels_last)
    labels = torch.arange(batch, device="cuda") % 1000
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9, momentum=0.9)
    torch.backends.cudnn.benchmark = torch.backends.cudnn.allow_tf32 = True
    torch.cuda.synchronize()
    times: list[float] = []
    options: dict[str, Any] = {} if tune_seconds is None else {"tune_seconds": tune_seconds}
    with cudnnpy.torch.enable(prefer="autotune", **options) if side == "cudnnpy" else nullcontext():
        for _ in range(3):
            begin = time.perf_counter()
            optimizer.zero_grad(set_to_none=True)
            torch.nn.functional.cross_entropy(model(x).float(), labels).backward()
            optimizer.step()
            torch.cuda.synchronize()
            times.append(round(time.perf_counter() - begin, 3))
    row = {"network": network, "dtype": dtype, "batch": batch, "side": side, "steps": times, "seconds": sum(times)}
    if side == "cudnnpy":
        row |= {"problems": sum(1 for _ in store.default()), "counts": cudnnpy.torch.stats()._asdict()}
        row["faults"] = stored_faults()
    return row


def start() -> dict[str, Any]:
    """Seconds to tune five convolutions of about the same size, after cuDNN was loaded here."""
    import torch

    cells = [_cell(text, "fp16 NHWC", "forward", 1) for text in TINY]
    sets = [operands(torch, cell)[0] for cell in cells]
    timed_plan(torch, cells[0], sets[0], prefer="fastest")
    took = [timed_plan(torch, cell, o, prefer="autotune")[1] for cell, o in zip(cells, sets, strict=True)]
    return {"tuning": [round(seconds, 3) for seconds in took], "start": round(took[0] - median(took[1:]), 3)}


def _cell(text: str, kind: str, operation: Any, batch: int) -> Cell:
    return Cell(catalogue.layer(text), batch, next(each for each in KINDS if each.name == kind), operation, ())


JOBS: dict[str, Callable[..., dict[str, Any]]] = {"evidence": evidence, "steps": steps, "start": start}


def in_process(part: str, *arguments: Any) -> dict[str, Any]:
    """The result of a job in a process of its own with an empty store, or how the process ended."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tools.benchmark.fresh", part, "--job", json.dumps(arguments)]
        environment = {**os.environ, "CUDNNPY_STORE": str(Path(folder, "store.sqlite"))}
        begin = time.perf_counter()
        row: dict[str, Any] = {"part": part, "job": list(arguments)}
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=PROCESS_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return {**row, "error": f"no end within {PROCESS_SECONDS:.0f} s"}
        row["process_seconds"] = round(time.perf_counter() - begin, 2)
        row["said"] = done.stderr[-2000:]
        if done.returncode:
            return {**row, "error": f"exit status {done.returncode}"}
        return {**row, **json.loads(done.stdout.splitlines()[-1]), "error": None}


def jobs(part: str, repeat: int, tune_seconds: float | None) -> list[tuple[Any, ...]]:
    """The arguments of each process of a part; a part's repetitions are spread over its time."""
    if part == "evidence":
        return [(number,) for _ in range(repeat) for number in range(len(EVIDENCE))]
    if part == "steps":
        sides = ("torch", "cudnnpy")
        return [(number, side, tune_seconds) for _ in range(repeat) for number in range(len(STEPS)) for side in sides]
    return [()] * repeat


def line(row: Mapping[str, Any]) -> str:
    """One row of the summary."""
    if row["error"]:
        return f"FAILED {row['part']} {row['job']}: {row['error']}: {row.get('said', '')[-300:]}"
    if row["part"] == "steps":
        problems = f", {row['problems']} problems, {row['counts']}" if "problems" in row else ""
        name = f"{row['network']} {row['dtype']} batch {row['batch']}, {row['side']}"
        return f"{name}: {row['seconds']:.1f} s {row['steps']}{problems}"
    if row["part"] == "start":
        return f"start of the child: {row['start']:.2f} s (tuning {row['tuning']})"
    named = "; ".join(f"{name}: {reason}" for name, reason in row["culprit"]) or "not among the rejected"
    state = f"{'lived' if row['lived'] else 'NOT ALIVE'}, {'in time' if row['in_time'] else 'LATE'}, {row['seconds']} s"
    caught = "caught" if is_caught(row) else "NOT CAUGHT"
    return f"problem {row['problem']}: {caught}, {state}; {named}; stored: {row['stored_faults']}"


def is_caught(row: Mapping[str, Any]) -> bool:
    """Whether a fault of the culprit was found in this process."""
    if row["error"]:
        return False
    pattern = EVIDENCE[row["problem"] - 1].culprit
    named = [name for name, _ in row["faults"]] + row["stored_faults"]
    return any(re.search(pattern, text) for text in named)


def main() -> int:
    """Run the command; return the exit status: 1 where a process failed."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.benchmark.fresh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("part", choices=list(JOBS))
    parser.add_argument("-o", "--rows", type=Path, metavar="FILE", help="rows are appended to it, as lines of JSON")
    parser.add_argument("--repeat", type=int, help="times (evidence 5, steps 1, start 3)")
    parser.add_argument("--seconds", type=float, default=540.0, help="after which no process is started (540)")
    parser.add_argument("--tune-seconds", type=float, help="of steps: autotune's limit for each problem (its default)")
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job is not None:
        print(json.dumps(JOBS[given.part](*given.job)), flush=True)
        return 0
    end = time.monotonic() + given.seconds
    repeat = given.repeat or {"evidence": 5, "steps": 1, "start": 3}[given.part]
    rows: list[dict[str, Any]] = []
    for arguments in jobs(given.part, repeat, given.tune_seconds):
        if time.monotonic() > end:
            print(f"{len(rows)} processes; the time is over")
            break
        rows.append(in_process(given.part, *arguments))
        print(line(rows[-1]), flush=True)
        if given.rows:
            with given.rows.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(rows[-1]) + "\n")
    if given.part == "evidence":
        alive = sum(not row["error"] and row["lived"] and row["in_time"] for row in rows)
        print(f"caught {sum(map(is_caught, rows))} of {len(rows)}; callers that lived on and returned in time: {alive}")
    return 1 if any(row["error"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
