"""Patterns for the messages of errors, whose one form is `{name} must be {expected}; got {given}`."""

from __future__ import annotations

import re


def says(text: str) -> str:
    """A regular expression for `text`, in which `...` stands for any text."""
    return ".*".join(map(re.escape, text.split("...")))
