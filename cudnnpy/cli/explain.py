"""The command `cudnnpy explain`: plan the candidates for a problem, for a GPU or a device profile, and explain the choice.

`cudnnpy explain --json` prints an Explanation, whose keys docs/planning-without-a-gpu.md describes. Later versions may add
keys; they change or remove none while `format` stays the same.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from cudnnpy import raw
from cudnnpy._arrays.workspace import total_bytes
from cudnnpy._checks.byte_counts import bytes_text
from cudnnpy._checks.preferences import PREFERENCES
from cudnnpy._core.untrusted_json import plain
from cudnnpy._planning import problem_notation, selection
from cudnnpy._planning.choice import Choice, GpuKind
from cudnnpy._planning.chooser import Request, check_device
from cudnnpy._planning.engines import Target, gpu_kind
from cudnnpy._planning.options import PlanningOptions
from cudnnpy.cli import arguments
from cudnnpy.cli.arguments import UsageError
from cudnnpy.cli.text_table import choice_cells, labelled, show, table, width, wrapped
from cudnnpy.graph.problem import GraphProblem
from cudnnpy.handle import on_device
from cudnnpy.tuning.chooser import TuningChooser
from cudnnpy.tuning.profiles import device_profile
from cudnnpy.tuning.profiles.device_profile import DeviceProfile
from cudnnpy.tuning.profiles.planner_process import candidates_for_profile
from cudnnpy.tuning.ranking.model import source_text
from cudnnpy.tuning.store import levels
from cudnnpy.tuning.store.entry import Entry
from cudnnpy.tuning.stored_choice import is_confirmed, key_of
from cudnnpy.typing import Preference

FORMAT = 2
_NOTHING_STORED = "nothing is stored for this problem"
_FIRST = 6  # candidates in a short report
_QUANTITY = re.compile(r"\d[\d.,]*(?: bytes| [KMGT]iB)?")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to a parser."""
    parser.set_defaults(
        advice_on_unknown="; an option of the problem is a word without dashes, such as workspace_limit=64MiB"
    )
    example = "an operation, shapes and options, such as forward 128x64x56x56 64x64x3x3 pad=1 float16 channels_last"
    parser.add_argument("problem", nargs="+", metavar="PROBLEM", help=example)
    parser.add_argument(
        "--device",
        default="0",
        metavar="DEVICE",
        help="the ordinal of a GPU of this machine (default: 0), or a device profile: a name, such as h200, or a file",
    )
    parser.add_argument("--prefer", choices=PREFERENCES, help="in place of the problem's own preference")
    parser.add_argument("--all", action="store_true", help="list every candidate, also those that are rejected")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    text = " ".join(options.problem)
    if os.path.isfile(text):
        raise UsageError(f"{text}: a problem must be named, and cudnnpy plan takes a file of problems")
    device = int(options.device) if arguments.is_ordinal(options.device) else DeviceProfile.load(options.device)
    advice = "; to plan without a GPU, name a device profile, such as --device h200"
    explanation = _explanation(text, device, options.prefer, advice)
    if options.json:
        print(json.dumps(plain(explanation), indent=2))
    else:
        show(lines_of(explanation, lists_all=options.all))
    return 0 if explanation.choice is not None else 2


def explain(problem: str, *, device: int | DeviceProfile = 0, prefer: Preference | None = None) -> dict[str, Any]:
    """Explain the choice for a problem in the notation, as ``cudnnpy explain --json`` does.

    Parameters
    ----------
    problem : str
        The problem with its options, such as ``"forward 8x64x28x28 64x64x3x3 pad=1 float16"``.
    device : int or DeviceProfile
        The ordinal of a GPU of this machine, or the profile of a GPU that need not be here.
    prefer : {"fastest", "limited_workspace", "no_workspace", "autotune"}, optional
        The preference in place of the problem's own.

    Returns
    -------
    dict
        The choice, the reason, the stored choice and the candidates as JSON, of format 2.

    Raises
    ------
    ValueError
        The text is not a problem, or cuDNN rejects the profile.
    CudnnError
        cuDNN cannot be used, or there is no such GPU.

    Examples
    --------
    >>> import cudnnpy
    >>> h200 = cudnnpy.DeviceProfile.load("h200")
    >>> cudnnpy.explain("forward 8x64x28x28 64x64x3x3 pad=1 float16", device=h200)["choice"]["name"]
    'engine ...'
    """
    check_device(device)
    return dict(plain(_explanation(problem, device, prefer)))


