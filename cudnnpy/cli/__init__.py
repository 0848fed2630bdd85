"""The command `cudnnpy`."""

from cudnnpy.cli.command import main

__all__ = ["main"]
