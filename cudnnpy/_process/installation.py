"""The pip commands in error messages, which depend on how this package was installed."""

from __future__ import annotations

import os

from cudnnpy._process.module_state import process_cache

NAME = "cudnnpy"


def to_install() -> str:
    """Return the command that installs cuDNN and its dependencies, for the ends of messages."""
    return f"pip install {with_extra('cu12')} (for a driver of CUDA 12; with cu13 in place of cu12 for CUDA 13)"


@process_cache
def with_extra(extra: str) -> str:
    """Return the argument of `pip install` that installs this package, from where it was installed, with an extra.

    It is quoted for a shell. A clone: -e '/home/me/cudnnpy[cu12]'. A wheel, an archive or a repository:
    'cudnnpy[cu12] @ file:///...'. From a package index: 'cudnnpy[cu12]'.
    """
    import shlex

    tree = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if os.path.isfile(os.path.join(tree, "pyproject.toml")):
        return f"-e {shlex.quote(f'{tree}[{extra}]')}"
    origin = _origin()
    return shlex.quote(f"{NAME}[{extra}] @ {origin}" if origin else f"{NAME}[{extra}]")


def _origin() -> str | None:
    """Return the URL that this package was installed from; None if pip was only passed a name, or nothing is known."""
    import json
    from importlib import metadata

    try:
        text = metadata.distribution(NAME).read_text("direct_url.json")
        record = json.loads(text or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        return None
    url: str | None = record.get("url")
    repository = record.get("vcs_info")
    if url and repository:
        return f"{repository['vcs']}+{url}@{repository['commit_id']}"
    return url