class Stored(NamedTuple):
    """The stored choice for the problem, which has its layer of the store, and when and with what it was made."""

    choice: Choice
    made_at: str
    made_with: dict[str, str]
    tune_seconds: float
    complete: bool

    @property
    def origin(self) -> str:
        """The day and the release of cudnnpy."""
        return f"on {self.made_at[:10]} with cudnnpy {self.made_with.get('cudnnpy', '?')}"


class Explanation(NamedTuple):
    """A choice and its reason, with the fields of the JSON.

    `device` is the GPU that is planned for: the fields of GpuKind, `memory` in bytes, and `profile`, the name or file of its
    device profile, or None for a GPU of this machine.
    """

    format: int
    problem: str
    device: dict[str, Any]
    cudnn: str
    limit: int
    choice: Choice | None
    why: str
    stored: Stored | None
    candidates: tuple[Choice, ...]


# The choice and the reason


def _explanation(text: str, device: int | DeviceProfile, prefer: Preference | None, advice: str = "") -> Explanation:
    """Return the explanation of the choice for a GPU of this machine, or of a profile.

    `advice` ends the error for a GPU that is not here.
    """
    problem, options = problem_notation.parse_plannable(text, 0 if isinstance(device, DeviceProfile) else device)
    levels.current()  # raises ValueError for a variable that names no store, before a planner warns of it
    if prefer is not None:
        options = options._replace(prefer=prefer)
    if isinstance(device, DeviceProfile):
        device_profile.check_release()
        rows = [candidate.choice for candidate in candidates_for_profile(problem, options, device)]
        limit = selection.limit_of(options, device.memory)
        request = Request(problem, options, Target(profile=device.text), limit, may_run=False)
        return _explained(request, device.memory, rows, device.source)
    arguments.check_ordinal(device, advice)
    with on_device(device):
        request = selection.request_for(problem, options)
        rows = [candidate.choice.stored for candidate in selection.survey(TuningChooser(request))]
        return _explained(request, total_bytes(device), rows, None)


def _explained(request: Request, memory: int, rows: Sequence[Choice], path: str | None) -> Explanation:
    """Return the explanation of the choice among planned candidates.

    `memory` is the GPU's in bytes, and `path` the source of its profile.
    """
    problem, options, target, limit = request[:4]
    key, chooser = key_of(problem, options, gpu_kind(target)), TuningChooser(request)
    found, stored, not_stored, candidates = levels.current().get(key), None, _NOTHING_STORED, tuple(rows)
    if found is not None:
        entry = found.entry
        own = entry.choice._replace(store_layer=found.layer)
        stored = Stored(own, entry.made_at, entry.made_with, entry.tune_seconds, entry.complete)
        not_stored = _why_not_stored(entry, options, limit, chooser)
        candidates = _with_times(rows, entry)
    usable = [at for at, row in enumerate(rows) if not row.rejection_reason]
    faulty = [at for at, row in enumerate(rows) if row.rejection_reason == chooser.left_out.get(row.name)]
    choice, why = None, "no candidate can be used: see the rejection reasons"
    if stored is not None and not not_stored:
        choice, why = stored.choice, _why_stored(stored, options)
    elif usable:
        choice = candidates[usable[0]]
        why = _why_default(choice.source, usable[0], options, not_stored)
    elif faulty:
        choice = candidates[faulty[0]]
        why = f"no other candidate can be used, in spite of its fault: {choice.rejection_reason}"
    gpu = {**GpuKind(*key[2:5])._asdict(), "memory": memory, "profile": path}
    text, release = problem_notation.text_of(problem, options), raw.version_text(raw.version())
    return Explanation(FORMAT, text, gpu, release, limit, choice, why, stored, candidates)


