"""Options: equal in canonical form however they are written, kept by subclasses and replace(), and as cuDNN has them."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, fields
from typing import Any

import numpy as np
import pytest
from stand_in_device import Array, StandInDevice
from test_options_base import EACH, OBJECTS

import cudnnpy
from cudnnpy import Engine, reference
from cudnnpy._checks.preferences import PreferenceOptions


@pytest.mark.parametrize("package", [cudnnpy, reference], ids=["device", "reference"])
@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("Convolution", {"padding": (1, 2)}, {"padding": [[1, 1], np.array([2, 2])]}),
        ("Convolution", {"padding": ((1, 2), 0)}, {"padding": [(1, 2), (0, 0)]}),
        ("Convolution", {"stride": [2, 1], "groups": np.int64(2)}, {"stride": np.array([2, 1]), "groups": 2}),
        ("Convolution", {"compute_dtype": "float32"}, {"compute_dtype": np.float32}),
        ("Convolution", {"compute_dtype": "half"}, {"compute_dtype": np.dtype("float16")}),
        ("ConvolutionTranspose", {"stride": 2, "output_padding": (1, 0)}, {"stride": 2, "output_padding": [1, 0]}),
        ("FusedConvolution", {"padding": ((1, 1), (0, 2))}, {"padding": [1, (0, 2)]}),
        (
            "Pooling",
            {"mode": "average_inc_pad", "window": [3, 3]},
            {"mode": "average_include_padding", "window": (3, 3)},
        ),
        ("Activation", {"coefficient": 1}, {"coefficient": 1.0}),
    ],
)
def test_what_means_the_same_is_equal(package: Any, name: str, one: Any, other: Any) -> None:
    kind = getattr(package, name)
    assert kind(**one) == kind(**other)
    assert hash(kind(**one)) == hash(kind(**other))
    assert repr(kind(**one)) == repr(kind(**other))


@pytest.mark.parametrize("package", [cudnnpy, reference], ids=["device", "reference"])
@pytest.mark.parametrize(("name", "options"), EACH)
def test_replace_gives_the_object_with_other_options(package: Any, name: str, options: Any) -> None:
    kind = getattr(package, name)
    for other in OBJECTS[name]:
        given = {**{option: getattr(kind(), option) for option in options}, **other}
        assert dataclasses.replace(kind(**options), **given) == kind(**other)
    with pytest.raises((TypeError, ValueError), match=" must "):
        dataclasses.replace(kind(**options), **{next(iter(kind.__match_args__), "padding"): object()})


@pytest.mark.parametrize("package", [cudnnpy, reference], ids=["device", "reference"])
@pytest.mark.parametrize(("name", "options"), EACH)
def test_a_users_subclass_is_made_copied_and_compared_as_its_base_is(package: Any, name: str, options: Any) -> None:
    kind = getattr(package, name)
    plain = type("Plain", (kind,), {"forward_twice": lambda self, x: x})
    more = dataclass(frozen=True, kw_only=True)(type("More", (kind,), {"__annotations__": {"title": str}, "title": ""}))
    for derived in (plain, more):
        one = derived(**options)
        assert one == derived(**options) != derived(**OBJECTS[name][options == {}])
        assert one != kind(**options)
        assert type(copy.deepcopy(one)) is derived
        assert dataclasses.replace(one) == one
        with pytest.raises(FrozenInstanceError):
            setattr(one, next(iter(kind.__dataclass_fields__)), 1)
    assert more(title="a", **options) != more(title="b", **options)
    assert "title='a'" in repr(more(title="a", **options)) or name.startswith("Convolution")


class Checked(cudnnpy.Convolution):
    """A subclass whose options have one more condition."""

    def _canonical(self) -> dict[str, Any]:
        found = super()._canonical()
        if found["groups"] > 2:
            raise ValueError(f"groups must be 1 or 2; got {self.groups}")
        return found


def test_a_users_subclass_runs_and_may_check_more(stand_in: StandInDevice) -> None:
    assert Checked(padding=1).forward(Array(2, 4, 6, 6), Array(8, 4, 3, 3)).shape == (2, 8, 6, 6)
    assert pickle.loads(pickle.dumps(Checked(groups=2))) == Checked(groups=2)
    with pytest.raises(ValueError, match="groups must be 1 or 2; got 4"):
        Checked(groups=4)


def test_engines_are_options_too() -> None:
    one = Engine(7, {3: 1, 1: 5})
    assert one == Engine(7, [(1, 5), (3, 1)]) == pickle.loads(pickle.dumps(one)) == dataclasses.replace(one)
    assert {one, Engine(7)} == {Engine(7), one}
    assert dataclasses.replace(one, index=8) == Engine(8, {1: 5, 3: 1})
    with pytest.raises(FrozenInstanceError):
        one.index = 8  # type: ignore[misc]
    with pytest.raises(TypeError, match="positional"):
        Engine(7, None, True)  # type: ignore[misc]


# What is written down beside the C API is as the C API has it


@pytest.mark.parametrize("name", ["Convolution", "ConvolutionTranspose", "FusedConvolution", "Graph"])
def test_the_options_of_planning_have_the_same_defaults_everywhere(name: str) -> None:
    parameters = inspect.signature(getattr(cudnnpy, name)).parameters
    for option in fields(PreferenceOptions):
        assert parameters[option.name].default == option.default
