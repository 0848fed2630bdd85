"""Base class of the operations on device arrays."""

from __future__ import annotations

from typing import Any

from cudnnpy._core.cache_token import CacheToken, cache_token
from cudnnpy._launch import dispatch
from cudnnpy._options.base import Options


class DeviceOperation(Options):
    """An operation whose implementations plan a call.

    They take a dispatch.Call and the arguments of the method, and return a Program or Plan and the specs of the results.
    Objects of one class with equal options share a cache token, and so they share plans.
    """

    _token: CacheToken
    _run = staticmethod(dispatch.run)

    def _derived(self) -> dict[str, Any]:
        return {"_token": cache_token(type(self), *self._fields().values())}