def _why_not_stored(entry: Entry, options: PlanningOptions, limit: int, chooser: TuningChooser) -> str:
    """Return why the stored choice is not taken, or ""."""
    if fault := chooser.left_out.get(entry.choice.name):
        return f"the stored choice is rejected: {fault}"
    if options.prefer != "autotune" and not is_confirmed(entry):
        return "the stored choice was not measured with this driver"
    size = entry.choice.workspace_size or 0
    if size > limit:
        return f"the stored choice needs {size:,} bytes of workspace, more than the limit of {limit:,}"
    return ""


def _why_default(source: str, before: int, options: PlanningOptions, not_stored: str) -> str:
    """Return why a candidate after some that were rejected is the default choice, and why no stored choice is taken."""
    passed = f", after {before} that {'was' if before == 1 else 'were'} rejected" if before else ""
    reasons = {
        "ranking": f"the {source_text(source)} predicts the shortest time for it{passed}",
        "heuristics": f"the first of cuDNN's {source_text(source)} that can be used{passed}",
        "legacy": f"no engine can be used{passed}: an algorithm of the v7 functions",
    }
    why = reasons.get(source, f"the first engine that can be used{passed}")
    if options.prefer == "autotune":
        return f"{why}; {not_stored}, so autotune will measure it and the others on the GPU"
    return why if not_stored == _NOTHING_STORED else f"{why}; {not_stored}"


def _why_stored(stored: Stored, options: PlanningOptions) -> str:
    is_planned = stored.choice.milliseconds is None
    extent = "" if stored.complete or is_planned else ", before all candidates were measured"
    how = "planned without measuring" if is_planned else "tuned"
    why = f"{how} {stored.origin}{extent}; from the store's layer: {stored.choice.store_layer}"
    is_short = not (is_planned or stored.complete) and stored.tune_seconds < options.tune_seconds
    if options.prefer == "autotune" and is_short:
        why += f"; more than its {stored.tune_seconds:g} s are allowed now, so it is measured again with the others"
    return why


def _with_times(rows: Sequence[Choice], entry: Entry) -> tuple[Choice, ...]:
    """Return the rows with the times of an entry, and the candidates that only it has.

    A measured candidate can be used, although the survey that made the rows did not compile it.
    """
    measured = {candidate.name: candidate for candidate in entry.candidates}
    merged = []
    for row in rows:
        found = measured.pop(row.name, row)
        if row.rejection_reason == selection.NOT_COMPILED and found.milliseconds is not None:
            row = row._replace(rejection_reason="", workspace_size=found.workspace_size)
        merged.append(row._replace(milliseconds=found.milliseconds, spread=found.spread, error=found.error))
    return (*merged, *measured.values())


# The text


def lines_of(explanation: Explanation, *, lists_all: bool = False) -> Iterator[str]:
    """Yield the report of an explanation, whose lines fill the terminal.

    It has the choice, the first candidates that can be used, and the number of candidates that each reason rejected; with
    `lists_all`, every candidate.
    """
    problem, _ = problem_notation.parse_plannable(explanation.problem)
    graph = problem if isinstance(problem, GraphProblem) else None
    yield from labelled([*_head(explanation, graph)])
    if graph is not None:
        yield from ("", "tensors in memory", *table([*_tensors(graph)]))
    name = None if explanation.choice is None else explanation.choice.name
    usable = [row for row in explanation.candidates if not row.rejection_reason]
    hint = "" if lists_all else " (--all lists them)"
    yield from ("", f"candidates that can be used, in ranking order: {len(usable)}{hint * (len(usable) > _FIRST)}")
    if usable:
        shown = usable if lists_all else usable[:_FIRST]
        yield from table([{"": "*" * (row.name == name), **_cells(row)} for row in shown])
    yield ""
    yield from _rejected([row for row in explanation.candidates if row.rejection_reason], lists_all)


