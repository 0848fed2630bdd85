"""The report of `cudnnpy tune`: a table with a row for each entry of the store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import geometric_mean

from cudnnpy import raw
from cudnnpy._checks.byte_counts import bytes_text
from cudnnpy.cli import text_table
from cudnnpy.cli.text_table import Line
from cudnnpy.tuning.store.entry import Entry


def _times(entry: Entry) -> tuple[float, float] | None:
    """Return the milliseconds of the choice and of the default choice; None if one of them is not known.

    The default choice, which prefer="fastest" takes, is the first verified candidate of the ranking.
    """
    verified = (one.milliseconds for one in entry.candidates if one.milliseconds and not one.rejection_reason)
    chosen, default = entry.choice.milliseconds, next(verified, None)
    return None if chosen is None or default is None else (chosen, default)


def over_default(entry: Entry) -> float | None:
    """Return the time of the choice, relative to the time of the default choice; None if one of them is not known."""
    times = _times(entry)
    return None if times is None else times[0] / times[1]


def _gpu_text(entry: Entry) -> str:
    """Return the GPU and the release of cuDNN that an entry is for: "NVIDIA H200, cuDNN 9.19.0"."""
    return f"{entry.key.gpu}, cuDNN {raw.version_text(entry.key.cudnn)}"


def table(entries: Sequence[Entry], columns: int | None = None) -> Iterator[Line]:
    """Return the lines of the table, wrapped to some number of columns if it is given. Several GPUs have a column."""
    with_gpu = len(set(map(_gpu_text, entries))) > 1
    cells = [["problem", *["gpu"] * with_gpu, "choice", "ms", "over default", "workspace"]]
    for entry in entries:
        choice, ratio = entry.choice, over_default(entry)
        numbers = [
            "" if number is None else f"{number:.{digits}f}"
            for number, digits in ((choice.milliseconds, 4), (ratio, 3))
        ]
        gpu = [_gpu_text(entry)] * with_gpu
        cells.append([entry.text, *gpu, choice.name, *numbers, bytes_text(choice.workspace_size or 0)])
    return text_table.table(cells, columns, indent="", numeric=3)


LEGEND = "over default: the time of the choice over the time of the default choice, which needs no measuring"


def summary(entries: Sequence[Entry]) -> str:
    """Return one line with the number of problems and the gain over the default choices."""
    count = f"{len(entries)} problem{'s' * (len(entries) != 1)}"
    times = [both for both in map(_times, entries) if both is not None]
    if not times:
        return count
    mean = geometric_mean(chosen / default for chosen, default in times)
    chosen, first = (sum(column) for column in zip(*times, strict=True))
    return (
        f"{count}; over the default choice: {mean:.3f} in the geometric mean, {chosen:.4g} ms of {first:.4g} ms in all"
    )
