"""The public names about workspace: set_allocator, release_workspace (of _arrays/workspace.py)."""

from cudnnpy._arrays.workspace import Allocator, release_workspace, set_allocator

__all__ = ["Allocator", "release_workspace", "set_allocator"]


def __dir__() -> list[str]:
    return sorted(__all__)
