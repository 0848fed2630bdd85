"""Base class of the operations on device arrays."""

from __future__ import annotations

from cudnnpy._core.cache_token import TokenizedOptions
from cudnnpy._launch import dispatch


class DeviceOperation(TokenizedOptions):
    """An operation whose implementations plan a call.

    They take a dispatch.Call and the arguments of the method, and return a Program and the specs of the results.
    """

    _run = staticmethod(dispatch.run)
