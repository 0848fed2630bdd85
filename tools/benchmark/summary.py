"""The summary of rows: figures and their targets, ratios by group, the slowest rows, and the rows that failed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import geometric_mean, median
from typing import Any, NamedTuple, TypeAlias

from tools.benchmark.operations import operation

Row: TypeAlias = Mapping[str, Any]

LONG_MS = 0.020  # rows in which torch takes this long are long
LIMIT = {"fastest": 1.10, "cudnnpy": 1.05, "autotune": 1.05}  # shares are of the long rows above it
SLOWEST = 5  # rows of each part that are named


class Figure(NamedTuple):
    """A ratio or a time with its target. `reached` is None if no row has it."""

    name: str
    target: float
    reached: float | None

    def __str__(self) -> str:
        if self.reached is None:
            return f"{self.name}: not measured (<= {self.target:.2f})"
        verdict = "met" if self.reached <= self.target else "MISSED"
        return f"{self.name}: {self.reached:.3f} (<= {self.target:.2f}) {verdict}"


class Spread(NamedTuple):
    """The ratios of a group: their number, geometric mean, share of the long rows above the limit, and worst."""

    size: int
    mean: float
    share: float | None  # None without long rows
    worst: float

    def __str__(self) -> str:
        share = "" if self.share is None else f", {self.share:.1%} above the limit"
        return f"{self.size} rows, mean {self.mean:.3f}{share}, worst {self.worst:.3f}"


def ratio(row: Row, who: str, over: str = "torch") -> float | None:
    """Return the time of one contender over another's; None if one has none or the row failed."""
    times = row.get("us") or row.get("ms") or {}
    if row["error"] or who not in times or over not in times:
        return None
    return float(times[who]["median"] / times[over]["median"])


def spread(rows: Iterable[Row], who: str, over: str = "torch") -> Spread | None:
    """Return the spread of the ratios of a group; None if no row has one."""
    found = [
        (value, row.get("ms", {}).get(over, {"median": 0.0})["median"] >= LONG_MS)
        for row in rows
        if (value := ratio(row, who, over)) is not None
    ]
    if not found:
        return None
    values, long = [value for value, _ in found], [value for value, is_long in found if is_long]
    share = sum(value > LIMIT.get(who, 1.05) for value in long) / len(long) if long else None
    return Spread(len(values), geometric_mean(values), share, max(values))


def slowest(rows: Iterable[Row], who: str, count: int = SLOWEST) -> list[tuple[float, Row]]:
    """Return the rows in which a contender is the slowest compared with torch, the slowest first."""
    found = [(value, row) for row in rows if (value := ratio(row, who)) is not None]
    return sorted(found, key=lambda pair: pair[0], reverse=True)[:count]


def groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return rows by kind and operation, and convolutions by sort of layer; a row is in several groups."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        for name in (row["kind"], operation(row["operation"], row["shape"]) if "shape" in row else row["operation"]):
            found.setdefault(name, []).append(row)
    tests: dict[str, Callable[[Any], bool]] = {
        "depthwise": lambda p: p["groups"] == p["channels"] > 1,
        "grouped": lambda p: 1 < p["groups"] < p["channels"],
        "dilated": lambda p: max(p["dilation"]) > 1,
        "transposed": lambda p: p["transposed"],
        "1-D": lambda p: len(p["size"]) == 1,
        "3-D": lambda p: len(p["size"]) == 3,
        "batch 1": lambda p: p["x"][0] == 1,
        "training batch": lambda p: p["x"][0] > 1,
    }
    for name, test in tests.items():
        found[name] = [row for row in rows if "problem" in row and test(row["problem"])]
    return found


def failures(rows: Iterable[Row]) -> list[str]:
    """Return a line for each row that has an error."""
    return [f"FAILED {row['part']}, {row['name']}: {row['error']}" for row in rows if row["error"]]


# Figures


def figures(rows: Iterable[Row]) -> list[Figure]:
    """Return the figures of the parts that were measured."""
    parts: dict[str, list[Row]] = {}
    for row in rows:
        parts.setdefault(row["part"], []).append(row)
    return [figure for part, of_part in parts.items() for figure in _FIGURES[part](of_part)]


