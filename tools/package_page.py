"""README.md for a package page, which has none of the files that its links lead to: a hook of the build, hatchling's.

A link to a file becomes one below the project's repository, once pyproject.toml names that ([project.urls], Repository);
without one it becomes the text and the file's name in the source distribution, and pictures are left out. Links to
sections and to other sites stay.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_PICTURE_TABLE = re.compile(r"^\|[^\n]*\|\n\| ?-[^\n]*\|\n(?:\|[^\n]*!\[[^\n]*\|\n)+\n?", re.M)


def page(readme: str, repository: str | None = None) -> str:
    """Return the text of README.md with no link that leads nowhere from a package page."""
    if repository is None:
        readme = _PICTURE_TABLE.sub("", readme)

    def replaced(link: re.Match[str]) -> str:
        picture, text, target = link.groups()
        if re.match(r"[a-z]+:|#", target):
            return link[0]
        if repository is not None:
            return f"{picture}[{text}]({repository.rstrip('/')}/blob/HEAD/{target})"
        if picture:
            return ""
        return text if text.endswith(target.rpartition("/")[2]) else f"{text} ({target})"

    return _LINK.sub(replaced, readme)


class CustomMetadataHook(MetadataHookInterface):  # type: ignore[misc]
    """Gives the package its description."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the readme of the project's metadata."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository = metadata.get("urls", {}).get("Repository")
        metadata["readme"] = {"content-type": "text/markdown", "text": page(text, repository)}
