"""Workspace: device memory that an operation uses while it runs."""

from cudnnpy._memory.workspace import Allocator, release_workspace, set_allocator

__all__ = ["Allocator", "release_workspace", "set_allocator"]
