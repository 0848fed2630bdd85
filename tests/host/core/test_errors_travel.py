"""Every exception of the package, copied and sent to another process: message, type and attributes stay."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from made_up_candidates import made_up

import cudnnpy
from cudnnpy import availability, errors
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.choice import Engine
from cudnnpy.errors import CudnnError


def candidate() -> Candidate:
    """One that holds what no pickle takes, as those of a real plan do."""
    return made_up(
        "engine 5",
        notes=("tensor_core",),
        make=lambda: pytest.fail("planned"),
        engine=Engine(5, {2: 3}),
        rejection_reason="needs 9 MiB, the limit is 1 MiB",
        workspace_size=9 << 20,
        executable=lambda: 1,
    )


def subclasses(kind: type[CudnnError]) -> list[type[CudnnError]]:
    """Every exception of the package, by the base that they share."""
    return [kind, *(below for child in kind.__subclasses__() for below in subclasses(child))]


def made(kind: type[CudnnError]) -> CudnnError:
    """One exception of a kind."""
    if issubclass(kind, errors.StatusError):
        return kind("cudnnCreate", 1001, "A_NAME", "a reason")
    if issubclass(kind, errors.NoAlgorithmError):
        return kind("a convolution", "prefer='fastest'", "  a table", [candidate()])
    if issubclass(kind, errors.LibraryNotFoundError):
        return kind("nothing found", "Look elsewhere.")
    return kind("what happened")


KINDS = sorted({kind for kind in subclasses(CudnnError) if kind.__module__.startswith("cudnnpy")}, key=str)


def plain(error: BaseException) -> dict[str, Any]:
    """What an exception tells, with candidates as text."""
    return {name: repr(value) for name, value in vars(error).items()}


def test_all_are_here() -> None:
    assert {errors.NoAlgorithmError, errors.StatusError, availability.UnavailableError} <= set(KINDS)
    assert len(KINDS) >= 17


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_tells_the_same(kind: type[CudnnError], again: Callable[[Any], Any]) -> None:
    error = made(kind)
    error.add_note("seen in a test")
    found = again(error)
    assert type(found) is kind
    assert found is not error
    assert (str(found), repr(found), found.args) == (str(error), repr(error), error.args)
    assert plain(found) == plain(error)
    assert found.__notes__ == ["seen in a test"]


def test_an_exception_of_ones_own_travels_too() -> None:
    found = pickle.loads(pickle.dumps(Own(3, reason="why")))
    assert (type(found), str(found), found.number, found.reason) == (Own, "3: why", 3, "why")


class Own(CudnnError):
    """An exception that a user derives, whose constructor takes other arguments than the message."""

    def __init__(self, number: int, *, reason: str) -> None:
        self.number, self.reason = number, reason
        super().__init__(f"{number}: {reason}")


def test_candidates_travel_as_what_is_told_of_them() -> None:
    error = pickle.loads(pickle.dumps(made(errors.NoAlgorithmError)))
    (found,) = error.candidates
    assert (found.name, found.rejection_reason, found.workspace_size) == (
        "engine 5",
        candidate().rejection_reason,
        9 << 20,
    )
    assert found.engine == Engine(5, {2: 3})
    assert found.uses_tf32
    assert found.executable is None
    with pytest.raises(ValueError, match=r"a candidate must come from candidates\(\)"):
        found.make()


def refuse(number: int) -> None:
    """What a pool's worker runs."""
    raise made(KINDS[number])


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_pool_whose_worker_raises(method: str) -> None:
    with multiprocessing.get_context(method).Pool(1) as pool:
        for number, kind in enumerate(KINDS):
            with pytest.raises(kind) as caught:
                pool.apply_async(refuse, (number,)).get(timeout=120)
            assert str(caught.value) == str(made(kind))
    assert cudnnpy.NoAlgorithmError in KINDS
