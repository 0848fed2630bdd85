"""Rows of a store, each with a checksum; entries, failed plans and faults as rows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from cudnnpy._store.entry import SCHEMA, Entry, Fault, Forgotten, Key, canonical, digest_of, without_options

ENTRY, FORGOTTEN, CHECKED, FAULT = "entry", "forgotten", "checked", "fault"  # kinds of rows
_AFTER_CANDIDATES = '","complete":'  # in the canonical JSON of an entry


class Row(NamedTuple):
    """A row: its number, kind and content, with the version of the content and a checksum."""

    number: int  # 63 bits of a digest that identifies the row
    kind: str
    schema: int
    content: str
    checksum: str

    @property
    def is_intact(self) -> bool:
        """Whether the checksum holds."""
        return self.checksum == _checksum(self.number, self.kind, self.schema, self.content)


def make_row(number: int, kind: str, content: str) -> Row:
    """Return a row of the present schema."""
    return Row(number, kind, SCHEMA, content, _checksum(number, kind, SCHEMA, content))


def row_from_columns(values: Iterable[Any]) -> Row:
    """Return the row of five values of a file. Values of the wrong type give a row that is not intact."""
    number, kind, schema, content, checksum = values
    return Row(
        number if isinstance(number, int) else -1,
        str(kind),
        schema if isinstance(schema, int) else -1,
        str(content),
        str(checksum),
    )


def _checksum(number: int, kind: str, schema: int, content: str) -> str:
    return digest_of(f"{number}\n{kind}\n{schema}\n{content}")


# Numbers


def row_number(kind: str, key: Key, plan: str = "", environment: str = "") -> int:
    """Return the number of a row about a key, about a plan for it, or about a plan in an environment."""
    if not isinstance(key, Key):
        raise TypeError(f"key must be a Key; got {key!r}")
    identity = "\n".join((kind, key.digest, digest_of(plan), environment))
    return int(digest_of(identity)[:16], 16) >> 1


def failure_number(entry: Entry) -> int:
    """Return the number of the row that exists if the plan of an entry failed."""
    return row_number(FORGOTTEN, entry.key, entry.plan)


def faults_number(key: Key) -> int:
    """Return the number of the row with all faults of a problem."""
    return row_number(FAULT, without_options(key))


# Entries


def row_from_entry(entry: Entry) -> Row:
    """Return the row of an entry. Its candidates are nested JSON text, which most readers skip."""
    plain = entry.plain()
    content = canonical({**plain, "candidates": canonical(plain["candidates"])})
    return make_row(row_number(ENTRY, entry.key), ENTRY, content)


def entry_from_row(row: Row | None, *, without_candidates: bool = False) -> Entry | None:
    """Return the entry of a row; None if there is no row, or one of another schema."""
    if row is None or row.schema != SCHEMA:
        return None
    try:
        plain = json.loads(_drop_candidates(row.content) if without_candidates else row.content)
        return Entry.of({**plain, "candidates": json.loads(plain["candidates"])})
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _drop_candidates(content: str) -> str:
    """Return the content of an entry with an empty list of candidates, without parsing the old one.

    The candidates are the first field. Their text has escaped quotation marks, so the first unescaped one ends it.
    """
    _, end, rest = content.partition(_AFTER_CANDIDATES)
    return f'{{"candidates":"[]{end}{rest}' if end else content


# Failed plans and faults


def row_from_forgotten(failed: Forgotten, plan: str) -> Row:
    """Return the row of a failed plan, whose text is `plan`."""
    content = canonical({**failed._asdict(), "key": failed.key._asdict()})
    return make_row(row_number(FORGOTTEN, failed.key, plan), FORGOTTEN, content)


def forgotten_from_row(row: Row) -> Forgotten:
    """Return the failed plan of a row of the present schema."""
    plain = json.loads(row.content)
    return Forgotten(**{**plain, "key": Key(**plain["key"])})


def row_from_faults(key: Key, faults: Iterable[Fault]) -> Row:
    """Return the row of all faults of a problem."""
    return make_row(faults_number(key), FAULT, canonical([fault.plain() for fault in faults]))


def faults_from_row(row: Row | None) -> tuple[Fault, ...]:
    """Return the faults of a row; none if there is no row, or one of another schema."""
    if row is None or row.schema != SCHEMA:
        return ()
    try:
        return tuple(map(Fault.of, json.loads(row.content)))
    except (ValueError, TypeError, RecursionError):
        return ()
