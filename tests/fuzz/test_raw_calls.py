"""Calls of every function of the C API with drawn arguments: NULL, closed objects, wrong types, wrong kinds of descriptors.

What may come of them is a status, or an exception of Python's; nothing ends the process. Numbers are small: how many
elements C reads at an address that is good is C's to trust.
"""

from __future__ import annotations

import ctypes
from functools import cache
from random import Random
from typing import Any

from campaign import Campaign

from cudnnpy import descriptors, raw
from cudnnpy.errors import ClosedError, CudnnError, FunctionNotAvailableError

Case = tuple[str, str, tuple[str, ...]]


def can_be_null(kind: str) -> bool:
    import raw_arguments  # only the campaign's child process finds the modules of tests/host, and needs them

    return bool(raw_arguments.can_be_null(kind))


@cache
def available() -> tuple[str, ...]:
    """The functions of the loaded release, without those that end what others use, or change the process."""
    found = []
    for name in raw.functions():
        try:
            raw.bound(name)
        except FunctionNotAvailableError:
            continue
        if "Destroy" not in name and name != "cudnnSetCallback":
            found.append(name)
    return tuple(found)


@cache
def closed() -> Any:
    made = descriptors.TensorDescriptor((1, 1, 1, 1))
    made.close()
    return made


WRONG = {
    "text": lambda: "NULL",
    "a float": lambda: 1.5,
    "an object": object,
    "a descriptor of another kind": lambda: descriptors.SeqDataDescriptor(),
    "a list": lambda: [1, 2],
    "a closed object": closed,
}


def draw(random: Random) -> Case:
    """A function, how it is called, and what each of its arguments is."""
    name = random.choice(available())
    kinds = [kind for _, kind, _ in raw.parameters(name)]
    often = random.choice((0.1, 0.5, 1.0))
    what = []
    for kind in kinds:
        if can_be_null(kind) and random.random() < often:
            what.append(random.choice(("NULL", "a NULL pointer")))
        elif random.random() < 0.1:
            what.append(random.choice(sorted(WRONG)))
        else:
            what.append(str(random.choice((0, 1, 2, 4))))
    if random.random() < 0.05 and what:
        what.pop()
    return name, random.choice(("raw.call", "raw.name")), tuple(what)


def made(kind: str, what: str, arguments: Any) -> Any:
    """An argument for a parameter of this type."""
    import raw_arguments as c

    if what == "NULL":
        return c.null(kind)
    if what == "a NULL pointer":
        return raw.ctype(kind)() if c.is_pointer(kind) or c.is_handle(kind) else c.null(kind)
    if what in WRONG:
        untyped = c.base(kind) in ("void", "char", "cudaStream_t", "cudaGraph_t")  # any number is an address there
        return arguments.good(kind) if untyped else WRONG[what]()
    return arguments.good(kind, int(what))


def run(case: Case) -> str:
    name, how, what = case
    import raw_arguments

    arguments = raw_arguments.Arguments()  # new ones: what an earlier case wrote into a descriptor is not this case's
    given = [made(kind, one, arguments) for (_, kind, _), one in zip(raw.parameters(name), what, strict=False)]
    try:
        if how == "raw.call":
            raw.call(name, *given)
            return "status"
        getattr(raw, name)(*given)
    except ClosedError:
        return "closed"
    except CudnnError:
        return "status"
    except (TypeError, ValueError, ctypes.ArgumentError) as error:
        return type(error).__name__
    return "status"


CAMPAIGN = Campaign(draw, run)


def test_no_drawn_arguments_end_the_process() -> None:
    outcomes = CAMPAIGN.carry_out(__file__, "CAMPAIGN", least=600)
    assert {"status", "TypeError", "ValueError", "ArgumentError", "closed"} >= set(outcomes) >= {"status", "TypeError"}