def by_tuples(row: Row, who: str) -> dict[str, float]:
    """Return the microseconds of a contender by the number of address tuples that take turns."""
    times = row.get("us") or {}
    names = {name.removeprefix(f"{who}, "): name for name in times if name.rpartition(", ")[0] == who}
    return {tuples: times[name]["median"] for tuples, name in names.items()}


def _over(row: Row, target: float, above: str, *below: str) -> Figure:
    """Return the ratio of two contenders with one tuple; of several below the line the fastest counts."""
    times = [time for who in below if (time := by_tuples(row, who).get("1"))]
    time = by_tuples(row, above).get("1")
    return Figure(f"host: {above} over {below[0]}", target, time / min(times) if time and times else None)


def _of_host(rows: Sequence[Row]) -> Iterator[Figure]:
    row = next((row for row in rows if row["name"] == "float16"), rows[0])
    torch = by_tuples(row, "torch F.conv2d")
    for who, mean, worst in (
        ("conv.forward(x, w, out=y)", 0.70, 0.85),
        ("F.conv2d, cudnnpy.torch enabled", 1.10, 1.30),
    ):
        ratios = [time / torch[tuples] for tuples, time in by_tuples(row, who).items() if tuples in torch]
        yield Figure(f"host: {who} over F.conv2d, mean over tuples", mean, geometric_mean(ratios) if ratios else None)
        yield Figure(f"host: {who} over F.conv2d, worst", worst, max(ratios, default=None))
    plan = by_tuples(row, "plan.execute(pointers)")
    yield Figure("host: microseconds of plan.execute, same addresses", 5.0, plan.get("1"))
    yield Figure("host: microseconds of plan.execute, new addresses", 5.0, plan.get("new"))
    yield _over(row, 1.00, "plan.execute(pointers)", "ctypes cudnnBackendExecute, pack ready")
    yield _over(row, 0.70, "conv.forward(x, w)", "torch F.conv2d")
    frontend = ("cudnn-frontend graph.execute, handle=", "cudnn-frontend graph.execute, handle=, tensor_uids=")
    yield _over(row, 0.90, "conv.forward(x, w, out=y)", *frontend)
    yield _over(row, 0.50, "conv.backward_data + backward_filter, out=", "torch convolution_backward (dx, dw)")


def _of_cache(rows: Sequence[Row]) -> Iterator[Figure]:
    for row in rows:
        times, counts = row.get("us") or {}, row.get("signatures") or [0]
        cost = [times[f"one, {n}"]["median"] / times[f"torch, {n}"]["median"] for n in counts if f"one, {n}" in times]
        growth = cost[-1] / cost[0] if len(cost) > 1 else None
        yield Figure(f"host cost with {counts[-1]:,} cached signatures over one", 1.10, growth)


def _of_spread(name: str, who: str, mean: float, share: float | None, worst: float | None) -> Any:
    """Return a function from rows to the figures of a spread."""

    def made(rows: Sequence[Row]) -> Iterator[Figure]:
        over = "fastest" if who == "stored" else "torch"
        found = spread(rows, who, over)
        count = f" ({found.size} rows)" if found else ""
        yield Figure(f"{name}, {who} over {over}, mean{count}", mean, found and found.mean)
        if share is not None:
            limit = f"{name}, {who}: share above {LIMIT[who]:.2f} of the rows of 20 us or more"
            yield Figure(limit, share, found and found.share)
        if worst is not None:
            yield Figure(f"{name}, {who}, worst", worst, found and found.worst)

    return made


def _of_layers(rows: Sequence[Row]) -> Iterator[Figure]:
    yield from _of_spread("layers", "autotune", 0.88, 0.01, 1.15)(rows)
    yield from _of_spread("layers", "fastest", 0.98, 0.05, 1.50)(rows)
    yield from _of_spread("depthwise layers", "autotune", 0.90, None, 1.10)(
        [row for row in rows if row.get("depthwise")]
    )
    seconds = tuning_seconds(rows)
    resnet = [row for row in rows if "resnet50" in row.get("networks", ()) and row.get("kind") == "fp16 NHWC"]
    ours = tuning_seconds(resnet)
    yield Figure("seconds to tune, ResNet-50's layers in fp16 NHWC, median", 0.25, median(ours) if ours else None)
    yield Figure("seconds to tune, longest", 3.0, max(seconds, default=None))


