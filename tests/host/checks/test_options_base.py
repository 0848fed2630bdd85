"""Operation objects: immutable, equal by value, hashable, picklable, with cache tokens of their own."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import numpy as np
import pytest
from fresh_process import python
from stand_in_device import Array, Recorded, StandInDevice, calls_of_c

import cudnnpy
from cudnnpy import Convolution, TensorSpec
from cudnnpy._core.cache_token import CacheToken, cache_token
from cudnnpy._launch import dispatch, plan_cache
from cudnnpy._launch.dispatch import ArrayOperation, Call

X = (2, 4, 6, 6)

# Of each class: options by which its objects differ.
OBJECTS: dict[str, list[dict[str, Any]]] = {
    "Activation": [{}, {"mode": "tanh"}, {"mode": "clipped_relu", "coefficient": 6}],
    "Attention": [
        {},
        {"causal": True},
        {"causal": "bottom_right", "window": [7, None]},
        {"scale": 1, "layout": "BSHD"},
    ],
    "BatchNormalization": [{}, {"mode": "per_activation"}, {"epsilon": 1e-3}],
    "Convolution": [{}, {"padding": 1}, {"stride": [2, 1], "algorithm": "gemm"}, {"tf32": False, "tune_seconds": 1}],
    "ConvolutionTranspose": [{}, {"stride": 2}, {"stride": 2, "output_padding": 1}],
    "FusedConvolution": [{}, {"padding": ((0, 1), 2)}, {"prefer": "no_workspace"}],
    "Pooling": [{}, {"window": [3, 2], "stride": 1}, {"mode": "average_inc_pad"}],
    "Softmax": [{}, {"algorithm": "log"}, {"mode": "instance"}],
}
EACH = [(name, options) for name, every in OBJECTS.items() for options in every]


def misses() -> int:
    return plan_cache.cache_info().misses


def test_every_operation_class_is_tried() -> None:
    found = {name for name in cudnnpy.__all__ if isinstance(getattr(cudnnpy, name), type)}
    assert {name for name in found if issubclass(getattr(cudnnpy, name), ArrayOperation)} == set(OBJECTS)
    reference = {name for name in cudnnpy.reference.__all__ if name[0].isupper()}
    assert reference == set(OBJECTS)


@pytest.mark.parametrize("package", [cudnnpy, cudnnpy.reference], ids=["device", "reference"])
@pytest.mark.parametrize(("name", "options"), EACH)
def test_objects_are_frozen_equal_by_value_hashable_and_picklable(package: Any, name: str, options: Any) -> None:
    kind = getattr(package, name)
    one, other = kind(**options), kind(**options)
    assert one == other
    assert hash(one) == hash(other)
    assert one != CacheToken()
    for copied in (pickle.loads(pickle.dumps(one)), copy.copy(one), copy.deepcopy(one)):
        assert type(copied) is kind
        assert copied == one
        assert repr(copied) == repr(one)
    different = [kind(**more) for more in OBJECTS[name]]
    assert sum(one == another for another in different) == 1
    assert len({*different, one}) == len(different)
    for attribute in (*options, "paddin"):
        with pytest.raises(FrozenInstanceError):
            setattr(one, attribute, 1)
    with pytest.raises(FrozenInstanceError):
        delattr(one, next(iter(kind.__dataclass_fields__)))


@pytest.mark.parametrize(("name", "options"), EACH)
def test_equal_objects_share_an_identity_and_others_never_do(name: str, options: Any) -> None:
    kind = getattr(cudnnpy, name)
    every = [kind(**more) for more in OBJECTS[name]]
    identities = [key_of(one) for one in every]
    assert len(set(identities)) == len(every)
    same = pickle.loads(pickle.dumps(kind(**options)))
    shared = [key_of(same) is identity for identity in identities]
    assert sum(shared) == 1


def key_of(one: Any) -> CacheToken:
    """What stands for an object in keys."""
    assert isinstance(one._token, CacheToken)
    return one._token


def test_an_unpickled_object_runs_its_own_plan(stand_in: StandInDevice) -> None:
    """In a process whose first object was another: a number of the first process must mean nothing there."""
    text = pickle.dumps((cudnnpy.Activation("tanh"), cudnnpy.Activation(), Convolution(padding=0)))
    program = f"""
