"""The stand-in for libcudnn: calls into C meet it, and the real library again afterwards."""

from __future__ import annotations

from ctypes import byref
from typing import Any

import pytest
from stand_in_library import RELEASE, LibcudnnFixture, stand_in_library

from cudnnpy import raw
from cudnnpy.errors import StatusError


def test_whatever_crosses_into_c_meets_it() -> None:
    pointer = byref(raw.cudnnHandle_t())
    with stand_in_library() as library:
        raw.call("cudnnCreate", pointer)
        assert raw.bound("cudnnGetVersion")() == 0
        assert raw.unchecked("cudnnSetStream")(1, 2) == 0
        assert raw.version() == RELEASE
    assert library.names == ["cudnnCreate", "cudnnGetVersion", "cudnnSetStream"]
    assert raw.bound("cudnnGetVersion")() == raw.version()


def test_its_statuses_are_errors() -> None:
    with stand_in_library(lambda name, *_: 4000 if name == "cudnnCreate" else None), pytest.raises(StatusError):
        raw.call("cudnnCreate", byref(raw.cudnnHandle_t()))


def test_what_it_does_not_answer_the_real_library_does(libcudnn: LibcudnnFixture) -> None:
    version = raw.version()
    asked: list[Any] = []
    library = libcudnn(lambda name, *arguments: asked.extend(arguments), real=True)
    assert (raw.bound("cudnnGetVersion")(), raw.version()) == (version, version)
    assert (library.names, asked) == (["cudnnGetVersion"], [])


def test_null_is_refused_before_it() -> None:
    with stand_in_library() as library, pytest.raises(TypeError, match="cudnnCreate: handle must be"):
        raw.call("cudnnCreate", None)
    assert library.names == []
