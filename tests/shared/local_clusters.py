"""Clusters of processes on this machine, for the tests of `cudnnpy tune --dask`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cudnnpy.cli.tune.cluster_workers import ClusterError
from cudnnpy.cli.tune.dask_cluster import DaskCluster

HERE = Path(__file__).resolve().parent


@contextmanager
def local_cluster(
    *arguments: str, environment: Mapping[str, str] = os.environ
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    paths = [str(HERE.parents[1]), str(HERE), str(HERE.parent / "shared"), environment.get("PYTHONPATH", "")]
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


def ready(scheduler: str, work: Any, gpus: int = 2, workers: int = 2) -> DaskCluster:
    """A Cluster of so many GPUs and workers, when others have taken the places of those that the test before ended."""
    notes: list[str] = []
    for _ in range(600):
        try:
            found = DaskCluster(scheduler, work)
            if (len(found.devices), len(found.notes)) == (gpus, workers):  # each worker has a note
                return found
            notes = found.notes
            found.close()
        except ClusterError as error:
            notes = [str(error)]
        Path(work.folder, "odd").unlink(missing_ok=True)
        time.sleep(0.1)
    raise AssertionError(f"the cluster must have {gpus} GPUs and {workers} workers; got {notes}")
