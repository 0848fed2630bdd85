"""What the rows of networks amount to: ratios to torch, in groups, and against the figures to reach."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import geometric_mean, median
from typing import Any, NamedTuple, TypeAlias

from tools.benchmark.figures import Figure
from tools.benchmark.networks.cells import KINDS

Row: TypeAlias = Mapping[str, Any]

LONG_MS = 0.020  # shares are of the cells in which torch takes this long
WHO = ("autotune", "fastest")
LIMIT = {"autotune": 1.05, "fastest": 1.10}  # a cell above it is one of the share
SLOW_TUNING_S = 3.0


def of_part(rows: Iterable[Row], part: str) -> list[Row]:
    """The rows of layers, inference or training."""
    return [row for row in rows if row["part"] == part]


def ratio(row: Row, who: str, over: str = "torch") -> float | None:
    """Time of one road over another's; None where one has none, or the row failed."""
    times = row.get("ms") or {}
    if row["error"] or who not in times or over not in times:
        return None
    return float(times[who]["median"] / times[over]["median"])


class Spread(NamedTuple):
    """The ratios of a group: how many, their geometric mean, the share above a limit, and the worst."""

    cells: int
    mean: float
    share: float | None  # of the long ones; None where none is long
    worst: float
    worst_long: float | None


def spread(rows: Iterable[Row], who: str, over: str = "torch") -> Spread | None:
    """None where no row has a ratio."""
    found = [(value, row["ms"][over]["median"] >= LONG_MS) for row in rows if (value := ratio(row, who, over))]
    if not found:
        return None
    values, long = [value for value, _ in found], [value for value, is_long in found if is_long]
    share = sum(value > LIMIT.get(who, 1.05) for value in long) / len(long) if long else None
    return Spread(len(values), geometric_mean(values), share, max(values), max(long, default=None))


def groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of layers in the groups of the report; a row is in several."""
    found: dict[str, list[Row]] = {"all": list(rows)}
    for kind in KINDS:
        found[kind.name] = [row for row in rows if row.get("kind") == kind.name]
    for operation in ("forward", "backward_data", "backward_filter"):
        found[operation] = [row for row in rows if row.get("operation") == operation]
    tests: dict[str, Callable[[Any], bool]] = {
        "depthwise": lambda p: p["groups"] == p["channels"] > 1,
        "grouped, not depthwise": lambda p: 1 < p["groups"] < p["channels"],
        "dilated": lambda p: max(p["dilation"]) > 1,
        "transposed": lambda p: p["transposed"],
        "1-D": lambda p: len(p["size"]) == 1,
        "3-D": lambda p: len(p["size"]) == 3,
        "with a bias": lambda p: p["with_bias"],
        "without a bias": lambda p: not p["with_bias"],
        "batch 1": lambda p: p["x"][0] == 1,
        "a training batch": lambda p: p["x"][0] > 1,
    }
    for name, test in tests.items():
        found[name] = [row for row in rows if "problem" in row and test(row["problem"])]
    return {name: members for name, members in found.items() if members}


def by_network(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of layers for each network that has them."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        for network in row.get("networks", ()):
            found.setdefault(network, []).append(row)
    return dict(sorted(found.items()))


def worst(rows: Iterable[Row], who: str, count: int = 20) -> list[tuple[float, Row]]:
    """The rows in which a road is the slowest against torch, slowest first."""
    found = [(value, row) for row in rows if (value := ratio(row, who)) is not None]
    return sorted(found, key=lambda pair: pair[0], reverse=True)[:count]


def tuning(rows: Iterable[Row]) -> list[float]:
    """The seconds that autotune took."""
    return [row["plan_s"]["autotune"] for row in rows if "autotune" in row.get("plan_s", {})]


def figures(rows: Sequence[Row]) -> list[Figure]:
    """Every figure to reach, in the order of the table."""
    layers = of_part(rows, "layers")
    depthwise = [row for row in layers if row.get("depthwise")]
    found = [
        *_of_layers("layers", layers, "autotune", 0.88, 0.01, 1.15),
        *_of_layers("layers", layers, "fastest", 0.98, 0.05, 1.50),
        *_of_layers("depthwise layers", depthwise, "autotune", 0.90, None, 1.10),
        *_of_tuning(layers),
    ]
    training = of_part(rows, "training")
    for batch, reach in ((16, 1.00), (128, 0.95)):
        for network in ("resnet50", "mobilenet_v2"):
            mine = [row for row in training if (row.get("network"), row.get("batch")) == (network, batch)]
            found.append(_mean(f"training step of {network}, batch {batch}, over torch", reach, mine, "cudnnpy"))
    inference = of_part(rows, "inference")
    roads = ("cudnnpy", "cudnnpy, graph")
    for over, reach in (("torch", 0.50), ("torch.compile", 0.80)):
        found += [_mean(f"inference, {who} over {over}", reach, inference, who, over) for who in roads]
    return found


def _of_layers(name: str, rows: Sequence[Row], who: str, mean: float, share: float | None, most: float) -> list[Figure]:
    reached = spread(rows, who)
    why = "no row ran" if rows else "no row"
    count = f" ({reached.cells} cells)" if reached else ""
    limit = f"share above {LIMIT[who]:.2f} of the cells of 20 us or more"
    made = [Figure(f"{name}, {who} over torch, geometric mean{count}", mean, reached and reached.mean, why)]
    if share is not None:
        made.append(Figure(f"{name}, {who}: {limit}", share, reached and reached.share, why, is_share=True))
    made.append(Figure(f"{name}, {who}: worst", most, reached and reached.worst, why))
    return made


def _of_tuning(rows: Sequence[Row]) -> list[Figure]:
    of_resnet = [row for row in rows if "resnet50" in row.get("networks", ()) and row.get("kind") == "fp16 NHWC"]
    first, seconds = tuning(of_resnet), tuning(rows)
    return [
        Figure("seconds to tune, ResNet-50's layers in fp16 NHWC, median", 0.25, _or_none(median, first), "no row"),
        Figure("seconds to tune, longest", SLOW_TUNING_S, _or_none(max, seconds), "no row"),
    ]


def _or_none(function: Callable[[list[float]], float], values: list[float]) -> float | None:
    return function(values) if values else None


def _mean(name: str, reach: float, rows: Sequence[Row], who: str, over: str = "torch") -> Figure:
    reached = spread(rows, who, over)
    absent = next((row["absent"][who] for row in rows if who in row.get("absent", {})), None)
    why = absent or ("no row ran" if rows else "no row")
    return Figure(name, reach, reached and reached.mean, why)
