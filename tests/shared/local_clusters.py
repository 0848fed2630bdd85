"""Clusters of processes on this machine, for the tests of `cudnnpy tune --dask`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent


@contextmanager
def local_cluster(
    *arguments: str, environment: Mapping[str, str] = os.environ
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address of a scheduler, and its process, which ends with its workers at the end of the block."""
    paths = [str(HERE.parents[1]), str(HERE), environment.get("PYTHONPATH", "")]
    with subprocess.Popen(
        [sys.executable, str(HERE / "cluster_child.py"), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            yield address, process
        finally:
            assert process.stdin is not None
            process.stdin.close()
