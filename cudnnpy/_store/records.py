"""What a store says of itself: its state, and the plans that failed; and rows as entries."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

from cudnnpy._store.entry import SCHEMA, Entry, Key, canonical, digest_of
from cudnnpy._store.rows import ENTRY, FORGOTTEN, Change, Row, number_of, row_of

_AFTER_CANDIDATES = '","complete":'  # in the canonical JSON of an entry


class Forgotten(NamedTuple):
    """A plan that failed, and that is not kept again for its key.

    Attributes
    ----------
    key : Key
        What it was the choice for.
    text : str
        The problem in the notation that people read.
    plan : str
        The SHA-256 of the serialized plan.
    reason : str
        Why it failed.
    made_at : str
        When it was forgotten: ISO 8601, in UTC.
    """

    key: Key
    text: str
    plan: str
    reason: str
    made_at: str


class StoreInfo(NamedTuple):
    """The state of a store.

    Attributes
    ----------
    path : str
        The file; "" for a store in memory.
    read_only : bool
        Whether it is open for reading alone.
    in_memory : str
        Why new choices are kept in the memory of this process alone; "" if they are not.
    entries : int
        The number of entries that this process can use.
    stale : int
        The number of those that it cannot use: of another release of cuDNN, GPU or schema. On a machine where cuDNN or a
        GPU is missing, that part is not compared.
    forgotten : int
        The number of plans that failed.
    faults : int
        The number of faults of candidates.
    size : int
        The size of the file in bytes, with what SQLite keeps beside it.
    set_aside : tuple of str
        The copies of damaged files that are still there, as far as the folder can be listed.
    """

    path: str
    read_only: bool
    in_memory: str
    entries: int
    stale: int
    forgotten: int
    faults: int
    size: int
    set_aside: tuple[str, ...]


def row_number(kind: str, key: Key, plan: str = "", environment: str = "") -> int:
    """Return the number of the row of a kind that is about a key, about a plan for it, or about a plan in an environment."""
    if not isinstance(key, Key):
        raise TypeError(f"key must be a Key; got {key!r}")
    return number_of(kind, key.digest, digest_of(plan), environment)


def row_from_entry(entry: Entry) -> Row:
    """Return the row of an entry. Its candidates are a text of their own, which most readers have no need of."""
    plain = entry.plain()
    content = canonical({**plain, "candidates": canonical(plain["candidates"])})
    return row_of(row_number(ENTRY, entry.key), ENTRY, content)


def entry_from_row(row: Row, *, brief: bool = False) -> Entry | None:
    """Return the entry of a row, or, if `brief`, the entry without its candidates; None if it is of another schema."""
    if row.schema != SCHEMA:
        return None
    try:
        plain = json.loads(_without_candidates(row.content) if brief else row.content)
        return Entry.of({**plain, "candidates": json.loads(plain["candidates"])})
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _without_candidates(content: str) -> str:
    """Return the content of an entry with no candidates, which are most of it and its first field.

    They are a text with every quotation mark escaped, so that the first one that is not ends them.
    """
    _, end, rest = content.partition(_AFTER_CANDIDATES)
    return f'{{"candidates":"[]{end}{rest}' if end else content


def forgotten_from_row(row: Row) -> Forgotten:
    """Return the failed plan of a row."""
    plain = json.loads(row.content)
    return Forgotten(**{**plain, "key": Key(**plain["key"])})


def number_of_failure(entry: Entry) -> int:
    """Return the number of the row that there is if the plan of an entry failed."""
    return row_number(FORGOTTEN, entry.key, entry.plan)


def addition(entry: Entry, beats: Callable[[Row], bool]) -> Change:
    """Return the change that adds an entry, unless its plan failed."""
    return Change(row_from_entry(entry), beats, number_of_failure(entry))


def addition_if_it_says_more(entry: Entry) -> Change:
    """Return the change that adds an entry unless one stands that says as much."""
    given = entry.milliseconds is not None, entry.complete
    return addition(entry, lambda other: given > rank(other))


def rank(row: Row) -> tuple[bool, bool]:
    """Return how much an entry says: a measured one more than a planned one, and a complete one more than another."""
    entry = entry_from_row(row)
    return (False, False) if entry is None else (entry.milliseconds is not None, entry.complete)
