"""The three rooms of the package, with their packages and modules. Each imports only from those before it."""

from __future__ import annotations

ROOMS = {
    "the binding": [
        "_version",
        "_enumerator_names",
        "typing",
        "_checks",
        "_process",
        "errors",
        "raw",
        "names",
        "_core",
        "handle",
        "_arrays",
        "workspace",
        "descriptors",
        "backend",
    ],
    "the layer": ["_launch", "_planning", "_convolution", "graph", "_layers", "reference", "availability"],
    "the extras": ["tuning", "store", "torch", "cli", "__main__"],
}


def path_of(name: str) -> str:
    """Return the file or folder of a package or module below cudnnpy/."""
    from pathlib import Path

    package = Path(__file__).resolve().parents[2] / "cudnnpy"
    return name if (package / name).is_dir() else f"{name}.py"
