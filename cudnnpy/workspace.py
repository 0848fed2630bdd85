"""Workspace: the device memory that operations use while they run and forget afterwards."""

from cudnnpy._memory.workspace import Allocator, release_workspace, set_allocator

__all__ = ["Allocator", "release_workspace", "set_allocator"]