def tuning_seconds(rows: Iterable[Row]) -> list[float]:
    """Return the seconds that autotune took in each row."""
    return [row["plan_s"]["autotune"] for row in rows if "autotune" in row.get("plan_s", {})]


def _of_training(rows: Sequence[Row]) -> Iterator[Figure]:
    for row in rows:
        yield Figure(
            f"training step, {row['name']}, over torch", 1.0 if row["batch"] == 16 else 0.95, ratio(row, "cudnnpy")
        )


def _of_inference(rows: Sequence[Row]) -> Iterator[Figure]:
    for over, target in (("torch", 0.50), ("torch.compile", 0.80)):
        for who in ("cudnnpy", "cudnnpy, graph"):
            found = spread(rows, who, over)
            yield Figure(f"inference, {who} over {over}, mean", target, found and found.mean)


_FIGURES: dict[str, Callable[[Sequence[Row]], Iterable[Figure]]] = {
    "host": _of_host,
    "cache": _of_cache,
    "gpu": lambda rows: [
        *_of_spread("GPU", "autotune", 0.90, None, 1.02)(rows),
        *_of_spread("GPU", "fastest", 1.00, None, None)(rows),
    ],
    "store": _of_spread("first call of a stored problem", "stored", 1.20, None, None),
    "host operations": _of_spread("operations, host cost", "cudnnpy, out=", 0.75, None, None),
    "operations": _of_spread("operations", "cudnnpy", 0.80, 0.12, 1.50),
    "layers": _of_layers,
    "training": _of_training,
    "inference": _of_inference,
}


# Lines


def lines(rows: Sequence[Row], is_long: bool = False) -> list[str]:
    """Return the summary; the long one has every group."""
    found = [str(figure) for figure in figures(rows)]
    parts: dict[str, list[Row]] = {}
    for row in rows:
        parts.setdefault(row["part"], []).append(row)
    for row in parts.get("host", ()):
        found += _host_lines(row)
    for part, contenders in (
        ("gpu", LIMIT),
        ("layers", LIMIT),
        ("operations", ("cudnnpy",)),
        ("host operations", ("cudnnpy, out=", "cudnnpy, new")),
    ):
        of_part = parts.get(part, [])
        for who in contenders:
            if is_long:
                spreads = {name: spread(members, who) for name, members in groups(of_part).items()}
                found += [f"{part}, {who}, {name}: {over}" for name, over in spreads.items() if over]
            found += [f"{part}, {who}, slow: {value:.3f} {row['name']}" for value, row in slowest(of_part, who)]
    for row in (*parts.get("training", ()), *parts.get("inference", ())):
        times = ", ".join(f"{who} {time['median']:.3f} ms" for who, time in row.get("ms", {}).items())
        found.append(f"{row['part']}, {row['name']}: {times}")
    return found + failures(rows)


def _host_lines(row: Row) -> Iterator[str]:
    """Yield a table of microseconds and ratios to F.conv2d, by contender and tuples, and the absent contenders."""
    torch, names = by_tuples(row, "torch F.conv2d"), [name.rpartition(", ") for name in row.get("us") or {}]
    columns = list(dict.fromkeys(tuples for *_, tuples in names))

    def cell(times: Mapping[str, float], tuples: str) -> str:
        over = f" ({times[tuples] / torch[tuples]:.2f})" if tuples in times and tuples in torch else ""
        return f"{times[tuples]:.2f}{over}" if tuples in times else ""

    contenders = {who: by_tuples(row, who) for who, *_ in names}
    yield table(
        (f"host, {row['name']}, us (over F.conv2d)", *columns),
        [(who, *(cell(times, tuples) for tuples in columns)) for who, times in contenders.items()],
    )
    for who, why in row.get("absent", {}).items():
        yield f"host, {row['name']}, {who}: {why}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table whose first column is text and whose other columns are numbers."""
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"