def _tensors(graph: GraphProblem) -> Iterator[dict[str, str]]:
    """Yield the rows of a graph's tensors in memory; the outputs come last."""
    inputs = len(graph.specs) - graph.results
    for at, (name, spec) in enumerate(zip(graph.operands, graph.specs, strict=True)):
        yield {
            "tensor": name,
            "is": "input" if at < inputs else "output",
            "data type": spec.dtype,
            "shape": " x ".join(map(str, spec.shape)),
            "strides": ", ".join(map(str, spec.strides or ())),
        }


def _head(explanation: Explanation, graph: GraphProblem | None) -> Iterator[tuple[str, str]]:
    """Yield the labels and texts of the head of the report."""
    gpu, choice, stored = explanation.device, explanation.choice, explanation.stored
    where = f"; device profile {gpu['profile']}" if gpu["profile"] is not None else ""
    yield "problem", explanation.problem if graph is None else f"{graph.title}{explanation.problem.rpartition('}')[2]}"
    kind = GpuKind(gpu["name"], gpu["capability"], gpu["multiprocessors"])
    yield "GPU", f"{kind}, {bytes_text(gpu['memory'])}{where}"
    yield "cuDNN", explanation.cudnn
    yield "limit", f"{bytes_text(explanation.limit)} of workspace"
    cells = choice_cells(None) if choice is None else _cells(choice)
    yield from ((title, text) for title, text in cells.items() if text != "-")
    yield "because", explanation.why
    if stored is None:
        yield "store", "nothing for this problem"
        return
    cells, is_within = choice_cells(stored.choice), (stored.choice.workspace_size or 0) <= explanation.limit
    taken = "; --prefer autotune takes it within this limit" * is_within
    time = "not measured" if cells["ms"] == "-" else f"{cells['ms']} ms"
    yield "store", f"{stored.choice.store_layer}: {cells['choice']}, {time}, made {stored.origin}{taken}"


def _cells(row: Choice) -> dict[str, str]:
    """Return the cells of a candidate in a table. An expected time is relative to the fastest candidate's."""
    notes = [note for note in row.notes if note != "nondeterministic"]
    return {
        **choice_cells(row),
        "expected": "-" if row.expected is None else f"x{row.expected:.2f}",
        "source": row.source,
        "notes": ", ".join([*notes, *["not deterministic"] * (not row.deterministic)]) or "-",
    }


def _rejected(rows: Sequence[Choice], lists_all: bool) -> Iterator[str]:
    """Yield the number of candidates that each reason rejected, or with `lists_all` the candidates below their reasons.

    In numbers, reasons that differ in quantities are one.
    """
    groups: dict[str, list[Choice]] = {}
    for row in rows:
        reason = _reason(row)
        groups.setdefault(reason if lists_all else _QUANTITY.sub("...", reason), []).append(row)
    counts = {reason: sum(map(_engine_count, group)) for reason, group in groups.items()}
    yield f"rejected: {sum(counts.values())}{'' if lists_all else ' (--all lists them)'}" if rows else "rejected: none"
    columns = width()
    for reason in sorted(groups, key=lambda reason: -counts[reason]):
        reasons = {_reason(row) for row in groups[reason]}
        for number, part in enumerate(wrapped(reason if len(reasons) > 1 else reasons.pop(), columns and columns - 7)):
            yield f"{'' if number else counts[reason]:5}  {part}"
        if lists_all:
            names = "; ".join(row.name.replace("engine ", "engine\xa0") for row in groups[reason])  # in one line
            yield from (f"       {part}".replace("\xa0", " ") for part in wrapped(names, columns and columns - 7))


def _reason(row: Choice) -> str:
    """Return the rejection reason of a candidate in one line, without advice about an argument of Python."""
    return " ".join(row.rejection_reason.split()).removesuffix(selection.HOW_TO_COMPILE)


def _engine_count(row: Choice) -> int:
    """Return the number of candidates of a row: "engines 4, 16-19" has 5."""
    ranges = re.findall(r"(\d+)(?:-(\d+))?", row.name) if row.name.startswith("engines ") else []
    return sum(int(last or first) - int(first) + 1 for first, last in ranges) or 1