import pickle, sys
import cudnnpy
first = cudnnpy.Activation("relu"), cudnnpy.Pooling(), cudnnpy.Convolution(padding=1)
tanh, relu, conv = pickle.loads({text!r})
assert tanh._token is not first[0]._token
assert relu._token is first[0]._token
assert conv._token is not first[2]._token
assert conv.output_shape((1, 1, 5, 5), (1, 1, 3, 3)) == (1, 1, 3, 3)
"""
    python(program)


# The identity


def test_copies_of_a_graph_have_identities_of_their_own() -> None:
    graph = cudnnpy.Graph()
    graph.tensor("x", TensorSpec((1, 2, 3, 4)))
    for one, other in ((graph, copy.deepcopy(graph)), (graph, copy.copy(graph))):
        assert one._token is not other._token


def test_values_of_other_types_have_other_identities() -> None:
    kept = [cache_token(int, value) for value in (1, 1.0, True)] + [cache_token(float, 1)]
    assert len(set(kept)) == 4


# The key is what planning is given


@dataclass(frozen=True)
class MadeUp(ArrayOperation):
    """An operation that nobody has told dispatch.run about."""

    option: Any = 0

    def prepare(self, call: Call, *arguments: Any) -> Any:
        seen.append((self.option, arguments))
        return Recorded(), [TensorSpec((3,))]


seen: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


# Arguments that differ, though many of them are equal to each other.
DIFFERENT: list[tuple[Any, ...]] = [
    (), (None,), (1,), (1.0,), (True,), (0,), (0.0,), (False,), ("1",), (b"1",), (1, 0), (0, 1), (1, None), (1, 2), (1.0, 2),
    ("add", 1.0, 0.0, False), ("add", 1.0, 0.0, False, 0), ("add", 1.0, 0.0, 0), ("add", 1.0, 0.0, False, 0.0),
]  # fmt: skip


def test_an_argument_that_is_added_to_an_operation_is_in_its_key(stand_in: StandInDevice) -> None:
    """An operation passes its arguments once: those that are planned with are those of the key."""
    for turn in range(2):
        for owner in (MadeUp(), MadeUp(1), MadeUp(1.0)):
            for arguments in DIFFERENT:
                dispatch.run("made up", owner, MadeUp.prepare, ("x", "out"), (Array(3),), (None,), None, *arguments)
        assert len(seen) == 3 * len(DIFFERENT), turn
    wanted = [(option, arguments) for option in (0, 1, 1.0) for arguments in DIFFERENT]
    assert repr(seen) == repr(wanted)


def test_with_a_tuple_among_the_arguments_nothing_is_remembered(stand_in: StandInDevice) -> None:
    """The types of its elements would not be told apart."""
    for count in (1, 2):
        dispatch.run("made up", MadeUp(), MadeUp.prepare, ("x", "out"), (Array(3),), (None,), None, (1, 2))
        assert len(seen) == count
    assert plan_cache.cache_info().size == 0


@pytest.mark.parametrize(
    ("good", "bad", "text"),
    [
        (lambda x: cudnnpy.Activation().forward(x, alpha=1.0), lambda x: cudnnpy.Activation().forward(x, alpha=True), "alpha"),
        (lambda x: cudnnpy.Softmax().forward(x, beta=0.0), lambda x: cudnnpy.Softmax().forward(x, beta=False), "beta"),
        (
            lambda x: Convolution().backward_data(x, Array(4, 3, 1, 1), (2, 3, 6, 6)),
            lambda x: Convolution().backward_data(x, Array(4, 3, 1, 1), (2.0, 3, 6, 6)),
            "x_shape",
        ),
        (
            lambda x: Convolution().backward_filter(x, x, (4, 4, 1, 1)),
            lambda x: Convolution().backward_filter(x, x, (4, 4, True, 1)),
            "w_shape",
        ),
        (
            lambda x: Convolution().forward(x, Array(4, 4, 1, 1), alpha=1.0),
            lambda x: Convolution().forward(x, Array(4, 4, 1, 1), alpha=True),
            "alpha",
        ),
        (lambda x: Convolution().backward_bias(x), lambda x: Convolution().backward_bias(x, beta=False), "beta"),
    ],
)  # fmt: skip
def test_a_refusal_does_not_depend_on_what_was_planned_before(
    stand_in: StandInDevice, good: Any, bad: Any, text: str
) -> None:
    x = Array(*X)
    with pytest.raises(TypeError, match=text):
        bad(x)
    good(x)
    stand_in.c_calls.clear()
    for _ in range(2):
        with pytest.raises(TypeError, match=text):
            bad(x)
    assert calls_of_c(stand_in) == {}


def test_a_gradients_shape_may_be_any_sequence_of_integers(stand_in: StandInDevice) -> None:
    x, w = Array(2, 4, 6, 6), Array(4, 3, 1, 1)
    for shape in ((2, 3, 6, 6), [2, 3, 6, 6], np.array([2, 3, 6, 6])):
        assert Convolution().backward_data(x, w, shape).shape == (2, 3, 6, 6)
    assert misses() == 1
    for wrong, kind in (((), ValueError), ([], ValueError), (7, TypeError), ("2366", TypeError)):
        with pytest.raises(kind, match="x_shape"):
            Convolution().backward_data(x, w, wrong)
