"""The faults in a store: one row for each problem on a kind of GPU with a release of cuDNN."""

from __future__ import annotations

import contextlib
import json
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from cudnnpy._store.entry import SCHEMA, Fault, Key, canonical, without_options
from cudnnpy._store.faults import Locked
from cudnnpy._store.kept import Kept
from cudnnpy._store.records import row_number
from cudnnpy._store.rows import FAULT, Change, Row, row_of

_Faults = tuple[Fault, ...]


def number_of_faults(key: Key) -> int:
    """Return the number of the row that has the faults of a problem."""
    return row_number(FAULT, without_options(key))


def faults_from_row(row: Row | None) -> _Faults:
    """Return the faults of a row; none if there is no row, or if it is of another schema."""
    if row is None or row.schema != SCHEMA:
        return ()
    try:
        return tuple(map(Fault.of, json.loads(row.content)))
    except (ValueError, TypeError, RecursionError):
        return ()


def rows_from_faults(faults: Iterable[Fault]) -> list[Row]:
    """Return the rows that have some faults."""
    by_key: defaultdict[Key, _Faults] = defaultdict(tuple)
    for fault in faults:
        by_key[fault.key] += (fault,)
    return [_row(key, _with((), of_key)) for key, of_key in by_key.items()]


def _row(key: Key, faults: _Faults) -> Row:
    return row_of(number_of_faults(key), FAULT, canonical([fault.plain() for fault in faults]))


class FaultRows(ABC):
    """The methods of a store that are about faults."""

    @property
    @abstractmethod
    def _rows(self) -> Kept: ...

    @abstractmethod
    def _change(self, changes: list[Change], removed: Sequence[Row] = ()) -> list[Row | None]: ...

    @abstractmethod
    def _check_writable(self) -> None: ...

    def faults(self) -> list[Fault]:
        """Return the faults of all problems."""
        return sorted(fault for row in self._rows.all(FAULT) for fault in faults_from_row(row))

    def faults_of(self, key: Key) -> list[Fault]:
        """Return the faults of the problem of a key, whatever its options; none while another process locks the file."""
        with contextlib.suppress(Locked):
            return list(faults_from_row(self._rows.read(number_of_faults(key))))
        return []

    def add_faults(self, faults: Iterable[Fault]) -> int:
        """Keep faults. One with the candidate, symptom and driver of an earlier one is left out.

        Parameters
        ----------
        faults : iterable of Fault
            The faults.

        Returns
        -------
        int
            The number of faults that were added.

        Raises
        ------
        ValueError
            A field is not valid, or the store is open for reading alone.
        """
        return self._update_faults(faults, _with)

    def remove_faults(self, faults: Iterable[Fault]) -> int:
        """Remove faults, so that their candidates may be chosen again.

        Parameters
        ----------
        faults : iterable of Fault
            The faults, as `faults` returns them.

        Returns
        -------
        int
            The number of faults that were removed.

        Raises
        ------
        ValueError
            The store is open for reading alone.
        """
        return self._update_faults(faults, _without)

    def _update_faults(self, faults: Iterable[Fault], update: Callable[[_Faults, _Faults], _Faults]) -> int:
        self._check_writable()
        by_key: defaultdict[Key, _Faults] = defaultdict(tuple)
        for fault in faults:
            if not isinstance(fault, Fault):
                raise TypeError(f"faults must be Faults; got {fault!r}")
            checked = Fault.of(fault.plain())
            by_key[checked.key] += (checked,)
        return sum(self._update_row(key, given, update) for key, given in by_key.items())

    def _update_row(self, key: Key, given: _Faults, update: Callable[[_Faults, _Faults], _Faults]) -> int:
        """Update the faults of one problem; again if another process changed them meanwhile. Return how many changed."""
        number, count = number_of_faults(key), 0
        while True:
            current = self._rows.read(number, waits=True)
            before = faults_from_row(current)
            after = update(before, given)
            if after == before:
                return count
            count = abs(len(after) - len(before))
            if after:
                self._change([Change(_row(key, after), lambda other, current=current: other == current)])  # type: ignore[misc]
            else:
                self._change([], [row for row in [current] if row is not None])


def _identity(fault: Fault) -> tuple[str, str, str]:
    return fault.candidate, fault.symptom, fault.driver


def _with(before: _Faults, given: _Faults) -> _Faults:
    found = {_identity(fault): fault for fault in (*reversed(given), *reversed(before))}
    return tuple(sorted(found.values()))


def _without(before: _Faults, given: _Faults) -> _Faults:
    gone = set(map(_identity, given))
    return tuple(fault for fault in before if _identity(fault) not in gone)
