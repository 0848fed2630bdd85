"""A ranking model that prefers one engine with its default knobs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cudnnpy.tuning.ranking.model import FORMAT, NUMBERS, WEIGHT_BITS, file_name

ONE = 1 << WEIGHT_BITS


def arrays(key: tuple[str, str], engine: int, features: int) -> dict[str, np.ndarray]:
    """The arrays of a model: the engine takes 0.61 of the fastest one's time by them, all others 1.65."""
    found = {
        "format": np.array(FORMAT),
        "key": np.array(key),
        "tokens": np.array([(0, engine, 0, 0)], np.int32),
        "engines": np.array([], np.int32),
        "others": np.array([(kind, engine) for kind in range(9)], np.int32),
        "mean": np.zeros(features, np.float32),
        "scale": np.ones(features, np.float32),
        "vectors": np.array([[ONE]], np.int16),
        "problem": np.zeros((features, 1), np.int16),
        "candidate": np.zeros((1 + NUMBERS, 1), np.int16),
        "second": np.zeros((1, 1), np.int16),
        "third": np.full((1, 1), ONE, np.int16),
        "last": np.full((1, 1), -ONE, np.int16),
        **{f"{name} bias": np.zeros(1, np.int16) for name in ("problem", "second", "third")},
        "last bias": np.full(1, ONE // 2, np.int16),
    }
    found["candidate"][0] = ONE
    return found


def write(folder: Path, key: tuple[str, str], engine: int, features: int) -> Path:
    """Write the file of a model."""
    file = folder / file_name(*key)
    with file.open("wb") as stream:
        np.savez_compressed(stream, **arrays(key, engine, features))
    return file
