"""`python -m tools.benchmark`: times cudnnpy against torch and cudnn-frontend on the GPU, side by side in one run.

Writes <GPU>.json (everything), <GPU>.md (the figures and tables) and <GPU>.svg (a plot, where matplotlib is
installed) to --out; with --quick the names end in -quick. A run that is stopped (Ctrl-C, or SIGTERM as `timeout` sends it)
writes what it has. The exit status is 0 if every row ran.

`--only networks` and `--only operations` are other measurements, with a file of rows that grows over several runs:
tools/benchmark/networks and tools/benchmark/families.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from tools.benchmark import addresses, cache, device, host, operations, report, resumable, stored
from tools.benchmark.families import command as families
from tools.benchmark.figures import failures
from tools.benchmark.networks import command as networks
from tools.benchmark.timing import Budget

FULL_SECONDS, QUICK_SECONDS = 480.0, 120.0
# section -> (what measures it, its share of a run's budget beside the others)
SECTIONS: dict[str, tuple[Callable[[Any, Budget], Iterable[dict[str, Any]]], float]] = {
    "host": (host.measure, 0.07),
    "addresses": (addresses.measure, 0.05),
    "device": (device.measure, 0.75),
    "cache": (cache.measure, 0.18),
    "operations": (operations.measure, 0.33),
    "stored": (stored.measure, 0.05),
}
ONLY: dict[str, tuple[str, ...]] = {
    "host": ("host", "addresses"),
    "gpu": ("device",),
    "cache": ("cache",),
    "store": ("stored",),
}
ONLY_HELP = "one section; host, gpu, cache and store may be given together"
BUDGET = "time to keep to; it costs repetitions, not rows. --only networks and --only operations measure fewer rows"
SAMPLES = {"networks": networks.main, "operations": families.main}  # runs of their own, with rows in files


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    os.environ.setdefault("CUDNNPY_STORE", "")  # what an earlier run chose is not taken for what this one measures
    os.environ.setdefault("CUDNNPY_STORED_CHOICES", "autotune")  # nor what autotune chose for the choice of "fastest"
    parser = argparse.ArgumentParser(prog="python -m tools.benchmark", description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"), help="folder for the results")
    parser.add_argument("--quick", action="store_true", help=f"about {QUICK_SECONDS:.0f} s: less tuning and repetition")
    parser.add_argument("--only", action="append", choices=[*ONLY, *SAMPLES], help=ONLY_HELP)
    parser.add_argument("--budget", type=float, metavar="SECONDS", help=BUDGET)
    parser.add_argument("--from-json", type=Path, metavar="FILE", help="write the page and the plot of earlier results")
    resumable.add_options(parser)
    networks.add_options(parser)
    given = parser.parse_args(arguments)
    if given.budget is not None and given.budget <= 0:
        parser.error(f"--budget must be above 0; got {given.budget}")
    sample = next((section for section in given.only or () if section in SAMPLES), None)
    if sample and (set(given.only) != {sample} or given.quick or given.from_json):
        parser.error(f"--only {sample}: given with another section, --quick or --from-json; it is a run of its own")
    if not sample and resumable.given_options(given):
        needed = " or ".join(f"--only {section}" for section in SAMPLES)
        parser.error(f"{', '.join(resumable.given_options(given))}: given without {needed}")
    if why := networks.why_not(given, sample):
        parser.error(why)
    if sample:
        return SAMPLES[sample](given, lambda torch, seconds: environment(torch, seconds, arguments))
    if given.from_json is not None:
        results = json.loads(given.from_json.read_text(encoding="utf-8"))
        stem = given.from_json.stem
    else:
        results = run(given.only, given.budget or (QUICK_SECONDS if given.quick else FULL_SECONDS), arguments)
        stem = re.sub(r"[^a-z0-9]+", "-", results["environment"]["GPU"].lower()).strip("-")
        stem += "-quick" if given.quick else ""
    given.out.mkdir(parents=True, exist_ok=True)
    if given.from_json is None:
        write(given.out / f"{stem}.json", report.as_json(results))
    drawn = report.draw(results, given.out / f"{stem}.svg")
    print(f"wrote {given.out / stem}.svg" if drawn else "no plot: it needs matplotlib and a GPU section that ran")
    write(given.out / f"{stem}.md", report.markdown(results, f"{stem}.svg" if drawn else None))
    print("\n".join(report.summary_lines(results)))
    lost = failures(results)
    print("\n".join(f"FAILED {line}" for line in lost))
    return 1 if lost else 0


def write(file: Path, text: str) -> None:
    """Writes a text file, and says so."""
    file.write_text(text, encoding="utf-8")
    print(f"wrote {file}")


def run(only: Sequence[str] | None, seconds: float, arguments: Sequence[str] | None) -> dict[str, Any]:
    """Measures the wanted sections within about `seconds`; stopped, it returns the rows that are done."""
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("the benchmark needs a CUDA GPU that torch can use")
    budget = Budget(seconds)
    chosen = [part for section in only for part in ONLY[section]] if only else list(SECTIONS)
    results: dict[str, Any] = {"environment": environment(torch, seconds, arguments), "errors": {}}
    whole = sum(SECTIONS[section][1] for section in chosen)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for section, (measure, part) in SECTIONS.items():
        if section not in chosen:
            continue
        mine = budget.part(min(part / whole, 1.0))
        whole -= part
        before, stopped = mine.left, False
        rows: list[dict[str, Any]] = []
        try:
            if section == "device":
                results["peaks"] = device.measure_peaks(torch)
            rows.extend(measure(torch, mine))  # which keeps the rows before an exception
        except Exception as error:
            results["errors"][section] = f"{type(error).__name__}: {error}"
        except KeyboardInterrupt:
            results["errors"][section] = f"stopped after {len(rows)} rows"
            stopped = True
        if rows or section not in results["errors"]:
            results[section] = rows
        print(f"{section}: {before - mine.left:.0f} s of {before:.0f} s", flush=True)
        if stopped:
            break
    results["environment"]["seconds"] = round(seconds - budget.left, 1)
    return results


def environment(torch: Any, seconds: float, arguments: Sequence[str] | None) -> dict[str, Any]:
    """What the numbers depend on."""
    import cudnnpy
    from cudnnpy import raw

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout.split("\n")[0]
    except (OSError, subprocess.SubprocessError) as error:
        driver = f"unknown ({type(error).__name__})"
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": command(sys.argv[1:] if arguments is None else arguments),
        "GPU": torch.cuda.get_device_name(0),
        "driver": driver,
        "CUDA": torch.version.cuda,
        "cuDNN (torch)": raw.version_text(torch.backends.cudnn.version()),
        "cuDNN (cudnnpy)": raw.version_text(raw.version()),
        "cudnnpy": cudnnpy.__version__,
        "torch": torch.__version__,
        "torch.backends.cudnn.benchmark_limit": torch.backends.cudnn.benchmark_limit,
        "cudnn-frontend": _installed("nvidia-cudnn-frontend"),
        "Python": platform.python_version(),
        "CPU": f"{_processor()}, {os.cpu_count()} cores",
        "budget, s": seconds,
    }


def command(arguments: Sequence[str]) -> str:
    """The command as anyone may repeat it: without where its results went."""
    text = " ".join(["python -m tools.benchmark", *arguments])
    return re.sub(r" --(out|rows|known|merge)[ =]\S+( (?!-)\S+)*", "", text)


def _installed(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()


if __name__ == "__main__":
    sys.exit(main())
