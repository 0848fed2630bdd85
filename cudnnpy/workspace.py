"""The public names about workspace: set_allocator, release_workspace (of _arrays/workspace.py)."""

from cudnnpy._arrays.workspace import Allocator, release_workspace, set_allocator
from cudnnpy._checks.public_dir import complete_module

__all__ = ["Allocator", "release_workspace", "set_allocator"]

complete_module(globals())
