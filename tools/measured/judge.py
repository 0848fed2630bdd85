"""Whether a table helps with problems that it does not have: networks are left out of it one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import geometric_mean
from typing import NamedTuple

from cudnnpy._planning.measurement_table import Configuration, Table
from tools.measured import write
from tools.measured.rows import Row

KEY = ("", "")
HEADER = " | ".join(
    [
        "problems",
        "number",
        "first guess without a table / fastest",
        "with it",
        "above 1.1",
        "worst",
        "changed",
        "with / without",
        "above 1.05",
        "worst",
    ]
)


class Judged(NamedTuple):
    """A problem, and the configuration that is chosen for it when its networks are not in the table."""

    row: Row
    chosen: Configuration

    @property
    def over_best(self) -> float:
        """Its time over that of the fastest candidate."""
        return self.row.times[self.chosen] / self.row.best

    @property
    def over_first(self) -> float:
        """Its time over that of the default choice without a table."""
        return self.row.times[self.chosen] / self.row.times[self.row.first]


def left_out(rows: Sequence[Row]) -> list[Judged]:
    """Judge every row with a table of the rows that share no network with it."""
    tables: dict[frozenset[str], Table] = {}
    found = []
    for row in rows:
        if row.networks not in tables:
            others = [other for other in rows if other.networks.isdisjoint(row.networks)]
            tables[row.networks] = Table(write.table(others, *KEY), KEY)
        found.append(Judged(row, choice(row, tables[row.networks])))
    return found


def choice(row: Row, table: Table) -> Configuration:
    """Return the configuration chosen for a problem: the first proposal that ran, or the default choice without it."""
    proposed = [proposal.configuration for proposal in table.proposals(row.features)]
    return next((configuration for configuration in proposed if configuration in row.times), row.first)


def summary(name: str, found: Iterable[Judged]) -> str:
    """Return a line about some problems."""
    found = list(found)
    best, first = [one.over_best for one in found], [one.over_first for one in found]

    def share(is_one: Callable[[Judged], bool]) -> str:
        return f"{100 * sum(map(is_one, found)) / len(found):.1f} %"

    return " | ".join(
        [
            name,
            f"{len(found):,}",
            f"{geometric_mean(one.row.times[one.row.first] / one.row.best for one in found):.3f}",
            f"{geometric_mean(best):.3f}",
            share(lambda one: one.over_best > 1.1),
            f"{max(best):.2f}",
            share(lambda one: one.chosen != one.row.first),
            f"{geometric_mean(first):.3f}",
            share(lambda one: one.over_first > 1.05),
            f"{max(first):.2f}",
        ]
    )
