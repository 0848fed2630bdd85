"""Workspace: device memory that an operation uses while it runs."""

from cudnnpy._arrays.workspace import Allocator, release_workspace, set_allocator

__all__ = ["Allocator", "release_workspace", "set_allocator"]


def __dir__() -> list[str]:
    return sorted(__all__)
