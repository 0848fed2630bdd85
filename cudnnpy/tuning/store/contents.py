"""Contents: read and write the entries, failed plans, checks and faults of a store as rows, within one transaction."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from cudnnpy._checks.option_values import error_repr
from cudnnpy.tuning.store.entry import SCHEMA, Entry, Fault, Forgotten, Key, canonical_json, digest_of, without_options
from cudnnpy.tuning.store.sqlite import TABLE_NAME, DamagedFileError

if TYPE_CHECKING:
    import sqlite3

ENTRY, FORGOTTEN, CHECKED, FAULT = "entry", "forgotten", "checked", "fault"  # kinds of rows
_T = TypeVar("_T")
INSERT_ROW = f"INSERT OR REPLACE INTO {TABLE_NAME} VALUES (?, ?, ?, ?, ?)"


class Row(NamedTuple):
    """A row of the table. In a damaged file its values may be of any type; then the checksum does not hold."""

    number: int  # 63 bits of a digest that identifies the row
    kind: str
    schema: int  # the version of the content
    content: str
    checksum: str

    @property
    def is_intact(self) -> bool:
        """Whether the checksum holds."""
        return self.checksum == _checksum(*self[:4])


def _checksum(number: int, kind: str, schema: int, content: str) -> str:
    return digest_of(f"{number}\n{kind}\n{schema}\n{content}")


class Contents:
    """The contents of a store within one transaction. Without a connection it is empty.

    Methods raise DamagedFileError for a row whose checksum does not hold.
    """

    def __init__(self, connection: sqlite3.Connection | None = None) -> None:
        self._connection = connection

    # Rows

    def get(self, kind: str, key: Key, plan: str = "", environment: str = "") -> Row | None:
        """Return the row about a key, about a plan for it, or about a plan in an environment; None if there is none."""
        rows = self._select("number = ?", row_number(kind, key, plan, environment))
        return rows[0] if rows else None

    def all(self, kind: str) -> list[Row]:
        """Return the rows of a kind, in the order of their numbers."""
        return self._select("kind = ? ORDER BY number", kind)

    def every_row(self) -> list[Row]:
        """Return the rows of all kinds."""
        return self._select("TRUE")

    def put(self, content: str, kind: str, key: Key, plan: str = "", environment: str = "") -> None:
        """Add a row about a key, about a plan for it, or about a plan in an environment, in place of an earlier one."""
        values = row_number(kind, key, plan, environment), kind, SCHEMA, content
        self._execute(INSERT_ROW, *values, _checksum(*values))

    def put_rows(self, rows: Iterable[Row]) -> None:
        """Add rows as they are."""
        for row in rows:
            self._execute(INSERT_ROW, *row)

    def _remove(self, row: Row) -> None:
        self._execute(f"DELETE FROM {TABLE_NAME} WHERE number = ?", row.number)

    def _select(self, where: str, *values: int | str) -> list[Row]:
        columns = ", ".join(Row._fields)
        rows = [Row(*row) for row in self._execute(f"SELECT {columns} FROM {TABLE_NAME} WHERE {where}", *values)]
        if not all(row.is_intact for row in rows):
            raise DamagedFileError
        return rows

    def _execute(self, statement: str, *values: int | str) -> list[Any]:
        return [] if self._connection is None else self._connection.execute(statement, values).fetchall()

    # Entries

    def entry(self, key: Key, *, without_candidates: bool = False) -> Entry | None:
        """Return the entry of a key; None if there is none."""
        entry = entry_from_row(self.get(ENTRY, key), without_candidates=without_candidates)
        return None if entry is None or entry.key != key else entry

    def put_entry(self, entry: Entry, replaces: Callable[[Entry], bool]) -> Entry | None:
        """Add an entry, unless there is one that it does not replace. Return the current one; None if the plan failed."""
        current = self.entry(entry.key)
        if current is not None and not replaces(current):
            return current
        if self.is_forgotten(entry.key, entry.plan):
            return None
        self.put(content_of(entry), ENTRY, entry.key)
        return entry

    # Plans that were tried

    def forget(self, key: Key, reason: str, made_at: str, plan: str | None) -> None:
        """Mark a plan as failed, by default the one of the entry, and remove the entry if it has this plan."""
        row = self.get(ENTRY, key)
        entry = entry_from_row(row)
        if plan is None:
            if entry is None:
                return
            plan = entry.plan
        if row is not None and entry is not None and entry.plan == plan:
            self._remove(row)
        failed = Forgotten(key, "" if entry is None else entry.text, digest_of(plan), reason, made_at)
        self.put(canonical_json(failed.plain()), FORGOTTEN, key, plan)

    def is_forgotten(self, key: Key, plan: str) -> bool:
        """Return whether a plan failed."""
        return self.get(FORGOTTEN, key, plan) is not None

    def forgotten(self) -> list[Forgotten]:
        """Return the plans that failed, except rows of another schema or with other content."""
        failed = (_decoded(row, Forgotten.of) for row in self.all(FORGOTTEN))
        return sorted(plan for plan in failed if plan is not None)

    def is_checked(self, key: Key, environment: str, plan: str | None) -> bool:
        """Return whether a plan, by default the one of the entry, was marked as checked in an environment."""
        plan = self._plan_of(key) if plan is None else plan
        return plan is not None and self.get(CHECKED, key, plan, environment) is not None

    def mark_checked(self, key: Key, environment: str, plan: str | None) -> None:
        """Mark a plan, by default the one of the entry, as checked in an environment."""
        plan = self._plan_of(key) if plan is None else plan
        if plan is not None:
            self.put(canonical_json({"key": key.digest, "environment": environment}), CHECKED, key, plan, environment)

    def _plan_of(self, key: Key) -> str | None:
        entry = self.entry(key, without_candidates=True)
        return None if entry is None else entry.plan

    # Faults

    def faults_of(self, key: Key) -> list[Fault]:
        """Return the faults of the problem of a key, whatever its options."""
        return faults_from_rows([self.get(FAULT, without_options(key))])

    def update_faults(self, faults: Iterable[Fault], *, removes: bool = False) -> int:
        """Add faults, or remove them. Return how many were added or removed.

        Faults are the same if candidate, symptom and driver are. The row of a problem is written once.
        """
        by_key: dict[Key, list[Fault]] = {}
        for fault in faults:
            by_key.setdefault(without_options(fault.key), []).append(fault)
        count = 0
        for key, given in by_key.items():
            old = {_identity(fault): fault for fault in self.faults_of(key)}
            new = {_identity(fault): fault for fault in reversed(given)}  # of two that are the same, the first
            updated = {same: old[same] for same in old.keys() - new.keys()} if removes else {**new, **old}
            if len(updated) != len(old):
                self.put(canonical_json([fault.plain() for fault in sorted(updated.values())]), FAULT, key)
                count += abs(len(updated) - len(old))
        return count


def _identity(fault: Fault) -> tuple[str, str, str]:
    return fault.candidate, fault.symptom, fault.driver


def row_number(kind: str, key: Key, plan: str = "", environment: str = "") -> int:
    """Return the number of a row about a key, about a plan for it, or about a plan in an environment."""
    if not isinstance(key, Key):
        raise TypeError(f"key must be a Key; got {error_repr(key)}")
    identity = "\n".join((kind, key.digest, digest_of(plan), environment))
    return int(digest_of(identity)[:16], 16) >> 1


def content_of(entry: Entry) -> str:
    """Return the content of the row of an entry. Its candidates are nested JSON text, which most readers skip."""
    plain = entry.plain()
    return canonical_json({**plain, "candidates": canonical_json(plain["candidates"])})


def entry_from_row(row: Row | None, *, without_candidates: bool = False) -> Entry | None:
    """Return the entry of a row; None if there is no row, or one of another schema."""

    def entry(plain: dict[str, Any]) -> Entry:
        return Entry.of({**plain, "candidates": [] if without_candidates else json.loads(plain["candidates"])})

    return _decoded(row, entry)


def entries_from_rows(rows: Iterable[Row]) -> list[Entry]:
    """Return the entries of rows, in the order of their keys, except entries of another schema."""
    return sorted((entry for entry in map(entry_from_row, rows) if entry is not None), key=lambda entry: entry.key)


def faults_from_rows(rows: Iterable[Row | None]) -> list[Fault]:
    """Return the faults of the rows of problems, in their order, without faults of another schema."""
    return sorted(fault for row in rows for fault in _decoded(row, lambda plain: [*map(Fault.of, plain)]) or ())


def _decoded(row: Row | None, decode: Callable[[Any], _T]) -> _T | None:
    """Return the record of a row; None if there is no row, one of another schema, or one that holds no such record."""
    if row is None or row.schema != SCHEMA:
        return None
    try:
        return decode(json.loads(row.content))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
